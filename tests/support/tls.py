"""Both ends of TLS on localhost: contexts that trust each other, and the server's certificate."""

from __future__ import annotations

import functools
import ssl
from pathlib import Path

import trustme


@functools.cache
def _authority() -> trustme.CA:
    return trustme.CA()


@functools.cache
def _certificate() -> trustme.LeafCert:
    return _authority().issue_cert("localhost", "127.0.0.1")


def server_context() -> ssl.SSLContext:
    """Return a new context with the server's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _certificate().configure_cert(context)
    return context


def client_context(*protocols: str) -> ssl.SSLContext:
    """Return a new context that trusts the server.

    :param protocols: for ALPN.
    """
    context = ssl.create_default_context()
    _authority().configure_trust(context)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def write_certificate(path: Path) -> str:
    """Write the server's certificate and key into one file. Return its name."""
    _certificate().private_key_and_cert_chain_pem.write_to_path(path)
    return str(path)

"""Make the environ of a request, and the socket object in it.

The environ has the same keys and values as gunicorn's. A template contains the values that all
requests of a listener share, and each request copies the template. The parser has already decided
which request headers are accepted, so this module does not check headers.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote_to_bytes

from ..errors import MalformedRequest
from ..server.endpoint import Endpoint
from ..server.receiving import Exchange

_PROTOCOLS = {(1, 0): "HTTP/1.0", (1, 1): "HTTP/1.1"}
_DEFAULT_PORTS = {"http": "80", "https": "443"}
# These keys are set for each request. The template contains them, so that their order is fixed.
_PER_REQUEST_KEYS = (
    "gunicorn.socket", "wsgi.input", "wsgi.url_scheme", "REQUEST_METHOD", "SCRIPT_NAME",
    "PATH_INFO", "QUERY_STRING", "RAW_URI", "SERVER_PROTOCOL",
)  # fmt: skip
# Attributes that an app may use without taking over the client's socket.
_HARMLESS = frozenset(
    {
        "cipher", "family", "getpeercert", "getpeername", "getsockname", "getsockopt",
        "gettimeout", "proto", "selected_alpn_protocol", "setsockopt", "type", "version",
    }
)  # fmt: skip


class EnvironFactory:
    """Makes the environs of one worker.

    :param worker_environ: the values that all environs share.
    """

    def __init__(self, worker_environ: dict[str, Any]) -> None:
        self._script_name = os.environ.get("SCRIPT_NAME", "")
        self._worker_environ = {
            "wsgi.version": (1, 0),
            "wsgi.multithread": True,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
            **worker_environ,
        }
        self._templates: dict[Any, dict[str, Any]] = {}  # by the address of the listener

    def make(
        self, exchange: Exchange, connection: Endpoint, *, check: bool = True
    ) -> dict[str, Any]:
        """Make the environ of a request.

        For a Unix socket, SERVER_NAME and SERVER_PORT are those of the Host header.

        :param check: False to accept any path. The log of a refused request needs this.
        :raises MalformedRequest: if the path does not start with SCRIPT_NAME.
        """
        req = exchange.req
        fields = exchange.fields
        version = req.version
        path = req.path
        script_name = exchange.script_name
        if script_name is None:
            script_name = self._script_name
        if script_name:
            if path.startswith(script_name):
                path = path[len(script_name) :]
            elif check:
                raise MalformedRequest(
                    f"Request path {path!r} does not start with SCRIPT_NAME {script_name!r}"
                )
        if "%" in path or not path.isascii():
            path = decoded_path(path)
        address, peer = connection.address, connection.peer
        template = self._templates.get(address)
        if template is None:
            template = self._templates[address] = self._make_template(address)
        sock = connection.app_socket
        if sock is None:
            sock = connection.app_socket = AppSocket(connection)
        environ = template.copy()
        environ["gunicorn.socket"] = sock
        environ["wsgi.input"] = req.body
        environ["wsgi.url_scheme"] = req.scheme
        environ["REQUEST_METHOD"] = req.method
        environ["SCRIPT_NAME"] = script_name
        environ["PATH_INFO"] = path
        environ["QUERY_STRING"] = req.query
        environ["RAW_URI"] = req.uri
        environ["SERVER_PROTOCOL"] = _PROTOCOLS.get(version) or f"HTTP/{version[0]}.{version[1]}"
        if isinstance(peer, tuple):
            environ["REMOTE_ADDR"] = peer[0]
            environ["REMOTE_PORT"] = str(peer[1])
        else:  # a Unix socket: `peer` is bytes if it is an abstract name
            environ["REMOTE_ADDR"] = os.fsdecode(peer)
        if exchange.proxy is not None:
            connection.proxy = exchange.proxy
        if connection.proxy is not None:
            environ.update(connection.proxy)
        environ |= fields
        if "SERVER_NAME" not in environ:
            host = fields.get("HTTP_HOST")
            # An IPv6 address in brackets contains colons (RFC 3986 section 3.2.2).
            ipv6, bracket, remaining = (host or "").rpartition("]")
            name, _, port = remaining.partition(":")
            name = ipv6 + bracket + name
            if not port and host is not None:
                port = _DEFAULT_PORTS.get(req.scheme, "")
            environ["SERVER_NAME"] = name
            environ["SERVER_PORT"] = port
        return environ

    def _make_template(self, address: Any) -> dict[str, Any]:
        """Make the template for the requests of a listener."""
        environ = {**self._worker_environ, **dict.fromkeys(_PER_REQUEST_KEYS)}
        if isinstance(address, tuple):
            environ["SERVER_NAME"] = address[0]
            environ["SERVER_PORT"] = str(address[1])
        return environ


def decoded_path(path: str) -> str:
    """Return the value of PATH_INFO for the path of a request."""
    return unquote_to_bytes(path).decode("latin-1")


class AppSocket:
    """The client's socket, for apps that take over the connection.

    An app may read addresses, the certificate and socket options, and may set options. Any other
    use takes the connection over: the socket becomes blocking, and FastWorker sends no more HTTP on
    it. The connection is closed when the app returns.
    """

    __slots__ = ("__weakref__", "_accepted", "_sock")

    def __init__(self, accepted: Endpoint) -> None:
        self._sock = accepted.sock
        self._accepted = accepted

    @property
    def peer(self) -> Any:
        """The address of the connected peer, which may be a proxy."""
        return self._accepted.peer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _HARMLESS:
            return getattr(self._sock, name)
        if not hasattr(self._sock, name):
            raise AttributeError(f"a socket has no attribute {name!r}")
        return getattr(self._accepted.hijack(), name)

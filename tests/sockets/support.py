"""Connected sockets of every kind."""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.tls import client_context, server_context
from wsgifast.sockets import recv_exactly

__all__ = [
    "TIMEOUT_S", "Pair", "receiving", "sending", "tcp_pair", "tls_contexts", "tls_pair",
    "unix_pair",
]  # fmt: skip

# A test that waits for longer hangs.
TIMEOUT_S = 60.0


class Pair(NamedTuple):
    """Both ends of one connection, blocking; the sender has a timeout, so that no test hangs."""

    near: socket.socket
    far: socket.socket


@contextlib.contextmanager
def tcp_pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), TIMEOUT_S)
        far, _ = listener.accept()
    far.settimeout(None)
    with near, far:
        yield Pair(near, far)


@contextlib.contextmanager
def unix_pair() -> Iterator[Pair]:
    near, far = socket.socketpair(socket.AF_UNIX)
    near.settimeout(TIMEOUT_S)
    with near, far:
        yield Pair(near, far)


@contextlib.contextmanager
def tls_pair() -> Iterator[Pair]:
    """TLS over TCP; `near` is the server."""
    server_side, client_side = tls_contexts()
    with tcp_pair() as pair:
        shaken: list[socket.socket] = []

        def shake() -> None:
            shaken.append(server_side.wrap_socket(pair.near, server_side=True))

        thread = threading.Thread(target=shake)
        thread.start()
        far = client_side.wrap_socket(pair.far, server_hostname="localhost")
        thread.join()
        (near,) = shaken
        with near, far:
            yield Pair(near, far)


@contextlib.contextmanager
def sending(sock: socket.socket, *parts: bytes) -> Iterator[None]:
    """Send from another thread, part after part."""

    def send() -> None:
        for part in parts:
            sock.sendall(part)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextlib.contextmanager
def receiving(sock: socket.socket, size: int) -> Iterator[list[bytes]]:
    """Receive so many bytes in another thread; they are in the list after the block."""
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(recv_exactly(sock, size)))
    thread.start()
    try:
        yield received
    finally:
        thread.join()


@functools.cache
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's side that trust each other."""
    return server_context(), client_context()

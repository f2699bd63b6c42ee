"""Connected sockets of every kind, and sockets and writers for tests of coalescing."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.support.tls import client_context, server_context
from wsgifast.sockets import CoalescingWriter, recv_exactly

# A test that waits longer than this has failed.
TIMEOUT_S = 60.0
NEVER_US = 1e6  # a window that does not end within a test
IOV_MAX = os.sysconf("SC_IOV_MAX")


class Pair(NamedTuple):
    """Return both ends of a blocking connection.

    The sender has a timeout, so that no test hangs.
    """

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
    """Return a connection with TLS over TCP. `near` is the server."""
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
    """Send the parts one by one from another thread."""

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
    """Receive this number of bytes in another thread. They are in the list after the block."""
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(recv_exactly(sock, size)))
    thread.start()
    try:
        yield received
    finally:
        thread.join()


@functools.cache
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a server and of a client that trust each other."""
    return server_context(), client_context()


class FakeSocket(socket.socket):
    """A socket that accepts a limited number of bytes a call, and records each call."""

    def __init__(self, takes: Sequence[int | Exception] = (1 << 40,)) -> None:
        super().__init__(socket.AF_UNIX)
        self.takes = itertools.chain(takes[:-1], itertools.repeat(takes[-1]))
        self.calls: list[bytes] = []

    def send(self, data: Any, flags: int = 0) -> int:
        taken = next(self.takes)
        if isinstance(taken, Exception):
            raise taken
        self.calls.append(memoryview(data).tobytes()[:taken])
        return len(self.calls[-1])

    def sendmsg(self, buffers: Any, *args: Any) -> int:
        assert isinstance(buffers, Sequence)
        assert len(buffers) <= IOV_MAX
        return self.send(b"".join(buffers))

    @property
    def sent(self) -> bytes:
        return b"".join(self.calls)


class Foreground(CoalescingWriter):
    """Switch the flusher off, so that the time of each send depends on the calls alone."""

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        super().__init__(sock, background=False, **options)


def run_python(code: str, *arguments: str) -> None:
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def arrived(sock: socket.socket) -> bytes:
    """Return the result of a receive at this moment."""
    with contextlib.suppress(BlockingIOError):
        return sock.recv(65_536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return b""

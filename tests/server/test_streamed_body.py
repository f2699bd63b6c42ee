"""A body that the app's thread reads from its client."""

from __future__ import annotations

import socket
import ssl
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.http.body import ChunkedReader

from wsgifast.server.request_body import Received
from wsgifast.server.streamed_body import DRAIN_BYTES, drain, receive_blocking


class Unread:
    """A body of which so many bytes are there at once, as from a client that is fast enough."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.failed = False

    def read(self, size: int) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return bytes(size)


@pytest.mark.parametrize(
    ("size", "kept"), [(0, True), (DRAIN_BYTES, True), (100 * DRAIN_BYTES, False)]
)
def test_no_client_holds_a_thread_with_a_body_that_nobody_wants(size: int, kept: bool) -> None:
    body = Unread(size)
    sock: Any = SimpleNamespace(recv=None)
    assert drain(body, Received(), sock) is kept
    assert size - body.left <= 2 * DRAIN_BYTES


def test_a_body_that_has_failed_is_not_drained() -> None:
    """What comes next may be anything: the connection must not be kept."""
    body = Unread(10)
    body.failed = True
    sock: Any = SimpleNamespace(recv=None)
    assert not drain(body, Received(), sock)
    assert body.left == 10


class Renegotiating:
    """A TLS socket that first has to send something of its own; nothing comes before it has."""

    def __init__(self, sock: socket.socket, peer: socket.socket) -> None:
        self._sock = sock
        self._peer = peer
        self.lock = threading.Lock()
        self.calls = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv(self, size: int) -> bytes:
        assert self.lock.locked()  # the output queue uses the same TLS object
        self.calls += 1
        if self.calls == 1:
            raise ssl.SSLWantWriteError
        self._peer.sendall(b"abc")
        return self._sock.recv(size)


def test_tls_that_wants_to_send_before_it_receives() -> None:
    sock, peer = socket.socketpair()
    with sock, peer:
        renegotiating: Any = Renegotiating(sock, peer)
        # Nothing can be read, and never would be: only writability wakes this up.
        assert receive_blocking(renegotiating, renegotiating.lock, 10, 30.0) == b"abc"
        assert renegotiating.calls == 2


class Counting:
    """A socket that counts how often it is asked."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.fileno = sock.fileno
        self.calls = 0
        self.size = 0

    def recv(self, size: int) -> bytes:
        self.calls += 1
        self.size = size
        return self._sock.recv(size)


def test_a_client_that_sends_nothing() -> None:
    sock, peer = socket.socketpair()
    with sock, peer:
        sock.setblocking(False)
        waiting: Any = Counting(sock)
        with pytest.raises(TimeoutError, match="not sent its body"):
            receive_blocking(waiting, threading.Lock(), 10, 0.05)
        assert waiting.calls <= 5  # it waits, instead of asking again and again
        peer.sendall(b"late")
        assert receive_blocking(waiting, threading.Lock(), 1 << 40, 30.0) == b"late"
        assert waiting.size < 1 << 20  # as much memory, whatever is promised
        peer.sendall(b"late")
        assert receive_blocking(sock, threading.Lock(), 10, 30.0) == b"late"
        peer.close()
        assert receive_blocking(sock, threading.Lock(), 10, 30.0) == b""


def test_a_chunked_body_that_nobody_wants_is_found_to_its_end() -> None:
    """gunicorn's reader of chunks asks for "whatever is there", not for a number of bytes."""
    sock, peer = socket.socketpair()
    with sock, peer:
        sock.setblocking(False)
        peer.sendall(b"5\r\n01234\r\n0\r\n\r\nGET /next")
        received = Received()
        request = SimpleNamespace(
            limit_request_field_size=8190,
            max_buffer_headers=65_536,
            parse_headers=lambda data, from_trailer: [data],
        )
        assert drain(ChunkedReader(request, received), received, sock)
        assert received.data == b"GET /next"

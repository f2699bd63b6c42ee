"""A request body that the app's thread reads from its client."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.calls import raising
from tests.workers.stepped_worker import Clock
from wsgifast.errors import BodyTooLarge, ClientGone, MalformedRequest, RequestError
from wsgifast.http.chunked import ChunkDecoder, LengthDecoder
from wsgifast.server import streamed_body
from wsgifast.server.streamed_body import StreamedBody, receive_blocking
from wsgifast.server_options import MIN_BYTES_PER_S
from wsgifast.sockets.client_limits import ClientWait
from wsgifast.sockets.closing import UNREAD_BODY_BYTES

NEXT = b"GET /next"
CHUNKS = b"5\r\n01234\r\n5\r\n56789\r\n0\r\nX: 1\r\n\r\n"
# A body of known length, or of chunks.
LENGTHS = pytest.mark.parametrize("length", [10, None])


class Ends:
    def __init__(self) -> None:
        self.near, self.client = socket.socketpair()
        self.near.setblocking(False)
        self.trailers: list[bytes] = []

    def body(self, length: int | None, data: bytes = b"", timeout_s: float = 30.0) -> StreamedBody:
        return StreamedBody(
            self.near,
            threading.Lock(),
            ChunkDecoder() if length is None else LengthDecoder(length),
            self.trailers.extend,
            data,
            ClientWait(timeout_s, MIN_BYTES_PER_S),
        )


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    with ends.near, ends.client:
        yield ends


@LENGTHS
@pytest.mark.parametrize("early", [0, 1, 7, 1000])
def test_streamed_body_is_read_to_its_end(ends: Ends, length: int | None, early: int) -> None:
    data = (CHUNKS if length is None else b"0123456789") + NEXT
    ends.client.sendall(data[early:])
    body = ends.body(length, data[:early])
    with io.BufferedReader(body) as stream:
        assert stream.readline() == b"0123456789"
        assert stream.read() == b""
        rest = body.skip()
    assert rest is not None
    try:
        rest += ends.near.recv(100)
    except BlockingIOError:
        pass
    assert rest == NEXT
    assert ends.trailers == ([b"X: 1"] if length is None else [])


@LENGTHS
def test_rest_that_app_has_not_read_is_skipped(ends: Ends, length: int | None) -> None:
    data = CHUNKS + NEXT if length is None else b"0123456789"
    ends.client.sendall(data[8:])
    body = ends.body(length, data[:8])
    assert body.read(1) == b"0"
    assert body.skip() == (NEXT if length is None else b"")
    with pytest.raises(ValueError, match="this request is over"):
        body.read(1)


@pytest.mark.parametrize("there", [0, 5])
@LENGTHS
def test_rest_of_a_body_is_skipped_later(ends: Ends, length: int | None, there: int) -> None:
    data = CHUNKS + NEXT if length is None else b"0123456789"
    ends.client.sendall(data[:there])
    body = ends.body(length)
    assert body.skip() is None
    assert body.failure is None
    ends.client.sendall(data[there:])
    assert body.skip() == (NEXT if length is None else b"")


@pytest.mark.parametrize("length", [UNREAD_BODY_BYTES, None])
def test_rest_of_a_body_in_parts_is_limited(ends: Ends, length: int | None) -> None:
    body = ends.body(length)
    part = bytes(65_536) if length else b"1\r\nx\r\n" * 10_000
    sent = 0
    while body.failure is None and sent < UNREAD_BODY_BYTES:
        ends.client.sendall(part)
        sent += len(part)
        over = body.skip()
    if length:
        assert over == b""
    else:
        assert isinstance(body.failure, BodyTooLarge)


def test_endless_rest_is_not_received(ends: Ends) -> None:
    received = 0

    def recv(size: int) -> bytes:
        nonlocal received
        received += size
        return bytes(size)

    endless: Any = SimpleNamespace(recv=recv)
    body = ends.body(100 * UNREAD_BODY_BYTES)
    body._sock = endless
    assert body.skip() is None
    assert isinstance(body.failure, BodyTooLarge)
    assert not received
    body = ends.body(UNREAD_BODY_BYTES)
    body._sock = endless
    assert body.skip() == b""


def refuse_trailers(lines: Sequence[bytes]) -> None:
    raise LookupError(lines)


@pytest.mark.parametrize(
    ("length", "data", "error"),
    [
        (10, b"5\r\n0123", ClientGone),
        (None, b"5\r\n0123", ClientGone),
        (None, b"1\r\nab\r\n", MalformedRequest),
        (None, CHUNKS, LookupError),
    ],
    ids=["cut off", "cut off in a chunk", "malformed", "trailers refused"],
)
def test_streamed_body_without_its_end_is_an_error(
    ends: Ends, length: int | None, data: bytes, error: type[Exception]
) -> None:
    ends.client.sendall(data)
    ends.client.close()
    body = ends.body(length)
    body._add_trailers = refuse_trailers
    with pytest.raises(error):
        io.BufferedReader(body).read()
    with pytest.raises(error):  # and not an end of the body, either
        body.read(1)
    assert isinstance(body.failure, error)
    assert body.skip() is None


@pytest.mark.parametrize(("rate", "ends_early"), [(450, True), (600, False)])
def test_streamed_body_must_keep_up_a_rate(
    ends: Ends, clock: Clock, rate: int, ends_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 bytes earn one second, in addition to the time of every body.

    The app may take any time.
    """
    limits: list[float] = []

    def receive(sock: Any, lock: Any, size: int, deadline: float) -> bytes:
        limits.append(deadline - clock.now)
        if limits[-1] < 10:
            raise RequestError(408, "too slow")
        clock.now += 10
        return bytes(rate * 10)

    monkeypatch.setattr(streamed_body, "receive_blocking", receive)
    body = ends.body(rate * 1000)
    with contextlib.suppress(RequestError):
        for _ in range(100):
            body.read(rate * 10)
            clock.now += 1000
    assert isinstance(body.failure, RequestError) is ends_early
    assert (len(limits) < 100) is ends_early
    if ends_early:
        # 30 s, and in addition the time that the received bytes have earned
        assert 20 < len(limits) < 40
    assert all(limit <= 30 for limit in limits)
    assert all(b <= a + 2.1 for a, b in itertools.pairwise(limits))


class Renegotiating:
    """A TLS socket that has to send TLS's own data first. It receives nothing before that."""

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


def test_tls_that_must_send_first_is_waited_for(ends: Ends) -> None:
    renegotiating: Any = Renegotiating(ends.near, ends.client)
    # No data can be read before the socket is writable, and only a wait for that ends.
    assert receive_blocking(renegotiating, renegotiating.lock, 10, math.inf) == b"abc"
    assert renegotiating.calls == 2


def receive(sock: Any, timeout_s: float = 30.0) -> bytes:
    return receive_blocking(sock, threading.Lock(), 10, time.monotonic() + timeout_s)


def test_silent_client_is_waited_for_without_a_loop(ends: Ends) -> None:
    calls = 0

    def recv(size: int) -> bytes:
        nonlocal calls
        calls += 1
        return ends.near.recv(size)

    with pytest.raises(RequestError, match="did not arrive in time") as caught:
        receive(SimpleNamespace(recv=recv, fileno=ends.near.fileno), 0.05)
    assert caught.value.status == 408
    assert calls <= 5
    ends.client.sendall(b"late")
    assert receive(ends.near) == b"late"
    timer = threading.Timer(0.05, ends.client.sendall, [b"later"])
    timer.start()
    assert receive(ends.near, math.inf) == b"later"  # the bytes end the wait, not the timeout
    timer.join()
    ends.client.close()
    assert receive(ends.near) == b""


def test_lost_connection_is_client_gone() -> None:
    with pytest.raises(ClientGone, match="lost"):
        receive(SimpleNamespace(recv=raising(ConnectionResetError, "lost")))


def test_receives_are_limited_in_size(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def receive(sock: Any, lock: Any, size: int, deadline: float) -> bytes:
        sizes.append(size)
        return b"x"

    monkeypatch.setattr(streamed_body, "receive_blocking", receive)
    body = ends.body(1 << 50)
    buffer = bytearray(1 << 21)
    assert body.readinto(buffer) == 1
    assert body.readinto(buffer[:1]) == 1
    assert sizes == [256 * 1024, 16 * 1024]
    assert ends.body(5).read(100) == b"x"
    assert sizes[2:] == [5]  # never a byte of the next request


@pytest.mark.parametrize("timeout_s", [1e300, float("inf")])
def test_endless_timeout_of_streamed_body_is_accepted(ends: Ends, timeout_s: float) -> None:
    """poll(2) accepts no timeout as long as that."""
    sender = threading.Timer(0.05, ends.client.sendall, [b"0123456789"])
    sender.start()
    with io.BufferedReader(ends.body(10, timeout_s=timeout_s)) as stream:
        assert stream.read() == b"0123456789"
    sender.join()

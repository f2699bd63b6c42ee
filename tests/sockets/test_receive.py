"""recv_exactly and similar functions: every kind of socket, and every end of a receive."""

from __future__ import annotations

import array
import contextlib
import math
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.sockets.support import (
    TIMEOUT_S,
    Pair,
    run_python,
    sending,
    tcp_pair,
    tls_pair,
    unix_pair,
)
from tests.support.calls import raising
from tests.support.http import reset_on_close
from tests.support.servers import wait_for
from wsgifast.sockets import (
    ClosedEarly,
    ReceiveCount,
    ReceiveTimedOut,
    SocketInUse,
    recv_exactly,
    recv_exactly_into,
)
from wsgifast.sockets import receive as receive_module

DATA = bytes(range(256)) * 4096  # 1 MiB: larger than the initial size of a socket's buffer


@pytest.fixture(params=["tcp", "unix", "tls", "tcp with timeout", "tls with timeout"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The two ends of a connection: the test sends on `near` and receives on `far`."""
    kind, _, timeout = request.param.partition(" with ")
    make = {"tcp": tcp_pair, "unix": unix_pair, "tls": tls_pair}[kind]
    with make() as made:
        if timeout:
            made.far.settimeout(20)
        yield made


def reset(sock: socket.socket) -> None:
    """Close with a reset."""
    reset_on_close(sock)
    sock.close()


def test_receive_takes_exactly_its_size(pair: Pair) -> None:
    with sending(pair.near, DATA, b"next"):
        assert recv_exactly(pair.far, len(DATA)) == DATA
        assert recv_exactly(pair.far, 4) == b"next"


def test_receive_into_a_buffer_fills_it(pair: Pair) -> None:
    buffer = bytearray(len(DATA) + 2)
    with sending(pair.near, DATA):
        recv_exactly_into(pair.far, memoryview(buffer)[1:-1])
    assert buffer == b"\0" + DATA + b"\0"


def test_early_close_raises_with_what_came(pair: Pair) -> None:
    pair.near.sendall(b"half")
    pair.near.close()
    with pytest.raises(ClosedEarly, match="after 4 of 10 bytes") as caught:
        recv_exactly(pair.far, 10)
    assert (caught.value.partial, caught.value.expected) == (b"half", 10)
    assert isinstance(caught.value, EOFError)


def test_early_close_leaves_what_came_in_the_buffer(pair: Pair) -> None:
    pair.near.sendall(b"half")
    pair.near.close()
    buffer = bytearray(10)
    with pytest.raises(ClosedEarly) as caught:
        recv_exactly_into(pair.far, buffer)
    assert bytes(caught.value.partial) == b"half"
    assert buffer == b"half" + bytes(6)


def test_time_limit_is_for_the_whole_receive(pair: Pair) -> None:
    """A peer that sends a byte now and then does not extend the limit."""
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.02):
            pair.near.sendall(b"x")

    thread = threading.Thread(target=trickle)
    own = pair.far.gettimeout()
    pair.near.sendall(b"x")
    thread.start()
    try:
        with pytest.raises(ReceiveTimedOut) as caught:
            recv_exactly(pair.far, 1_000_000, timeout=0.3)
    finally:
        stop.set()
        thread.join()
    assert 0 < len(caught.value.partial) < 1000
    assert set(caught.value.partial) == set(b"x")
    assert isinstance(caught.value, TimeoutError)
    assert pair.far.gettimeout() == own


@pytest.mark.parametrize("own", [None, 60.0])
def test_time_limit_holds_if_another_process_receives(
    own: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tcp_pair() as pair:

        class Robbed:
            def __init__(self) -> None:
                self._poll = select.poll()
                self.register = self._poll.register

            def poll(self, timeout: float) -> bool:
                return bool(self._poll.poll(timeout)) and bool(pair.far.recv(1))

        fake = SimpleNamespace(poll=Robbed, POLLIN=select.POLLIN)
        monkeypatch.setattr(receive_module, "select", fake)
        pair.far.settimeout(own)
        pair.near.sendall(b"x")
        with pytest.raises(ReceiveTimedOut):
            recv_exactly(pair.far, 1, timeout=0.1)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_receive_of_small_sizes_returns_them(pair: Pair, size: int) -> None:
    pair.near.sendall(b"abcd")
    assert recv_exactly(pair.far, size) == b"abcd"[:size]


def test_negative_size_is_refused() -> None:
    with tcp_pair() as pair, pytest.raises(ValueError, match="-1"):
        recv_exactly(pair.far, -1)


def test_receive_of_size_0_makes_no_call() -> None:
    """With size 0, a receive does not even notice that the connection has ended."""
    count = ReceiveCount()
    with tcp_pair() as pair:
        pair.near.close()
        assert recv_exactly(pair.far, 0, count=count) == b""
        recv_exactly_into(pair.far, bytearray(), count=count)
    assert count.calls == 0


@pytest.mark.parametrize("make", [tcp_pair, unix_pair])
@pytest.mark.parametrize("parts", [[DATA[:1000]] * 100, [DATA[:-1], DATA[-1:]]])
def test_receive_on_a_blocking_socket_takes_one_call(
    make: Callable[[], contextlib.AbstractContextManager[Pair]], parts: list[bytes]
) -> None:
    whole = b"".join(parts)
    count = ReceiveCount()
    with make() as pair, sending(pair.near, *parts, b"next"):
        assert recv_exactly(pair.far, len(whole), count=count) == whole
        assert recv_exactly(pair.far, 4) == b"next"
    assert (count.calls, count.received) == (1, len(whole))


@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_large_receive_that_ends_early_raises(end: Callable[[socket.socket], None]) -> None:
    """The kernel waits for all bytes, and the peer has left."""
    with tcp_pair() as pair:
        timer = threading.Timer(0.1, end, [pair.near])
        pair.near.sendall(b"half")
        timer.start()
        with pytest.raises(ClosedEarly) as caught:
            recv_exactly(pair.far, len(DATA))
        timer.join()
        assert end is reset or caught.value.partial == b"half"


def test_count_adds_up_and_includes_failed_receives() -> None:
    count = ReceiveCount()
    with tcp_pair() as pair:
        pair.near.sendall(b"abcdef")
        recv_exactly(pair.far, 2, count=count)
        pair.near.close()
        with pytest.raises(ClosedEarly):
            recv_exactly(pair.far, 100, count=count)
    assert (count.calls, count.received) == (3, 6)


def test_reset_connection_is_an_early_close() -> None:
    with tcp_pair() as pair:
        pair.near.sendall(b"half")
        assert recv_exactly(pair.far, 1) == b"h"
        reset(pair.near)
        with pytest.raises(ClosedEarly) as caught:
            recv_exactly(pair.far, 100)
    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_signal_does_not_end_the_receive() -> None:
    """At a signal, the kernel returns early from MSG_WAITALL.

    A second call requests the remaining bytes.
    """
    count = ReceiveCount()
    code = (
        "import os, signal, sys, time\n"
        "out = os.fdopen(int(sys.argv[1]), 'wb', 0)\n"
        "for part in (b'abc', b'def', b'ghi'):\n"
        "    out.write(part); time.sleep(0.1); os.kill(int(sys.argv[2]), signal.SIGUSR1)\n"
    )
    arrived: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: arrived.append(number))
    try:
        with tcp_pair() as pair:
            argv = [sys.executable, "-c", code, str(pair.near.fileno()), str(os.getpid())]
            with subprocess.Popen(argv, pass_fds=[pair.near.fileno()]) as process:
                assert recv_exactly(pair.far, 9, count=count) == b"abcdefghi"
                process.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert arrived
    assert count.calls >= 2


@pytest.mark.parametrize("size", [10, len(DATA)])
def test_error_in_a_signal_handler_is_raised(size: int) -> None:
    class Stop(Exception):
        pass

    count = ReceiveCount()
    before = signal.signal(signal.SIGALRM, raising(Stop))
    try:
        with tcp_pair() as pair:
            pair.near.sendall(b"abc")
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Stop):
                recv_exactly(pair.far, size, count=count)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count.calls == 1


def test_non_blocking_socket_without_limit_is_refused() -> None:
    with tcp_pair() as pair:
        pair.far.setblocking(False)
        with pytest.raises(ValueError, match="timeout"):
            recv_exactly(pair.far, 1)
        with sending(pair.near, DATA):
            assert recv_exactly(pair.far, len(DATA), timeout=20) == DATA


def test_receive_into_other_buffers_fills_them() -> None:
    numbers = array.array("I", [0, 0])
    with tcp_pair() as pair:
        pair.near.sendall(b"\1\0\0\0\2\0\0\0xx")
        recv_exactly_into(pair.far, numbers)
        assert numbers.tolist() == [1, 2]
        with pytest.raises((TypeError, BufferError)):
            recv_exactly_into(pair.far, b"xx")
        assert recv_exactly(pair.far, 2) == b"xx"


def test_buffer_after_an_error_can_be_resized() -> None:
    buffer = bytearray(10)
    with tcp_pair() as pair:
        pair.near.close()
        try:
            recv_exactly_into(pair.far, buffer)
        except ClosedEarly as error:
            error.partial.release()  # type: ignore[union-attr]
    buffer.append(1)  # BufferError while a view of it exists


def test_receive_of_more_than_two_gib_returns_them() -> None:
    """The kernel moves at most 2 GiB minus a page in one call, so there must be a second call.

    The buffer is never touched as a whole: a fake socket only says that it was filled.
    """

    class Sparse:
        sizes: ClassVar[list[int]] = []

        def fileno(self) -> int:
            return -1

        def gettimeout(self) -> None:
            return None

        def settimeout(self, value: float | None, /) -> None:
            raise AssertionError("no time limit was asked for")

        def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0, /) -> int:
            taken = min(len(buffer), 0x7FFFF000)
            buffer[taken - 1] = 7
            self.sizes.append(taken)
            return taken

    size = (5 << 30) + 1
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as buffer:
        recv_exactly_into(Sparse(), buffer)
        assert buffer[size - 1] == 7
    assert sum(Sparse.sizes) == size
    assert len(Sparse.sizes) == 3


def test_split_tls_records_are_received_whole() -> None:
    """A readable socket may contain half a TLS record.

    Waiting for the other half must not exceed the limit.
    """
    with tls_pair() as pair:
        pair.near.sendall(b"whole")
        assert recv_exactly(pair.far, 5, timeout=20) == b"whole"
        with pytest.raises(ReceiveTimedOut) as caught:
            recv_exactly(pair.far, 5, timeout=0.05)
        assert caught.value.partial == b""


GEVENT = """
{patch}
import gevent, gevent.socket as socket
from wsgifast.sockets import ReceiveTimedOut, recv_exactly
near, far = socket.socketpair()
turns = []
def other():
    while True:
        gevent.sleep(0.01)
        turns.append(1)
        if len(turns) == 5:
            near.sendall(b"abc")
greenlet = gevent.spawn(other)
assert recv_exactly(far, 3) == b"abc"
assert len(turns) >= 5, turns
far.settimeout(0.05)
try:
    recv_exactly(far, 3)
except ReceiveTimedOut as error:
    assert error.partial == b""
else:
    raise SystemExit("no time-out")
"""


@pytest.mark.parametrize("patch", ["", "import gevent.monkey; gevent.monkey.patch_all()"])
def test_receive_on_a_gevent_socket_lets_others_run(patch: str) -> None:
    run_python(GEVENT.format(patch=patch))


# Limits that mean no limit, and limits that no system call accepts as they are.
UNLIMITED = [math.inf, 1e300, 10**400, 2**31, 1e7]
WRONG_LIMITS = [math.nan, -1, -0.001, -math.inf, -(10**400), "5", b"5", True, [5]]


@pytest.mark.parametrize("timeout", UNLIMITED, ids=str)
@pytest.mark.parametrize("own", [None, 0.001, 0])
def test_receive_without_a_time_limit_waits(pair: Pair, own: float | None, timeout: float) -> None:
    pair.far.settimeout(own)
    results: list[bytes] = []

    def receive() -> None:
        results.append(recv_exactly(pair.far, 4, timeout=timeout))
        buffer = bytearray(4)
        recv_exactly_into(pair.far, buffer, timeout=timeout)
        results.append(bytes(buffer))

    thread = threading.Thread(target=receive)
    thread.start()
    wait_for(lambda: id(pair.far) in receive_module._receiving, "the receive has begun")
    pair.near.sendall(b"abcdef")
    wait_for(lambda: results, "the first part has come")
    pair.near.sendall(b"gh")
    thread.join(TIMEOUT_S)
    assert results == [b"abcd", b"efgh"]
    assert pair.far.gettimeout() == own


@pytest.mark.parametrize("timeout", WRONG_LIMITS, ids=repr)
def test_time_limit_that_cannot_be_is_named(pair: Pair, timeout: Any) -> None:
    pair.near.sendall(b"abcd")
    for call in (
        lambda: recv_exactly(pair.far, 4, timeout=timeout),
        lambda: recv_exactly_into(pair.far, bytearray(4), timeout=timeout),
    ):
        with pytest.raises(ValueError, match=r"timeout=.*: seconds from 0 on; math\.inf or None"):
            call()
    assert recv_exactly(pair.far, 4) == b"abcd"


def receive_bytes(sock: socket.socket, size: int, **options: Any) -> bytes:
    return recv_exactly(sock, size, **options)


def receive_into(sock: socket.socket, size: int, **options: Any) -> bytes:
    buffer = bytearray(size)
    recv_exactly_into(sock, buffer, **options)
    return bytes(buffer)


BLOCKING = [receive_bytes, receive_into]


@pytest.mark.parametrize("second", BLOCKING)
@pytest.mark.parametrize("first", BLOCKING)
@pytest.mark.parametrize("options", [{}, {"timeout": 60}, {"timeout": math.inf}], ids=str)
def test_second_receive_at_once_is_an_error(
    pair: Pair, first: Callable[..., bytes], second: Callable[..., bytes], options: dict[str, Any]
) -> None:
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(first(pair.far, 4, **options)))
    thread.start()
    wait_for(lambda: id(pair.far) in receive_module._receiving, "the receive has begun")
    pair.near.sendall(b"ab")
    for _ in range(2):
        with pytest.raises(SocketInUse, match="another receive uses this socket") as caught:
            second(pair.far, 4, **options)
        assert isinstance(caught.value, RuntimeError)
    pair.near.sendall(b"cdefgh")
    thread.join(TIMEOUT_S)
    assert results == [b"abcd"]
    assert second(pair.far, 4, **options) == b"efgh"


def test_receive_that_failed_leaves_its_socket_free(pair: Pair) -> None:
    for _ in range(2):
        with pytest.raises(ReceiveTimedOut):
            recv_exactly(pair.far, 4, timeout=0.001)
        with pytest.raises(ReceiveTimedOut):
            recv_exactly_into(pair.far, bytearray(4), timeout=0.001)
    pair.near.sendall(b"abcd")
    assert recv_exactly(pair.far, 4) == b"abcd"
    assert not receive_module._receiving


def test_receive_in_a_forked_child_is_no_second_one() -> None:
    with tcp_pair() as pair:
        thread = threading.Thread(target=lambda: recv_exactly(pair.far, 4))
        thread.start()
        wait_for(lambda: receive_module._receiving, "the receive has begun")
        child = os.fork()
        if child == 0:
            os._exit(len(receive_module._receiving))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        pair.near.sendall(b"abcd")
        thread.join(TIMEOUT_S)

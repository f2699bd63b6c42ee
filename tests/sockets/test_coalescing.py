"""The coalescing writers: order, nothing lost, bounded memory, errors that reach the caller."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sockets.support import Pair, tcp_pair, tls_pair, unix_pair
from tests.support.servers import wait_for
from wsgifast import ConfigurationError
from wsgifast.sockets import (
    AsyncCoalescingWriter,
    CoalescingWriter,
    SendFailed,
    SharedCoalescingWriter,
    WriterClosed,
    recv_exactly,
    send_all,
    send_some,
)
from wsgifast.sockets.coalescing.flusher import Flusher, flusher

NEVER_US = 1e6  # a window that does not end within a test
WITHIN_NS = 500_000_000  # of a window, which does not end before the next line
IOV_MAX = os.sysconf("SC_IOV_MAX")


class FakeSocket(socket.socket):
    """Takes a limited number of bytes a call, and remembers each call."""

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


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeSocket]]:
    """Makes fake sockets, closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *takes: stack.enter_context(FakeSocket(takes or (1 << 40,)))


class Foreground(CoalescingWriter):
    """Without the flusher: what is sent when depends on the calls alone."""

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        super().__init__(sock, background=False, **options)


def like(writer: object) -> type[Foreground]:
    return writer  # type: ignore[return-value]


writers = pytest.mark.parametrize("kind", [like(Foreground), like(SharedCoalescingWriter)])


# The gathering core


@given(st.lists(st.binary(max_size=12000), max_size=6), st.integers(1, 5000))
def test_partial_sends_keep_the_order(buffers: list[bytes], takes: int) -> None:
    with FakeSocket([takes]) as sock:
        send_all(sock, buffers)
        assert sock.sent == b"".join(buffers)


def test_one_call_tells_what_is_left(fake: Callable[..., FakeSocket]) -> None:
    sock = fake(5)
    left = send_some(sock, [b"abc", b"def", b"ghi"])
    assert (sock.calls, b"".join(left)) == ([b"abcde"], b"fghi")
    assert send_some(sock, []) == ()


def test_large_buffers_are_not_copied_and_may_be_many() -> None:
    buffers = [bytes([number % 256]) * 5000 for number in range(IOV_MAX + 10)]
    with tcp_pair() as pair:
        received: list[bytes] = []
        size = sum(map(len, buffers))
        thread = threading.Thread(target=lambda: received.append(recv_exactly(pair.far, size)))
        thread.start()
        send_all(pair.near, buffers)
        thread.join()
    assert received == [b"".join(buffers)]


def test_tls_sends_many_large_buffers() -> None:
    buffers = [b"a" * 9000, b"b" * 9000]
    with tls_pair() as pair:
        send_all(pair.near, buffers)
        assert recv_exactly(pair.far, 18000) == b"".join(buffers)


def test_a_full_non_blocking_socket_loses_nothing() -> None:
    buffers: Sequence[bytes | memoryview] = [bytes([n % 256]) * 1000 for n in range(10_000)]
    expected = b"".join(buffers)
    with tcp_pair() as pair:
        pair.near.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while buffers:
                buffers = send_some(pair.near, buffers)
        assert buffers, "a socket's buffer took 10 MB"
        thread_got: list[bytes] = []
        thread = threading.Thread(
            target=lambda: thread_got.append(recv_exactly(pair.far, len(expected)))
        )
        thread.start()
        pair.near.setblocking(True)
        send_all(pair.near, buffers)
        thread.join()
    assert thread_got == [expected]


# Both writers of blocking sockets


@writers
def test_a_lone_message_leaves_at_once(kind: type[Foreground]) -> None:
    with tcp_pair() as pair:
        writer = kind(pair.near)
        writer.write(b"lone")
        assert recv_exactly(pair.far, 4, timeout=20) == b"lone"
        assert pair.near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@writers
def test_order_is_kept_and_close_loses_nothing(kind: type[Foreground]) -> None:
    messages = [b"%d," % number for number in range(50_000)]
    with tcp_pair() as pair:
        received: list[bytes] = []
        size = sum(map(len, messages))
        thread = threading.Thread(target=lambda: received.append(recv_exactly(pair.far, size)))
        thread.start()
        with kind(pair.near) as writer:
            for message in messages:
                writer.write(message)
        thread.join()
    assert received == [b"".join(messages)]


@writers
def test_what_is_not_bytes_may_change_afterwards(
    kind: type[Foreground], fake: Callable[..., FakeSocket]
) -> None:
    sock = fake()
    writer = kind(sock)
    data = bytearray(b"abc")
    writer.write(b"first")
    writer.write(data)
    data[:] = b"xyz"
    writer.write(memoryview(b"_def_")[1:-1])
    writer.close()
    assert sock.sent == b"firstabcdef"


@writers
def test_an_error_reaches_the_caller_and_stays(
    kind: type[Foreground], fake: Callable[..., FakeSocket]
) -> None:
    writer = kind(fake(2, BrokenPipeError("gone")))
    with pytest.raises(BrokenPipeError):
        writer.write(b"abc")
    agains: list[Callable[[], None]] = [
        lambda: writer.write(b"more"),
        writer.flush,
        writer.close,
    ]
    for again in agains:
        with pytest.raises(SendFailed, match="gone") as caught:
            again()
        assert isinstance(caught.value.__cause__, BrokenPipeError)
        assert isinstance(caught.value, OSError)
    writer.close()


@writers
def test_an_interrupted_send_breaks_the_writer(
    kind: type[Foreground], monkeypatch: pytest.MonkeyPatch, fake: Callable[..., FakeSocket]
) -> None:
    """Nobody knows what has been sent, so going on would corrupt the stream."""
    sock = fake()
    writer = kind(sock)

    def interrupted(data: object, flags: int = 0) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sock, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.write(b"abc")
    with pytest.raises(SendFailed, match="interrupted"):
        writer.write(b"def")


@writers
def test_a_closed_writer_refuses(kind: type[Foreground], fake: Callable[..., FakeSocket]) -> None:
    sock = fake()
    writer = kind(sock)
    writer.close()
    writer.close()
    with pytest.raises(WriterClosed):
        writer.write(b"late")
    assert sock.fileno() != -1  # the socket is the caller's


@writers
def test_empty_messages_and_flushes_do_nothing(
    kind: type[Foreground], fake: Callable[..., FakeSocket]
) -> None:
    sock = fake()
    with kind(sock) as writer:
        writer.write(b"")
        writer.flush()
        writer.flush()
    assert sock.sent == b""


@pytest.mark.parametrize(
    "options",
    [
        {"max_bytes": 0},
        {"max_bytes": 1.5},
        {"max_bytes": None},
        {"window_us": -1},
        {"window_us": 2e6},
        {"window_us": "10"},
    ],
)
def test_options_are_checked(options: dict[str, Any], fake: Callable[..., FakeSocket]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Foreground(fake(), **options)


@writers
@pytest.mark.parametrize("message", [5, "text", [1, 2], None])
def test_what_is_no_bytes_is_refused(
    kind: type[Foreground],
    message: Any,
    fake: Callable[..., FakeSocket],
) -> None:
    """bytes(5) would be five zeros, bytes([1, 2]) two bytes."""
    sock = fake()
    with kind(sock) as writer, pytest.raises(TypeError, match="bytes-like object is required"):
        writer.write(message)
    assert sock.sent == b""


# One thread


def test_within_a_window_messages_are_gathered(fake: Callable[..., FakeSocket]) -> None:
    sock = fake()
    writer = Foreground(sock, window_us=NEVER_US)
    for message in (b"a", b"b", b"c"):
        writer.write(message)
    assert sock.calls == [b"a"]
    writer.flush()
    assert sock.calls == [b"a", b"bc"]


def test_without_a_window_nothing_is_gathered(fake: Callable[..., FakeSocket]) -> None:
    sock = fake()
    writer = Foreground(sock, window_us=0)
    writer.write(b"a")
    writer.write(b"b")
    assert sock.calls == [b"a", b"b"]


def test_a_full_batch_does_not_wait(fake: Callable[..., FakeSocket]) -> None:
    sock = fake()
    writer = Foreground(sock, window_us=NEVER_US, max_bytes=4)
    for message in (b"a", b"bc", b"de", b"f"):
        writer.write(message)
    assert sock.calls == [b"a", b"bcde"]


# What nobody's call sends

both = pytest.mark.parametrize("kind", [CoalescingWriter, SharedCoalescingWriter])
Kind = type[CoalescingWriter] | type[SharedCoalescingWriter]
# A timeout makes the descriptor non-blocking, and send() wait.
timeouts = pytest.mark.parametrize("timeout", [None, 20.0])
make_pairs = pytest.mark.parametrize("make", [tcp_pair, unix_pair])
MakePair = Callable[[], AbstractContextManager[Pair]]


@both
@make_pairs
@timeouts
def test_the_tail_of_a_burst_leaves_although_nobody_calls(
    kind: Kind, make: MakePair, timeout: float | None
) -> None:
    with make() as pair:
        pair.near.settimeout(timeout)
        writer = kind(pair.near)
        for _ in range(50):  # the flusher has lost sight of the writer, or not
            for message in (b"one,", b"two,", b"three"):
                writer.write(message)
            assert recv_exactly(pair.far, 13, timeout=20) == b"one,two,three"
        writer.close()


def test_the_tail_leaves_after_its_window_and_not_before() -> None:
    with tcp_pair() as pair:
        patient = CoalescingWriter(pair.near, window_us=NEVER_US)
        with CoalescingWriter(pair.far) as other:
            patient.write(b"first")
            patient.write(b"second")
            # The other writer's tail is not kept back by the long wait for this one.
            other.write(b"a")
            other.write(b"b")
            assert recv_exactly(pair.near, 2, timeout=20) == b"ab"
        assert recv_exactly(pair.far, 5, timeout=20) == b"first"
        assert patient._buffers == [b"second"]
        assert recv_exactly(pair.far, 6, timeout=20) == b"second"


def test_the_tail_leaves_while_its_thread_computes() -> None:
    with tcp_pair() as pair:
        writer = CoalescingWriter(pair.near)
        writer.write(b"a")
        writer.write(b"b")
        wait_for(lambda: not writer._buffers, "the flusher sends", interval=0)
        assert recv_exactly(pair.far, 2, timeout=20) == b"ab"


def test_without_the_flusher_the_tail_waits_for_a_call() -> None:
    with tcp_pair() as pair:
        writer = Foreground(pair.near, window_us=0.0)
        writer._due = 1 << 62
        with CoalescingWriter(pair.far) as other:
            writer.write(b"tail")
            other.write(b"a")
            other.write(b"b")
            assert recv_exactly(pair.near, 2, timeout=20) == b"ab"  # the flusher has been here
        assert writer._buffers == [b"tail"]
        writer.flush()
        assert recv_exactly(pair.far, 4, timeout=20) == b"tail"


def test_the_flusher_and_the_owner_together_keep_the_order() -> None:
    """Bursts of all lengths with and without pauses, against a window that ends at once."""
    messages = [b"%05d;" % number for number in range(40_000)]
    with tcp_pair() as pair:
        received: list[bytes] = []
        size = sum(map(len, messages))
        thread = threading.Thread(target=lambda: received.append(recv_exactly(pair.far, size)))
        thread.start()
        with CoalescingWriter(pair.near, window_us=1, max_bytes=600) as writer:
            for number, message in enumerate(messages):
                writer.write(message)
                if number % 113 == 0:
                    os.sched_yield()
                if number % 1009 == 0:
                    wait_for(lambda: not writer._buffers, "the flusher sends", interval=0)
        thread.join()
    assert received == [b"".join(messages)]


@timeouts
def test_a_peer_that_takes_nothing_keeps_nobody_else_waiting(timeout: float | None) -> None:
    block = bytes(1 << 20)
    with tcp_pair() as slow, tcp_pair() as quick:
        slow.near.setblocking(False)
        filled = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                filled += slow.near.send(block)
        slow.near.settimeout(timeout)
        writer = CoalescingWriter(slow.near)
        writer._due = time.monotonic_ns() + WITHIN_NS
        writer.write(b"tail")
        other = CoalescingWriter(quick.near)
        other.write(b"a")
        other.write(b"b")
        assert recv_exactly(quick.far, 2, timeout=20) == b"ab"
        assert writer._buffers == [b"tail"]
        data = recv_exactly(slow.far, filled + 4, timeout=20)
        assert data[-4:] == b"tail"
        writer.close()


def test_an_error_in_the_background_reaches_the_next_call() -> None:
    with tcp_pair() as pair:
        writer = CoalescingWriter(pair.near)
        writer.write(b"first")
        pair.near.shutdown(socket.SHUT_WR)
        writer._due = time.monotonic_ns() + WITHIN_NS
        writer.write(b"tail")
        wait_for(lambda: writer._refusal is not None, "the flusher fails")
        calls: list[Callable[[], None]] = [lambda: writer.write(b"x"), writer.flush, writer.close]
        for call in calls:
            with pytest.raises(SendFailed) as caught:
                call()
            assert isinstance(caught.value.__cause__, BrokenPipeError)
        other = CoalescingWriter(pair.far)  # the flusher has survived it
        other.write(b"a")
        other.write(b"b")
        assert recv_exactly(pair.near, 2, timeout=20) == b"ab"


def test_a_closed_socket_is_an_error_and_not_the_end_of_the_flusher() -> None:
    with tcp_pair() as pair:
        writer = CoalescingWriter(pair.near)
        writer._due = time.monotonic_ns() + WITHIN_NS
        pair.near.close()
        writer.write(b"tail")
        wait_for(lambda: writer._refusal is not None, "the flusher fails")
        with pytest.raises(SendFailed):
            writer.close()


@both
def test_a_dropped_writer_is_sent_and_freed(kind: Kind) -> None:
    with tcp_pair() as pair:
        writer = kind(pair.near)
        writer.write(b"a")
        writer.write(b"b")
        alive = weakref.ref(writer)
        gc.disable()
        try:
            del writer
            assert recv_exactly(pair.far, 2, timeout=20) == b"ab"
            wait_for(lambda: alive() is None, "nobody refers to the writer")
        finally:
            gc.enable()


def test_one_thread_for_all_writers() -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            pair = stack.enter_context(tcp_pair())
            writer = stack.enter_context(CoalescingWriter(pair.near))
            writer.write(b"a")
            writer.write(b"b")
            assert recv_exactly(pair.far, 2, timeout=20) == b"ab"
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("wsgifast-flusher") == 1


def test_nothing_runs_for_writers_that_hold_nothing() -> None:
    """The flusher looks at none of them, and a sender's thread ends."""
    with tcp_pair() as pair:
        single, shared = CoalescingWriter(pair.near), SharedCoalescingWriter(pair.near)
        for writer in (single, shared):
            writer.write(b"a")
            writer.write(b"b")
            assert recv_exactly(pair.far, 2, timeout=20) == b"ab"
        wait_for(lambda: not flusher._watched, "the flusher has nothing to look at")
        wait_for(lambda: not shared._runs, "the sender's thread ends")
        shared.write(b"c")
        shared.write(b"d")
        assert recv_exactly(pair.far, 2, timeout=20) == b"cd"


def test_only_plain_sockets_have_a_flusher() -> None:
    with tls_pair() as pair:
        with pytest.raises(ConfigurationError, match="SSLSocket at once: pass background=False"):
            CoalescingWriter(pair.near)
        with CoalescingWriter(pair.near, background=False) as writer:
            writer.write(b"a")
            writer.write(b"b")
        assert recv_exactly(pair.far, 2, timeout=20) == b"ab"


def run_python(code: str) -> None:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


@both
def test_a_process_that_ends_sends_the_tail(kind: Kind) -> None:
    with tcp_pair() as pair:
        code = f"""
import socket
from wsgifast.sockets import {kind.__name__}
writer = {kind.__name__}(socket.socket(fileno={pair.near.fileno()}), window_us=1e6)
writer.write(b"a")
writer.write(b"b")
"""
        subprocess.run(
            [sys.executable, "-c", code], pass_fds=[pair.near.fileno()], check=True, timeout=60
        )
        assert recv_exactly(pair.far, 2, timeout=20) == b"ab"


def test_a_forked_child_leaves_the_tail_to_its_parent_and_has_a_flusher_of_its_own() -> None:
    """In a process of its own, as pytest has threads that a fork would lose."""
    run_python(
        """
import os, socket
from wsgifast.sockets import CoalescingWriter, recv_exactly
near, far = socket.socketpair()
writer = CoalescingWriter(near, window_us=2e5)
writer.write(b"first,")
writer.write(b"tail,")
child = os.fork()
if not child:
    inherited, (near, far) = far, socket.socketpair()
    own = CoalescingWriter(near)
    own.write(b"a")
    own.write(b"b")
    came = recv_exactly(far, 2, timeout=20)
    writer.write(b"child,")
    writer.close()
    os._exit(came != b"ab")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
came = recv_exactly(far, 17, timeout=20)
assert sorted(came.split(b",")) == [b"", b"child", b"first", b"tail"], came
writer.close()
near.close()
assert far.recv(100) == b"", "the tail was sent twice"
"""
    )


# Several threads


def test_within_a_window_another_thread_sends_and_its_error_reaches_the_next_call() -> None:
    with tcp_pair() as pair:
        writer = SharedCoalescingWriter(pair.near, window_us=NEVER_US)
        writer.write(b"first")
        writer.write(b"second")
        assert recv_exactly(pair.far, 11, timeout=20) == b"firstsecond"
        writer.flush()
        pair.near.shutdown(socket.SHUT_WR)
        writer.write(b"third")
        with pytest.raises(SendFailed) as caught:
            writer.flush()
        assert isinstance(caught.value.__cause__, BrokenPipeError)


def test_a_forked_child_writes_on_and_repeats_nothing() -> None:
    run_python(
        """
import os, socket
from wsgifast.sockets import SharedCoalescingWriter, recv_exactly
near, far = socket.socketpair()
writer = SharedCoalescingWriter(near, window_us=1e6)
writer.write(b"first,")
writer.write(b"thread,")
writer.flush()
child = os.fork()
if not child:
    writer.write(b"child,")
    writer.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
writer.write(b"parent,")
writer.close()
assert recv_exactly(far, 26, timeout=20) == b"first,thread,child,parent,"
"""
    )


def test_threads_keep_their_messages_whole_and_in_order() -> None:
    threads, messages, size = 4, 3000, 16
    with tcp_pair() as pair, SharedCoalescingWriter(pair.near, max_bytes=4096) as writer:

        def send(name: int) -> None:
            for number in range(messages):
                writer.write(b"%04d:%010d;" % (name, number))

        running = [threading.Thread(target=send, args=(name,)) for name in range(threads)]
        for thread in running:
            thread.start()
        data = recv_exactly(pair.far, threads * messages * size, timeout=60)
        for thread in running:
            thread.join()
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    for name in range(threads):
        own = [part for part in parts if part.startswith(b"%04d:" % name)]
        assert own == [b"%04d:%010d;" % (name, number) for number in range(messages)]


def test_writers_wait_for_room_and_learn_of_errors() -> None:
    """One thread is held by a peer that reads nothing; others fill the queue and then wait."""
    outcomes: list[str] = []
    with tcp_pair() as pair:
        pair.near.settimeout(None)
        writer = SharedCoalescingWriter(pair.near, max_bytes=1000)

        def send(size: int) -> None:
            try:
                writer.write(bytes(size))
                outcomes.append("written")
            except SendFailed:
                outcomes.append("an earlier send failed")
            except OSError:
                outcomes.append("failed")

        sender = threading.Thread(target=send, args=(50 << 20,))
        sender.start()
        wait_for(lambda: writer._sending and not writer._size, "the sender sends")
        send(900)
        assert outcomes == ["written"]
        waiter = threading.Thread(target=send, args=(200,))
        waiter.start()
        wait_for(lambda: writer._waiting == 1, "the third message waits for room")
        assert writer._size == 900
        pair.far.close()  # with unread data: a reset
        sender.join()
        waiter.join()
        assert sorted(outcomes) == ["an earlier send failed", "failed", "written"]
        with pytest.raises(SendFailed):
            writer.flush()
        with pytest.raises(SendFailed):
            writer.close()


def test_flush_and_close_wait_for_the_sender() -> None:
    size = 50 << 20
    with tcp_pair() as pair:
        writer = SharedCoalescingWriter(pair.near)
        sender = threading.Thread(target=writer.write, args=(bytes(size),))
        sender.start()
        wait_for(lambda: writer._sending and not writer._size, "the sender sends")
        writer.write(b"end")
        flusher = threading.Thread(target=writer.flush)
        closer = threading.Thread(target=writer.close)
        flusher.start()
        closer.start()
        wait_for(lambda: writer._waiting == 2, "flush and close wait")
        with pytest.raises(WriterClosed):
            writer.write(b"late")
        assert recv_exactly(pair.far, size + 3, timeout=60)[-3:] == b"end"
        for thread in (sender, flusher, closer):
            thread.join()


# asyncio


class Sink(asyncio.WriteTransport):
    """A transport that remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing


def test_async_gathers_what_is_written_in_one_turn() -> None:
    async def main() -> None:
        sink = Sink()
        writer = AsyncCoalescingWriter(sink, window_us=NEVER_US)
        for message in (b"a", b"b", bytearray(b"c")):
            writer.write(message)
        assert sink.calls == []
        await asyncio.sleep(0)
        assert sink.calls == [b"abc"]
        writer.write(b"d")
        await asyncio.sleep(0)
        assert sink.calls == [b"abc", b"d"]

    asyncio.run(main())


def test_async_a_batch_older_than_the_window_or_full_leaves_within_the_turn() -> None:
    async def main() -> None:
        sink = Sink()
        writer = AsyncCoalescingWriter(sink, window_us=0)
        writer.write(b"a")
        assert sink.calls == [b"a"]
        writer = AsyncCoalescingWriter(sink, window_us=NEVER_US, max_bytes=2)
        for message in (b"b", b"c", b"d", b"ef"):
            writer.write(message)
        assert sink.calls == [b"a", b"bc", b"def"]
        await asyncio.sleep(0)
        assert sink.calls == [b"a", b"bc", b"def"]

    asyncio.run(main())


def test_async_close_sends_the_rest_and_refuses_more() -> None:
    async def main() -> None:
        sink = Sink()
        writer = AsyncCoalescingWriter(sink, window_us=NEVER_US)
        writer.write(b"last")
        await writer.close()
        assert sink.calls == [b"last"]
        with pytest.raises(WriterClosed):
            writer.write(b"late")

    asyncio.run(main())


def test_async_drain_is_backpressure() -> None:
    """drain() waits while the peer reads nothing, and everything arrives in order."""

    async def main() -> None:
        with tcp_pair() as pair:
            pair.near.setblocking(False)
            _, stream = await asyncio.open_connection(sock=pair.near)
            writer = AsyncCoalescingWriter(stream)
            block = bytes(1 << 20)
            blocks = 0
            with contextlib.suppress(asyncio.TimeoutError):
                while blocks < 100:
                    writer.write(block)
                    blocks += 1
                    await asyncio.wait_for(writer.drain(), 0.2)
            assert blocks < 100, "drain() never waited"
            assert stream.transport.get_write_buffer_size() <= 2 * len(block)
            loop = asyncio.get_running_loop()
            receiving = loop.run_in_executor(
                None, lambda: recv_exactly(pair.far, blocks * len(block) + 3, timeout=60)
            )
            writer.write(b"end")
            await writer.close()
            assert (await receiving).endswith(b"\0end")
            stream.close()
            await stream.wait_closed()

    asyncio.run(main())


def test_async_a_lost_connection_is_an_error() -> None:
    async def main() -> None:
        sink = Sink()
        writer = AsyncCoalescingWriter(sink)
        sink.closing = True
        with pytest.raises(SendFailed):
            writer.write(b"x")

    asyncio.run(main())


def test_a_writer_that_was_written_to_while_it_left_is_looked_at_again() -> None:
    class Busy:
        looks = 0

        def look(self, *, at_exit: bool = False) -> float | None:
            self.looks += 1
            return None

        def leave(self) -> bool:
            return self.looks < 2  # True: something came since the look

    watching, writer = Flusher(), Busy()
    watching._watched[writer] = None  # type: ignore[index]  # what it does is all that counts
    pause = watching._look_at_all()
    assert pause is not None
    assert 0 < pause < 1
    assert watching._look_at_all() is None
    assert writer.looks == 2

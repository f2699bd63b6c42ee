"""The writer of one thread: its window, and the flusher, which sends the remaining messages."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from tests.sockets.support import (
    NEVER_US,
    FakeSocket,
    Foreground,
    Pair,
    arrived,
    run_python,
    tcp_pair,
    tls_pair,
    unix_pair,
)
from tests.support.servers import wait_for
from wsgifast import ConfigurationError
from wsgifast.sockets import (
    CoalescingWriter,
    SendFailed,
    SharedCoalescingWriter,
    recv_exactly,
)
from wsgifast.sockets.coalescing import Flusher, flusher

WITHIN_US = 500_000.0  # a window that does not end before the next line


def burst(writer: CoalescingWriter | SharedCoalescingWriter, far: socket.socket) -> None:
    """Write two messages. Another thread sends the second. Both arrive."""
    writer.write(b"a")
    writer.write(b"b")
    assert recv_exactly(far, 2, timeout=20) == b"ab"


def test_messages_within_a_window_are_gathered(fake: Callable[..., FakeSocket]) -> None:
    sock = fake()
    writer = Foreground(sock, window_us=NEVER_US)
    for message in (b"a", b"b", b"c"):
        writer.write(message)
    assert sock.calls == [b"a"]
    writer.flush()
    assert sock.calls == [b"a", b"bc"]


def test_messages_without_a_window_are_sent_at_once(fake: Callable[..., FakeSocket]) -> None:
    sock = fake()
    writer = Foreground(sock, window_us=0)
    writer.write(b"a")
    writer.write(b"b")
    assert sock.calls == [b"a", b"b"]


def test_full_batch_is_sent_at_once(fake: Callable[..., FakeSocket]) -> None:
    sock = fake()
    writer = Foreground(sock, window_us=NEVER_US, max_bytes=4)
    for message in (b"a", b"bc", b"de", b"f"):
        writer.write(message)
    assert sock.calls == [b"a", b"bcde"]


both = pytest.mark.parametrize("kind", [CoalescingWriter, SharedCoalescingWriter])


Kind = type[CoalescingWriter] | type[SharedCoalescingWriter]


# A timeout makes the descriptor non-blocking, and send() wait.
timeouts = pytest.mark.parametrize("timeout", [None, 20.0])


make_pairs = pytest.mark.parametrize("make", [tcp_pair, unix_pair])


MakePair = Callable[[], AbstractContextManager[Pair]]


@both
@make_pairs
@timeouts
def test_end_of_a_burst_is_sent_without_another_call(
    kind: Kind, make: MakePair, timeout: float | None
) -> None:
    with make() as pair:
        pair.near.settimeout(timeout)
        writer = kind(pair.near)
        for _ in range(50):  # whether the flusher has removed the writer or not
            for message in (b"one,", b"two,", b"three"):
                writer.write(message)
            assert recv_exactly(pair.far, 13, timeout=20) == b"one,two,three"
        writer.close()


def test_end_of_a_burst_is_sent_after_its_window() -> None:
    with tcp_pair() as pair:
        patient = CoalescingWriter(pair.near, window_us=NEVER_US)
        with CoalescingWriter(pair.far) as other:
            patient.write(b"first")
            patient.write(b"second")
            # The long wait for this writer does not delay the last message of the other one.
            burst(other, pair.near)
        assert recv_exactly(pair.far, 5, timeout=20) == b"first"
        assert arrived(pair.far) == b""
        assert recv_exactly(pair.far, 6, timeout=20) == b"second"


def test_burst_end_is_sent_while_its_thread_computes() -> None:
    with tcp_pair() as pair:
        writer = CoalescingWriter(pair.near)
        writer.write(b"a")
        writer.write(b"b")
        wait_for(lambda: arrived(pair.far) == b"ab", "the flusher sends", interval=0)


def test_burst_end_without_flusher_waits_for_a_call() -> None:
    with tcp_pair() as pair:
        writer = Foreground(pair.near, window_us=NEVER_US)
        with CoalescingWriter(pair.far) as other:
            writer.write(b"first")
            writer.write(b"tail")
            burst(other, pair.near)  # the flusher has run
        assert recv_exactly(pair.far, 5, timeout=20) == b"first"
        assert arrived(pair.far) == b""
        writer.flush()
        assert recv_exactly(pair.far, 4, timeout=20) == b"tail"


def test_flusher_and_owner_together_keep_the_order() -> None:
    """Send bursts of all lengths with and without pauses, while the window ends at once."""
    messages = [b"%05d;" % number for number in range(40_000)]
    with tcp_pair() as pair:
        received, sent = bytearray(), 0

        def receive() -> None:
            while data := pair.far.recv(65_536):
                received.extend(data)

        thread = threading.Thread(target=receive)
        thread.start()
        with CoalescingWriter(pair.near, window_us=1, max_bytes=600) as writer:
            for number, message in enumerate(messages):
                writer.write(message)
                sent += len(message)
                if number % 113 == 0:
                    os.sched_yield()
                if number % 1009 == 0:
                    came = partial(_has, received, sent)
                    wait_for(came, "the flusher sends", interval=0)
        pair.near.shutdown(socket.SHUT_WR)
        thread.join()
    assert received == b"".join(messages)


def _has(received: bytearray, size: int) -> bool:
    return len(received) == size


@timeouts
def test_peer_that_takes_nothing_delays_no_other(timeout: float | None) -> None:
    block = bytes(1 << 20)
    with tcp_pair() as slow, tcp_pair() as quick:
        slow.near.setblocking(False)
        filled = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                filled += slow.near.send(block)
        slow.near.settimeout(timeout)
        writer = CoalescingWriter(slow.near)
        writer._due = time.monotonic_ns() + int(WITHIN_US * 1000)
        writer.write(b"tail")
        other = CoalescingWriter(quick.near)
        burst(other, quick.far)
        assert writer._buffers == [b"tail"]
        data = recv_exactly(slow.far, filled + 4, timeout=20)
        assert data[-4:] == b"tail"
        writer.close()


def test_error_in_the_flusher_raises_at_the_next_call() -> None:
    with tcp_pair() as pair:
        writer = CoalescingWriter(pair.near, window_us=WITHIN_US)
        writer.write(b"first")
        pair.near.shutdown(socket.SHUT_WR)
        writer.write(b"tail")
        wait_for(lambda: writer._refusal is not None, "the flusher fails")
        calls: list[Callable[[], None]] = [lambda: writer.write(b"x"), writer.flush, writer.close]
        for call in calls:
            with pytest.raises(SendFailed) as caught:
                call()
            assert isinstance(caught.value.__cause__, BrokenPipeError)
        other = CoalescingWriter(pair.far)  # the flusher has survived the error
        burst(other, pair.near)


def test_closed_socket_is_an_error_flusher_goes_on() -> None:
    with tcp_pair() as pair:
        writer = CoalescingWriter(pair.near, window_us=WITHIN_US)
        writer.write(b"first")
        pair.near.close()
        writer.write(b"tail")
        wait_for(lambda: writer._refusal is not None, "the flusher fails")
        with pytest.raises(SendFailed):
            writer.close()


@both
def test_dropped_writer_is_sent_and_freed(kind: Kind) -> None:
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


def test_writers_share_one_flusher_thread() -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            pair = stack.enter_context(tcp_pair())
            writer = stack.enter_context(CoalescingWriter(pair.near))
            burst(writer, pair.far)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("wsgifast-flusher") == 1


def test_flusher_sleeps_while_writers_are_empty() -> None:
    """The flusher examines none of them, and the thread of a sender ends."""
    with tcp_pair() as pair:
        single, shared = CoalescingWriter(pair.near), SharedCoalescingWriter(pair.near)
        for writer in (single, shared):
            burst(writer, pair.far)
        wait_for(lambda: not flusher._watched, "the flusher has nothing to look at")
        wait_for(lambda: not shared._runs, "the sender's thread ends")
        shared.write(b"c")
        shared.write(b"d")
        assert recv_exactly(pair.far, 2, timeout=20) == b"cd"


def test_look_at_a_gathered_message_waits_no_time() -> None:
    class Gathered(list[bytes | memoryview]):
        looks = 0

        def __bool__(self) -> bool:
            self.looks += 1
            return self.looks > 1

    with tcp_pair() as pair:
        writer = CoalescingWriter(pair.near)
        writer._buffers = Gathered([b"overdue"])
        assert writer.check_once() == 0


def test_socket_that_is_not_plain_is_refused() -> None:
    with tls_pair() as pair:
        with pytest.raises(ConfigurationError, match="SSLSocket at once: pass background=False"):
            CoalescingWriter(pair.near)
        with CoalescingWriter(pair.near, background=False) as writer:
            writer.write(b"a")
            writer.write(b"b")
        assert recv_exactly(pair.far, 2, timeout=20) == b"ab"


@both
def test_process_that_ends_sends_the_end_of_a_burst(kind: Kind) -> None:
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


def test_forked_child_drops_burst_and_has_own_flusher() -> None:
    """The test runs in another process, since a fork would lose pytest's threads."""
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


def test_writer_written_to_on_leaving_stays_watched() -> None:
    class Busy:
        checks = 0

        def check_once(self, *, at_exit: bool = False) -> float | None:
            self.checks += 1
            return None

        def stop_watching(self) -> bool:
            return self.checks < 2  # True: a message was written since the check

    watching, writer = Flusher(), Busy()
    watching._watched[writer] = None  # type: ignore[index]  # only its behaviour counts
    pause = watching._check_all()
    assert pause is not None
    assert 0 < pause < 1
    assert watching._check_all() is None
    assert writer.checks == 2

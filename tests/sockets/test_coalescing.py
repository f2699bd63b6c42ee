"""The coalescing writers: order, nothing lost, bounded memory, errors that reach the caller."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sockets.support import (
    IOV_MAX,
    NEVER_US,
    FakeSocket,
    Foreground,
    receiving,
    run_python,
    tcp_pair,
    tls_pair,
)
from tests.support.calls import raising
from tests.support.servers import wait_for
from wsgifast import ConfigurationError
from wsgifast.sockets import (
    CoalescingWriter,
    SendFailed,
    SharedCoalescingWriter,
    SocketInUse,
    WriterClosed,
    recv_exactly,
    send_all,
    send_some,
)


@pytest.fixture(params=[Foreground, SharedCoalescingWriter])
def kind(request: pytest.FixtureRequest) -> type[Foreground]:
    """Each writer for blocking sockets, without the flusher."""
    chosen: type[Foreground] = request.param
    return chosen


@given(st.lists(st.binary(max_size=12000), max_size=6), st.integers(1, 5000))
def test_partial_sends_keep_the_order(buffers: list[bytes], takes: int) -> None:
    with FakeSocket([takes]) as sock:
        send_all(sock, buffers)
        assert sock.sent == b"".join(buffers)


def test_send_some_returns_what_is_left(fake: Callable[..., FakeSocket]) -> None:
    sock = fake(5)
    left = send_some(sock, [b"abc", b"def", b"ghi"])
    assert (sock.calls, b"".join(left)) == ([b"abcde"], b"fghi")
    assert send_some(sock, []) == ()


def test_large_buffers_beyond_iov_max_are_uncopied() -> None:
    buffers = [bytes([number % 256]) * 5000 for number in range(IOV_MAX + 10)]
    with tcp_pair() as pair, receiving(pair.far, sum(map(len, buffers))) as received:
        send_all(pair.near, buffers)
    assert received == [b"".join(buffers)]


def test_tls_socket_sends_many_large_buffers() -> None:
    buffers = [b"a" * 9000, b"b" * 9000]
    with tls_pair() as pair:
        send_all(pair.near, buffers)
        assert recv_exactly(pair.far, 18000) == b"".join(buffers)


def test_full_non_blocking_socket_loses_nothing() -> None:
    buffers: Sequence[bytes | memoryview] = [bytes([n % 256]) * 1000 for n in range(10_000)]
    expected = b"".join(buffers)
    with tcp_pair() as pair:
        pair.near.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while buffers:
                buffers = send_some(pair.near, buffers)
        assert buffers, "a socket's buffer took 10 MB"
        with receiving(pair.far, len(expected)) as received:
            pair.near.setblocking(True)
            send_all(pair.near, buffers)
    assert received == [expected]


def test_single_message_is_sent_at_once(kind: type[Foreground]) -> None:
    with tcp_pair() as pair:
        writer = kind(pair.near)
        writer.write(b"lone")
        assert recv_exactly(pair.far, 4, timeout=20) == b"lone"
        assert pair.near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_writer_keeps_order_and_close_loses_nothing(kind: type[Foreground]) -> None:
    messages = [b"%d," % number for number in range(50_000)]
    size = sum(map(len, messages))
    with tcp_pair() as pair, receiving(pair.far, size) as received, kind(pair.near) as writer:
        for message in messages:
            writer.write(message)
    assert received == [b"".join(messages)]


def test_buffer_changed_after_write_is_sent_as_written(
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


def test_failed_send_raises_then_and_later(
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


def test_interrupted_send_breaks_the_writer(
    kind: type[Foreground], monkeypatch: pytest.MonkeyPatch, fake: Callable[..., FakeSocket]
) -> None:
    """The number of sent bytes is unknown, so another send would corrupt the stream."""
    sock = fake()
    writer = kind(sock)

    monkeypatch.setattr(sock, "send", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        writer.write(b"abc")
    with pytest.raises(SendFailed, match="interrupted"):
        writer.write(b"def")


@pytest.mark.parametrize("background", [True, False])
def test_write_while_another_sends_is_an_error(background: bool) -> None:
    with tcp_pair() as pair:
        writer = CoalescingWriter(pair.near, background=background)
        large = b"x" * (32 << 20)  # more than the buffers of both ends contain

        def send() -> None:
            writer.write(large)
            writer.flush()

        thread = threading.Thread(target=send)
        thread.start()
        wait_for(lambda: writer._sending.locked(), "the first write sends")
        for _ in range(2):
            with pytest.raises(SocketInUse, match="use SharedCoalescingWriter"):
                writer.write(b"lost")
        assert recv_exactly(pair.far, len(large)) == large
        thread.join(60)
        writer.write(b"next")
        writer.close()
        assert recv_exactly(pair.far, 4) == b"next"


def test_closed_writer_refuses_writes(
    kind: type[Foreground], fake: Callable[..., FakeSocket]
) -> None:
    sock = fake()
    writer = kind(sock)
    writer.close()
    writer.close()
    with pytest.raises(WriterClosed):
        writer.write(b"late")
    assert sock.fileno() != -1  # the socket is the caller's


def test_empty_message_and_flush_send_nothing(
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
def test_writer_with_an_invalid_option_is_refused(
    options: dict[str, Any], fake: Callable[..., FakeSocket]
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Foreground(fake(), **options)


@pytest.mark.parametrize("message", [5, "text", [1, 2], None])
def test_message_that_is_not_bytes_is_refused(
    kind: type[Foreground],
    message: Any,
    fake: Callable[..., FakeSocket],
) -> None:
    """bytes(5) would be five zeros, and bytes([1, 2]) two bytes."""
    sock = fake()
    with kind(sock) as writer, pytest.raises(TypeError, match="bytes-like object is required"):
        writer.write(message)
    assert sock.sent == b""


def test_sending_thread_error_raises_at_the_next_call() -> None:
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


def test_forked_child_writes_and_repeats_nothing() -> None:
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


def test_messages_of_threads_stay_whole_and_in_order() -> None:
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


def waiting(writer: SharedCoalescingWriter) -> int:
    """Return how many threads wait for the lock."""
    condition: Any = writer._changed
    return len(condition._waiters)


def test_writes_to_a_full_queue_wait_and_raise() -> None:
    """A peer that reads nothing blocks one thread. Others fill the queue and then wait."""
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
        wait_for(lambda: waiting(writer) == 1, "the third message waits for room")
        assert writer._size == 900
        pair.far.close()  # with unread data, so close() is a reset
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
        wait_for(lambda: waiting(writer) == 2, "flush and close wait")
        with pytest.raises(WriterClosed):
            writer.write(b"late")
        assert recv_exactly(pair.far, size + 3, timeout=60)[-3:] == b"end"
        for thread in (sender, flusher, closer):
            thread.join()

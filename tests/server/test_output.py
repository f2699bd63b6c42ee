"""The output queue over real TCP sockets: its send buffer, and a kernel that takes nothing."""

from __future__ import annotations

import errno
import math
import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.near_output import (
    CONTENT,
    SIZE,
    content,
    file,
    in_quick_succession,
    near,
    needs_near_buffers,
)
from tests.server.output_bench import (
    Near,
    Pieces,
    arrives_in_order,
    pieces_of,
    rules,
    until_tried_again,
)
from tests.support.descriptors import open_descriptors
from tests.support.effort import effort
from wsgifast.errors import ClientGone
from wsgifast.http.framing import chunk
from wsgifast.server import coalescing as module
from wsgifast.server import sending
from wsgifast.server.output import OutputQueue

__all__ = ["content", "file", "in_quick_succession", "near"]


@needs_near_buffers
@pytest.mark.parametrize("quick", [True, False])
def test_the_send_buffer_grows_for_a_quick_client_only(
    near: Near, file: int, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "QUICK_S", 3600.0 if quick else 0.0)
    near.queue.write_file(b"head", file, 0, SIZE)
    assert near.send_buffer_is_limited
    for grows in (False, quick):  # a slow client's first receive is quick, too
        near.receive_all_there_is()
        near.queue.on_writable()
        assert near.send_buffer_is_limited is not grows


def test_a_socket_that_takes_nothing_is_not_waited_for_in_a_loop(near: Near, file: int) -> None:
    near.queue.write_file(b"", file, 0, SIZE)
    until_tried_again(near)
    assert near.receive_rest(SIZE) == os.pread(file, SIZE, 0)


def test_bytes_wait_in_the_same_way(near: Near) -> None:
    near.queue.write(bytes(SIZE))
    until_tried_again(near)


def test_a_quick_client_gets_no_more_than_a_turn_at_a_time(
    near: Near, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[int] = []

    def takes_everything(out: int, source: int, offset: int, count: int) -> int:
        offered.append(count)  # as while the client reads as fast as it is sent to
        return count

    monkeypatch.setattr(os, "sendfile", takes_everything)
    monkeypatch.setattr(sending, "_TURN_BYTES", SIZE // 4)
    near.queue.write_file(b"", file, 0, SIZE)
    assert near.queue.draining
    while near.queue.draining:
        near.queue.on_writable()
    assert sum(offered) == SIZE
    assert near.armed == [False] * 3


@given(
    pieces=pieces_of(len(CONTENT), 200_000),
    kernel=st.booleans(),
    memory_bytes=st.sampled_from([0, 150_000, 1 << 30]),
)
@settings(max_examples=effort(60))
def test_whatever_is_written_arrives_in_order(
    content: int, pieces: Pieces, kernel: bool, memory_bytes: int
) -> None:
    near = Near(rules(ahead_bytes=1 << 30, sendfile=kernel, memory_bytes=memory_bytes))
    arrives_in_order(near, pieces, CONTENT, content)


def test_queues_have_nothing_in_common(near: Near, content: int) -> None:
    other = Near(rules())
    try:
        for client in (near, other):
            client.queue.write_file(b"", content, 0, len(CONTENT))
            client.queue.write_file(b"", content, 0, len(CONTENT))
        for client in (near, other):
            assert client.receive_rest(2 * len(CONTENT)) == 2 * CONTENT
    finally:
        other.close()


def test_what_is_coalesced_waits_for_company_up_to_a_size(near: Near) -> None:
    near.write_next(b"first ")
    near.write_next(b"second ")
    assert near.receive_all_there_is() == b""
    near.queue.flush()
    assert near.receive(13) == b"first second "
    near.write_next(b"left, ")
    near.queue.write(b"sent")
    assert near.receive(10) == b"left, sent"
    near.write_next(bytes(1 << 17))
    assert near.receive(1)


@pytest.mark.parametrize(
    ("write", "more"),
    [
        (lambda near, fd: near.queue.write(b"more"), 4),
        (lambda near, fd: near.write_next(b""), 0),
        (lambda near, fd: near.queue.write_all([b"more", b"", b"two"]), 7),
        (lambda near, fd: near.queue.write_file(b"more", fd, 0, 10), 14),
    ],
    ids=["write", "write_next", "write_all", "write_file"],
)
def test_nothing_follows_what_an_error_has_dropped(
    near: Near, content: int, write: Callable[[Near, int], object], more: int
) -> None:
    """The client would take it for the bytes that are missing."""
    descriptors = open_descriptors()
    near.queue.write_file(b"head", content, 0, len(CONTENT))
    near.queue.write_file(b"", content, 0, 1000)
    near.queue.write(bytes(SIZE))
    left = near.queue.bytes_left()
    sent = 4 + len(CONTENT) + 1000 + SIZE - left
    near.queue.fail(TimeoutError("the client took no byte in time"))
    assert open_descriptors() <= descriptors
    assert not near.queue.draining
    near.receive(sent)
    with pytest.raises(ClientGone, match="took no byte"):
        write(near, content)
    near.queue.flush()
    assert near.receive_all_there_is() == b""
    # For the log: what the response would have had, and why it ended, whatever comes then.
    near.queue.fail(ClientGone("closed"))
    assert near.queue.bytes_left() == left + more
    assert "took no byte" in str(near.queue.error)
    near.queue.reset()
    assert near.queue.bytes_left() == 0


def test_only_the_last_byte_of_a_whole_response_finishes_it(near: Near) -> None:
    near.queue.write(bytes(SIZE))
    assert not near.queue.on_writable()
    near.queue.closing = True
    received = 0
    finished = False
    while not finished:
        received += len(near.receive(SIZE - near.queue.bytes_left() - received))
        finished = near.queue.on_writable()
    assert received + len(near.receive(SIZE - received)) == SIZE


def test_a_writer_far_ahead_of_its_client_waits_for_room(near: Near) -> None:
    near.queue = queue = near.make_queue(rules(ahead_bytes=SIZE // 2))
    queue.write(bytes(4 * SIZE))  # of which the kernel takes a part only
    assert queue.bytes_queued > SIZE // 2
    written = threading.Event()

    def write() -> None:
        queue.write(b"end")
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    received = b""
    while queue.bytes_queued > SIZE // 4:
        assert not written.is_set()
        received += near.receive(4 * SIZE - queue.bytes_left() - len(received))
        queue.on_writable()
    assert written.wait(60)
    writer.join()
    received += near.receive_rest(4 * SIZE + 3 - len(received))
    assert received == bytes(4 * SIZE) + b"end"


def test_a_kernel_that_cannot_watch_the_socket_ends_the_queue(near: Near, file: int) -> None:
    near.refusal = OSError(errno.ENOMEM, "Cannot allocate memory")
    queue = near.queue
    descriptors = open_descriptors()
    with pytest.raises(ClientGone, match="Cannot allocate memory"):
        queue.write(bytes(SIZE))
    assert not queue.draining
    with pytest.raises(ClientGone, match="Cannot allocate memory"):
        queue.write(b"more")
    near.receive(SIZE - queue.bytes_left())
    near.queue = queue = near.make_queue(rules())
    with pytest.raises(ClientGone, match="Cannot allocate memory"):
        queue.write_file(b"", file, 0, SIZE)
    assert open_descriptors() <= descriptors


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_sendfile(
    near: Near, content: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(out: int, source: int, offset: int, count: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "sendfile", refuse)
    if number == errno.EIO:  # no answer to that
        with pytest.raises(ClientGone, match=os.strerror(number)):
            near.queue.write_file(b"", content, 0, 100_000)
        return
    near.queue.write_file(b"head", content, 7, 100_000)
    near.queue.write(b"end")
    assert near.receive_rest(100_007) == b"head" + CONTENT[7:100_007] + b"end"


def test_a_socket_that_has_taken_something_is_waited_for(
    near: Near, content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that takes nothing at all, although it said so, is left to the sweep."""

    def full(out: int, source: int, offset: int, count: int) -> int:
        raise BlockingIOError

    near.queue.write(bytes(SIZE))
    assert near.armed == [False]
    near.queue.write_all([b"more"])
    near.queue.write_file(b"", content, 0, 100)
    monkeypatch.setattr(os, "sendfile", full)
    received = 0
    while near.queue.bytes_queued > 100:
        received += len(near.receive(SIZE + 104 - near.queue.bytes_left() - received))
        near.queue.on_writable()
        assert not near.armed[-1]
    assert received + len(near.receive(SIZE + 4 - received)) == SIZE + 4
    near.queue.on_writable()
    assert near.armed[-1]
    # The first refusal is none of that.
    other = Near(rules())
    try:
        other.queue.write_file(b"", content, 0, 100)
        assert other.armed == [False]
    finally:
        other.close()


def test_a_writer_that_waits_for_room_is_told_of_the_end(near: Near) -> None:
    near.queue = queue = near.make_queue(rules(ahead_bytes=0))
    queue.write(bytes(SIZE))
    reported = threading.Event()

    def write() -> None:
        with pytest.raises(ClientGone, match="took no byte"):
            queue.write(b"more")
        reported.set()

    writer = threading.Thread(target=write)
    writer.start()
    while queue._room is None:
        assert not reported.is_set()
    queue.fail(TimeoutError("the client took no byte in time"))
    assert reported.wait(60)
    writer.join()


def test_nobody_waits_for_what_is_only_coalesced(near: Near) -> None:
    """With no room at all: there is no event that would make some."""
    near.queue = queue = near.make_queue(rules(ahead_bytes=0))
    near.write_next(b"one")
    near.write_next(b"two")
    queue.flush()
    assert near.receive(6) == b"onetwo"


def test_blocks_in_quick_succession_wait_for_the_next_tick(
    near: Near, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ticking = 1000.0, True
    monkeypatch.setattr(module, "_COALESCE_S", 0.0005)
    monkeypatch.setattr("time.monotonic", lambda: now)
    shared = rules(request_tick=lambda: ticking)
    near.queue = near.make_queue(shared)

    write_next = near.queue.begin_stream(b"1", frame=None, may_run_ahead=False)
    assert near.receive_all_there_is() == b"1"

    def written(block: bytes) -> bytes:
        write_next(block)
        return near.receive_all_there_is()

    assert [written(b"2"), written(b"3")] == [b"", b""]
    assert shared.tick()
    assert near.receive_all_there_is() == b"23"
    now += 0.01  # later: nothing to wait for
    assert [written(b"4"), written(b"5")] == [b"4", b""]
    ticking = False  # nobody will come any more
    assert shared.tick()
    assert near.receive_all_there_is() == b"5"
    assert written(b"6") == b"6"
    ticking = True
    assert written(b"7") == b""
    near.queue.flush()
    assert near.receive_all_there_is() == b"7"
    assert not shared.queues

    class Last(set[Any]):
        """The last tick comes just before a block is registered for the next one."""

        def add(self, queue: Any) -> None:
            nonlocal ticking
            ticking = False
            super().add(queue)

    shared.queues = Last()
    assert written(b"8") == b"8"


def test_blocks_of_a_stream_that_leave_together_are_framed_together(
    near: Near, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COALESCE_S", math.inf)
    queue = near.queue
    write_next = queue.begin_stream(b"head", frame=chunk, may_run_ahead=True)
    for block in (b"first", b"second", b"third"):
        write_next(block)
    assert near.receive_all_there_is() == b"head"
    assert queue.bytes_left() == len(b"firstsecondthird")
    queue.write(b"end")  # does not overtake them
    assert near.receive_all_there_is() == b"10\r\nfirstsecondthird\r\nend"
    write_next(b"a")
    write_next(b"x" * (1 << 16))
    assert near.receive(9) == b"10001\r\nax"


def test_ticks_may_come_while_a_stream_is_written() -> None:
    """From another thread, whenever they like: nothing is lost, doubled or out of order."""
    shared = rules()
    near = Near(shared)
    blocks = [b"%d\n" % number for number in range(effort(50_000))]
    expected = b"".join(blocks)
    received: list[bytes] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            shared.tick()

    def receive() -> None:
        received.append(near.receive(len(expected)))

    threads = [threading.Thread(target=tick), threading.Thread(target=receive)]
    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for block in blocks:
            near.write_next(block)
            if near.queue.draining:
                near.queue.on_writable()
        near.queue.flush()
        while near.queue.bytes_left():
            near.queue.on_writable()
        threads[1].join(60)
        assert received == [expected]
    finally:
        sys.setswitchinterval(switched)
        done.set()
        for thread in threads:
            thread.join()
        near.close()


def test_a_stream_that_never_pauses_hears_of_the_end() -> None:
    """However little of it comes from tick to tick."""
    shared = rules()
    near = Near(shared)
    try:
        near.write_next(b"a")
        near.write_next(b"b")
        near.queue.fail(TimeoutError("the client took no byte in time"))
        with pytest.raises(ClientGone, match="took no byte"):
            near.write_next(b"c")
        shared.tick()
        with pytest.raises(ClientGone, match="took no byte"):
            near.write_next(b"d")
    finally:
        near.close()


def test_a_tick_waits_for_nobody_who_is_sending() -> None:
    shared = rules()
    one, other = Near(shared), Near(shared)
    tick = shared.tick
    try:
        assert not tick()
        one.write_next(b"one")
        other.write_next(b"other")
        with one.queue.lock:
            assert tick()
            assert (one.receive_all_there_is(), other.receive(5)) == (b"", b"other")
        assert tick()
        assert one.receive(3) == b"one"
        assert not tick()
        one.write_next(b"closed")
        one.queue.close()
        assert not tick()
    finally:
        one.close()
        other.close()


def test_its_own_thread_may_be_quicker_than_a_tick() -> None:
    class Emptied(set[Any]):
        def __bool__(self) -> bool:
            return True

    shared = rules()
    shared.queues = Emptied()
    assert shared.tick()


def test_a_response_may_end_while_its_queue_is_looked_at(near: Near) -> None:
    """Metrics look at it without the lock."""
    seen: list[Any] = []

    class Ending(OutputQueue):
        backlog = property(lambda self: seen.pop() if seen else None, lambda self, backlog: None)

    owner: Any = near
    queue = Ending(near.queue.sender, owner, rules())
    seen.append(SimpleNamespace(size=5))
    assert queue.bytes_queued == 5
    assert queue.bytes_queued == 0


def test_tick_ends_although_writers_go_on() -> None:
    """It comes between the worker's signs of life."""
    shared = rules()
    flushed: list[int] = []

    class Busy:
        def __init__(self, number: int) -> None:
            self.number = number

        def flush(self, *, wait: bool) -> bool:
            flushed.append(self.number)
            shared.hold_back(self)  # its writer holds the next block back already
            return True

    for number in range(3):
        shared.hold_back(Busy(number))
    assert shared.tick()
    assert sorted(flushed) == [0, 1, 2]
    assert len(shared.queues) == 3

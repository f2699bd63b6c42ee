"""Blocks of a stream in the output queue: which of them are sent together, and at which tick."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.output_harness import MakeNear, Near, rules, started, switching_often
from tests.support.effort import effort
from tests.workers.stepped_worker import Clock
from wsgifast.errors import ClientGone
from wsgifast.http.framing import chunk
from wsgifast.server import output
from wsgifast.server.sending import SocketSender, Turn

pytestmark = pytest.mark.usefixtures("in_quick_succession")


def test_coalesced_blocks_wait_up_to_a_size(near: Near) -> None:
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


def test_coalesced_blocks_without_room_wait_for_nobody(make_near: MakeNear) -> None:
    """No event would cause a flush."""
    near = make_near(ahead_bytes=0)
    near.write_next(b"one")
    near.write_next(b"two")
    near.queue.flush()
    assert near.receive(6) == b"onetwo"


def test_quick_blocks_wait_for_the_next_tick(
    make_near: MakeNear, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_COALESCE_S", 0.0005)
    requested = list[bool]()
    shared = rules(request_tick=lambda: requested.append(bool(shared.to_flush)))
    near = make_near(shared)
    write_next = near.queue.begin_stream(b"1", frame=None, may_run_ahead=False)
    assert near.receive_all_there_is() == b"1"

    def written(block: bytes) -> bytes:
        write_next(block)
        return near.receive_all_there_is()

    assert [written(b"2"), written(b"3")] == [b"", b""]
    assert requested == [True]  # once, for a queue that the tick will find
    assert shared.tick()
    assert near.receive_all_there_is() == b"23"
    clock.now += 0.01  # later there is nothing to wait for
    assert [written(b"4"), written(b"5")] == [b"4", b""]
    assert shared.tick()
    assert near.receive_all_there_is() == b"5"
    assert written(b"6") == b""
    near.queue.flush()
    assert near.receive_all_there_is() == b"6"
    assert not shared.to_flush
    assert requested == [True] * 3


def test_blocks_that_leave_together_share_a_frame(near: Near) -> None:
    queue = near.queue
    write_next = queue.begin_stream(b"head", frame=chunk, may_run_ahead=True)
    for block in (b"first", b"second", b"third"):
        write_next(block)
    assert near.receive_all_there_is() == b"head"
    assert queue.unsent_bytes() == len(b"firstsecondthird")
    queue.write(b"end")  # does not overtake them
    assert near.receive_all_there_is() == b"10\r\nfirstsecondthird\r\nend"
    write_next(b"a")
    write_next(b"x" * (1 << 16))
    assert near.receive(9) == b"10001\r\nax"


def test_stream_without_a_pause_learns_of_the_end(near: Near) -> None:
    near.write_next(b"a")
    near.write_next(b"b")
    near.queue.fail(TimeoutError("the client accepted no bytes in time"))
    for block in (b"c", b"d"):
        with pytest.raises(ClientGone, match="accepted no bytes"):
            near.write_next(block)
        near.rules.tick()


def test_tick_leaves_a_queue_that_is_sending(make_near: MakeNear) -> None:
    shared = rules()
    one, other = make_near(shared), make_near(shared)
    tick = shared.tick
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


def test_blocks_taken_by_another_thread_leave_once(near: Near) -> None:
    near.write_next(b"first")
    assert near.queue.delayed is not None
    lock, delayed, taken = near.queue.lock, near.queue.delayed, list[bytes]()

    class Late:
        """The other thread gets the lock first."""

        def __enter__(self) -> None:
            lock.acquire()
            taken.append(delayed.pop_all())

        def __exit__(self, *_: object) -> None:
            lock.release()

    late: Any = Late()
    near.queue.lock = late
    near.write_next(bytes(1 << 17))
    near.queue.lock = lock
    assert taken == [b"first" + bytes(1 << 17)]
    assert near.receive_all_there_is() == b""


def test_tick_after_its_queues_are_emptied_is_no_error() -> None:
    """A queue's own thread may be quicker."""

    class Emptied(dict[object, Any]):
        def __bool__(self) -> bool:
            return True

    shared = rules()
    shared.to_flush = Emptied()
    assert shared.tick()


def test_tick_ends_although_writers_go_on() -> None:
    """It runs between two heartbeats of the worker."""
    shared: Any = rules()
    flushed: list[object] = []

    class Queue:
        lock = threading.Lock()

        def flush(self) -> None:
            flushed.append(self)
            shared.flush_soon(self, self.flush)  # its writer delays the next block already

    queues = [Queue() for _ in range(3)]
    for queue in queues:
        shared.flush_soon(queue, queue.flush)
    assert shared.tick()
    assert flushed == queues
    assert list(shared.to_flush) == queues


# Either thread may be quicker. No byte is lost, doubled, out of order or left over.


def test_stream_written_amid_ticks_arrives_in_order(near: Near) -> None:
    blocks = [b"%d\n" % number for number in range(effort(50_000))]
    expected = b"".join(blocks)
    received: list[bytes] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            near.rules.tick()

    def receive() -> None:
        received.append(near.receive(len(expected)))

    with switching_often(), started(tick, receive) as (_, receiver):
        try:
            for block in blocks:
                near.write_next(block)
                if near.queue.is_waiting:
                    near.queue.on_writable()
            near.queue.flush()
            while near.queue.unsent_bytes():
                near.queue.on_writable()
            receiver.join(60)
            assert received == [expected]
        finally:
            done.set()


class Stingy:
    """A sender that takes a little at a time, like the one of a slow client."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)

    def send(self, data: bytes) -> int:
        return int(self._sender.send(data[:7]))

    def take_turn(self, backlog: Any, *, after_event: bool = False) -> Turn:
        buffers, _ = backlog.buffers()
        if not buffers:
            return Turn.DONE
        sent = self.send(bytes(buffers[0][:50]))
        backlog.replace_buffers(1, [buffers[0][sent:]] if sent < len(buffers[0]) else [])
        return Turn.FULL if backlog.size else Turn.DONE


def test_stream_sent_by_another_thread_is_in_order(make_near: MakeNear) -> None:
    near = make_near(ahead_bytes=300)
    blocks = [b"%d\n" % number for number in range(effort(20_000))]
    expected = b"".join(blocks)
    received: list[bytes] = []
    is_written = threading.Event()
    stingy: Any = Stingy(near.queue.sender)
    near.queue.sender = stingy

    def send() -> None:
        while not is_written.is_set() or near.queue.is_waiting:
            if near.queue.is_waiting:
                near.queue.on_writable()

    def receive() -> None:
        received.append(near.receive(len(expected)))

    with switching_often(), started(send, receive):
        try:
            write_next = near.queue.begin_stream(b"", frame=None, may_run_ahead=False)
            for block in blocks:
                write_next(block)
            near.queue.flush()
        finally:
            is_written.set()
    assert received == [expected]
    assert near.rules.memory.used_bytes == 0


# Blocks that wait for a slow client.


def calls_of(write_next: Callable[[bytes], object], blocks: list[bytes]) -> int:
    """Return how many Python functions run while blocks are written."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(on_event)
    try:
        for block in blocks:
            write_next(block)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("size", "memory_bytes", "most"),
    [
        (10, 1 << 30, 1.25),
        (1000, 1 << 30, 1.25),
        (8000, 1 << 30, 1.25),
        (10, 0, 1.25),
        (1000, 0, 1.25),
    ],
)
def test_blocks_to_slow_client_cost_no_more_calls(
    make_near: MakeNear, size: int, memory_bytes: int, most: float
) -> None:
    counts = {}
    for client in ("quick", "slow"):
        near = make_near(ahead_bytes=256 * 1024, memory_bytes=memory_bytes, waits_for_disk=False)
        write_next = near.queue.begin_stream(b"head", frame=chunk, may_run_ahead=True)
        with pytest.MonkeyPatch.context() as patch:
            if client == "slow":
                near.write_until_full()
            else:  # the kernel takes all of it
                done = lambda sender, backlog, **_: backlog.clear() or Turn.DONE  # noqa: E731
                patch.setattr(SocketSender, "take_turn", done)
                patch.setattr(near.queue.sender, "send", lambda data: len(data))
            counts[client] = calls_of(write_next, [bytes(size)] * 3000)
    assert counts["slow"] <= most * counts["quick"], counts


@pytest.mark.parametrize("flushes", [False, True])
def test_waiting_blocks_leave_behind_the_others(near: Near, flushes: bool) -> None:
    queue, memory = near.queue, near.rules.memory
    write_next = queue.begin_stream(b"head", frame=chunk, may_run_ahead=False)
    sent = 4 + near.write_until_full()
    before = memory.used_bytes
    for _ in range(3):
        write_next(b"abc")
    assert queue.unsent_bytes() == queue.bytes_queued + 9
    assert memory.used_bytes == before
    assert not near.rules.tick()  # no thread needs to fetch them
    if flushes:
        queue.flush()
        assert queue.unsent_bytes() == queue.bytes_queued
    received = b""
    while queue.is_waiting:
        received += near.receive_all_there_is()
        queue.on_writable()
    received += near.receive(sent + len(b"9\r\nabcabcabc\r\n") - len(received))
    assert received.endswith(b"\0" + b"9\r\nabcabcabc\r\n")
    assert queue.unsent_bytes() == memory.used_bytes == 0


def test_waiting_blocks_are_left_after_an_error(near: Near) -> None:
    queue = near.queue
    write_next = queue.begin_stream(b"head", frame=None, may_run_ahead=False)
    near.write_until_full()
    write_next(b"abc")
    left = queue.unsent_bytes()
    queue.fail(TimeoutError("the client accepted no bytes in time"))
    assert queue.unsent_bytes() == left


def test_few_blocks_wait_outside_the_queue(make_near: MakeNear) -> None:
    near = make_near(ahead_bytes=100_000)
    queue = near.queue
    write_next = queue.begin_stream(b"head", frame=chunk, may_run_ahead=True)
    near.write_until_full()
    before, delayed = queue.bytes_queued, queue.delayed
    assert delayed is not None
    for number in range(1, 300):
        write_next(bytes(1000))
        assert delayed.size < near.rules.ahead_bytes
        assert queue.bytes_queued >= before + number * 1000 - delayed.size

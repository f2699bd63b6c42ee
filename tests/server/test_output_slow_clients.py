"""Blocks of a generator that wait in the output queue before a slow client."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.near_output import in_quick_succession, near
from tests.server.output_bench import Near, rules
from tests.support.effort import effort
from wsgifast.http.framing import chunk
from wsgifast.server import coalescing as module
from wsgifast.server.sending import Sender, Turn

__all__ = ["in_quick_succession", "near"]


def calls_of(write_next: Callable[[bytes], object], blocks: list[bytes]) -> int:
    """How many Python functions run while blocks are written."""
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
    ("size", "memory_bytes"), [(10, 1 << 30), (1000, 1 << 30), (8000, 1 << 30), (10, 0), (1000, 0)]
)
def test_blocks_to_a_slow_client_cost_no_more_calls_than_to_a_quick_one(
    size: int, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COALESCE_S", math.inf)
    blocks = [bytes(size) for _ in range(3000)]
    counts = {}
    for client in ("quick", "slow"):
        shared = rules(ahead_bytes=256 * 1024, memory_bytes=memory_bytes, waits_for_disk=False)
        near = Near(shared)
        try:
            write_next = near.queue.begin_stream(b"head", frame=chunk, may_run_ahead=True)
            if client == "slow":
                while not near.queue.draining:
                    near.queue.write(bytes(1 << 20))
            else:  # the kernel takes all of it
                monkeypatch.setattr(
                    Sender,
                    "take_turn",
                    lambda sender, backlog, **_: backlog.clear() or Turn.DONE,
                )
                sender: Any = near.queue.sender
                sender.send = lambda data: len(data)
            counts[client] = calls_of(write_next, blocks)
        finally:
            near.close()
            monkeypatch.undo()
            monkeypatch.setattr(module, "_COALESCE_S", math.inf)
    if memory_bytes:
        assert counts["slow"] <= 1.25 * counts["quick"], counts
    else:  # 16 KiB wait, and not 256
        assert counts["slow"] <= 4 * counts["quick"], counts


def test_blocks_that_wait_for_a_slow_client_leave_when_it_has_taken_the_rest(near: Near) -> None:
    queue = near.queue
    memory = queue._rules.memory
    write_next = queue.begin_stream(b"head", frame=chunk, may_run_ahead=False)
    sent = 4
    while not queue.draining:
        queue.write(bytes(1 << 20))
        sent += 1 << 20
    before = memory.used_bytes
    for _ in range(3):
        write_next(b"abc")
    assert queue.bytes_left() == queue.bytes_queued + 9
    assert memory.used_bytes == before + (256 << 10)
    assert not queue._rules.tick()  # nobody needs to come for them
    received = b""
    while queue.draining:
        received += near.receive_all_there_is()
        queue.on_writable()
    received += near.receive(sent + len(b"9\r\nabcabcabc\r\n") - len(received))
    assert received.endswith(b"\0" + b"9\r\nabcabcabc\r\n")
    assert queue.bytes_left() == memory.used_bytes == 0


@pytest.mark.parametrize("end", ["error", "close", "reset"])
def test_memory_of_blocks_that_wait_is_given_back_at_every_end(near: Near, end: str) -> None:
    queue = near.queue
    write_next = queue.begin_stream(b"head", frame=None, may_run_ahead=False)
    while not queue.draining:
        queue.write(bytes(1 << 20))
    write_next(b"abc")
    if end == "error":
        left = queue.bytes_left()
        queue.fail(TimeoutError("the client took no byte in time"))
        assert queue.bytes_left() == left
    getattr(queue, "close" if end == "close" else "reset")()
    assert queue._rules.memory.used_bytes == 0


def test_blocks_are_written_while_another_thread_sends() -> None:
    """Nothing is lost, doubled, out of order or left, whoever is quicker."""
    shared = rules(ahead_bytes=300)
    near = Near(shared)
    blocks = [b"%d\n" % number for number in range(effort(20_000))]
    expected = b"".join(blocks)
    received: list[bytes] = []
    is_written = threading.Event()

    def send() -> None:
        while not is_written.is_set() or near.queue.draining:
            if near.queue.draining:
                near.queue.on_writable()

    def receive() -> None:
        received.append(near.receive(len(expected)))

    class Stingy:
        """A sender that takes a little at a time, as for a slow client."""

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

    stingy: Any = Stingy(near.queue.sender)
    near.queue.sender = stingy
    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        write_next = near.queue.begin_stream(b"", frame=None, may_run_ahead=False)
        for block in blocks:
            write_next(block)
        near.queue.flush()
        is_written.set()
        for thread in threads:
            thread.join(60)
        assert received == [expected]
        assert shared.memory.used_bytes == 0
    finally:
        sys.setswitchinterval(switched)
        is_written.set()
        near.close()

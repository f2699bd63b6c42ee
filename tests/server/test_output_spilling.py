"""Output that disk threads write to temporary files: in order, and nobody waits for a slow disk."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.near_output import CONTENT, content, in_quick_succession
from tests.server.output_bench import (
    Near,
    Pieces,
    arrives_in_order,
    pieces_of,
    receive_in_turn,
    rules,
)
from tests.support.descriptors import open_descriptors
from tests.support.effort import effort
from tests.support.servers import wait_for
from wsgifast.errors import ClientGone
from wsgifast.server.coalescing import OutputRules

__all__ = ["content", "in_quick_succession"]

BLOCK = bytes(range(250)) * 100
BLOCKS = 200


class HangingWrites:
    """pwrite() waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.began = threading.Event()
        self.fails = False
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._hang)

    def _hang(self, fd: int, data: bytes, offset: int) -> int:
        self.began.set()
        assert self.go.wait(60)
        if self.fails:
            raise OSError(errno.ENOSPC, "no room")
        return self._pwrite(fd, data, offset)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingWrites]:
    hanging = HangingWrites(monkeypatch)
    yield hanging
    hanging.go.set()


@contextlib.contextmanager
def spilling(shared: OutputRules) -> Iterator[Near]:
    """A queue whose writer runs ahead; in the end, all that it had is given back."""
    descriptors = open_descriptors()
    near = Near(shared)
    try:
        near.queue.may_run_ahead = True
        yield near
    finally:
        near.close()
    wait_for(lambda: open_descriptors() <= descriptors, "its descriptors are closed")
    wait_for(lambda: shared.memory.disk.used_bytes == 0, "its disk is given back")
    assert shared.memory.used_bytes == 0


def test_a_writer_does_not_wait_for_a_slow_disk(disk: HangingWrites) -> None:
    with spilling(rules(ahead_bytes=100_000, waits_for_disk=False)) as near:
        for _ in range(BLOCKS):
            near.queue.write(BLOCK)
        assert disk.began.wait(60)
        # Nor does a client that is quicker than the disk.
        assert receive_in_turn(near, BLOCKS * len(BLOCK)) == BLOCKS * BLOCK
        disk.go.set()


def test_what_a_slow_disk_has_written_is_sent_from_there(disk: HangingWrites) -> None:
    shared = rules(ahead_bytes=100_000, waits_for_disk=False)
    with spilling(shared) as near:
        for _ in range(BLOCKS):
            near.queue.write(BLOCK)
        waiting = near.queue.bytes_queued
        assert shared.memory.used_bytes >= waiting > 500_000
        disk.go.set()
        wait_for(lambda: shared.memory.used_bytes <= 250_000, "the disk has all but the begin")
        assert shared.memory.disk.used_bytes >= waiting - 250_000
        near.queue.write(b"end")
        assert receive_in_turn(near, BLOCKS * len(BLOCK) + 3) == BLOCKS * BLOCK + b"end"


@pytest.mark.parametrize("memory_bytes", [0, 2_000_000])
def test_a_writer_waits_for_the_disk_once_too_much_is_in_memory(
    disk: HangingWrites, memory_bytes: int
) -> None:
    """Its own share is an eighth, and never less than three times `ahead_bytes`."""
    shared = rules(ahead_bytes=100_000, memory_bytes=memory_bytes, waits_for_disk=False)
    with spilling(shared) as near:
        done = threading.Event()

        def write() -> None:
            for _ in range(BLOCKS):
                near.queue.write(BLOCK)
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert disk.began.wait(60)
        assert not done.wait(0.1)
        most = max(3 * 100_000, memory_bytes // 8) + len(BLOCK)
        assert shared.memory.used_bytes <= most
        disk.go.set()
        writer.join(60)
        assert done.is_set()
        assert near.queue.backlog is not None
        assert near.queue.backlog.waited_s > 0
        assert receive_in_turn(near, BLOCKS * len(BLOCK)) == BLOCKS * BLOCK


def test_a_writer_that_waits_for_the_disk_learns_of_the_end(disk: HangingWrites) -> None:
    with spilling(rules(ahead_bytes=100_000, memory_bytes=0, waits_for_disk=False)) as near:
        errors: list[ClientGone] = []

        def write() -> None:
            try:
                for _ in range(BLOCKS):
                    near.queue.write(BLOCK)
            except ClientGone as error:
                errors.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        assert disk.began.wait(60)
        near.queue.fail(TimeoutError("the client took no byte in time"))
        writer.join(60)
        assert len(errors) == 1
        disk.go.set()


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_response_may_end_while_the_disk_writes(
    disk: HangingWrites, end: str, fails: bool
) -> None:
    disk.fails = fails
    shared = rules(ahead_bytes=100_000, waits_for_disk=False)
    with spilling(shared) as near:
        for _ in range(BLOCKS):
            near.queue.write(BLOCK)
        assert disk.began.wait(60)
        if end == "reset":  # all has been sent from memory
            assert receive_in_turn(near, BLOCKS * len(BLOCK)) == BLOCKS * BLOCK
        getattr(near.queue, end)()
        disk.go.set()
        if end == "reset":  # the next response has nothing of it
            near.queue.write(b"next")
            assert near.receive(4) == b"next"


def test_a_disk_that_fails_leaves_output_in_memory_and_in_order(disk: HangingWrites) -> None:
    disk.fails = True
    disk.go.set()
    warnings: list[str] = []
    shared = rules(ahead_bytes=100_000, warnings=warnings, waits_for_disk=False)
    with spilling(shared) as near:
        near.queue.write(BLOCK * BLOCKS)
        wait_for(lambda: warnings, "it fails")
        wait_for(lambda: not near.queue.may_run_ahead, "the writer will wait for its client")
        near.queue.write_all([b"end"])
        assert receive_in_turn(near, BLOCKS * len(BLOCK) + 3) == BLOCKS * BLOCK + b"end"


def test_without_a_thread_for_the_disk_output_stays_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = rules(ahead_bytes=100_000, waits_for_disk=False)

    def refuse(job: Callable[[], object]) -> None:
        raise OSError(errno.ENOMEM, "no thread")

    monkeypatch.setattr(shared.disk, "submit_temporary", refuse)
    with spilling(shared) as near:
        near.queue.write(BLOCK * BLOCKS)
        assert not near.queue.may_run_ahead
        assert receive_in_turn(near, BLOCKS * len(BLOCK)) == BLOCKS * BLOCK


_SMALL = st.sampled_from([0, 1000, 50_000])


@given(pieces=pieces_of(len(CONTENT), 60_000), ahead=_SMALL, memory=_SMALL)
@settings(max_examples=effort(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_written_arrives_in_order_whichever_thread_is_quicker(
    content: int, pieces: Pieces, ahead: int, memory: int
) -> None:
    shared = rules(ahead_bytes=ahead, memory_bytes=memory, waits_for_disk=False)
    near = Near(shared)
    near.queue.may_run_ahead = True
    arrives_in_order(near, pieces, CONTENT, content)

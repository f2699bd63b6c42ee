"""The output queue's bytes for a slow client: in memory, in temporary files, and for how long."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.output_harness import (
    CONTENT,
    SIZE,
    MakeNear,
    Near,
    Pieces,
    arrives_in_order,
    blocks,
    pieces_of,
    rules,
    started,
)  # fmt: skip
from tests.support.calls import raising
from tests.support.effort import effort
from tests.support.process import open_descriptors
from tests.support.servers import wait_for
from tests.workers.stepped_worker import Clock
from wsgifast.errors import ClientGone
from wsgifast.server import backlog, output, sending
from wsgifast.server.output_rules import OutputRules
from wsgifast.sockets.sending import send_file_once

pytestmark = pytest.mark.usefixtures("in_quick_succession")


def test_output_beyond_memory_waits_in_files() -> None:
    warnings: list[str] = []
    shared = rules(memory_bytes=20 * len(CONTENT), warnings=warnings)
    descriptors = open_descriptors()
    with giving_back(*[shared] * 6) as clients:
        before = open_descriptors()
        for client in clients:
            client.queue.write_buffers([b"head", *[CONTENT] * 10])
            assert client.queue.is_waiting
        assert shared.memory.used_bytes <= 20 * len(CONTENT)
        assert len(open_descriptors() - before) >= 4  # two blocks are in memory
        assert len(warnings) == 1
        assert f"More than {20 * len(CONTENT)} bytes" in warnings[0]
        for client in clients:
            assert client.receive_in_turn(4 + 10 * len(CONTENT)) == b"head" + 10 * CONTENT
            client.queue.reset()
        assert shared.memory.used_bytes == 0
        assert open_descriptors() <= before
    assert open_descriptors() <= descriptors


@pytest.mark.parametrize("blocks_of", [(1 << 20,), (200 * 1024, 200 * 1024), (100 * 1024,) * 5])
def test_piece_refused_by_tls_is_whole_beside_disk(blocks_of: tuple[int, ...]) -> None:
    """TLS needs at least the refused bytes again while a disk thread writes them."""
    memory = rules().memory
    queued = backlog.Backlog(memory)
    for size in blocks_of:
        queued.append(bytes(size))
    first = queued.first
    assert isinstance(first, memoryview)
    refused = len(first[: backlog.PIECE_BYTES])
    assert queued.begin_spill(0) is not None
    again = queued.first
    assert isinstance(again, memoryview)
    assert len(again) >= refused
    queued.close()


class Uncounted(list[memoryview]):
    """A list that does not allow iteration."""

    def __iter__(self) -> Iterator[memoryview]:
        raise AssertionError("all buffers are visited for one piece")


def test_piece_beside_disk_does_not_visit_all_buffers() -> None:
    """A list of 300 MB may have 75,000 buffers. Each piece is sent under the queue's lock."""
    queued = backlog.Backlog(rules().memory)
    for _ in range(100):
        queued.append(bytes(20_000))
    spilled = queued.begin_spill(0)
    assert spilled is not None
    spilled.remaining = Uncounted(spilled.remaining)
    sent = 0
    for _ in range(10):
        first = queued.first
        assert isinstance(first, memoryview)
        sent += queued.replace_buffers(1, [])
    assert sent == 10 * backlog.PIECE_BYTES
    queued.close()


@contextlib.contextmanager
def giving_back(*shared: OutputRules) -> Iterator[list[Near]]:
    """Return queues with these rules. In the end, all that they reserved has been released."""
    descriptors = open_descriptors()
    clients = [Near(each) for each in shared]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()
    wait_for(lambda: open_descriptors() <= descriptors, "its descriptors are closed")
    for each in shared:
        wait_for(lambda each=each: each.memory.disk.used_bytes == 0, "its disk is given back")  # type: ignore[misc]
        assert each.memory.used_bytes == 0


def test_output_with_its_last_bytes_left_counts_whole() -> None:
    with giving_back(rules()) as (near,):
        near.queue.write(bytes(SIZE))
        near.receive(SIZE - near.queue.unsent_bytes())
        near.queue.on_writable()
        assert 0 < near.queue.bytes_queued < SIZE
        assert near.rules.memory.used_bytes == SIZE


def test_output_of_usual_size_stays_in_memory(content: int) -> None:
    with giving_back(rules(memory_bytes=0)) as (near,):
        memory = near.rules.memory
        descriptors = open_descriptors()
        near.queue.write_file(b"", content, 0, len(CONTENT))
        near.queue.write(bytes(10_000))
        assert memory.used_bytes == 10_000
        assert len(open_descriptors() - descriptors) == 1
        near.queue.write(bytes(10_000))  # now it is in a file, in one run with the next bytes
        near.queue.write(bytes(10_000))
        assert memory.used_bytes == 10_000
        assert len(open_descriptors() - descriptors) == 2
        assert near.receive_in_turn(len(CONTENT) + 30_000) == CONTENT + bytes(30_000)


@pytest.mark.parametrize("full", [False, True])
def test_output_stays_in_memory_without_files(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    shared = rules(memory_bytes=0, warnings=warnings)
    with giving_back(shared) as (near,), monkeypatch.context() as patch:
        patch.setattr(
            *((os, "pwritev") if full else (tempfile, "TemporaryFile")),
            raising(OSError, errno.ENOSPC if full else errno.EMFILE, "no room"),
        )
        for _ in range(3):
            near.queue.write_buffers([CONTENT] * 5)
            # One warning for each queue would be too many: the log may be on the same disk.
            assert [line[-7:] for line in warnings].count("no room") == 1
        assert near.receive_in_turn(15 * len(CONTENT)) == 15 * CONTENT


def test_generator_over_limit_waits_for_its_client(make_near: MakeNear) -> None:
    """A temporary file does not lift the limit `ahead_bytes`: a generator may be endless."""
    near = make_near(memory_bytes=0, ahead_bytes=100_000)
    while near.queue.bytes_queued <= 100_000:
        near.queue.write(bytes(50_000))
    written = threading.Event()

    def write() -> None:
        near.queue.write(b"end")
        written.set()

    with started(write):
        assert not written.wait(0.05)
        while not written.is_set():
            near.receive_all_there_is()
            if near.queue.is_waiting:
                near.queue.on_writable()


def test_writer_that_may_runs_ahead_into_a_file() -> None:
    with giving_back(rules(ahead_bytes=100_000)) as (near,):
        memory = near.rules.memory
        descriptors = open_descriptors()
        near.queue.may_run_ahead = True
        for block in blocks(20_000):
            near.queue.write(block)  # does not wait
            assert memory.used_bytes <= 250_000
        assert near.queue.bytes_queued > 10_000_000
        assert memory.disk.used_bytes > 10_000_000
        assert len(open_descriptors() - descriptors) == 1
        assert near.receive_in_turn(20_000_000) == b"".join(blocks(20_000))
        near.queue.reset()
        assert not near.queue.may_run_ahead
        assert open_descriptors() <= descriptors
        assert memory.used_bytes == memory.disk.used_bytes == 0


def test_spilled_adjacent_blocks_leave_together(
    make_near: MakeNear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of sendfile sends past the end of each part that was written at once."""
    ends: list[int] = []  # the sizes of the parts whose ends a call has reached

    def look(out: int, fd: int, offset: int, size: int) -> int:
        sent = send_file_once(out, fd, offset, size)
        if sent == size < sending._PROBE_BYTES:
            ends.append(size)
        return sent

    monkeypatch.setattr(sending, "send_file_once", look)
    near = make_near(ahead_bytes=100_000)
    near.queue.may_run_ahead = True
    for block in blocks(20_000):
        near.queue.write(block)
    assert near.rules.memory.disk.used_bytes > 15_000_000  # in parts of about 100 kB
    assert near.receive_in_turn(20_000_000) == b"".join(blocks(20_000))
    assert near.rules.shared.counters.sendfile_bytes > 15_000_000
    assert len(ends) <= 20


@contextlib.contextmanager
def writing_ahead(near: Near, count: int) -> Iterator[None]:
    """Return a thread that writes this number of blocks of 1,000 bytes, and may write ahead of the
    client.
    """
    near.queue.may_run_ahead = True

    def write() -> None:
        for block in blocks(count):
            near.queue.write(block)

    with started(write):
        yield


@pytest.mark.parametrize(
    "limits", [{"response_on_disk_bytes": 0}, {"responses_on_disk_bytes": 0}, {"disk": "full"}]
)
def test_writer_waits_where_no_file_may_take_more(
    make_near: MakeNear, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {**limits}
    if limits.pop("disk", None):
        monkeypatch.setattr(backlog, "_MIN_FREE_BYTES", 1 << 60)
    warnings: list[str] = []
    near = make_near(ahead_bytes=100_000, warnings=warnings, **limits)
    fails = "response_on_disk_bytes" not in limits
    received = bytearray()
    with writing_ahead(near, 20_000):
        while near.queue.bytes_queued < 100_000 or len(warnings) < fails:
            time.sleep(0.001)
        while len(received) < 20_000_000:
            assert near.queue.bytes_queued <= 250_000
            received += near.receive_all_there_is()
            if near.queue.is_waiting:
                near.queue.on_writable()
    assert received == b"".join(blocks(20_000))
    assert len(warnings) == fails


def test_writer_waits_once_the_temporary_file_is_full(make_near: MakeNear) -> None:
    near = make_near(ahead_bytes=100_000, response_on_disk_bytes=1_000_000)
    disk = near.rules.memory.disk
    with writing_ahead(near, 50_000):
        wait_for(lambda: disk.used_bytes >= 1_000_000, "it waits", interval=0.001)
        received = near.receive_while_writing(50_000_000)
    assert received == b"".join(blocks(50_000))
    assert 1_000_000 <= disk.used_bytes <= 1_500_000


def test_large_blocks_stay_in_memory_if_file_is_full(make_near: MakeNear) -> None:
    near = make_near(ahead_bytes=100_000, response_on_disk_bytes=SIZE)
    near.queue.may_run_ahead = True

    def write() -> None:
        for _ in range(5):
            near.queue.write(bytes(SIZE))

    with started(write):
        wait_for(lambda: near.queue.bytes_queued > SIZE, "it waits", interval=0.001)
        near.receive_while_writing(5 * SIZE)
    assert near.rules.memory.disk.used_bytes <= 2 * SIZE


def test_crumbs_wait_in_few_pieces_of_memory(make_near: MakeNear) -> None:
    near = make_near(ahead_bytes=1 << 30)
    near.queue.write(bytes(SIZE))
    tracemalloc.start()
    try:
        for _ in range(40_000):
            near.queue.write(b"crumb")
        assert tracemalloc.get_traced_memory()[0] < 3 * 200_000
    finally:
        tracemalloc.stop()


def test_client_must_take_some_bytes_a_second(make_near: MakeNear, clock: Clock) -> None:
    near = make_near(timeout_s=60.0, min_bytes_per_s=500.0)
    queue = near.queue
    queue.write(bytes(SIZE))
    assert near.deadlines == [1060.0]
    left = queue.unsent_bytes()
    clock.now += 59.0
    near.receive(50_000)
    queue.on_writable()
    # The client has a minute for the next byte, and no longer than its received bytes have earned.
    assert near.deadlines[-1] == min(1119.0, 1060.0 + (left - queue.unsent_bytes()) / 500.0)
    clock.now += 59.0
    queue.on_writable()  # the socket has no room, so nothing is earned
    assert near.deadlines[-1] <= 1060.0 + (left - queue.unsent_bytes()) / 500.0
    # The time for bytes that follow after all were taken begins anew.
    near.receive_in_turn(SIZE - 50_000)
    assert not queue.is_waiting
    queue.write(bytes(SIZE))
    assert near.deadlines[-1] == clock.now + 60.0


def test_time_of_the_disk_is_not_the_clients(
    make_near: MakeNear, content: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sendfile = os.sendfile

    def slow(out: int, fd: int, offset: int, size: int) -> int:
        clock.now += 500.0
        return sendfile(out, fd, offset, size)

    monkeypatch.setattr(sending, "cached_bytes", lambda fd, offset, size: 0)
    monkeypatch.setattr(os, "sendfile", slow)
    near = make_near(timeout_s=60.0, min_bytes_per_s=500.0)
    near.queue.write(bytes(SIZE))
    near.queue.write_file(b"", content, 0, len(CONTENT))
    near.receive_in_turn(SIZE + len(CONTENT))
    assert all(deadline > 1000.0 for deadline in near.deadlines)
    assert near.deadlines[-1] >= clock.now


# Disk threads write the temporary files.

BLOCK = bytes(range(250)) * 100
BLOCKS = 200
WRITTEN = BLOCK * BLOCKS


class HangingWrites:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.began = threading.Event()
        self.fails = False
        self._pwritev = os.pwritev
        monkeypatch.setattr(os, "pwritev", self._hang)

    def _hang(self, fd: int, data: list[memoryview], offset: int) -> int:
        self.began.set()
        assert self.go.wait(60)
        if self.fails:
            raise OSError(errno.ENOSPC, "no room")
        return self._pwritev(fd, data, offset)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingWrites]:
    hanging = HangingWrites(monkeypatch)
    yield hanging
    hanging.go.set()


@contextlib.contextmanager
def spilling(**more: Any) -> Iterator[Near]:
    """A queue whose writer is ahead of the client. A disk thread writes its temporary files."""
    with giving_back(rules(ahead_bytes=100_000, waits_for_disk=False, **more)) as (near,):
        near.queue.may_run_ahead = True
        yield near


def write_blocks(near: Near) -> None:
    for _ in range(BLOCKS):
        near.queue.write(BLOCK)


def test_slow_disk_keeps_nobody_waiting(disk: HangingWrites) -> None:
    with spilling() as near:
        write_blocks(near)
        assert disk.began.wait(60)
        assert near.receive_in_turn(len(WRITTEN)) == WRITTEN
        disk.go.set()


def test_output_written_by_slow_disk_is_sent_from_it(disk: HangingWrites) -> None:
    with spilling() as near:
        memory = near.rules.memory
        write_blocks(near)
        waiting = near.queue.bytes_queued
        assert memory.used_bytes >= waiting > 500_000
        disk.go.set()
        wait_for(lambda: memory.used_bytes <= 250_000, "the disk has all but the begin")
        assert memory.disk.used_bytes >= waiting - 250_000
        near.queue.write(b"end")
        assert near.receive_in_turn(len(WRITTEN) + 3) == WRITTEN + b"end"


@pytest.mark.parametrize("fails", [False, True])
def test_output_sent_beside_slow_disk_stays_on_it(disk: HangingWrites, fails: bool) -> None:
    disk.fails = fails
    page = CONTENT * 32
    with spilling(memory_bytes=0) as near:
        near.queue.may_run_ahead = False  # like for a list
        memory = near.rules.memory
        with started(lambda: near.queue.write(page)):
            assert disk.began.wait(60)
            received = near.receive_all_there_is()
            assert near.go_on()  # the disk has not written it yet
            received += near.receive_all_there_is()
            assert memory.used_bytes >= len(page)
            disk.go.set()
        if not fails:
            wait_for(lambda: memory.used_bytes <= 150_000, "the page is on the disk")
        received += near.receive_in_turn(len(page) - len(received))
        assert received == page


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])  # of all responses
def test_writer_waits_for_disk_at_either_memory_limit(
    disk: HangingWrites, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_MAX_UNWRITTEN_BYTES", 300_000)
    with spilling(memory_bytes=memory_bytes) as near:
        with started(lambda: write_blocks(near)) as (writer,):
            assert disk.began.wait(60)
            writer.join(0.1)
            assert writer.is_alive()
            assert near.rules.memory.used_bytes <= 300_000 + len(BLOCK)
            disk.go.set()
        assert near.queue.backlog is not None
        assert near.queue.backlog.waited_s > 0
        assert near.receive_in_turn(len(WRITTEN)) == WRITTEN


def test_writer_waiting_for_disk_learns_of_the_end(disk: HangingWrites) -> None:
    errors: list[ClientGone] = []
    with spilling(memory_bytes=0) as near:

        def write() -> None:
            try:
                write_blocks(near)
            except ClientGone as error:
                errors.append(error)

        with started(write):
            assert disk.began.wait(60)
            near.queue.fail(TimeoutError("the client accepted no bytes in time"))
        assert len(errors) == 1
        disk.go.set()


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("fails", [False, True])
def test_response_may_end_while_the_disk_writes(disk: HangingWrites, end: str, fails: bool) -> None:
    disk.fails = fails
    with spilling() as near:
        write_blocks(near)
        assert disk.began.wait(60)
        if end == "reset":  # all has been sent from memory
            assert near.receive_in_turn(len(WRITTEN)) == WRITTEN
        getattr(near.queue, end)()
        disk.go.set()
        if end == "reset":  # the next response contains no byte of it
            near.queue.write(b"next")
            assert near.receive(4) == b"next"


def test_failing_disk_leaves_output_in_memory_in_order(disk: HangingWrites) -> None:
    disk.fails = True
    disk.go.set()
    warnings: list[str] = []
    with spilling(warnings=warnings) as near:
        near.queue.write(WRITTEN)
        wait_for(lambda: warnings, "it fails")
        wait_for(lambda: not near.queue.may_run_ahead, "the writer will wait for its client")
        near.queue.write_buffers([b"end"])
        assert near.receive_in_turn(len(WRITTEN) + 3) == WRITTEN + b"end"


def test_output_without_a_disk_thread_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with spilling() as near:
        monkeypatch.setattr(
            near.rules.disk, "submit_temporary", raising(OSError, errno.ENOMEM, "no thread")
        )
        near.queue.write(WRITTEN)
        assert not near.queue.may_run_ahead
        assert near.receive_in_turn(len(WRITTEN)) == WRITTEN


_SMALL = st.sampled_from([0, 1000, 50_000])


@given(pieces=pieces_of(len(CONTENT), 60_000), ahead=_SMALL, memory=_SMALL)
@settings(max_examples=effort(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spilled_pieces_keep_their_order(
    content: int, pieces: Pieces, ahead: int, memory: int
) -> None:
    near = Near(rules(ahead_bytes=ahead, memory_bytes=memory, waits_for_disk=False))
    near.queue.may_run_ahead = True
    arrives_in_order(near, pieces, CONTENT, content)

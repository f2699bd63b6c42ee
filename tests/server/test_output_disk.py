"""The output queue over files on a disk: which threads wait for the disk, and its failures."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.output_harness import CONTENT, SIZE, MakeNear, Near, needs_near_buffers
from tests.support.calls import raising
from tests.support.eviction import wait_until_missed
from tests.support.process import open_descriptors
from tests.support.servers import wait_for
from wsgifast.errors import ClientGone
from wsgifast.server import sending

pytestmark = pytest.mark.usefixtures("in_quick_succession")


class HangingDisk:
    """Act like a disk that hangs: sendfile waits until the test releases it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.calls: list[str] = []
        self._sendfile = os.sendfile
        monkeypatch.setattr(sending, "cached_bytes", lambda fd, offset, size: 0)
        monkeypatch.setattr(sending, "view_cached", lambda fd, offset, size: None)
        monkeypatch.setattr(os, "sendfile", self._hang)

    def _hang(self, out: int, fd: int, offset: int, size: int) -> int:
        self.calls.append(threading.current_thread().name)
        assert self.go.wait(60)
        return self._sendfile(out, fd, offset, size)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingDisk]:
    disk = HangingDisk(monkeypatch)
    yield disk
    disk.go.set()


def test_file_disk_keeps_nobody_waiting(
    hanging: HangingDisk, near: Near, make_near: MakeNear, content: int
) -> None:
    other = make_near()
    near.queue.write_file(b"head", content, 7, 600_000)
    assert near.queue.is_waiting
    near.queue.write(b"end")  # waits behind it
    near.queue.flush_at_tick()
    other.queue.write(b"answer")
    assert other.receive(6) == b"answer"
    assert near.armed == []
    hanging.go.set()
    expected = b"head" + CONTENT[7:600_007] + b"end"
    assert near.receive_in_turn(len(expected)) == expected
    assert set(hanging.calls) == {"wsgifast-disk"}


def test_file_without_sendfile_needs_no_disk_thread(
    hanging: HangingDisk, make_near: MakeNear, content: int
) -> None:
    near = make_near(sendfile=False)
    near.queue.write_file(b"head", content, 7, 600_000)
    near.queue.write(b"end")
    expected = b"head" + CONTENT[7:600_007] + b"end"
    assert near.receive_in_turn(len(expected)) == expected
    assert not hanging.calls


@needs_near_buffers
def test_file_in_memory_needs_no_disk_thread(near: Near, file: int) -> None:
    near.queue.write_file(b"", file, 0, SIZE)
    assert near.receive_rest(SIZE) == os.pread(file, SIZE, 0)
    assert near.disk_threads == 0


def test_evicted_file_is_brought_in_by_a_disk_thread(near: Near, file: int) -> None:
    data = os.pread(file, SIZE, 0)

    def brought_in_by_a_disk_thread() -> bool:
        near.queue.write_file(b"", file, 0, SIZE)
        assert near.queue.is_waiting
        assert near.receive_in_turn(SIZE) == data
        return near.disk_threads >= 1

    wait_until_missed(file, brought_in_by_a_disk_thread)


@needs_near_buffers
def test_file_is_sent_as_far_as_it_is_cached(
    near: Near, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[tuple[int, int]] = []

    def cached_bytes(fd: int, offset: int, size: int) -> int:
        requested.append((offset, size))
        # The second half is not in the page cache any more
        return max(0, min(size, SIZE // 2 - offset))

    monkeypatch.setattr(sending, "cached_bytes", cached_bytes)
    near.queue.write_file(b"", file, 0, SIZE)
    assert near.receive_in_turn(SIZE) == os.pread(file, SIZE, 0)
    assert requested[0] == (0, sending._PROBE_BYTES)
    assert max(size for _, size in requested) == sending._PROBE_BYTES
    assert near.disk_threads >= 1


def test_connection_may_end_while_its_disk_works(
    hanging: HangingDisk, near: Near, content: int
) -> None:
    """The descriptors stay open until the disk thread is done, so that no other file gets their
    numbers.
    """
    descriptors = open_descriptors()
    near.queue.write_file(b"", content, 0, 100_000)
    wait_for(lambda: hanging.calls, "the disk is asked")
    near.queue.fail(TimeoutError("the worker stops"))
    assert len(open_descriptors() - descriptors) == 1
    near.queue.is_complete = True
    hanging.go.set()
    with near.changed:
        assert near.changed.wait_for(lambda: near.resumed, 60)
    assert open_descriptors() <= descriptors
    assert near.armed == []


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), MemoryError()])
def test_error_of_the_disk_reaches_who_finishes(
    make_near: MakeNear,
    content: int,
    closing: bool,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged: list[str] = []
    near = make_near(warnings=logged)
    go = threading.Event()

    def fail(out: int, fd: int, offset: int, size: int) -> int:
        assert go.wait(60)
        raise error

    monkeypatch.setattr(sending, "cached_bytes", lambda fd, offset, size: 0)
    monkeypatch.setattr(os, "sendfile", fail)
    near.queue.write_file(b"", content, 0, 100_000)
    near.queue.is_complete = closing
    go.set()
    wait_for(lambda: not near.queue.is_waiting and (near.resumed or not closing), "it has failed")
    assert near.queue.error is error
    assert near.queue.unsent_bytes() == 100_000
    assert near.resumed == closing
    assert near.queue.on_writable() is closing
    expected = [repr(error)] if isinstance(error, MemoryError) else []
    wait_for(lambda: len(logged) >= len(expected), "it is logged")
    assert logged == expected


def test_file_that_shrank_on_its_disk_ends_the_queue(
    near: Near, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "cached_bytes", lambda fd, offset, size: 0)
    (tmp_path / "short").write_bytes(bytes(100))
    with (tmp_path / "short").open("rb") as short:
        near.queue.write_file(b"", short.fileno(), 0, 150)
        assert len(near.receive(100)) == 100
        wait_for(lambda: not near.go_on() and near.queue.error, "it has failed")
        assert "50 of 150 bytes" in str(near.queue.error)


def test_file_without_disk_thread_ends_the_queue(
    near: Near, content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "cached_bytes", lambda fd, offset, size: 0)
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError, "can't start new thread"))
    descriptors = open_descriptors()
    with pytest.raises(ClientGone, match="can't start new thread"):
        near.queue.write_file(b"", content, 0, 100)
    assert open_descriptors() <= descriptors

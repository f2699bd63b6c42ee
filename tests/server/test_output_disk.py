"""The output queue over files on a disk: who waits for it, and what happens when it fails."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.near_output import (
    CONTENT,
    SIZE,
    content,
    file,
    in_quick_succession,
    near,
    needs_near_buffers,
)
from tests.server.output_bench import Near, receive_in_turn, rules
from tests.support.descriptors import open_descriptors
from tests.support.eviction import wait_until_missed
from wsgifast.errors import ClientGone
from wsgifast.server import sending

__all__ = ["content", "file", "in_quick_succession", "near"]


class HangingDisk:
    """What the kernel does for a file on a disk that hangs: sendfile waits until it is let go."""

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


@pytest.mark.parametrize("kernel", [True, False])
def test_a_disk_is_never_waited_for_by_who_writes_or_has_an_event(
    hanging: HangingDisk, content: int, kernel: bool
) -> None:
    near, other = Near(rules(sendfile=kernel)), Near(rules())
    try:
        if kernel:
            near.queue.write_file(b"head", content, 7, 600_000)
            assert near.queue.draining
            near.queue.write(b"end")  # waits behind it
            assert near.queue.flush(wait=False)
            other.queue.write(b"answer")
            assert other.receive(6) == b"answer"
            assert near.armed == []
            hanging.go.set()
        else:
            near.queue.write_file(b"head", content, 7, 600_000)
            near.queue.write(b"end")
        expected = b"head" + CONTENT[7:600_007] + b"end"
        received = receive_in_turn(near, len(expected))
        assert received == expected
        assert set(hanging.calls) == ({"wsgifast-disk"} if kernel else set())
    finally:
        near.close()
        other.close()


@needs_near_buffers
def test_what_is_in_memory_needs_no_disk_thread(near: Near, file: int) -> None:
    near.queue.write_file(b"", file, 0, SIZE)
    assert near.receive_rest(SIZE) == os.pread(file, SIZE, 0)
    assert near.queue._rules.disk._threads == 0


def test_a_file_that_was_evicted_is_brought_in_by_a_disk_thread(near: Near, file: int) -> None:
    data = os.pread(file, SIZE, 0)

    def brought_in_by_a_disk_thread() -> bool:
        near.queue.write_file(b"", file, 0, SIZE)
        assert near.queue.draining
        assert receive_in_turn(near, SIZE) == data
        return near.queue._rules.disk._threads >= 1

    wait_until_missed(file, brought_in_by_a_disk_thread)


@needs_near_buffers
def test_file_is_sent_as_far_as_a_short_probe_finds_it_cached(
    near: Near, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is a disk thread's."""
    asked: list[tuple[int, int]] = []

    def cached_bytes(fd: int, offset: int, size: int) -> int:
        asked.append((offset, size))
        return max(0, min(size, SIZE // 2 - offset))  # the second half has been evicted

    monkeypatch.setattr(sending, "cached_bytes", cached_bytes)
    near.queue.write_file(b"", file, 0, SIZE)
    assert receive_in_turn(near, SIZE) == os.pread(file, SIZE, 0)
    assert asked[0] == (0, sending._PROBE_BYTES)
    assert max(size for _, size in asked) == sending._PROBE_BYTES
    assert near.queue._rules.disk._threads >= 1


def test_a_connection_may_end_while_its_disk_is_waited_for(
    hanging: HangingDisk, content: int
) -> None:
    """Its descriptors stay until the disk thread is done: their numbers are nobody else's."""
    near = Near(rules())
    descriptors = open_descriptors()
    near.queue.write_file(b"", content, 0, 100_000)
    while not hanging.calls:
        time.sleep(0.001)
    near.queue.fail(TimeoutError("the worker stops"))
    assert len(open_descriptors() - descriptors) == 1
    near.queue.closing = True
    hanging.go.set()
    with near.changed:
        assert near.changed.wait_for(lambda: near.resumed, 60)
    assert open_descriptors() <= descriptors
    assert near.armed == []
    near.close()


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), MemoryError()])
def test_an_error_of_the_disk_reaches_who_finishes(
    content: int, closing: bool, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    near = Near(rules(warnings=logged))
    go = threading.Event()

    def fail(out: int, fd: int, offset: int, size: int) -> int:
        assert go.wait(60)
        raise error

    monkeypatch.setattr(sending, "cached_bytes", lambda fd, offset, size: 0)
    monkeypatch.setattr(os, "sendfile", fail)
    near.queue.write_file(b"", content, 0, 100_000)
    near.queue.closing = closing
    go.set()
    deadline = time.monotonic() + 60
    while near.queue.draining or (closing and not near.resumed):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert near.queue.error is error
    assert near.queue.bytes_left() == 100_000
    assert near.resumed == closing
    assert near.queue.on_writable() is closing
    while len(logged) < isinstance(error, MemoryError):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert logged == ([repr(error)] if isinstance(error, MemoryError) else [])
    near.close()


def test_a_file_that_shrank_on_its_disk(
    near: Near, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "cached_bytes", lambda fd, offset, size: 0)
    (tmp_path / "short").write_bytes(bytes(100))
    fd = os.open(tmp_path / "short", os.O_RDONLY)
    try:
        near.queue.write_file(b"", fd, 0, 150)
        assert len(near.receive(100)) == 100
        receive_in_turn(near, 0)
        while near.queue.error is None:
            if near.armed:
                near.armed.clear()
                near.queue.on_writable()
            time.sleep(0.001)
        assert "50 of 150 bytes" in str(near.queue.error)
    finally:
        os.close(fd)


def test_no_thread_for_the_disk_ends_the_queue(
    near: Near, content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sending, "cached_bytes", lambda fd, offset, size: 0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    descriptors = open_descriptors()
    with pytest.raises(ClientGone, match="can't start new thread"):
        near.queue.write_file(b"", content, 0, 100)
    assert open_descriptors() <= descriptors

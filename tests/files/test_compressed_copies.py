"""Compressed copies of files. Copies that do not fit into memory stay on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.calls import raising, recorded
from tests.support.decoders import decoded
from tests.support.servers import wait_for
from wsgifast.files import compressed_copies
from wsgifast.files.compressed_copies import CompressedCopies, CompressedCopy, copy_key, delta_key
from wsgifast.files.directory import identity_of
from wsgifast.sockets import FileSegment

SIZE = 60_000
GREENLETS = """
import os, tempfile
from wsgifast.files import compressed_copies, found
from wsgifast.sockets import FileSegment
import gevent.monkey
gevent.monkey.patch_all()
import time
found._SETTLED_NS = 0
before = os.getpriority(os.PRIO_PROCESS, 0)
with tempfile.TemporaryFile() as file:
    file.write(b"some text " * 300_000)
    file.flush()
    while compressed_copies.COPIES.get(FileSegment(file.fileno(), 0, 3_000_000), "gzip") is None:
        time.sleep(0.01)
assert os.getpriority(os.PRIO_PROCESS, 0) == before, "the main thread has a low priority"
"""


def content(number: int) -> bytes:
    return b"".join(b"%d %d\n" % (number, n * 7919) for n in range(SIZE // 8))


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[list[FileSegment]]:
    found = []
    for number in range(6):
        path = tmp_path / str(number)
        path.write_bytes(content(number))
        fd = os.open(path, os.O_RDONLY)
        found.append(FileSegment(fd, 0, os.fstat(fd).st_size))
    yield found
    for segment in found:
        os.close(segment.fd)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the inodes of the files that are compressed."""
    monkeypatch.setattr("wsgifast.files.found._SETTLED_NS", 0)
    monkeypatch.setattr(compressed_copies, "_LOCK_TIMEOUT_S", 60)
    return recorded(
        monkeypatch, compressed_copies, "_make", lambda segment, *_: os.fstat(segment.fd).st_ino
    )


def ask(copies: CompressedCopies, segments: list[FileSegment]) -> None:
    for number, segment in enumerate(segments):
        copy = copies.get(segment, "gzip")
        assert copy is not None
        assert copy.body is not None
        assert decoded("gzip", copy.body) == content(number)


def test_copy_without_room_in_memory_is_not_made_again(
    segments: list[FileSegment], made: list[int]
) -> None:
    copies = CompressedCopies(max_bytes=2 * SIZE)
    for _ in range(3):
        ask(copies, segments)
    assert made == [os.fstat(segment.fd).st_ino for segment in segments]


def test_copy_larger_than_the_memory_stays_on_disk(
    segments: list[FileSegment], made: list[int]
) -> None:
    copies = CompressedCopies(max_bytes=0)
    for _ in range(2):
        ask(copies, segments)
    assert len(made) == len(segments)


def test_full_file_of_copies_begins_anew(segments: list[FileSegment], made: list[int]) -> None:
    copies = CompressedCopies(max_bytes=0, max_file_bytes=SIZE)
    for _ in range(3):
        ask(copies, segments)
    assert len(made) > len(segments)


def test_copies_without_a_disk_are_made_again(
    segments: list[FileSegment], made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", raising(OSError, 28, "No space left on device"))
    copies = CompressedCopies(max_bytes=0)
    for _ in range(2):
        ask(copies, segments)
    assert len(made) == 2 * len(segments)


def test_forked_process_leaves_its_parents_copies(
    segments: list[FileSegment], made: list[int]
) -> None:
    copies = CompressedCopies(max_bytes=0)
    ask(copies, segments)
    pid = os.fork()
    if pid == 0:  # a child process stores its copies beside those of its parent
        status = 1
        try:
            ask(copies, segments[:1])
            status = len(made) - len(segments) - 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    ask(copies, segments)
    assert len(made) == len(segments)


def test_deltas_are_found_on_disk_with_the_option() -> None:
    copies = CompressedCopies(max_bytes=0)
    key = delta_key((1, 2, 3, 4), b"\x01" * 32)
    copies.store(key, CompressedCopy(b"a delta", "dcz", 100))
    assert copies.cached(key) is None
    found = copies.cached(key, on_disk=True)
    assert found is not None
    assert (found.body, found.coding, found.uncompressed_bytes) == (b"a delta", "dcz", 100)


@pytest.mark.parametrize("patience_s", [0, 60])
def test_first_requests_make_copies_one_at_a_time(
    segments: list[FileSegment],
    made: list[int],
    monkeypatch: pytest.MonkeyPatch,
    patience_s: float,
) -> None:
    """Other requests wait for a bounded time, and then get a response without a copy."""
    go_on, busy, most = threading.Event(), [0], [0]
    make = compressed_copies._make

    def slow(*args: Any) -> CompressedCopy | None:
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        assert go_on.wait(60)
        busy[0] -= 1
        return make(*args)

    monkeypatch.setattr(compressed_copies, "_make", slow)
    monkeypatch.setattr(compressed_copies, "_LOCK_TIMEOUT_S", patience_s)
    copies = CompressedCopies()
    asking = [*segments, *segments]
    with ThreadPoolExecutor(len(asking)) as threads:
        responses = [threads.submit(copies.get, segment, "gzip") for segment in asking]
        if not patience_s:
            wait_for(lambda: sum(a.done() for a in responses) == len(asking) - 1, "one goes on")
        go_on.set()
    without = sum(response.result() is None for response in responses)
    assert without == (0 if patience_s else len(asking) - 1)
    ask(copies, segments)
    assert most == [1]
    assert sorted(made) == sorted(os.fstat(segment.fd).st_ino for segment in segments)


def test_no_copy_is_made_while_requests_wait(segments: list[FileSegment], made: list[int]) -> None:
    copies = CompressedCopies()
    copies.pace.is_behind = lambda: True
    assert copies.get(segments[0], "gzip") is None
    copies.pace.is_behind = lambda: False
    copies.pace.spend(1000)
    assert copies.get(segments[0], "gzip") is None
    assert not made


def test_greenlets_make_copies_at_normal_priority() -> None:
    """The same is true if gevent replaces threads after the import."""
    subprocess.run([sys.executable, "-c", GREENLETS], check=True, timeout=60)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[FileSegment]:
    path = tmp_path / "large"
    path.write_bytes(content(1) * 40)
    fd = os.open(path, os.O_RDONLY)
    yield FileSegment(fd, 0, os.fstat(fd).st_size)
    os.close(fd)


def test_copy_of_a_large_file_is_not_waited_for(
    large: FileSegment, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for coding in ("gzip", "br", "zstd"):
        copies = CompressedCopies()
        copies.pace.is_behind = lambda: True
        assert copies.get(large, coding) is None
        assert copies.get(large, coding) is None
        copies.pace.is_behind = lambda: False
        wait_for(partial(copies.get, large, coding), "it is made")
        copy = copies.get(large, coding)
        assert copy is not None
        assert copy.body is not None
        assert decoded(coding, copy.body) == content(1) * 40
    assert len(made) == 3


def test_copies_go_on_soon_after_process_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    compressed_copies._Pace().sleep_after(7200, 0.01)
    assert slept == [compressed_copies._MAX_SLEEP_S]


def test_copy_that_nobody_wants_is_given_up(
    large: FileSegment, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = CompressedCopies()
    copies.pace.is_behind = lambda: bool(made)
    assert copies.get(large, "gzip") is None
    wait_for(lambda: made, "it is begun")
    monkeypatch.setattr(compressed_copies, "_MAX_JOB_AGE_S", 0)
    copies.pace.is_behind = lambda: False
    wait_for(lambda: not copies._jobs, "it is given up")
    monkeypatch.undo()
    key = copy_key(identity_of(os.fstat(large.fd)), *large[1:], "gzip")
    assert copies.cached(key) is None


def test_copies_take_a_bounded_share_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(compressed_copies, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    pace = compressed_copies._Pace()
    for _ in range(1000):
        now[0] += 0.1
        pace.sleep_after(0.1, 0.1)
    assert now[0] - 1000 >= (1000 * 0.1 - compressed_copies._BURST_S) / compressed_copies._SHARE

"""Compressed copies of files: what the memory has no room for stays on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coded import decoded
from wsgifast.files import coded_copies
from wsgifast.files.coded_copies import CodedCopies, CodedCopy, delta_key
from wsgifast.sockets import FileSegment

SIZE = 60_000


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
    """The descriptors of the files that are compressed."""
    monkeypatch.setattr("wsgifast.files.found._SETTLED_NS", 0)
    make, fds = coded_copies._make, []

    def noted(segment: FileSegment, *args: object) -> CodedCopy | None:
        fds.append(segment.fd)
        return make(segment, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(coded_copies, "_make", noted)
    return fds


def ask(copies: CodedCopies, segments: list[FileSegment]) -> None:
    for number, segment in enumerate(segments):
        copy = copies.get(segment, "gzip")
        assert copy is not None
        assert copy.body is not None
        assert decoded("gzip", copy.body) == content(number)


def test_copy_without_room_in_memory_is_not_made_again(
    segments: list[FileSegment], made: list[int]
) -> None:
    copies = CodedCopies(max_bytes=2 * SIZE)
    for _ in range(3):
        ask(copies, segments)
    assert made == [segment.fd for segment in segments]


def test_copy_larger_than_the_memory_stays_on_disk(
    segments: list[FileSegment], made: list[int]
) -> None:
    copies = CodedCopies(max_bytes=0)
    for _ in range(2):
        ask(copies, segments)
    assert len(made) == len(segments)


def test_full_file_of_copies_begins_anew(segments: list[FileSegment], made: list[int]) -> None:
    copies = CodedCopies(max_bytes=0, max_file_bytes=SIZE)
    for _ in range(3):
        ask(copies, segments)
    assert len(made) > len(segments)


def test_copies_without_a_disk_are_made_again(
    segments: list[FileSegment], made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    copies = CodedCopies(max_bytes=0)
    for _ in range(2):
        ask(copies, segments)
    assert len(made) == 2 * len(segments)


def test_forked_process_leaves_its_parents_copies_alone(
    segments: list[FileSegment], made: list[int]
) -> None:
    copies = CodedCopies(max_bytes=0)
    ask(copies, segments)
    pid = os.fork()
    if pid == 0:  # it writes other copies where the parent has its own
        status = 1
        try:
            ask(copies, segments[:1])
            status = len(made) - len(segments) - 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    ask(copies, segments)
    assert len(made) == len(segments)


def test_deltas_are_found_on_disk_if_that_is_asked_for() -> None:
    copies = CodedCopies(max_bytes=0)
    key = delta_key((1, 2, 3, 4), b"\x01" * 32)
    copies.keep(key, CodedCopy(b"a delta", "dcz", 100))
    assert copies.kept(key) is None
    found = copies.kept(key, on_disk=True)
    assert found is not None
    assert (found.body, found.coding, found.uncoded_bytes) == (b"a delta", "dcz", 100)

"""How far a file may be sent from memory: when it is looked at, and what of it is remembered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.output_bench import opened
from wsgifast.server import look_ahead
from wsgifast.server.look_ahead import CachedRuns, LookAhead

FIRST = look_ahead._FIRST_BYTES
TRUSTED_S = look_ahead._TRUSTED_FOR_S
SIZE = 16 * FIRST


class Memory:
    """What is in memory, and who has looked.

    :ivar end: up to here every file is in memory.
    :ivar looks: offset and size of each.
    """

    def __init__(self) -> None:
        self.end = SIZE
        self.now = 1000.0
        self.looks: list[tuple[int, int]] = []

    def cached_bytes(self, fd: int, offset: int, size: int) -> int:
        self.looks.append((offset, size))
        return max(0, min(size, self.end - offset))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    monkeypatch.setattr(look_ahead, "cached_bytes", memory.cached_bytes)
    monkeypatch.setattr("time.monotonic", lambda: memory.now)
    return memory


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(opened(tmp_path / name, os.urandom(10))) for name in ("one", "two")
        ]


def send(
    ahead: LookAhead, fd: int, memory: Memory, *, size: int = SIZE, takes: int = FIRST, s: float = 0
) -> int:
    """Send a file to a client that takes so many bytes each `s` seconds; how many were there."""
    place = 0
    while place < size:
        cached = ahead.cached_bytes(fd, place, size - place, begin=place == 0)
        assert cached <= size - place
        if not cached:
            break
        place += min(takes, cached)
        memory.now += s
    return place


def test_further_ahead_for_a_quick_client_only(memory: Memory, files: list[int]) -> None:
    assert send(LookAhead(CachedRuns()), files[0], memory) == SIZE
    assert [size // FIRST for _, size in memory.looks] == [1, 2, 4, 8, 1]
    memory.looks.clear()
    assert send(LookAhead(CachedRuns()), files[0], memory, s=2 * TRUSTED_S) == SIZE
    assert memory.looks == [(place, FIRST) for place in range(0, SIZE, FIRST)]


def test_once_for_all_connections(memory: Memory, files: list[int]) -> None:
    seen = CachedRuns()
    for _ in range(5):
        assert send(LookAhead(seen), files[0], memory) == SIZE
    assert len(memory.looks) == 5
    # Nor does the beginning of another answer of the same connection.
    ahead = LookAhead(seen)
    for _ in range(2):
        assert send(ahead, files[0], memory) == SIZE
    assert len(memory.looks) == 5


def test_each_file_by_itself(memory: Memory, files: list[int]) -> None:
    seen = CachedRuns()
    for fd in files:
        assert send(LookAhead(seen), fd, memory) == SIZE
    assert len(memory.looks) == 10


def test_from_one_descriptor_to_another_of_the_same_connection(
    memory: Memory, files: list[int]
) -> None:
    ahead = LookAhead(CachedRuns())
    one, two = files
    assert ahead.cached_bytes(one, 0, SIZE, begin=True) == FIRST
    memory.end = 0
    assert ahead.cached_bytes(two, 0, SIZE, begin=True) == 0


def test_what_was_seen_is_trusted_for_a_while(memory: Memory, files: list[int]) -> None:
    seen = CachedRuns()
    first = LookAhead(seen)
    assert first.cached_bytes(files[0], 0, SIZE, begin=True) == FIRST
    memory.now += 0.9 * TRUSTED_S
    assert first.cached_bytes(files[0], FIRST, SIZE - FIRST, begin=False) == 2 * FIRST
    memory.end = 0
    assert LookAhead(seen).cached_bytes(files[0], 0, SIZE, begin=True) == 3 * FIRST
    # All of it as long as its oldest part.
    memory.now += 0.2 * TRUSTED_S
    assert LookAhead(seen).cached_bytes(files[0], 0, SIZE, begin=True) == 0
    assert LookAhead(seen).cached_bytes(files[0], FIRST, FIRST, begin=True) == 0


def test_what_is_on_the_disk_is_looked_for_again(memory: Memory, files: list[int]) -> None:
    seen = CachedRuns()
    memory.end = FIRST + 10
    ahead = LookAhead(seen)
    assert send(ahead, files[0], memory) == memory.end
    memory.end = SIZE  # the disk has brought it
    assert ahead.cached_bytes(files[0], FIRST + 10, FIRST, begin=False) == FIRST
    memory.end = 0
    assert LookAhead(seen).cached_bytes(files[0], 0, SIZE, begin=True) == 2 * FIRST + 10


def test_a_run_elsewhere_takes_the_place(memory: Memory, files: list[int]) -> None:
    seen = CachedRuns()
    assert LookAhead(seen).cached_bytes(files[0], 8 * FIRST, 8 * FIRST, begin=True) == FIRST
    assert LookAhead(seen).cached_bytes(files[0], 0, SIZE, begin=True) == FIRST
    assert len(memory.looks) == 2
    assert LookAhead(seen).cached_bytes(files[0], 10, SIZE - 10, begin=True) == FIRST - 10
    assert len(memory.looks) == 2


def test_no_more_than_is_left(memory: Memory, files: list[int]) -> None:
    seen = CachedRuns()
    assert send(LookAhead(seen), files[0], memory) == SIZE
    assert LookAhead(seen).cached_bytes(files[0], 0, 2 * FIRST, begin=True) == 2 * FIRST


def test_a_small_run_is_looked_at_each_time(memory: Memory, files: list[int]) -> None:
    """Whose file it is would cost as much."""
    seen = CachedRuns()
    for _ in range(3):
        assert send(LookAhead(seen), files[0], memory, size=FIRST) == FIRST
    assert len(memory.looks) == 3


def test_so_many_files_are_remembered(
    memory: Memory, files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_ahead, "_MOST_FILES", 1)
    seen = CachedRuns()
    for fd in files:
        assert LookAhead(seen).cached_bytes(fd, 0, SIZE, begin=True) == FIRST
    memory.end = 0
    assert LookAhead(seen).cached_bytes(files[1], 0, SIZE, begin=True) == FIRST
    assert LookAhead(seen).cached_bytes(files[0], 0, SIZE, begin=True) == 0

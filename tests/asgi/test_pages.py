"""Reading from the page cache: its borders, and systems that cannot be asked."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from asgifast import pages
from asgifast.pages import is_cached, read_block, read_cached

DATA = bytes(range(256)) * 40


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(DATA)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


def test_event_loops_in_threads_share_no_buffer(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both_have_read = threading.Barrier(2, timeout=10)
    preadv = os.preadv

    def preadv_then_wait(*args: Any) -> int:
        count = preadv(*args)
        both_have_read.wait()
        return count

    def read(offset: int) -> bytes:
        return asyncio.run(read_block(fd, offset, 100))

    monkeypatch.setattr(os, "preadv", preadv_then_wait)
    with ThreadPoolExecutor(2) as threads:
        blocks = list(threads.map(read, (0, 50)))
    assert blocks == [DATA[:100], DATA[50:150]]


def test_a_block_ends_with_the_file(fd: int) -> None:
    for offset, size in ((0, 10), (len(DATA) - 3, 10), (len(DATA), 10)):
        assert read_cached(fd, offset, size) == DATA[offset : offset + size]
        assert asyncio.run(read_block(fd, offset, size)) == DATA[offset : offset + size]


def test_a_system_that_cannot_be_asked(
    fd: int, monkeypatch: pytest.MonkeyPatch, blocking_calls: list[str]
) -> None:
    """Every read may wait then, and goes to a thread; sendfile is tried."""
    monkeypatch.setattr(pages, "_NOWAIT", 0)
    assert read_cached(fd, 0, 10) is None
    assert is_cached(fd, 0)
    assert asyncio.run(read_block(fd, 5, 10)) == DATA[5:15]
    assert not blocking_calls


@pytest.mark.parametrize(
    ("error", "cached"),
    [(BlockingIOError(), False), (OSError(errno.EOPNOTSUPP, ""), True), (OSError(5, ""), True)],
)
def test_what_the_kernel_answers(
    fd: int, monkeypatch: pytest.MonkeyPatch, error: OSError, cached: bool
) -> None:
    def answer(*args: Any) -> int:
        raise error

    assert is_cached(fd, 0)
    monkeypatch.setattr(os, "preadv", answer)
    assert is_cached(fd, 0) == cached

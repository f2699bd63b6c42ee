"""What is in memory: its borders, real files that are and are not, systems that cannot be asked."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.eviction import wait_until_missed
from wsgifast.sockets import page_cache
from wsgifast.sockets.page_cache import cached_bytes, read_cached

STEP_BYTES = 256 * 1024
DATA = os.urandom(3 * STEP_BYTES + 10)

needs_nowait = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux can be asked")


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(DATA)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


@needs_nowait
def test_a_file_that_has_just_been_written_is_in_memory(fd: int) -> None:
    for offset, size in ((0, 1), (0, len(DATA)), (7, STEP_BYTES), (len(DATA) - 1, 1)):
        assert cached_bytes(fd, offset, size) == size
    # Nothing is waited for behind the end.
    assert cached_bytes(fd, len(DATA) - 5, 100) == 100


def test_a_file_that_was_evicted_is_not(fd: int) -> None:
    wait_until_missed(fd, lambda: cached_bytes(fd, 0, len(DATA)) == 0)
    wait_until_missed(fd, lambda: read_cached(fd, 0, 10) is None)
    assert os.pread(fd, len(DATA), 0) == DATA
    assert cached_bytes(fd, 0, len(DATA)) == len(DATA)
    assert read_cached(fd, 0, 10) == DATA[:10]


@pytest.mark.parametrize("missing", [0, 1, STEP_BYTES, STEP_BYTES + 1, 2 * STEP_BYTES, len(DATA)])
def test_what_is_counted_ends_before_the_first_gap(
    fd: int, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has everything before `missing`; nothing from there on is ever counted."""

    def preadv(fd: int, buffers: Any, offset: int, flags: int) -> int:
        if offset >= missing:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(page_cache, "_NOWAIT", 8)
    monkeypatch.setattr(os, "preadv", preadv)
    for size in (1, STEP_BYTES, STEP_BYTES + 1, len(DATA)):
        counted = cached_bytes(fd, 0, size)
        assert missing - STEP_BYTES <= counted <= missing or counted == size <= missing
        assert counted or missing <= STEP_BYTES


@pytest.mark.parametrize(
    "error", [BlockingIOError(), OSError(errno.EOPNOTSUPP, ""), OSError(errno.EIO, "")]
)
def test_what_the_kernel_does_not_vouch_for_is_not_in_memory(
    fd: int, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> int:
        raise error

    monkeypatch.setattr(page_cache, "_NOWAIT", 8)
    monkeypatch.setattr(os, "preadv", refuse)
    assert cached_bytes(fd, 0, 10) == 0
    if error.errno == errno.EIO:
        with pytest.raises(OSError, match=r"\[Errno 5\]"):
            read_cached(fd, 0, 10)
    else:
        assert read_cached(fd, 0, 10) is None


def test_a_system_that_cannot_be_asked(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_NOWAIT", 0)
    assert cached_bytes(fd, 0, 10) == 0
    assert read_cached(fd, 0, 10) is None


@needs_nowait
def test_a_block_ends_with_the_file(fd: int) -> None:
    for offset, size in ((0, 10), (len(DATA) - 3, 10), (len(DATA), 10)):
        assert read_cached(fd, offset, size) == DATA[offset : offset + size]


@needs_nowait
def test_threads_share_no_buffer(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both_have_read = threading.Barrier(2, timeout=60)
    preadv = os.preadv

    def preadv_then_wait(*args: Any) -> int:
        count = preadv(*args)
        both_have_read.wait()
        return count

    monkeypatch.setattr(os, "preadv", preadv_then_wait)
    with ThreadPoolExecutor(2) as threads:
        blocks = list(threads.map(lambda offset: read_cached(fd, offset, 100), (0, 50)))
    assert blocks == [DATA[:100], DATA[50:150]]

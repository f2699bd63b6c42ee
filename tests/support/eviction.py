"""A file whose bytes are on the disk and nowhere else."""

from __future__ import annotations

import os
import time

import pytest

__all__ = ["evict"]

_PATIENCE_S = 5.0
# One byte in each so many is looked at: the kernel may keep some pages, and drop others.
_PAGES_BYTES = 64 * 1024
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


def evict(fd: int) -> None:
    """Make the kernel forget what it has of a file in memory; skip the test where that fails."""
    if not _NOWAIT:
        pytest.skip("only Linux tells what is in memory")
    last = os.fstat(fd).st_size - 1
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        os.fsync(fd)
        # Which the kernel need not heed, while it has the pages in hand itself.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not any(_is_kept(fd, place) for place in (*range(0, last, _PAGES_BYTES), last)):
            return
        time.sleep(0.01)
    pytest.skip("the kernel keeps the test's file in memory")


def _is_kept(fd: int, place: int) -> bool:
    try:
        os.preadv(fd, [bytearray(1)], place, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        pytest.skip(f"the test folder's file system does not tell what is in memory: {error}")
    return True

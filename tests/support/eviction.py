"""A file whose bytes are on the disk and nowhere else."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time

import pytest

__all__ = ["evict"]

_PATIENCE_S = 5.0


def evict(fd: int) -> None:
    """Make the kernel forget what it has of a file in memory; skip the test where that fails."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells what is in memory")
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        pass
    except OSError as error:
        pytest.skip(f"the test folder's file system does not tell what is in memory: {error}")
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        os.fsync(fd)
        # Which the kernel need not heed, while it has the pages in hand itself.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not _resident_pages(fd):
            return
        time.sleep(0.01)
    pytest.skip("the kernel keeps the test's file in memory")


def _resident_pages(fd: int) -> int:
    """How many pages of a file are in memory: mincore(2), which has none of them read.

    preadv's RWF_NOWAIT would do so: it answers at once, and has the kernel read ahead.
    """
    size = os.fstat(fd).st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] + [ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    try:
        failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages)
        assert not failed, os.strerror(ctypes.get_errno())
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return sum(page & 1 for page in pages)

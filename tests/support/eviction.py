"""Files whose bytes are on the disk and not in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable

import pytest

from tests.support.servers import PATIENCE_S, wait_for

_BLOCK_BYTES = 1 << 20


def wait_until_missed(fd: int, missed: Callable[[], bool]) -> None:
    """Evict a file from the page cache, until a check finds it missing there.

    A read that must not wait makes the kernel begin to read the disk, and the kernel looks again
    before it returns. With a quick disk, or on a machine that was stopped meanwhile, the bytes have
    arrived by then. So one result proves nothing. If the bytes are always there, the read waits.
    """

    def is_missed() -> bool:
        _evict(fd)
        return missed()

    wait_for(is_missed, "the file is missed once")


def _evict(fd: int) -> None:
    """Make the kernel drop a file from its page cache. Skip the test if that fails."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells what is in memory")
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        pass
    except OSError as error:
        pytest.skip(f"the test folder's file system does not tell what is in memory: {error}")
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        os.fsync(fd)
        # The kernel does not report pages that it is reading ahead, and cannot drop them before
        # they have arrived. The read above or a test's read has caused them.
        _read_all(fd)
        # The kernel may ignore it while it uses the pages.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not _resident_pages(fd):
            return
        time.sleep(0.01)
    pytest.skip("the kernel keeps the test's file in memory")


def _read_all(fd: int) -> None:
    offset = 0
    while block := os.pread(fd, _BLOCK_BYTES, offset):
        offset += len(block)


def _resident_pages(fd: int) -> int:
    """Return how many pages of a file are in memory. mincore(2) does not cause a read of them.

    preadv with RWF_NOWAIT would cause one: it returns at once, and the kernel reads ahead.
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

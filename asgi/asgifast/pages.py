"""Reading files on an event loop: from the page cache at once, from the disk in a thread.

preadv2(2) with RWF_NOWAIT returns what the page cache holds and never waits for the disk, so that a
cached file costs no thread hop (about 100 us). Where there is no such flag (other systems than
Linux, file systems that refuse it), every read is taken for one that may wait.
"""

from __future__ import annotations

import errno
import os
import stat
import threading

from .loops import in_thread

__all__ = ["BLOCK_BYTES", "is_cached", "open_regular", "read_block", "read_cached"]

# Bytes of one read and one body message. Measured from the page cache (GB/s): 64 KiB 15,
# 256 KiB 20, 512 KiB 17, 1 MiB 18: larger blocks leave the processor's cache between the read and
# the send, and cost memory for each slow client.
BLOCK_BYTES = 256 * 1024

_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# What preadv answers where the kernel or the file system does not know the flag.
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class _Scratch(threading.local):
    """One buffer for all reads of an event loop: it stays in the processor's cache.

    Each thread has its own, because several event loops may run in threads of one process.
    """

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(BLOCK_BYTES))


_scratch = _Scratch()
_probe = [bytearray(1)]


def read_cached(fd: int, offset: int, size: int) -> bytes | None:
    """Read from the page cache, without ever waiting for the disk.

    :param size: at most BLOCK_BYTES.
    :returns: up to `size` bytes, b"" at the end of the file, None if the disk must be waited for.
    """
    if not _NOWAIT:
        return None
    buffer = _scratch.buffer[:size]
    try:
        count = os.preadv(fd, [buffer], offset, _NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return None
        raise
    return bytes(buffer[:count])


def is_cached(fd: int, offset: int) -> bool:
    """Whether the page at an offset is in memory; True too where that cannot be asked."""
    if not _NOWAIT:
        return True
    try:
        os.preadv(fd, _probe, offset, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the real read or sendfile will tell
    return True


async def read_block(fd: int, offset: int, size: int) -> bytes:
    """Read up to `size` bytes (at most BLOCK_BYTES); b"" only at the end of the file."""
    block = read_cached(fd, offset, size)
    if block is None:
        block = await in_thread(os.pread, fd, size, offset)
    return block


def open_regular(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Open a regular file; return its descriptor and its size in bytes.

    :raises OSError: if it cannot be opened, or is no regular file.
    """
    # O_NONBLOCK: opening a FIFO would wait for its other end.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    return fd, facts.st_size

"""Which parts of a file are in the page cache, and reading them without waiting for a disk.

preadv2(2) with RWF_NOWAIT reads from the page cache and never waits. Some systems and file systems
do not support it (all but Linux; FUSE, overlayfs, tmpfs): all of a file then counts as not cached.
"""

from __future__ import annotations

import errno
import os
import threading

from .sendfile import BLOCK_BYTES

_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# preadv's errors if the kernel or the file system does not support the flag.
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
# The distance of probes: twice the kernel's default read-ahead (read_ahead_kb). Closer probes would
# find smaller gaps, but cost a good part of what sending costs.
_PROBE_STEP_BYTES = 256 * 1024

_probe = [bytearray(1)]


class _Scratch(threading.local):
    """A buffer for all reads of a thread, so that it stays in the CPU's cache."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(BLOCK_BYTES))


_scratch = _Scratch()


def cached_bytes(fd: int, offset: int, size: int) -> int:
    """Return how many bytes from an offset on are in the page cache.

    One byte in each 256 KiB is probed, and the last one; smaller gaps between them go unnoticed.
    What is beyond the end of the file counts as cached, since reading it does not wait.

    :param size: bytes to look at, 1 or more.
    :returns: 0 to `size`; 0 if the kernel cannot tell, or if reading fails: the next read reports
        the error.
    """
    if not _NOWAIT:
        return 0
    known = 0
    last = offset + size - 1
    for place in (*range(offset, last, _PROBE_STEP_BYTES), last):
        try:
            os.preadv(fd, _probe, place, _NOWAIT)
        except OSError:
            return known
        known = place - offset
    return size


def read_cached(fd: int, offset: int, size: int) -> bytes | None:
    """Read from the page cache, without waiting for the disk.

    :param size: at most BLOCK_BYTES.
    :returns: up to `size` bytes, b"" at the end of the file, None if the disk is needed.
    :raises OSError: if the file cannot be read.
    """
    view = view_cached(fd, offset, size)
    return None if view is None else bytes(view)


def view_cached(fd: int, offset: int, size: int) -> memoryview | None:
    """As :func:`read_cached`, without a copy: valid until this thread's next call of either."""
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
    return buffer[:count]

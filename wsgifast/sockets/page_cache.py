"""What of a file is in memory, so that reading it or sending it waits for no disk.

preadv2(2) with RWF_NOWAIT answers from the page cache and never waits. Some systems and file
systems cannot be asked (systems other than Linux; FUSE, overlayfs, tmpfs): what they have in memory
is not known, so all of it counts as being on the disk.
"""

from __future__ import annotations

import errno
import os
import threading

from .sendfile import BLOCK_BYTES

__all__ = ["cached_bytes", "read_cached", "view_cached"]

_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# What preadv answers where the kernel or the file system does not know the flag.
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
# One byte in each so many is asked for: twice what the kernel reads ahead at a time by default
# (read_ahead_kb). Closer ones would find smaller gaps, and cost a good part of what sending costs.
_PROBE_STEP_BYTES = 256 * 1024

_probe = [bytearray(1)]


class _Scratch(threading.local):
    """One buffer for all reads of a thread: it stays in the processor's cache."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(BLOCK_BYTES))


_scratch = _Scratch()


def cached_bytes(fd: int, offset: int, size: int) -> int:
    """Return how many bytes from an offset on are in memory, as far as the kernel tells.

    One byte in each 256 KiB is asked for, and the last one; a smaller gap between two that are in
    memory goes unnoticed. What lies behind the file's end counts as being in memory, since nobody
    waits for it.

    :param size: bytes to look at, 1 or more.
    :returns: 0 up to `size`; 0 also where the kernel cannot be asked, and where reading fails:
        whoever reads it then learns why.
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
    """Read from memory, without ever waiting for the disk.

    :param size: at most BLOCK_BYTES.
    :returns: up to `size` bytes, b"" at the end of the file, None if the disk must be waited for.
    :raises OSError: if the file cannot be read.
    """
    view = view_cached(fd, offset, size)
    return None if view is None else bytes(view)


def view_cached(fd: int, offset: int, size: int) -> memoryview | None:
    """As :func:`read_cached`, without a copy: it holds until this thread's next call of either."""
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

"""Opening and reading files on an event loop: at once from memory, in a thread from the disk."""

from __future__ import annotations

import errno
import os
import stat

from wsgifast.sockets.page_cache import read_cached

from .loops import in_thread

__all__ = ["NotAFile", "open_regular", "read_block"]


async def read_block(fd: int, offset: int, size: int) -> bytes:
    """Read up to `size` bytes (at most BLOCK_BYTES); b"" only at the end of the file."""
    block = read_cached(fd, offset, size)
    if block is None:
        block = await in_thread(os.pread, fd, size, offset)
    return block


class NotAFile(OSError):
    """A path leads to a directory, a device, a socket or a FIFO."""


def open_regular(path: str | os.PathLike[str]) -> tuple[int, os.stat_result]:
    """Open a regular file; return its descriptor and what is known of it.

    :raises NotAFile: if it is another kind of thing.
    :raises OSError: if it cannot be opened.
    """
    # O_NONBLOCK: opening a FIFO would wait for its other end.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a Unix socket, a device that is not there
            raise NotAFile(errno.EINVAL, "not a regular file", os.fspath(path)) from None
        raise
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise NotAFile(errno.EINVAL, "not a regular file", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    return fd, facts

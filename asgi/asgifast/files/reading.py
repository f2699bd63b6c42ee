"""Reading files on an event loop: from the page cache at once, from the disk in a thread."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from wsgifast.sockets import FileSegment, FileTruncated
from wsgifast.sockets.sending import BLOCK_BYTES, read_cached

from ..loops import in_thread, next_turn
from ..messages import Send, response_body


class NotAFile(OSError):
    """A path leads to a directory, a device, a socket or a FIFO."""


def open_regular(path: str | os.PathLike[str]) -> tuple[int, os.stat_result]:
    """Open a regular file; return its descriptor, which the caller closes, and its status.

    :raises NotAFile: if it is not a regular file.
    :raises OSError: if it cannot be opened.
    """
    # O_NONBLOCK: opening a FIFO would wait for its other end.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a Unix socket, or a device without a driver
            raise NotAFile(errno.EINVAL, "not a regular file", os.fspath(path)) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFile(errno.EINVAL, "not a regular file", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    return fd, status


async def read_block(fd: int, offset: int, size: int) -> bytes:
    """Read up to `size` bytes (at most BLOCK_BYTES); b"" only at the end of the file."""
    block = read_cached(fd, offset, size)
    if block is None:
        block = await in_thread(os.pread, fd, size, offset)
    return block


async def send_segment(
    send: Send,
    segment: FileSegment,
    *,
    more_body: bool,
    is_disconnected: Callable[[], bool] | None = None,
) -> None:
    """Send a range of an open file as body messages.

    :param more_body: of the last message; the others have it anyway.
    :param is_disconnected: asked before each block; if it returns True, nothing more is sent.
    :raises FileTruncated: if the file ends early; the response is then shorter than declared.
    """
    fd, offset, size = segment
    end = offset + size
    while offset < end:
        if is_disconnected is not None and is_disconnected():
            return
        block = await read_block(fd, offset, min(BLOCK_BYTES, end - offset))
        if not block:
            raise FileTruncated(end - offset, size)
        offset += len(block)
        await send(response_body(block, more_body=more_body or offset < end))
        if offset < end:
            # Neither the read nor the server's send() need have suspended: let other requests run,
            # and the disconnect be noticed.
            await next_turn()
    if size == 0 and not more_body:
        await send(response_body())


async def send_unsized(send: Send, fd: int, count: int | None) -> None:
    """Send what a pipe or a device gives, to its end or up to `count` bytes, with more_body set."""
    while count is None or count > 0:
        wanted = BLOCK_BYTES if count is None else min(BLOCK_BYTES, count)
        block = await in_thread(os.read, fd, wanted)
        if not block:
            return
        if count is not None:
            count -= len(block)
        await send(response_body(block, more_body=True))

"""Which files the kernel may send by itself, and sending them.

os.sendfile takes a descriptor, not a file object, so it is only right where the descriptor's bytes
are the file object's bytes: a regular file, opened binary, read from where the file object stands.
"""

from __future__ import annotations

import errno
import io
import os
import select
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from ..errors import WSGIFastError
from .options import is_plain_socket

__all__ = [
    "BLOCK_BYTES",
    "MSG_MORE",
    "NO_SENDFILE",
    "SMALL_FILE_BYTES",
    "FileSegment",
    "FileTruncated",
    "SendfileUnavailable",
    "file_segment",
    "send_file_once",
    "send_file_segment",
]

# What one os.sendfile call may be asked for: Linux moves at most 0x7ffff000 bytes a call, and some
# systems fail beyond 2 GiB instead of sending less.
_MAX_SENDFILE_BYTES = 1 << 30
# One read of a file where sendfile cannot be used (TLS, odd file systems, a server without it):
# larger ones are no faster and leave the cache.
BLOCK_BYTES = 256 * 1024
# Up to this size a run of a file is read and leaves in one call with what stands before it; beyond
# it, sendfile's own call costs less than the copy.
SMALL_FILE_BYTES = 16 * 1024
# sendfile's answers where the file system, or the kind of socket, has none.
NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK})
# Tells the kernel that more follows at once, so that a head and a file share a packet. Linux only;
# elsewhere they are two packets, which TCP_NODELAY does not delay.
MSG_MORE: int = getattr(socket, "MSG_MORE", 0)
# A subclass that overrides one of these gives other bytes than its descriptor.
_READING = ("read", "readinto", "readline", "__iter__", "__next__", "tell", "seek", "fileno")


class FileSegment(NamedTuple):
    """A run of bytes of an open regular file."""

    fd: int
    offset: int
    size: int


class SendfileUnavailable(WSGIFastError):
    """The kernel cannot send this file, or not on this socket: read it and send what was read."""


class FileTruncated(WSGIFastError, OSError):
    """The file ended before the promised bytes were sent: only closing the connection is left.

    :param missing: bytes of `size` that will not come.
    """

    def __init__(self, missing: int, size: int) -> None:
        super().__init__(
            f"the file shrank while it was sent: {missing} of {size} bytes are missing"
        )


def file_segment(file: object) -> FileSegment | None:
    """Return the descriptor, position and remaining bytes of a file that sendfile can send.

    :param file: any object. Qualified are raw and buffered binary files on a regular file that is
        as long as it says, temporary files, and a SpooledTemporaryFile that was rolled to disk.
    :returns: None for everything else. Text files and gzip files have a descriptor too, but its
        bytes are not theirs; pipes, devices, /proc and /sys files have no size to send.
    :raises ValueError: if the file is closed.
    """
    file = _unwrapped(file)
    if not isinstance(file, (io.FileIO, io.BufferedReader, io.BufferedRandom)):
        return None
    if not _reads_its_descriptor(file):
        return None  # a class of the app's own that decrypts, counts, limits ...
    if not isinstance(file, io.FileIO):
        if not isinstance(file.raw, io.FileIO) or not _reads_its_descriptor(file.raw):
            return None  # a reader over a socket, a zip member, an object of the app's own
        if isinstance(file, io.BufferedRandom):
            file.flush()  # what was written to it is not in the descriptor yet
    if not file.readable():
        return None
    fd = file.fileno()
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or not _has_its_size(fd, facts):
        return None
    # tell(), not the descriptor's own offset: a buffered file that was read from is ahead of it.
    position = file.tell()
    return FileSegment(fd, position, max(0, facts.st_size - position))


def send_file_segment(
    sock: socket.socket, segment: FileSegment, progress: Callable[[int], object] = id
) -> None:
    """Send a run of a file's bytes on a blocking socket, or one with a timeout.

    The kernel copies from the page cache to the socket; where it cannot (TLS, a file system
    without sendfile), large blocks are read and sent. The file's own position does not move.

    :param progress: told each number of bytes that has just left, so that a log is right even for
        a transfer that fails.
    :raises FileTruncated: if the file ends early.
    :raises TimeoutError: if the socket has a timeout and takes no byte for that long.
    :raises OSError: if the peer has gone.
    """
    fd, offset, size = segment
    end = offset + size
    by_kernel = hasattr(os, "sendfile") and is_plain_socket(sock)
    while offset < end:
        if by_kernel:
            try:
                sent = send_file_once(sock.fileno(), fd, offset, end - offset)
            except BlockingIOError:
                _wait_writable(sock, sock.gettimeout())
                continue
            except SendfileUnavailable:
                by_kernel = False
                continue
        else:
            block = os.pread(fd, min(BLOCK_BYTES, end - offset), offset)
            if block:
                sock.sendall(block)
            sent = len(block)
        if not sent:
            raise FileTruncated(end - offset, size)
        progress(sent)
        offset += sent


def send_file_once(out_fd: int, fd: int, offset: int, size: int) -> int:
    """Have the kernel send the beginning of a run of a file, in one call.

    :param out_fd: the socket's descriptor, plain.
    :param size: bytes, 1 or more.
    :returns: how many bytes it has taken; 0 only where the file ends.
    :raises SendfileUnavailable: if the kernel cannot; nothing was sent, the file is to be read.
    :raises BlockingIOError: if a socket that does not wait takes nothing now.
    :raises OSError: if the peer has gone, or the file cannot be read.
    """
    try:
        return os.sendfile(out_fd, fd, offset, min(_MAX_SENDFILE_BYTES, size))
    except OSError as error:
        if error.errno in NO_SENDFILE:
            raise SendfileUnavailable from error
        raise


def _wait_writable(sock: socket.socket, timeout: float | None) -> None:
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLOUT)
    deadline = None if timeout is None else time.monotonic() + timeout
    while not poller.poll(
        None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
    ):
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"the peer took no byte for {timeout} s")


def _reads_its_descriptor(file: object) -> bool:
    """Whether a file object's class reads as the standard class does that it is made from."""
    bases = (io.FileIO, io.BufferedReader, io.BufferedRandom)
    if type(file) in bases:
        return True
    for base in bases:
        if isinstance(file, base):
            return all(getattr(type(file), name) is getattr(base, name) for name in _READING)
    return False


def _has_its_size(fd: int, facts: os.stat_result) -> bool:
    """Whether a regular file holds as many bytes as it says.

    A file of /proc says 0 and has some, one of /sys says 4096 and ends earlier, which only reading
    tells. They have no blocks; but nor has a file that is empty, one hole, or kept in its inode.
    """
    if facts.st_blocks:
        return True
    try:
        if facts.st_size:
            return bool(os.pread(fd, 1, facts.st_size - 1))
        return not os.pread(fd, 1, 0)
    except OSError:
        return False  # whoever reads it learns why


def _unwrapped(file: object) -> object:
    if isinstance(file, tempfile.SpooledTemporaryFile):
        return file._file if getattr(file, "_rolled", False) else None
    if isinstance(file, tempfile._TemporaryFileWrapper):
        return file.file
    return file

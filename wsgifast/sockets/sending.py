"""Send several buffers in one call, and files, by sendfile or from the page cache.

os.sendfile takes a descriptor, so it is correct only if the descriptor's bytes are the file
object's bytes: for a regular file, opened in binary mode, from the file object's position on.

preadv2(2) with RWF_NOWAIT reads from the page cache and never waits. Systems other than Linux and
some file systems (FUSE, overlayfs, tmpfs) do not support it. No part of a file counts as cached
there.
"""

from __future__ import annotations

import errno
import io
import os
import select
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import WSGIFastError
from .options import is_plain_socket, is_tls_socket

# Below this average size, copying into one block is cheaper than a sendmsg with many buffers.
_JOIN_BELOW_BYTES = 4096
# TLS takes one buffer at a time: below this total, copying costs less than separate records.
_JOIN_FOR_TLS_BYTES = 256 * 1024
# More buffers than this in one sendmsg are an error (EMSGSIZE). 1024 on Linux and macOS.
_IOV_MAX = os.sysconf("SC_IOV_MAX")
# The most bytes of one call: Linux sends at most 0x7ffff000, and some systems fail beyond 2 GiB
# instead of sending less.
_MAX_SENDFILE_BYTES = 1 << 30
# One read of a file where sendfile cannot be used (TLS, unusual file systems): larger reads are no
# faster, and do not fit into the CPU's cache.
BLOCK_BYTES = 256 * 1024
# Up to this size, a range of a file is read and sent together with the bytes before it. Beyond it,
# a separate sendfile call costs less than the copy.
SMALL_FILE_BYTES = 16 * 1024
# sendfile's errors if the file system, or the kind of socket, does not support it.
NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK})
# Tells the kernel that more data follows at once, so that headers and a file share a packet. Linux
# only. Elsewhere they are two packets, which TCP_NODELAY does not delay.
MSG_MORE: int = getattr(socket, "MSG_MORE", 0)
# A subclass or an instance that has one of these of its own may return other bytes than its
# descriptor or its buffer has: it may decrypt, decode, count, limit ...
READING = frozenset(
    {"read", "read1", "readall", "readinto", "readinto1", "readline", "readlines", "peek"}
    | {"tell", "seek", "seekable", "readable", "flush", "fileno", "getbuffer", "getvalue"}
)
_READING_OF_CLASSES = (
    READING | {"__iter__", "__next__", "__getattribute__", "__getattr__"} | {"raw", "closed"}
)
# Those that do not count for read() and fileno().
_ITERATION = frozenset({"__iter__", "__next__", "readline", "readlines"})
# tempfile's classes: the result of NamedTemporaryFile(), and SpooledTemporaryFile.
_NAMED: type = getattr(tempfile, "_TemporaryFileWrapper", type(None))
TEMPORARY: tuple[type, type] = (_NAMED, tempfile.SpooledTemporaryFile)
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# preadv's errors if the kernel or the file system does not support the flag.
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
# The distance of probes: twice the kernel's default read-ahead (read_ahead_kb). Closer probes would
# find smaller gaps, but cost a good part of the time of sending.
_PROBE_STEP_BYTES = 256 * 1024

_probe = [bytearray(1)]


def send_some(
    sock: socket.socket, buffers: Sequence[bytes | memoryview], flags: int = 0
) -> Sequence[bytes | memoryview]:
    """Send the beginning of some buffers in one system call, and return the unsent buffers.

    :param sock: blocking or not, also TLS.
    :param buffers: in order. Views must be of bytes ("B").
    :param flags: as for socket.send(), e.g. MSG_MORE. Ignored for TLS.
    :raises BlockingIOError: if a non-blocking socket accepts no byte now.
    :raises OSError: as socket.send().
    """
    if not buffers:
        return ()
    # ssl's sockets do not support sendmsg.
    is_tls = type(sock) is not socket.socket and is_tls_socket(sock)
    if len(buffers) > 1:
        total = sum(map(len, buffers))
        if total < len(buffers) * _JOIN_BELOW_BYTES or (is_tls and total <= _JOIN_FOR_TLS_BYTES):
            buffers = (b"".join(buffers),)
        elif not is_tls:
            sent = sock.sendmsg(buffers[:_IOV_MAX], (), flags)
            return () if sent == total else _left(buffers, sent)
    sent = sock.send(buffers[0]) if is_tls else sock.send(buffers[0], flags)
    return () if len(buffers) == 1 and sent == len(buffers[0]) else _left(buffers, sent)


def send_all(sock: socket.socket, buffers: Sequence[bytes | memoryview]) -> None:
    """Send buffers in order on a blocking socket, or one with a timeout (for each call).

    :raises OSError: as socket.send(). The number of sent bytes is then unknown.
    """
    while buffers:
        buffers = send_some(sock, buffers)


def _left(buffers: Sequence[bytes | memoryview], sent: int) -> Sequence[bytes | memoryview]:
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return (memoryview(buffer)[sent:], *buffers[number + 1 :])
        sent -= len(buffer)
    return ()


class FileSegment(NamedTuple):
    """A range of bytes of an open regular file."""

    fd: int
    offset: int
    size: int


class SendfileUnavailable(WSGIFastError):
    """sendfile does not support this file or this socket: read the file and send the bytes."""


class FileTruncated(WSGIFastError, OSError):
    """The file ended before all of its bytes were sent. Close the connection.

    :param missing: bytes of `size` that were not sent.
    """

    def __init__(self, missing: int, size: int) -> None:
        super().__init__(
            f"the file shrank while it was sent: {missing} of {size} bytes are missing"
        )


def file_segment(file: object) -> FileSegment | None:
    """Return the descriptor, position and remaining bytes of a file that sendfile can send.

    The file is judged by its read() and fileno(), whatever its iteration gives.

    :param file: any object.
    :returns: a segment for raw and buffered binary files over a regular file of the reported size,
        temporary files, and a SpooledTemporaryFile that was rolled over to disk. None for all
        others. The descriptor of a text file or a gzip file has other bytes than the file. Pipes,
        devices, and files of /proc and /sys do not have the size that they report.
    :raises ValueError: if the file is closed.
    """
    file = unwrapped(file)
    if not isinstance(file, (io.FileIO, io.BufferedReader, io.BufferedRandom)):
        return None
    bases = (io.FileIO, io.BufferedReader, io.BufferedRandom)
    if not reads_as(file, *bases, iterated=False):
        return None
    if not isinstance(file, io.FileIO) and not reads_as(file.raw, io.FileIO):
        return None  # a reader over a socket, a zip member, an object of the app
    return regular_segment(file)


def regular_segment(
    file: io.FileIO | io.BufferedReader | io.BufferedRandom,
) -> FileSegment | None:
    """Return the rest of a file that is read as these classes are; None if it has to be read."""
    if isinstance(file, io.BufferedRandom):
        file.flush()  # written data may not have reached the descriptor yet
    if not file.readable():
        return None
    fd = file.fileno()
    stat_result = os.fstat(fd)
    if not stat.S_ISREG(stat_result.st_mode) or not has_its_size(fd, stat_result):
        return None
    # tell(), not the descriptor's own offset: a buffered file that was read from is ahead of it.
    position = file.tell()
    return FileSegment(fd, position, max(0, stat_result.st_size - position))


class NotAFile(OSError):
    """A path leads to a directory, a device, a socket or a FIFO."""


def open_regular(path: str | os.PathLike[str]) -> tuple[int, os.stat_result]:
    """Open a regular file. Return its descriptor, which the caller closes, and its status.

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


def send_file_segment(
    sock: socket.socket,
    segment: FileSegment,
    progress: Callable[[int], object] = id,
    *,
    by_kernel: bool = True,
) -> None:
    """Send a range of a file's bytes on a blocking socket, or one with a timeout.

    It uses sendfile. If that is not supported (TLS, some file systems), it reads large blocks. The
    file's own position does not change.

    :param progress: called with the number of bytes of each send, so that a log is right even for
        a transfer that fails.
    :param by_kernel: False to read although sendfile seems to be supported.
    :raises FileTruncated: if the file ends early.
    :raises TimeoutError: if the socket has a timeout and accepts no byte for that long.
    :raises OSError: if the peer has left.
    """
    fd, offset, size = segment
    end = offset + size
    by_kernel = by_kernel and hasattr(os, "sendfile") and is_plain_socket(sock)
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
            # Not sendall(): its timeout is for all bytes together.
            block = os.pread(fd, min(BLOCK_BYTES, end - offset), offset)
            sent = sock.send(block) if block else 0
        if not sent:
            raise FileTruncated(end - offset, size)
        progress(sent)
        offset += sent


def send_file_once(out_fd: int, fd: int, offset: int, size: int) -> int:
    """Send the beginning of a range of a file, in one call of sendfile.

    :param out_fd: the descriptor of a socket without TLS.
    :param size: bytes, 1 or more.
    :returns: the number of bytes sent. It is 0 only at the end of the file.
    :raises SendfileUnavailable: if it is not supported. Nothing was sent.
    :raises BlockingIOError: if the buffer of a non-blocking socket is full.
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
    if not poller.poll(None if timeout is None else timeout * 1e3):
        raise TimeoutError(f"the peer took no byte for {timeout} s")


def reads_as(file: object, *bases: type, iterated: bool = True) -> bool:
    """Return whether a file is of a standard class and is read as that class is.

    A subclass or an instance may have methods of its own, but none that concerns reading.

    :param iterated: False if only read() and fileno() are called.
    """
    kind = type(file)
    if kind not in bases:
        base = next((base for base in bases if issubclass(kind, base)), None)
        if base is None:
            return False
        own = [cls for cls in kind.__mro__ if cls not in base.__mro__]
        names = _READING_OF_CLASSES if iterated else _READING_OF_CLASSES - _ITERATION
        if not all(names.isdisjoint(vars(cls)) for cls in own):
            return False
    names = READING if iterated else READING - _ITERATION
    return names.isdisjoint(getattr(file, "__dict__", ()))


def has_reading_of_its_own(file: object) -> bool:
    """Whether an instance has a method that its class does not have, to read in another way."""
    return not READING.isdisjoint(getattr(file, "__dict__", ()))


def has_its_size(fd: int, stat_result: os.stat_result) -> bool:
    """Return whether a regular file has as many bytes as it reports.

    A file of /proc reports 0 bytes and has some. A file of /sys reports 4096 and may have fewer.
    Neither has blocks. Files that are empty, sparse or stored in their inode have none either, so
    read a byte.
    """
    if stat_result.st_blocks:
        return True
    try:
        if stat_result.st_size:
            return bool(os.pread(fd, 1, stat_result.st_size - 1))
        return not os.pread(fd, 1, 0)
    except OSError:
        return False  # the next read reports the error


def unwrapped(file: object) -> object:
    """Return the file in one of tempfile's, or the file itself."""
    if type(file) is tempfile.SpooledTemporaryFile and not has_reading_of_its_own(file):
        return getattr(file, "_file", None)
    if type(file) is _NAMED and not _reads_on_its_own(file):
        return file.file  # type: ignore[attr-defined]
    return file


def _reads_on_its_own(wrapper: Any) -> bool:
    """Return whether a temporary file's wrapper has a method that is not its file's.

    The wrapper caches each requested method on the instance, in a function of tempfile's.
    """
    file = wrapper.file
    return any(
        getattr(method, "__globals__", None) is not vars(tempfile)
        or getattr(method, "__wrapped__", None) != getattr(file, name, None)
        for name, method in vars(wrapper).items()
        if name in READING
    )


class _Scratch(threading.local):
    """A buffer for all reads of a thread, so that it stays in the CPU's cache."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(BLOCK_BYTES))


_scratch = _Scratch()


def cached_bytes(fd: int, offset: int, size: int) -> int:
    """Return how many bytes from an offset on are in the page cache.

    One byte in each 256 KiB is probed, and the last one. Smaller gaps between them go unnoticed.
    Bytes beyond the end of the file count as cached, since reading them does not wait.

    :param size: bytes to look at, 1 or more.
    :returns: 0 to `size`. It is 0 if the kernel cannot say or if reading fails, because the next
        read reports the error.
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

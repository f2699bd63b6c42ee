"""Send several buffers in one call. Send files by sendfile or from the page cache.

os.sendfile reads from a descriptor, whose bytes may differ from those of the file object. The bytes
are the same for a regular file that is opened in binary mode, from its current position on.

preadv2(2) with RWF_NOWAIT reads from the page cache and never waits for the disk. Other systems
than Linux and some file systems (FUSE, overlayfs, tmpfs) do not support RWF_NOWAIT. Their files
count as not cached.
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

# If the average buffer is smaller, a copy into one block is cheaper than a sendmsg with many
# buffers.
_JOIN_BELOW_BYTES = 4096
# TLS sends one buffer in each call. Up to this total, a copy costs less than separate TLS records.
_JOIN_FOR_TLS_BYTES = 256 * 1024
# The most buffers of one sendmsg. More are an error (EMSGSIZE). It is 1024 on Linux and macOS.
_IOV_MAX = os.sysconf("SC_IOV_MAX")
# The most bytes of one call: Linux sends at most 0x7ffff000, and some systems fail beyond 2 GiB
# instead of sending less.
_MAX_SENDFILE_BYTES = 1 << 30
# The size of a read if sendfile cannot be used (TLS, unusual file systems). Larger reads are not
# faster, and do not fit into the CPU's cache.
BLOCK_BYTES = 256 * 1024
# Up to this size, a range of a file is read and sent together with the bytes before it. Beyond it,
# a separate sendfile call costs less than the copy.
SMALL_FILE_BYTES = 16 * 1024
# The errors of sendfile if the file system or the socket does not support it.
NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK})
# A flag that tells the kernel that more data follows at once, so that headers and a file share a
# packet. Only Linux has it. Other systems send two packets at once, with TCP_NODELAY.
MSG_MORE: int = getattr(socket, "MSG_MORE", 0)
# Methods of reading. If a subclass or an instance overrides one of them, a read may return other
# bytes than the descriptor or buffer contains. For example, the method may decrypt or limit them.
READING = frozenset(
    {"read", "read1", "readall", "readinto", "readinto1", "readline", "readlines", "peek"}
    | {"tell", "seek", "seekable", "readable", "flush", "fileno", "getbuffer", "getvalue"}
)
_READING_OF_CLASSES = (
    READING | {"__iter__", "__next__", "__getattribute__", "__getattr__"} | {"raw", "closed"}
)
# Methods that do not affect read() and fileno().
_ITERATION = frozenset({"__iter__", "__next__", "readline", "readlines"})
# tempfile's classes: the result of NamedTemporaryFile(), and SpooledTemporaryFile.
_NAMED: type = getattr(tempfile, "_TemporaryFileWrapper", type(None))
TEMPORARY: tuple[type, type] = (_NAMED, tempfile.SpooledTemporaryFile)
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# The errors of preadv if the kernel or the file system does not support RWF_NOWAIT.
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
# The distance between probes of the page cache: twice the kernel's default read-ahead
# (read_ahead_kb). Closer probes would find smaller gaps, but would take much of the time of a send.
_PROBE_STEP_BYTES = 256 * 1024

_probe = [bytearray(1)]


def send_some(
    sock: socket.socket, buffers: Sequence[bytes | memoryview], flags: int = 0
) -> Sequence[bytes | memoryview]:
    """Send the beginning of some buffers in one system call, and return the unsent buffers.

    :param sock: a blocking or non-blocking socket, with or without TLS.
    :param buffers: in order. Views must be of bytes ("B").
    :param flags: for socket.send(), such as MSG_MORE. Ignored for TLS.
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
            return () if sent == total else _unsent(buffers, sent)
    sent = sock.send(buffers[0]) if is_tls else sock.send(buffers[0], flags)
    return () if len(buffers) == 1 and sent == len(buffers[0]) else _unsent(buffers, sent)


def send_all(sock: socket.socket, buffers: Sequence[bytes | memoryview]) -> None:
    """Send buffers in order on a blocking socket, or on a socket with a timeout for each call.

    :raises OSError: as socket.send(). The number of sent bytes is then unknown.
    """
    while buffers:
        buffers = send_some(sock, buffers)


def _unsent(buffers: Sequence[bytes | memoryview], sent: int) -> Sequence[bytes | memoryview]:
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

    :param missing: the number of bytes that were not sent.
    :param size: the number of bytes to send.
    """

    def __init__(self, missing: int, size: int) -> None:
        super().__init__(
            f"the file shrank while it was sent: {missing} of {size} bytes are missing"
        )


def file_segment(file: object) -> FileSegment | None:
    """Return the descriptor, position and remaining bytes of a file that sendfile can send.

    Only read() and fileno() of the file count. An iteration over it may return other bytes.

    :param file: any object.
    :returns: a segment for raw and buffered binary files over a regular file, for temporary files,
        and for a SpooledTemporaryFile that was rolled over to disk. None for all other objects: the
        descriptor of a text file or a gzip file has other bytes than the file object. Pipes,
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
        return None  # the reader reads a socket, a zip member or an object of the app
    return regular_segment(file)


def regular_segment(
    file: io.FileIO | io.BufferedReader | io.BufferedRandom,
) -> FileSegment | None:
    """Return a file's bytes from its position on. Return None if sendfile cannot send them."""
    if isinstance(file, io.BufferedRandom):
        file.flush()  # written data may not have reached the descriptor yet
    if not file.readable():
        return None
    fd = file.fileno()
    stat_result = os.fstat(fd)
    if not stat.S_ISREG(stat_result.st_mode) or not has_reported_size(fd, stat_result):
        return None
    # tell() returns the position. The descriptor's offset may be larger, because a buffered file
    # has read ahead.
    position = file.tell()
    return FileSegment(fd, position, max(0, stat_result.st_size - position))


class NotAFile(OSError):
    """Raised for the path of a directory, a device, a socket or a FIFO."""


def open_regular(path: str | os.PathLike[str]) -> tuple[int, os.stat_result]:
    """Open a regular file. Return its descriptor, which the caller must close, and its stat result.

    :raises NotAFile: if the path is not that of a regular file.
    :raises OSError: if the file cannot be opened.
    """
    # Without O_NONBLOCK, the open of a FIFO would wait for a process that writes into it.
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
    """Send a range of a file's bytes on a blocking socket, or on a socket with a timeout.

    If sendfile is not supported (TLS, some file systems), the file is read in large blocks. The
    position of the file does not change.

    :param progress: called with the number of bytes of each send. So the caller knows the number of
        sent bytes even if the transfer fails.
    :param by_kernel: False to read the file even if sendfile seems to be supported.
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
            # send() is called in place of sendall(), whose timeout limits the time for all bytes.
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
    :raises SendfileUnavailable: if sendfile is not supported. Nothing was sent.
    :raises BlockingIOError: if the buffer of a non-blocking socket is full.
    :raises OSError: if the peer has left, or the file cannot be read.
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
        raise TimeoutError(f"the peer received no byte for {timeout} s")


def reads_as(file: object, *bases: type, iterated: bool = True) -> bool:
    """Return whether a file is of one of some classes, and is read by the methods of that class.

    A subclass or an instance may override other methods, but no method of reading.

    :param bases: standard classes, such as io.FileIO.
    :param iterated: False if only read() and fileno() will be called.
    """
    kind = type(file)
    if kind not in bases:
        base = next((base for base in bases if issubclass(kind, base)), None)
        if base is None:
            return False
        added = [cls for cls in kind.__mro__ if cls not in base.__mro__]
        names = _READING_OF_CLASSES if iterated else _READING_OF_CLASSES - _ITERATION
        if not all(names.isdisjoint(vars(cls)) for cls in added):
            return False
    names = READING if iterated else READING - _ITERATION
    return names.isdisjoint(getattr(file, "__dict__", ()))


def overrides_reading(file: object) -> bool:
    """Return whether an instance overrides a method of reading of its class."""
    return not READING.isdisjoint(getattr(file, "__dict__", ()))


def has_reported_size(fd: int, stat_result: os.stat_result) -> bool:
    """Return whether a regular file has as many bytes as it reports.

    A file of /proc reports 0 bytes and has more. A file of /sys reports 4096 bytes and may have
    fewer. Both have no disk blocks. Empty files, sparse files, and files whose bytes are stored in
    the inode have no blocks either. So for a file without blocks, a byte is read to decide.
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
    """Return the file inside a wrapper of tempfile. Return any other file unchanged."""
    if type(file) is tempfile.SpooledTemporaryFile and not overrides_reading(file):
        return getattr(file, "_file", None)
    if type(file) is _NAMED and not _overrides_reading_of_file(file):
        return file.file  # type: ignore[attr-defined]
    return file


def _overrides_reading_of_file(wrapper: Any) -> bool:
    """Return whether a wrapper of tempfile has a method of reading that differs from its file's.

    When a method of the file is used, the wrapper stores it as an attribute, wrapped in a function
    of tempfile.
    """
    file = wrapper.file
    return any(
        getattr(method, "__globals__", None) is not vars(tempfile)
        or getattr(method, "__wrapped__", None) != getattr(file, name, None)
        for name, method in vars(wrapper).items()
        if name in READING
    )


class _Scratch(threading.local):
    """One buffer for all reads of a thread.

    Because the buffer is reused, it stays in the CPU's cache.
    """

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(BLOCK_BYTES))


_scratch = _Scratch()


def cached_bytes(fd: int, offset: int, size: int) -> int:
    """Return how many bytes from an offset on are in the page cache.

    One byte in each 256 KiB and the last byte are probed. Gaps between two probes are not found.
    Bytes beyond the end of the file count as cached, since a read of them does not wait.

    :param size: the number of bytes to examine, 1 or more.
    :returns: 0 to `size`. It is 0 if the kernel does not support probes, or if a read fails. The
        next read reports the error.
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
    """Return the bytes of :func:`read_cached` without a copy.

    The bytes are valid until this thread calls this function or :func:`read_cached` again.
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
    return buffer[:count]

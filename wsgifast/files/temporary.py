"""Stores bodies in memory, or in unnamed temporary files if they are too large for memory.

- A :class:`Spool` is the body of one request, in memory or in a file.
- A :class:`TemporaryFile` contains a request body, or output for slow clients.
- A :class:`Budget` counts the bytes of all requests or clients, on disk or in memory.
- :func:`return_large_blocks` makes the allocator return the memory of large bodies to the system.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
import threading
from collections.abc import Sequence
from typing import BinaryIO, cast

from ..errors import BodyTooLarge, RequestError
from ..sockets.sending import FileSegment

# The maximum number of buffers of one write: Linux's IOV_MAX.
_MAX_BUFFERS = 1024
# The disk is full, a quota or the largest file size is reached, or there is no free descriptor.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})

# Options of mallopt(3) and their values. Option -3 is M_MMAP_THRESHOLD: glibc returns a freed block
# of this size or more to the system at once. Option -1 is M_TRIM_THRESHOLD: glibc keeps at most
# this number of free bytes at the end of the heap.
_THRESHOLDS = (-3, 4 * 1024 * 1024), (-1, 8 * 1024 * 1024)


def no_room(error: OSError) -> RequestError:
    """Return the error for a request whose body cannot be written to a temporary file."""
    return RequestError(503, f"There is no room for the request body: {error.strerror}")


def _refusal(error: OSError) -> OSError:
    """Return a RequestError if there is no room for a temporary file. Otherwise return `error`."""
    return no_room(error) if error.errno in _NO_ROOM else error


class Budget:
    """Counts the bytes of one resource, such as all temporary files. Thread-safe.

    :param limit_bytes: the maximum total.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes. If they exceed the limit, reserve none and return False."""
        with self._lock:
            if self.used_bytes + size > self._limit_bytes:
                return False
            self.used_bytes += size
            return True

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limit."""
        return self.used_bytes + size <= self._limit_bytes

    def count(self, size: int) -> None:
        """Add `size` bytes, even above the limit. A negative `size` releases bytes."""
        with self._lock:
            self.used_bytes += size


class Reservation:
    """The bytes of a budget that one request has reserved.

    :param budget: None for a reservation that always succeeds.
    :ivar size: the reserved bytes. It remains 0 without a budget.
    """

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget | None) -> None:
        self.size = 0
        self._budget = budget

    def grow_to(self, size: int) -> bool:
        """Grow the reservation to `size` bytes. Return False if that exceeds the budget."""
        more = size - self.size
        if more > 0 and self._budget is not None:
            if not self._budget.reserve(more):
                return False
            self.size = size
        return True

    def may_grow_to(self, size: int) -> bool:
        """Return whether :meth:`grow_to` would succeed now."""
        return self._budget is None or self._budget.has_room(size - self.size)

    def release(self) -> None:
        """Return all reserved bytes to the budget."""
        size, self.size = self.size, 0
        if size and self._budget is not None:
            self._budget.count(-size)


class Spool:
    """The body of a request, in memory or in a temporary file.

    The body moves to a file if it has more than `max_memory_bytes` bytes, or if the budget `memory`
    is used up.

    :param max_memory_bytes: the maximum number of bytes in memory.
    :param limit: the maximum size of the body in bytes.
    :param disk: the budget for bytes of the file.
    :param memory: the budget for bytes in memory. They count until the file of :meth:`open` is
        closed. None for no budget.
    :ivar size: the bytes of the body so far.
    """

    __slots__ = ("_disk", "_file", "_limit", "_max_memory_bytes", "_memory", "_reserved", "size")

    def __init__(
        self, max_memory_bytes: int, limit: int, disk: Budget, memory: Budget | None = None
    ) -> None:
        self.size = 0
        self._max_memory_bytes = max_memory_bytes
        self._limit = limit
        self._disk = disk
        self._memory = bytearray()
        self._reserved = Reservation(memory)
        self._file: TemporaryFile | None = None

    def may_need_disk(self, size: int) -> bool:
        """Return whether a write of up to `size` more bytes may use a file."""
        size += self.size
        return size > self._max_memory_bytes or not self._reserved.may_grow_to(size + size // 8)

    def write(self, data: bytes) -> None:
        """Append bytes.

        :raises BodyTooLarge: if the body exceeds the limit.
        :raises RequestError: if the disk is full, or its budget is used up.
        :raises OSError: if the temporary file cannot be written.
        """
        self.size += len(data)
        if self.size > self._limit:
            raise BodyTooLarge(self._limit)
        if self._file is None:
            # A bytearray that grows allocates an eighth more.
            if self.size <= self._max_memory_bytes and self._reserved.grow_to(
                self.size + self.size // 8
            ):
                self._memory += data
                return
            try:
                self._file = TemporaryFile(self._disk)
            except OSError as error:
                raise _refusal(error) from error
            if self._memory:
                self._file.write_all(self._memory)
                self._memory = bytearray()
            self._reserved.release()
        self._file.write_all(data)

    def open(self) -> BinaryIO:
        """Return the whole body as a file. The caller must close the file, but not this object."""
        if self._file is None:
            memory, self._memory = self._memory, bytearray()
            return CountedBytes(memory, self._reserved)
        file, self._file = self._file, None
        file.seek(0)
        return cast(BinaryIO, file)

    def close(self) -> None:
        """Discard the body."""
        self._memory = bytearray()
        self._reserved.release()
        if self._file is not None:
            self._file.close()


class CountedBytes(io.BytesIO):
    """A body in memory. Its bytes count in a budget until it is closed."""

    def __init__(self, data: bytearray, reserved: Reservation) -> None:
        super().__init__(data)
        self._reserved = reserved

    def __del__(self) -> None:
        self._reserved.release()

    def close(self) -> None:
        self._reserved.release()
        super().close()


class TemporaryFile(io.BufferedReader):
    """An unnamed temporary file. Writes append to the file, without a buffer. Reads are buffered.

    :param disk: the budget for the bytes of the file. They count until the file is closed.
    :param min_free_bytes: a write fails if less than this would be free on the file system.
    :param buffer_bytes: the size of one read. The buffer is allocated at once.
    :ivar size: the bytes that were written.
    :raises OSError: if the file cannot be created.
    """

    _is_open = False

    def __init__(
        self,
        disk: Budget,
        *,
        min_free_bytes: int = 0,
        buffer_bytes: int = io.DEFAULT_BUFFER_SIZE,
    ) -> None:
        self.size = 0
        self._disk = disk
        self._min_free_bytes = min_free_bytes
        file = cast(io.RawIOBase, tempfile.TemporaryFile(buffering=0))
        super().__init__(file, buffer_bytes)
        self._is_open = True

    def append(self, *buffers: bytes | bytearray | memoryview) -> FileSegment:
        """Append buffers without copying them. Return their part of the file.

        :raises OSError: if the disk is full, or its budget is used up. No byte was appended.
        """
        fd, begin, size = self.fileno(), self.size, sum(map(len, buffers))
        if self._min_free_bytes:
            at = os.fstatvfs(fd)
            if at.f_bavail * at.f_frsize < size + self._min_free_bytes:
                text = f"less than {self._min_free_bytes} bytes would be left free"
                raise OSError(errno.ENOSPC, text)
        if not self._disk.reserve(size):
            raise OSError(errno.EDQUOT, "the limit of all temporary files is reached")
        try:
            _write_at(fd, buffers, begin)
        except OSError:
            self._disk.count(-size)
            raise
        self.size += size
        return FileSegment(fd, begin, size)

    def write_all(self, data: bytes | bytearray) -> None:
        """Append a part of a request's body.

        :raises RequestError: if the disk is full, or its budget is used up.
        :raises OSError: if the file cannot be written.
        """
        try:
            self.append(data)
        except OSError as error:
            raise _refusal(error) from error

    def __del__(self) -> None:
        if self._is_open:
            self.close()  # a server does not close `wsgi.input`

    def close(self) -> None:
        if not self.closed:
            self._disk.count(-self.size)
        super().close()


def _write_at(fd: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
    for first in range(0, len(buffers), _MAX_BUFFERS):
        unwritten = [memoryview(buffer) for buffer in buffers[first : first + _MAX_BUFFERS]]
        while unwritten:
            done = os.pwritev(fd, unwritten, offset)
            offset += done
            while unwritten and done >= len(unwritten[0]):
                done -= len(unwritten.pop(0))
            if done:
                unwritten[0] = unwritten[0][done:]


def return_large_blocks() -> None:
    """Make glibc return large freed blocks of memory to the system at once, and reuse other blocks.

    By default, glibc keeps the freed memory of a 12 MB response that waited for a slow client.
    After each response of 200 kB, glibc returns the end of its heap to the kernel. For the next
    response, the kernel must clear that memory again. Fixed thresholds (mallopt(3)) avoid both. If
    the environment configures glibc's allocator, they are not set.
    """
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        with contextlib.suppress(ImportError, OSError, AttributeError):  # no mallopt()
            import ctypes

            for option, size in _THRESHOLDS:
                ctypes.CDLL(None).mallopt(option, size)

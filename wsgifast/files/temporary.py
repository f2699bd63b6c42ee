"""Bodies that are too large for memory: in unnamed temporary files.

A :class:`Spool` is the body of a request. A :class:`TemporaryFile` also has output for slow
clients. A :class:`Budget` counts the bytes of all, on disk or in memory.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
import threading
from collections.abc import Sequence
from typing import BinaryIO, cast

from ..errors import BodyTooLarge, RequestError
from ..sockets.sending import FileSegment

# The most buffers of one write: Linux's IOV_MAX.
_MOST_BUFFERS = 1024
# A full disk, the limit of this user or of a file, or no descriptor left.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})


def no_room(error: OSError) -> RequestError:
    """Return the response to a request with a body that cannot be written to a temporary file."""
    return RequestError(503, f"There is no room for the request body: {error.strerror}")


def _refusal(error: OSError) -> OSError:
    """Return the response for an error of a temporary file, or any other error itself."""
    return no_room(error) if error.errno in _NO_ROOM else error


class Budget:
    """Counts the bytes of all that is of one kind, such as temporary files. Thread-safe.

    :param limit_bytes: the most in total.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Reserve `size` bytes. Return False, and reserve nothing, if they exceed the limit."""
        with self._lock:
            if self.used_bytes + size > self._limit_bytes:
                return False
            self.used_bytes += size
            return True

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limit."""
        return self.used_bytes + size <= self._limit_bytes

    def count(self, size: int) -> None:
        """Count `size` more bytes, whatever the limit, or fewer if it is negative."""
        with self._lock:
            self.used_bytes += size


class Reservation:
    """The part of a budget that one request takes.

    :param budget: None for a reservation that always succeeds.
    :ivar size: bytes reserved.
    """

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget | None) -> None:
        self.size = 0
        self._budget = budget

    def grow_to(self, size: int) -> bool:
        """Reserve `size` bytes in all. Return False if they exceed the budget."""
        more = size - self.size
        if more > 0 and self._budget is not None:
            if not self._budget.take(more):
                return False
            self.size = size
        return True

    def may_grow_to(self, size: int) -> bool:
        """Return whether :meth:`grow_to` would succeed now."""
        return self._budget is None or self._budget.has_room(size - self.size)

    def release(self) -> None:
        """Give everything back."""
        size, self.size = self.size, 0
        if size and self._budget is not None:
            self._budget.count(-size)


class Spool:
    """Bytes in memory, or in a temporary file once there are more than `in_memory`.

    A file is also used once the memory of all spools is used up.

    :param limit: the most bytes.
    :param disk: where the file's bytes are counted.
    :param memory: where the bytes in memory are counted, until the opened file is closed, or None.
    """

    __slots__ = ("_disk", "_file", "_in_memory", "_limit", "_memory", "_reserved", "size")

    def __init__(
        self, in_memory: int, limit: int, disk: Budget, memory: Budget | None = None
    ) -> None:
        self.size = 0
        self._in_memory = in_memory
        self._limit = limit
        self._disk = disk
        self._memory = bytearray()
        self._reserved = Reservation(memory)
        self._file: TemporaryFile | None = None

    def may_need_disk(self, size: int) -> bool:
        """Whether the next `size` bytes, or fewer, may have to be written to a file."""
        size += self.size
        return size > self._in_memory or not self._reserved.may_grow_to(size + size // 8)

    def write(self, data: bytes) -> None:
        """Append bytes.

        :raises BodyTooLarge: over the limit.
        :raises RequestError: if the disk, or its budget, is used up.
        :raises OSError: if the temporary file cannot be written.
        """
        self.size += len(data)
        if self.size > self._limit:
            raise BodyTooLarge(self._limit)
        if self._file is None:
            # A bytearray that grows allocates an eighth more.
            if self.size <= self._in_memory and self._reserved.grow_to(self.size + self.size // 8):
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
        """Return everything as a file, which the caller closes in place of this object."""
        if self._file is None:
            memory, self._memory = self._memory, bytearray()
            return CountedBytes(memory, self._reserved)
        file, self._file = self._file, None
        file.seek(0)
        return cast(BinaryIO, file)

    def close(self) -> None:
        """Drop everything."""
        self._memory = bytearray()
        self._reserved.release()
        if self._file is not None:
            self._file.close()


class CountedBytes(io.BytesIO):
    """A body in memory, which is counted until it is closed."""

    def __init__(self, data: bytearray, reserved: Reservation) -> None:
        super().__init__(data)
        self._reserved = reserved

    def __del__(self) -> None:
        self._reserved.release()

    def close(self) -> None:
        self._reserved.release()
        super().close()


class TemporaryFile(io.BufferedReader):
    """An unnamed temporary file: writes go straight to its end, reads are buffered.

    :param disk: counts its bytes until it is closed.
    :param left_free_bytes: of its file system, in any case.
    :param buffer_bytes: the size of one read. The buffer is allocated at once.
    :ivar size: bytes written.
    :raises OSError: if it cannot be created.
    """

    _is_open = False

    def __init__(
        self,
        disk: Budget,
        *,
        left_free_bytes: int = 0,
        buffer_bytes: int = io.DEFAULT_BUFFER_SIZE,
    ) -> None:
        self.size = 0
        self._disk = disk
        self._left_free_bytes = left_free_bytes
        file = cast(io.RawIOBase, tempfile.TemporaryFile(buffering=0))
        super().__init__(file, buffer_bytes)
        self._is_open = True

    def append(self, *buffers: bytes | bytearray | memoryview) -> FileSegment:
        """Append buffers, without a copy. Return the part of the file that they take up.

        :raises OSError: if the disk or its budget is full. Nothing was appended.
        """
        fd, begin, size = self.fileno(), self.size, sum(map(len, buffers))
        if self._left_free_bytes:
            at = os.fstatvfs(fd)
            if at.f_bavail * at.f_frsize < size + self._left_free_bytes:
                text = f"less than {self._left_free_bytes} bytes would be left free"
                raise OSError(errno.ENOSPC, text)
        if not self._disk.take(size):
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

        :raises RequestError: if there is no room for it.
        :raises OSError: if it cannot be written.
        """
        try:
            self.append(data)
        except OSError as error:
            raise _refusal(error) from error

    def __del__(self) -> None:
        if self._is_open:
            self.close()  # nobody closes a `wsgi.input`

    def close(self) -> None:
        if not self.closed:
            self._disk.count(-self.size)
        super().close()


def _write_at(fd: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
    for first in range(0, len(buffers), _MOST_BUFFERS):
        left = [memoryview(buffer) for buffer in buffers[first : first + _MOST_BUFFERS]]
        while left:
            done = os.pwritev(fd, left, offset)
            offset += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if done:
                left[0] = left[0][done:]

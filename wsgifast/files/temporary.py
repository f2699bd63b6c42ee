"""Bodies that are too large for memory: in unnamed temporary files.

A :class:`Spool` is the body of a request; a :class:`TemporaryFile` also has output for slow
clients. A :class:`Budget` counts the bytes of all, on disk or in memory.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
import threading
from typing import BinaryIO, cast

from ..errors import BodyTooLarge, RequestError
from ..sockets.sending import FileSegment

# A full disk, or as much of it as this user, or a file, may take.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def no_room(error: OSError) -> RequestError:
    """Return the answer to a request whose body cannot be written to a temporary file."""
    return RequestError(503, f"There is no room for the request body: {error.strerror}")


class Budget:
    """Counts the bytes of all that is of one kind, such as temporary files; thread-safe.

    :param limit_bytes: the most in total.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Reserve `size` bytes; False, and nothing reserved, if they exceed the limit."""
        with self._lock:
            if self.used_bytes + size > self._limit_bytes:
                return False
            self.used_bytes += size
            return True

    def count(self, size: int) -> None:
        """Count `size` more bytes, whatever the limit, or fewer if it is negative."""
        with self._lock:
            self.used_bytes += size


class Spool:
    """Bytes in memory, or in a temporary file once there are more than `in_memory`.

    :param limit: the most bytes.
    :param disk: where the file's bytes are counted.
    """

    __slots__ = ("_disk", "_file", "_in_memory", "_limit", "_memory", "size")

    def __init__(self, in_memory: int, limit: int, disk: Budget) -> None:
        self.size = 0
        self._in_memory = in_memory
        self._limit = limit
        self._disk = disk
        self._memory = bytearray()
        self._file: TemporaryFile | None = None

    def may_need_disk(self, size: int) -> bool:
        """Whether the next `size` bytes, or fewer, may have to be written to a file."""
        return self.size + size > self._in_memory

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
            if self.size <= self._in_memory:
                self._memory += data
                return
            self._file = TemporaryFile(self._disk)
            if self._memory:
                self._file.write_all(self._memory)
                self._memory = bytearray()
        self._file.write_all(data)

    def open(self) -> BinaryIO:
        """Return everything as a file, which the caller closes in place of this object."""
        if self._file is None:
            return io.BytesIO(self._memory)
        file, self._file = self._file, None
        file.seek(0)
        return cast(BinaryIO, file)

    def close(self) -> None:
        """Drop everything."""
        if self._file is not None:
            self._file.close()


class TemporaryFile(io.BufferedReader):
    """An unnamed temporary file: writes go straight to its end, reads are buffered.

    :param disk: counts its bytes until it is closed.
    :param left_free_bytes: of its file system, in any case.
    :param buffer_bytes: what a read takes at once; allocated at once.
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

    def append(self, data: bytes | bytearray) -> FileSegment:
        """Append bytes; returns the part of the file that they take up.

        :raises OSError: if the disk or its budget is full; nothing was appended.
        """
        fd, begin, size = self.fileno(), self.size, len(data)
        if self._left_free_bytes:
            at = os.fstatvfs(fd)
            if at.f_bavail * at.f_frsize < size + self._left_free_bytes:
                text = f"less than {self._left_free_bytes} bytes would be left free"
                raise OSError(errno.ENOSPC, text)
        if not self._disk.take(size):
            raise OSError(errno.EDQUOT, "the limit of all temporary files is reached")
        try:
            with memoryview(data) as view:
                done = 0
                while done < size:
                    done += os.pwrite(fd, view[done:], begin + done)
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
            if error.errno not in _NO_ROOM:
                raise
            raise no_room(error) from error

    def __del__(self) -> None:
        if self._is_open:
            self.close()  # nobody closes a `wsgi.input`

    def close(self) -> None:
        if not self.closed:
            self._disk.count(-self.size)
        super().close()

"""The output of all connections: how much may be in memory, and temporary files for the rest."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterable

from ..sockets.sending import FileSegment
from .limits import Budget

# Free space that is left on the file system of the temporary files.
_LEFT_FREE_BYTES = 64 * 1024 * 1024
# The least time between two warnings about a failed spill: the log may be on the same disk.
_WARN_AGAIN_S = 10.0


class OutputMemory(Budget):
    """Counts the output in memory that waits for clients; beyond it, temporary files are used.

    :param disk: counts the bytes of these.
    :param warn: a logging function.
    """

    def __init__(self, limit_bytes: int, disk: Budget, warn: Callable[..., object]) -> None:
        super().__init__(limit_bytes)
        self.disk = disk
        self._warn = warn
        self._told = False
        self._warned_at = -_WARN_AGAIN_S  # of a failed spill; monotonic

    @property
    def most_of_one(self) -> int:
        """What one response may have in memory while a disk is slow."""
        return self._limit_bytes // 8

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    def take(self, size: int) -> bool:
        if super().take(size):
            return True
        with self._lock:
            told, self._told = self._told, True
        if not told:
            self._warn(
                "Slow clients leave more than %d bytes waiting in memory: from now on what "
                "exceeds it goes to temporary files in %s",
                self._limit_bytes,
                tempfile.gettempdir(),
            )
        return False

    def warn_of_failed_spill(self, error: OSError) -> None:
        """Log, now and then, that output stays in memory beyond the limit."""
        now = time.monotonic()
        with self._lock:
            if now - self._warned_at < _WARN_AGAIN_S:
                return
            self._warned_at = now
        self._warn("Output stays in memory, as it cannot be written to a temporary file: %s", error)


class SpillFile:
    """Output in an unnamed temporary file.

    :param disk: counts its bytes.
    :ivar fd: its descriptor, for reading and writing; the creator closes it.
    :ivar written: bytes written.
    :raises OSError: if it cannot be created.
    """

    __slots__ = ("_disk", "fd", "written")

    def __init__(self, disk: Budget) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            self.fd = os.dup(file.fileno())
        self.written = 0
        self._disk = disk

    def append(self, buffers: Iterable[memoryview]) -> FileSegment:
        """Append buffers; returns the run that they take up.

        :raises OSError: if the disk or its budget is full; nothing was appended.
        """
        data = memoryview(b"".join(buffers))
        size = len(data)
        at = os.fstatvfs(self.fd)
        if at.f_bavail * at.f_frsize < size + _LEFT_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"less than {_LEFT_FREE_BYTES} bytes would be left free")
        if not self._disk.take(size):
            raise OSError(errno.EDQUOT, "responses_on_disk_bytes are used up")
        begin, done = self.written, 0
        try:
            while done < size:
                done += os.pwrite(self.fd, data[done:], begin + done)
        except OSError:
            self._disk.count(-size)
            raise
        self.written += size
        return FileSegment(self.fd, begin, size)

    def give_back(self) -> None:
        """Return its bytes to the budget; it is about to be closed."""
        self._disk.count(-self.written)

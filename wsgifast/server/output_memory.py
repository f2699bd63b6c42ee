"""What all connections of a worker hold in memory for their clients, and the files for the rest."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable

from ..sockets.sendfile import FileSegment

__all__ = ["OutputMemory", "SpillFile"]


class OutputMemory:
    """Counts the bytes that wait in memory for clients that do not take them yet.

    :param limit_bytes: from which on output goes to temporary files.
    :param warn: is told, as logging's functions are, when that happens for the first time.
    """

    def __init__(self, limit_bytes: int, warn: Callable[..., object]) -> None:
        self.used_bytes = 0
        self.warn = warn
        self._limit_bytes = limit_bytes
        self._told = False
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    def reserve(self, size: int) -> bool:
        """Count so many bytes more, if there is room for them."""
        with self._lock:
            if self.used_bytes + size <= self._limit_bytes:
                self.used_bytes += size
                return True
            told, self._told = self._told, True
        if not told:
            self.warn(
                "Slow clients leave more than output_memory_bytes (%d) waiting: from now on what "
                "exceeds it goes to temporary files in %s",
                self._limit_bytes,
                tempfile.gettempdir(),
            )
        return False

    def count(self, size: int) -> None:
        """Count so many bytes more, or, where it is negative, fewer."""
        with self._lock:
            self.used_bytes += size


class SpillFile:
    """Output in an unnamed temporary file, in the order in which it was written.

    :ivar fd: its descriptor, open for reading too; whoever made the file closes it.
    :raises OSError: if there is no descriptor for it, or no folder.
    """

    __slots__ = ("_size", "fd")

    def __init__(self) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            self.fd = os.dup(file.fileno())
        self._size = 0

    def append(self, buffers: Iterable[memoryview]) -> FileSegment:
        """Write buffers behind what is there; return where they are.

        :raises OSError: if the disk is full; then nothing was appended.
        """
        begin = place = self._size
        for buffer in buffers:
            while buffer:
                written = os.pwrite(self.fd, buffer, place)
                place += written
                buffer = buffer[written:]
        self._size = place
        return FileSegment(self.fd, begin, place - begin)

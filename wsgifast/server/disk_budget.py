"""How much a worker may keep in temporary files."""

from __future__ import annotations

import threading

__all__ = ["DiskBudget"]


class DiskBudget:
    """Counts the bytes of all temporary files of one kind. Any thread may call it.

    :param limit_bytes: the most, together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Count so many bytes more, if there is room for them."""
        with self._lock:
            if self.used_bytes + size > self._limit_bytes:
                return False
            self.used_bytes += size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self.used_bytes -= size

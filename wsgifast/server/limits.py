"""Limits for both directions: how slow a client may be, how large all temporary files."""

from __future__ import annotations

import threading

__all__ = ["BODY_BYTES_PER_S", "DiskBudget", "time_left_s"]

# The least average rate of a request body, as in Apache's mod_reqtimeout (MinRate).
BODY_BYTES_PER_S = 500.0


def time_left_s(timeout_s: float, least_bytes_per_s: float, moved: int, waited_s: float) -> float:
    """Return for how many more seconds to wait for a client.

    :param timeout_s: the longest wait for a single byte.
    :param least_bytes_per_s: the least average rate once `timeout_s` has passed; 0 for any.
    :param moved: bytes that the client has sent, or taken, since the wait began.
    :param waited_s: seconds since then.
    """
    if not least_bytes_per_s:
        return timeout_s
    return min(timeout_s, timeout_s + moved / least_bytes_per_s - waited_s)


class DiskBudget:
    """Counts the bytes of all temporary files of one kind; thread-safe.

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

    def give_back(self, size: int) -> None:
        with self._lock:
            self.used_bytes -= size

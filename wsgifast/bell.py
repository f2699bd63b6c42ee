"""A bell for one thread that waits: threading.Event, at a fifth of its price."""

from __future__ import annotations

import threading

__all__ = ["Bell"]


class Bell:
    """A lock that is held until somebody rings.

    A ring while nobody waits is not lost: the next wait() ends at once.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the wait, or the next one; from any thread, or a signal handler."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it has been rung already

    def wait(self, seconds: float | None) -> bool:
        """Return whether it rang; False after a time, None being without end."""
        return self._lock.acquire(timeout=-1 if seconds is None else seconds)

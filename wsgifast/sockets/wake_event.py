"""Wake one waiting thread: threading.Event for a single waiter, at a fifth of its cost."""

from __future__ import annotations

import threading

__all__ = ["WakeEvent"]


class WakeEvent:
    """An event that one thread waits for; each wait() takes it back.

    A set() while nobody waits is not lost: the next wait() ends at once.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """End the wait, or the next one; from any thread, or a signal handler."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it is set already

    def wait(self, seconds: float | None) -> bool:
        """Return whether it was set; False after a time, None being without end."""
        return self._lock.acquire(timeout=-1 if seconds is None else seconds)

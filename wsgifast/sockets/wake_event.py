"""Wakes one waiting thread: a cheaper threading.Event for a single waiter."""

from __future__ import annotations

import threading


class WakeEvent:
    """An event for which one thread waits; a wait() that it ends also clears it.

    A set() while no thread waits is not lost: the next wait() returns at once.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """End the current or the next wait; safe in any thread and in a signal handler."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it is set already

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is set, for at most `seconds`; returns whether it was."""
        return self._lock.acquire(timeout=-1 if seconds is None else seconds)

"""Wake one waiting thread: an event, and an alarm that is postponed without waking it.

Waking a thread that finds nothing to do is expensive in Python: it queues for the GIL, and the
thread that works may lose the GIL at its next system call. So the kernel keeps the time where it
can (timerfd_create(2)).
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..checks import LONGEST_S

# timerfd_create(2), Linux. Its flags TFD_NONBLOCK and TFD_CLOEXEC have the values of open(2)'s.
_CLOCK_MONOTONIC = 1
_NS_PER_S = 1_000_000_000


class WakeEvent:
    """A threading.Event for one waiting thread. wait() clears it when it returns.

    A set() while no thread waits is not lost: the next wait() returns at once.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """End the current or the next wait. Safe in any thread and in a signal handler."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it is set already

    def wait(self, seconds: float | None) -> bool:
        """Wait for at most `seconds`. Return whether it was set."""
        if seconds is None or seconds > threading.TIMEOUT_MAX:
            seconds = -1
        return self._lock.acquire(timeout=seconds)


def make_alarm() -> KernelAlarm | PlainAlarm:
    """Make the best alarm that the system has.

    It goes off once after it is set. A second set() before that replaces the time. set() is safe in
    any thread and in a signal handler. wait() is for one thread.
    """
    try:
        return KernelAlarm()
    except (AttributeError, ImportError, OSError):
        return PlainAlarm()


class KernelAlarm:
    """Linux: setting it is one system call, and wakes nobody.

    :raises AttributeError, ImportError, OSError: if it is not available.
    """

    def __init__(self) -> None:
        import ctypes  # some builds of Python lack it

        # PyDLL: the calls keep the GIL, since they never block.
        libc = ctypes.PyDLL(None, use_errno=True)
        fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        weakref.finalize(self, os.close, fd)
        self._fd = fd
        self._set: Callable[..., int] = libc.timerfd_settime
        self._time = ctypes.c_long * 4
        self._times: dict[float, Any] = {}  # the arguments, by seconds: callers use a few values
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def set(self, seconds: float) -> None:
        """Make it go off after so many seconds."""
        at = self._times.get(seconds)
        if at is None:
            # At least one nanosecond, because 0 stops the timer.
            ns = max(1, round(min(seconds, threading.TIMEOUT_MAX) * _NS_PER_S))
            whole, part = divmod(ns, _NS_PER_S)
            at = self._times[seconds] = self._time(0, 0, whole, part)
        self._set(self._fd, 0, at, None)

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds` until it goes off. Return whether it has."""
        if not self._poll.poll(min(seconds, LONGEST_S) * 1000):
            return False
        with contextlib.suppress(BlockingIOError):  # it was set again just now
            os.read(self._fd, 8)
        return True


class PlainAlarm:
    """Any system: the waiting thread wakes at the first time that was set, and then waits on."""

    def __init__(self) -> None:
        self._at = float("inf")
        self._changed = WakeEvent()

    def set(self, seconds: float) -> None:
        before, self._at = self._at, time.monotonic() + seconds
        if self._at < before:
            self._changed.set()

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            now, at = time.monotonic(), self._at
            if now >= at:
                self._at = float("inf")
                return True
            if now >= deadline:
                return False
            self._changed.wait(min(at, deadline) - now)

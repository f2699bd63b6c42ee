"""Wake one waiting thread: an event, and an alarm that can be postponed without waking the thread.

In Python, waking a thread that has no work is expensive. This thread waits for the GIL, and the
working thread may lose the GIL at its next system call. So the alarm is a timer of the kernel if
the system has one (timerfd_create(2)).
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

# For timerfd_create(2) of Linux. Its TFD_NONBLOCK and TFD_CLOEXEC equal O_NONBLOCK and O_CLOEXEC.
_CLOCK_MONOTONIC = 1
_NS_PER_S = 1_000_000_000


class WakeEvent:
    """A threading.Event for one waiting thread. wait() clears the event when it returns.

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
            pass  # already set

    def wait(self, seconds: float | None) -> bool:
        """Wait for at most `seconds`. Return whether the event was set."""
        if seconds is None or seconds > threading.TIMEOUT_MAX:
            seconds = -1
        return self._lock.acquire(timeout=seconds)


def make_alarm() -> KernelAlarm | PlainAlarm:
    """Return an alarm of the best kind that the system supports.

    An alarm goes off once after each set(). If set() is called again before the alarm goes off, the
    new time replaces the old time. Any thread and any signal handler may call set(). Only one
    thread may call wait().
    """
    try:
        return KernelAlarm()
    except (AttributeError, ImportError, OSError):
        return PlainAlarm()


class KernelAlarm:
    """An alarm that uses a timer of Linux. set() is one system call, and wakes no thread.

    :raises AttributeError, ImportError, OSError: if the timer is not available.
    """

    def __init__(self) -> None:
        import ctypes  # missing in some builds of Python

        # PyDLL does not release the GIL during a call. These calls never block.
        libc = ctypes.PyDLL(None, use_errno=True)
        fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        weakref.finalize(self, os.close, fd)
        self._fd = fd
        self._set: Callable[..., int] = libc.timerfd_settime
        self._time = ctypes.c_long * 4
        # Arguments of timerfd_settime() by seconds. Callers use few different values.
        self._times: dict[float, Any] = {}
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def set(self, seconds: float) -> None:
        """Set the alarm to go off after `seconds`."""
        at = self._times.get(seconds)
        if at is None:
            # At least one nanosecond, because 0 stops the timer.
            ns = max(1, round(min(seconds, threading.TIMEOUT_MAX) * _NS_PER_S))
            whole, part = divmod(ns, _NS_PER_S)
            at = self._times[seconds] = self._time(0, 0, whole, part)
        self._set(self._fd, 0, at, None)

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`. Return whether the alarm has gone off."""
        if not self._poll.poll(min(seconds, LONGEST_S) * 1000):
            return False
        with contextlib.suppress(BlockingIOError):  # set again since poll() returned
            os.read(self._fd, 8)
        return True


class PlainAlarm:
    """An alarm for any system. A set() to a later time does not wake the waiting thread.

    The thread wakes at the earlier time, and waits again.
    """

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

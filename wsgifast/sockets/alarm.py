"""An alarm for one thread that waits, which others may put off without waking it.

A thread that wakes only to see that there is nothing to do is not free: in Python it then queues
for the interpreter lock, and until it has it, each system call of the thread that works ends in a
switch between the two. So the time is the kernel's to keep where it can (timerfd_create(2)).
"""

from __future__ import annotations

import contextlib
import os
import select
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from .wake_event import WakeEvent

__all__ = ["Alarm", "KernelAlarm", "PlainAlarm", "make_alarm"]

# timerfd_create(2), Linux: CLOCK_MONOTONIC; TFD_NONBLOCK and TFD_CLOEXEC are open(2)'s.
_CLOCK_MONOTONIC = 1
_NS_PER_S = 1_000_000_000


class Alarm(Protocol):
    """Goes off once for each time that it is set, unless it is set again before."""

    def set(self, seconds: float) -> None:
        """Have it go off after so long, and not before; from any thread, or a signal handler."""

    def wait(self, seconds: float) -> bool:
        """Wait until it goes off, at most so long; whether it has. One thread at a time."""


def make_alarm() -> Alarm:
    """The best one that the system has."""
    try:
        return KernelAlarm()
    except (AttributeError, ImportError, OSError):
        return PlainAlarm()


class KernelAlarm:
    """Linux: to put it off is one call of the kernel.

    :raises AttributeError, ImportError, OSError: where there is none.
    """

    def __init__(self) -> None:
        import ctypes  # some builds of Python lack it

        # A PyDLL's calls keep the interpreter lock: neither of the two ever waits.
        libc = ctypes.PyDLL(None, use_errno=True)
        fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        weakref.finalize(self, os.close, fd)
        self._fd = fd
        self._set: Callable[..., int] = libc.timerfd_settime
        self._time = ctypes.c_long * 4
        # By seconds: those who set it choose from a few.
        self._times: dict[float, Any] = {}
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def set(self, seconds: float) -> None:
        at = self._times.get(seconds)
        if at is None:
            # 0 would stop it.
            whole, part = divmod(max(1, round(seconds * _NS_PER_S)), _NS_PER_S)
            at = self._times[seconds] = self._time(0, 0, whole, part)
        self._set(self._fd, 0, at, None)

    def wait(self, seconds: float) -> bool:
        if not self._poll.poll(seconds * 1000):
            return False
        with contextlib.suppress(BlockingIOError):  # it was put off just now
            os.read(self._fd, 8)
        return True


class PlainAlarm:
    """Any system: whoever waits wakes now and then, and sees that it was put off."""

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

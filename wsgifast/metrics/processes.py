"""Processes by names that no later process has too; and the memory of this one."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import sys
import time
import weakref

_NAME = re.compile(r"wsgifast-(\d+)-(\d+)")


def name_of_process(pid: int) -> str:
    """A name for a process: its pid, and when it was started, since pids come again."""
    try:
        started = _started(pid)
    except OSError:
        started = None
    return f"wsgifast-{pid}-{started or 0}"


def pid_in(name: str) -> int | None:
    """The pid of a process by its name; None if it is none of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def is_alive(name: str) -> bool:
    """Whether the process of that name is there, and no zombie; True if that cannot be known."""
    found = _NAME.fullmatch(name)
    if found is None:
        return False
    pid, started = int(found[1]), int(found[2])
    if not pid:
        return False  # to kill(2), one's own group
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if not started:
        return True
    try:
        return _started(pid) == started
    except OSError:
        return True


class ProcessEnd:
    """Waits for the end of a process that need not be a child.

    :param name: see :func:`name_of_process`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._poll: select.poll | None = None
        pid = pid_in(name)
        if pid and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # an older kernel; or it has ended
                fd = os.pidfd_open(pid)
                weakref.finalize(self, os.close, fd)
                self._poll = select.poll()
                self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_s: float, period_s: float) -> None:
        """Return when the process has ended, or after a timeout.

        :param period_s: how often to look where the system does not report the end.
        """
        if self._poll is not None:
            self._poll.poll(timeout_s * 1000)
            return
        deadline = time.monotonic() + timeout_s
        while is_alive(self._name) and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, period_s))


def _started(pid: int) -> int | None:
    """In ticks since the system's start; None for a zombie, and without /proc.

    :raises OSError: if too many files are open, for example.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            # proc_pid_stat(5): the name in parentheses may have any character in it.
            fields = file.read(1024).rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def resident_bytes() -> int:
    """The resident memory of this process; without /proc, the most it ever had."""
    try:
        with open("/proc/self/statm", "rb", 0) as file:
            pages = int(file.read(256).split()[1])  # proc_pid_statm(5)
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

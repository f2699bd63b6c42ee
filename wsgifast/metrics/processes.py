"""Processes by names that no later process has too."""

from __future__ import annotations

import os
import re

__all__ = ["is_alive", "name_of_process", "pid_in"]

_NAME = re.compile(r"wsgifast-(\d+)-(\d+)")


def name_of_process(pid: int) -> str:
    """A name for a process: its pid, and when it was started, since pids come again."""
    return f"wsgifast-{pid}-{_started(pid) or 0}"


def pid_in(name: str) -> int | None:
    """The pid of a process by its name; None if it is none of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def is_alive(name: str) -> bool:
    """Whether the process of that name is there, and no zombie."""
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
    return _started(pid) == started


def _started(pid: int) -> int | None:
    """In ticks since the system's start; None for a zombie, and where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            # proc_pid_stat(5): the name in parentheses may have any character in it.
            fields = file.read(1024).rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])

"""The lock that an exporter holds as long as it lives: there is one in a directory, or none."""

from __future__ import annotations

import fcntl
import os

__all__ = ["has_exporter", "take_lock"]

_LOCK_FILE = "exporter.lock"


def has_exporter(directory: str) -> bool:
    """Whether there is one at the moment.

    :raises OSError: if that cannot be told.
    """
    try:
        lock = _taken(directory, os.O_RDWR)
    except FileNotFoundError:
        return False
    if lock is None:
        return True
    os.close(lock)
    return False


def take_lock(directory: str) -> int | None:
    """The lock, as a descriptor that a process to be started inherits; None if it is held.

    :raises OSError: if that cannot be told.
    """
    return _taken(directory, os.O_RDWR | os.O_CREAT)


def _taken(directory: str, flags: int) -> int | None:
    lock = os.open(os.path.join(directory, _LOCK_FILE), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock

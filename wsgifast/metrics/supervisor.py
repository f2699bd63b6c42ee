"""Starts the exporter, from every worker of a server: its arguments, and its lock.

The lock is taken before the exporter is started, which inherits it: two workers never start two,
and however it ends, the next check finds the lock free.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from .health import State
from .periodic import every_second
from .states import StateFile

_LOCK_FILE = "exporter.lock"
# The file in the directory that has the address where the server wants to be scraped; an exporter
# that is at another one ends.
ADDRESS_FILE = "address"

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from wsgifast.metrics.exporter import main; main(sys.argv[1])"
)
# An exporter that has ended sooner is tried again later and later, to this time at most.
_SHORT_LIFE_S = 5.0
_MOST_PATIENCE_S = 60.0
# A lock that another exporter holds is not tried again sooner.
_LOCKED_FOR_S = 3.0


@dataclass(frozen=True)
class Export:
    """What is served, and for whom.

    :ivar directory: of prometheus_client's multiprocess mode.
    :ivar own: it was made for this server, and is removed with it.
    :ivar address: where to serve it.
    :ivar arbiter: the process whose end is the server's.
    """

    directory: str
    own: bool
    address: str
    arbiter: str

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def announce(self) -> None:
        """Say in the directory where the server wants to be scraped.

        :raises OSError: if that cannot be.
        """
        fd, made = tempfile.mkstemp(dir=self.directory, suffix=".tmp")
        with open(fd, "w") as file:
            file.write(self.address)
        os.replace(made, os.path.join(self.directory, ADDRESS_FILE))


def has_exporter(directory: str) -> bool:
    """Whether a directory has an exporter at the moment.

    :raises OSError: if the lock cannot be opened.
    """
    try:
        lock = _taken(directory, os.O_RDWR)
    except FileNotFoundError:
        return False
    if lock is None:
        return True
    os.close(lock)
    return False


def _take_lock(directory: str) -> int | None:
    """The lock, as a descriptor for the exporter to inherit; None if it is held.

    :raises OSError: if it cannot be opened.
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


def start_exporting(export: Export, state: Callable[[], State]) -> None:
    """Once a second, start the exporter if there is none, and write this process's state for it.

    :param state: returns the state.
    """
    file = StateFile(export.directory)
    every_second.add(_Supervisor(export).check)
    every_second.add(lambda: file.update(state()))


class _Supervisor:
    """Starts the exporter if there is none."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._locked_at = float("-inf")
        self._patience_s = 0.0

    def check(self) -> None:
        """Start one if there is none; called now and then.

        :raises OSError: if none can be started.
        """
        now = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._process = None
            self._locked_at = float("-inf")
            lived_s = now - self._started_at
            longer_s = min(2 * self._patience_s + 1, _MOST_PATIENCE_S)
            self._patience_s = longer_s if lived_s < _SHORT_LIFE_S else 0.0
        if now < self._started_at + self._patience_s or now < self._locked_at + _LOCKED_FOR_S:
            return
        lock = _take_lock(self._export.directory)
        if lock is None:  # another worker's exporter lives
            self._locked_at = now
            return
        try:
            self._started_at = now
            self._start(lock)
        finally:
            os.close(lock)

    def _start(self, lock: int) -> None:
        # Not `-m`: a module in the working directory must not be taken for one of ours.
        program = _PROGRAM.format(path=[os.path.abspath(each) for each in sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, self._export.as_json()],
            stdin=subprocess.DEVNULL,
            pass_fds=[lock],
        )

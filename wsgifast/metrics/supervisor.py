"""Supervises the exporter, from every worker of a server.

The lock is taken before the exporter is started, which inherits it: two workers never start two,
and however it ends, the next check finds the lock free.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from .exporter import Export
from .multiprocess import take_lock

__all__ = ["Supervisor"]

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from wsgifast.metrics.exporter import main; main(sys.argv[1])"
)
# An exporter that has ended sooner is tried again later and later, to this time at most.
_SHORT_LIFE_S = 5.0
_MOST_PATIENCE_S = 60.0
# A lock that another exporter holds is not tried again sooner.
_LOCKED_FOR_S = 3.0


class Supervisor:
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
        lock = take_lock(self._export.directory)
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

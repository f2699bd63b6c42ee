"""What is done once a second, by one thread of the process."""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from .failures import Failures

__all__ = ["Periodic", "every_second"]

logger = logging.getLogger("wsgifast")

_PERIOD_S = 1.0


class Periodic:
    """Calls functions in turn; one that fails is called again, and its error logged once.

    The thread is a daemon's: it keeps no process from its end. It does not survive a fork.
    """

    def __init__(self) -> None:
        self._functions: list[Callable[[], object]] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a child: it has no thread."""
        self._failures = defaultdict[Callable[[], object], Failures](partial(Failures, logger))
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, function: Callable[[], object]) -> None:
        self._functions.append(function)

    def start(self) -> None:
        """Begin, if that was not done in this process."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="wsgifast-metrics", daemon=True
                )
                self._thread.start()

    def call(self) -> None:
        """Call all of them now."""
        for function in self._functions:
            try:
                function()
            except Exception:  # noqa: BLE001 - it is logged
                self._failures[function].tell()

    def _run(self) -> None:
        sleep = threading.Event()
        while True:
            self.call()
            sleep.wait(_PERIOD_S)


every_second = Periodic()

os.register_at_fork(after_in_child=every_second.begin_anew)

"""Functions that one thread of the process calls once a second, and failures logged once."""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["Failures", "Periodic", "every_second"]

_PERIOD_S = 1.0


class Failures:
    """The failures of one back end: the first is logged.

    :param log: a logger.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._is_logged = False

    def log(self) -> None:
        """Log the exception that is being handled, if it is the first."""
        if not self._is_logged:
            self._is_logged = True
            self._log.exception("Metrics have failed; further failures are not logged")


class Periodic:
    """Calls functions in turn. One that fails is called again; its failure is logged once.

    The thread is a daemon. It does not survive a fork.
    """

    def __init__(self) -> None:
        self._functions: list[Callable[[], object]] = []
        self._reset()

    def _reset(self) -> None:
        log = logging.getLogger("wsgifast")
        self._failures = defaultdict[Callable[[], object], Failures](partial(Failures, log))
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, function: Callable[[], object]) -> None:
        self._functions.append(function)

    def start(self) -> None:
        """Start the thread, unless this process has it already."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="wsgifast-metrics", daemon=True
                )
                self._thread.start()

    def call(self) -> None:
        """Call all functions now."""
        for function in self._functions:
            try:
                function()
            except Exception:  # noqa: BLE001 - it is logged
                self._failures[function].log()

    def _run(self) -> None:
        sleep = threading.Event()
        while True:
            self.call()
            sleep.wait(_PERIOD_S)


every_second = Periodic()

os.register_at_fork(after_in_child=every_second._reset)

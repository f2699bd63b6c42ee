"""Functions that one thread of the process calls once a second, and failures logged once."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

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
        if self._is_logged:
            return
        self._is_logged = True
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # such as a full disk: no traceback explains it better
            self._log.error("Metrics have failed: %s; further failures are not logged", error)
        else:
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

    def call(self, functions: Iterable[Callable[[], object]] | None = None) -> None:
        """Call some functions now, or all that were added."""
        for function in self._functions if functions is None else functions:
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

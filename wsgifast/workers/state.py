"""A FastWorker's state, for whoever answers for its server (see wsgifast.metrics.states)."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from ..metrics.states import State, StateFile
from ..server.figures import slowest_clients
from ..server.server import Server

__all__ = ["StateReporter"]

# Slow clients that are told of.
_MOST_CLIENTS = 20
# The arbiter ends a worker that is silent for its `timeout`; if that has not helped by now, nothing
# but a restart will.
_LOST_AFTER_TIMEOUTS = 2


class StateReporter:
    """Writes the file of a worker.

    :param worker: its class and its configuration have the limits.
    """

    def __init__(self, server: Server, worker: Any, directory: str) -> None:
        self._server = server
        self._worker = worker
        self._file = StateFile(directory)
        self._lost_after_s = _LOST_AFTER_TIMEOUTS * worker.cfg.timeout or math.inf

    def report(self) -> None:
        """Bring the file up to date; any thread may call.

        :raises OSError: if it cannot be written.
        """
        self._file.update(self.state())

    def state(self) -> State:
        server = self._server
        return State(
            os.getpid(),
            self._worker.beaten_at,
            server.pool.exhaustion.since,
            server.accepts,
            self._worker.unready_after_s,
            self._lost_after_s,
            slowest_clients(list(server.connections), time.monotonic(), most=_MOST_CLIENTS),
        )

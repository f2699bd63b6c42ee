"""Implement WSGIFAST_METRICS for ASGI servers.

Each worker counts, and one process serves all metrics.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any

from wsgifast.errors import ConfigurationError, MissingExtra
from wsgifast.metrics.collecting import Point, point, process_collectors
from wsgifast.metrics.health import State, resident_bytes
from wsgifast.metrics.requests import Recorder
from wsgifast.metrics.setup import (
    DIRECTORY,
    Wanted,
    check,
    prepare,
    start_exporting,
    wanted_metrics,
)

from .access_line import begin_line
from .counters import counters
from .instrumented import Instrumented
from .json_log import is_json
from .messages import ASGIApp

# The interval of the event loop's heartbeat.
_BEAT_S = 1.0
# Without a heartbeat for this long, a worker is reported as lost. Servers usually replace a worker
# with a blocked event loop before this time.
_LOST_AFTER_S = 60.0

_recorder: Recorder | None = None


def instrumented(app: ASGIApp) -> ASGIApp:
    """Return the app of a server, wrapped if metrics or a JSON access log are enabled."""
    logs_json = is_json(logging.getLogger("uvicorn.access"))
    if _recorder is None and not logs_json:
        return app
    return Instrumented(app, _recorder, None, begin_line if logs_json else None, is_server=True)


def choose_directory() -> None:
    """Choose the directory for metrics, if metrics are enabled.

    This precedes the import of the app, because prometheus_client reads the directory when it is
    imported. Errors are raised later, when the server starts.
    """
    wanted = wanted_metrics("metrics_bind", None)
    if wanted is not None:
        try:
            prepare(wanted, _server_pid())
        except (ConfigurationError, MissingExtra):
            pass


def begin_under_uvicorn() -> None:
    """Begin to count on the running event loop, if metrics are enabled and have not begun.

    :raises ConfigurationError: if metrics cannot be served.
    :raises MissingExtra: if prometheus_client is not installed.
    """
    wanted = wanted_metrics("metrics_bind", None)
    if wanted is None or _recorder is not None:
        return
    server_pid = _server_pid()
    check(wanted, server_pid)
    begin(wanted, server_pid, asyncio.get_running_loop())


def _server_pid() -> int:
    """Return the process id of uvicorn's supervisor, or of this process if it has none."""
    supervisor = multiprocessing.parent_process()
    pid = None if supervisor is None else supervisor.pid
    return os.getpid() if pid is None else pid


def begin(wanted: Wanted, server_pid: int, loop: Any) -> None:
    """Begin to count requests and to report metrics.

    :param loop: the event loop of the server. Health checks report whether it still runs.
    :raises ConfigurationError: if prometheus_client was imported too early to write its metrics
        for the exporter.
    """
    global _recorder
    from prometheus_client import values

    if values.ValueClass is values.MutexValue:
        raise ConfigurationError(
            f"{wanted}: prometheus_client was imported before the server knew where its workers "
            f"write metrics. Set {DIRECTORY} to an empty directory before Python starts, or import "
            "asgifast.uvicorn before prometheus_client"
        )
    beaten_at = time.monotonic()

    def beat() -> None:
        nonlocal beaten_at
        beaten_at = time.monotonic()
        loop.call_later(_BEAT_S, beat)

    def state() -> State:
        accepts = not counters.is_ending()
        return State(os.getpid(), beaten_at, None, accepts, math.inf, _LOST_AFTER_S, [])

    from wsgifast.metrics.prometheus import recorder

    process_collectors.append(_worker_points)
    _recorder = recorder()
    start_exporting(wanted, server_pid, state)
    loop.call_soon(beat)


def _worker_points() -> Iterator[Point]:
    yield point("wsgifast_workers", 1)
    yield point("wsgifast_worker_starts_total", 1)
    yield point("wsgifast_worker_memory_bytes", resident_bytes())
    yield point("wsgifast_worker_cpu_seconds_total", time.process_time())

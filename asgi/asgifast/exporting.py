"""WSGIFAST_METRICS for ASGI servers: each worker counts, and one exporter is scraped for all.

A worker counts its connections in plain numbers, which are read when the metrics are collected.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wsgifast.errors import ConfigurationError, MissingExtra
from wsgifast.metrics.collecting import ConnectionCounters, Point, point, process_collectors
from wsgifast.metrics.health import State, resident_bytes
from wsgifast.metrics.requests import Recorder
from wsgifast.metrics.setup import Wanted, check, start_exporting, wanted_metrics

from .instrumented import Instrumented
from .messages import ASGIApp

if TYPE_CHECKING:
    from .protocols.transport import CoalescingTransport

# The event loop's heartbeat.
_BEAT_S = 1.0
# ASGI servers replace a worker sooner if its event loop stands still.
_LOST_AFTER_S = 60.0
# uvicorn's own status for what would fail again at every start: its supervisor ends with it.
_STARTUP_FAILURE = 3
_STATES = ("idle", "body", "running", "sending", "closing")

_recorder: Recorder | None = None


def instrumented(app: ASGIApp) -> ASGIApp:
    """Return the app, with its requests counted if metrics are enabled."""
    return app if _recorder is None else Instrumented(app, _recorder, None)


def begin_under_uvicorn() -> None:
    """Begin to count; called when uvicorn looks its protocol up by name.

    Each worker does that in the event loop that will serve, before it loads the app. It is the only
    time at which uvicorn runs code of ours before a request; its supervisor never does.
    """
    supervisor = multiprocessing.parent_process()
    server = os.getpid() if supervisor is None else supervisor.pid
    assert server is not None
    try:
        wanted = wanted_metrics("metrics_bind", None)
        if wanted is not None:
            check(wanted, server)
    except (ConfigurationError, MissingExtra) as error:
        logging.getLogger("uvicorn.error").error("%s", error)
        sys.exit(_STARTUP_FAILURE)
    if wanted is not None:
        begin(wanted, server, asyncio.get_running_loop())


def begin(wanted: Wanted, server_pid: int, loop: Any) -> None:
    """Count and report from now on.

    :param loop: the event loop that serves; probes show whether it still runs.
    """
    global _recorder
    beaten_at = time.monotonic()

    def beat() -> None:
        nonlocal beaten_at
        beaten_at = time.monotonic()
        loop.call_later(_BEAT_S, beat)

    def state() -> State:
        return State(os.getpid(), beaten_at, None, True, math.inf, _LOST_AFTER_S, [])

    from wsgifast.metrics.prometheus import recorder

    process_collectors.append(_of_the_worker)
    _recorder = recorder()
    start_exporting(wanted, server_pid, state)
    loop.call_soon(beat)


def _of_the_worker() -> Iterator[Point]:
    yield point("wsgifast_workers", 1)
    yield point("wsgifast_worker_starts_total", 1)
    yield point("wsgifast_worker_memory_bytes", resident_bytes())
    yield point("wsgifast_worker_cpu_seconds_total", time.process_time())


class Figures(ConnectionCounters):
    """Those of one process.

    :ivar open: the open connections' protocols, each of which has uvicorn's `cycle`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[Any, CoalescingTransport] = {}

    def collect(self) -> Iterator[Point]:
        """A :data:`~wsgifast.metrics.Collector`; any thread may call it."""
        states = Counter[str]()
        slow = queued = 0
        for protocol, transport in list(self.open.items()):
            states[_state_of(protocol.cycle, transport)] += 1
            queued += transport.get_write_buffer_size()
            slow += transport.waits_for_client
        if self.accepted:  # else the connections are another server's
            for state in _STATES:
                yield point("wsgifast_connections", states[state], state)
            yield point("wsgifast_connections_accepted_total", self.accepted)
            yield point("wsgifast_connections_refused_total", self.connections_refused)
            yield point("wsgifast_slow_clients", slow)
            yield point("wsgifast_output_queued_bytes", queued)
        yield from super().collect()


def _state_of(cycle: Any, transport: CoalescingTransport) -> str:
    if transport.is_closing():
        return "closing"
    if transport.waits_for_client:
        return "sending"
    if cycle is None or cycle.response_complete:
        return "idle"
    return "body" if cycle.more_body else "running"


figures = Figures()
process_collectors.append(figures.collect)

"""Measure the cost of FastWorker's metrics, and the time of a scrape of eight workers under load.

A scrape is a request for the metrics. The same server runs alternately with and without
WSGIFAST_METRICS. The server's CPU time includes that of the exporter, which responds to scrapes.
`python -m loadtests instructions.metrics` counts only the instructions for recording a request.

Each start of a server has another memory layout. So the CPU times of two starts differ by more than
the cost of metrics. The cost for each request is the median difference of many pairs of new
servers. Each server has one core, and the client another core. A second server without metrics
shows the error of the measurement.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from wsgifast.commands.bench.loads import Load, family
from wsgifast.commands.bench.processes import HOST, Server, free_port, wait_until
from wsgifast.commands.client import HTTPClient

from .bench import APP, FAST, row, table
from .clients import Connection, percentiles, wrk
from .harness.servers import gunicorn
from .harness.tables import Client, Contender, Row, Task, Unit

FLASK = "loadtests.flask_app:app"
SMALL, PAGE = "/small/1024", "/page"
WORKERS = 8
_PAUSE_S = 0.05  # between two scrapes
_WORKERS_START_S = 20.0
_IDLE_ROUNDS, _IDLE_RUN_S = 5, 3.0
_PAIRS = 40
# After so many requests, CPython has specialized the server's bytecode.
_WARM_UP_REQUESTS = 1000


def _servers(app: str, workers: int = 1) -> tuple[Server, Server, int]:
    """Return a server without metrics, a server with metrics, and the port of its metrics."""
    plain, port = gunicorn(app, worker_class=FAST, workers=workers), free_port()
    return plain, replace(plain, env=(("WSGIFAST_METRICS", f"{HOST}:{port}"),)), port


def _scrape(port: int, workers: int) -> float:
    """Return the milliseconds of a scrape on a new connection."""
    began = time.perf_counter()
    text = HTTPClient(HOST, port, limit_s=10.0).ask("/metrics").body
    if b"wsgifast_workers %d.0" % workers not in text:
        raise RuntimeError(f"a scrape does not report {workers} workers: {text[:500]!r}")
    return (time.perf_counter() - began) * 1e3


def _wait_for_workers(port: int, workers: int) -> None:
    def have_started() -> bool:
        with contextlib.suppress(OSError, RuntimeError):
            return _scrape(port, workers) > 0
        return False

    wait_until(have_started, _WORKERS_START_S)


def _scrapes(port: int, *, loaded: bool) -> Client:
    """Return a client that requests the metrics again and again.

    :param loaded: whether wrk loads the server meanwhile.
    """

    def run(task: Task) -> Load:
        _wait_for_workers(port, WORKERS)
        took = []
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(wrk(32), task) if loaded else None
            began = time.monotonic()
            while (now := time.monotonic() - began) < task.seconds:
                took.append(_scrape(port, WORKERS))
                time.sleep(_PAUSE_S)
            if load is not None:
                load.result()
        return Load(len(took), 0, 0, now, percentiles(took))

    return run


def _scrape_row() -> Row:
    _, server, port = _servers(APP, WORKERS)
    sides = {
        "nobody else asks": (server, _scrapes(port, loaded=False)),
        "under load, 32 connections": (server, _scrapes(port, loaded=True)),
    }
    unit = Unit("ms (p50)", lambda m: m.latency_ms[50], less=True)
    title = f"a scrape of {WORKERS} workers"
    return row("metrics.scrape", title, sides, SMALL, unit, seconds=3.0)


def _pin_server(metrics_port: int | None = None) -> Callable[[Task], None]:
    """Return a function that warms up a server, and binds its processes to one core."""

    def make(task: Task) -> None:
        with contextlib.closing(Connection(task.address, task.path)) as connection:
            for _ in range(_WARM_UP_REQUESTS):
                connection.ask()
        if metrics_port is not None:
            _wait_for_workers(metrics_port, 1)
        core = {min(os.sched_getaffinity(0))}
        for process in family(task.pid):
            for thread in process.threads():  # new threads inherit the core
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, core)

    return make


def _load_from_other_core(task: Task) -> Load:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        return wrk(32)(task)
    finally:
        os.sched_setaffinity(0, cores)


def _pinned_row(key: str, title: str, app: str, path: str) -> Row:
    plain, metered, port = _servers(app)
    contenders = (
        Contender("off", plain, path, fresh=True, ready=_pin_server()),
        Contender("on", metered, path, fresh=True, ready=_pin_server(port)),
        Contender("off again", plain, path, fresh=True, ready=_pin_server()),
    )
    unit = Unit("CPU us/req", lambda m: m.cpu_us_per_request, difference=True, less=True)
    title = f"{title}, one core: CPU time of a request"
    return Row(
        f"metrics.pinned.{key}", title, contenders, _load_from_other_core, unit, rounds=_PAIRS
    )


def _idle_row() -> Row:
    plain, metered, port = _servers(APP)
    contenders = (
        Contender("off", plain, SMALL, ready=_pin_server()),
        Contender("on", metered, SMALL, ready=_pin_server(port)),
    )
    unit = Unit("CPU ms/s", lambda m: m.server_cpu_s * 1e3 / m.seconds, difference=True, less=True)
    title = "an idle worker: CPU time in a second"
    return Row(
        "metrics.idle", title, contenders, _wait, unit, seconds=_IDLE_RUN_S, rounds=_IDLE_ROUNDS
    )


def _wait(task: Task) -> Load:
    time.sleep(task.seconds)
    return Load(1, 0, 0, task.seconds)


def _requests_row(key: str, title: str, app: str, path: str) -> Row:
    plain, metered, _ = _servers(app)
    sides = {"without": plain, "with metrics": metered}
    return row(f"metrics.requests.{key}", title, sides, path, client=wrk(32))


_SCENARIOS = (
    ("small", "1 KiB, 32 connections", APP, SMALL),
    ("flask", "a page of Flask, 32 connections", FLASK, PAGE),
)
TABLE = table("metrics", "What metrics cost", [
    *(_pinned_row(*scenario) for scenario in _SCENARIOS),
    _idle_row(),
    *(_requests_row(*scenario) for scenario in _SCENARIOS),
    _scrape_row(),
])  # fmt: skip

"""What metrics cost a FastWorker, and how long a scrape of eight workers takes under load.

The same server runs with and without WSGIFAST_METRICS, in turn. The exporter's CPU time is part of
the server's. `python -m loadtests calls.metrics` measures the recording of a request alone.
"""

from __future__ import annotations

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from wsgifast.benchmark.load import Client, Load, Task
from wsgifast.benchmark.processes import HOST, free_port
from wsgifast.benchmark.serving import gunicorn
from wsgifast.benchmark.tables import REQUESTS, Contender, Row, Server, Unit

from .bench import FAST, row, table
from .clients import percentiles, wrk
from .pinned import on_its_core, pinned_row

APP, FLASK = "loadtests.app:app", "loadtests.flask_app:app"
SMALL, PAGE = "/small/1024", "/page"
WORKERS = 8
_PAUSE_S = 0.05  # between two scrapes
_IDLE_ROUNDS = 5
_IDLE_RUN_S = 3.0


def _servers(app: str, workers: int = 1) -> tuple[Server, Server, int]:
    """Without metrics, with them, and the port where these are told."""
    plain, port = gunicorn(app, worker_class=FAST, workers=workers), free_port()
    return plain, replace(plain, env=(("WSGIFAST_METRICS", f"{HOST}:{port}"),)), port


def _scrape(port: int, workers: int = WORKERS) -> float:
    """Milliseconds of one scrape, that of a new connection included."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as response:
        text = response.read()
    if b"wsgifast_workers %d.0" % workers not in text:
        raise RuntimeError(f"a scrape does not tell of {workers} workers: {text[:500]!r}")
    return (time.perf_counter() - began) * 1e3


def _scrapes(port: int, *, loaded: bool) -> Client:
    """Scrapes one after the other, while wrk has the server busy."""

    def run(task: Task) -> Load:
        _wait_for_workers(port, WORKERS)
        took = []
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(wrk(32), task) if loaded else None
            began = time.monotonic()
            while (now := time.monotonic() - began) < task.seconds:
                took.append(_scrape(port))
                time.sleep(_PAUSE_S)
            if load is not None:
                load.result()
        return Load(len(took), 0, 0, now, percentiles(took))

    return run


def _wait_for_workers(port: int, workers: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            _scrape(port, workers)
        except (OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _scrape_row() -> Row:
    _, server, port = _servers(APP, WORKERS)
    sides = {
        "nobody else asks": (server, _scrapes(port, loaded=False)),
        "under load, 32 connections": (server, _scrapes(port, loaded=True)),
    }
    unit = Unit("ms (p50)", lambda m: m.latency_ms[50], less=True)
    title = f"a scrape of {WORKERS} workers"
    return row("metrics.scrape", title, sides, SMALL, unit, seconds=3.0)


def _pinned_row(key: str, title: str, app: str, path: str) -> Row:
    plain, metered, port = _servers(app)
    sides = {"off": plain, "on": metered}
    ready = {"on": partial(_wait_for_workers, port, 1)}
    return pinned_row(f"metrics.pinned.{key}", title, sides, path, ready)


def _idle_row() -> Row:
    plain, metered, port = _servers(APP)
    contenders = (
        Contender("off", plain, SMALL, ready=on_its_core()),
        Contender("on", metered, SMALL, ready=on_its_core(partial(_wait_for_workers, port, 1))),
    )
    unit = Unit("CPU ms/s", lambda m: m.server_cpu_s * 1e3 / m.seconds, difference=True, less=True)
    title = "once a second, whatever comes: CPU of a second"
    return Row(
        "metrics.idle", title, contenders, _nobody, unit, seconds=_IDLE_RUN_S, rounds=_IDLE_ROUNDS
    )


def _nobody(task: Task) -> Load:
    time.sleep(task.seconds)
    return Load(1, 0, 0, task.seconds)


def _requests_row(key: str, title: str, app: str, path: str) -> Row:
    plain, metered, _ = _servers(app)
    sides = {"without": plain, "with metrics": metered}
    return row(f"metrics.requests.{key}", title, sides, path, REQUESTS, wrk(32))


_SCENARIOS = (
    ("small", "1 KiB, 32 connections", APP, SMALL),
    ("flask", "a page of Flask's, 32", FLASK, PAGE),
)
TABLE = table("metrics", "What metrics cost", [
    *(_pinned_row(*scenario) for scenario in _SCENARIOS),
    _idle_row(),
    *(_requests_row(*scenario) for scenario in _SCENARIOS),
    _scrape_row(),
])  # fmt: skip

"""What metrics cost a FastWorker, and how long a scrape of eight workers takes under load.

The same server with and without WSGIFAST_METRICS, in turn; the exporter's CPU time is part of the
server's. On a machine that has other work, too, rates of two servers differ by more than metrics
cost; so the cost is a ratio of CPU times for each request, in many short rounds. What a recorded
request costs by itself is `python -m loadtests calls.metrics`.
"""

from __future__ import annotations

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from wsgifast.benchmark.load import Client, Load, Task
from wsgifast.benchmark.processes import HOST, free_port
from wsgifast.benchmark.serving import FAST_WORKER, gunicorn
from wsgifast.benchmark.tables import Contender, Row, Server, Unit

from .bench import table
from .clients import percentile, wrk

__all__ = ["TABLE"]

APP = "loadtests.app:app"
FLASK = "loadtests.flask_app:app"
WORKERS = 8
_PAUSE_S = 0.05  # between two scrapes
# What two per cent are to be seen in: neighbours in time, and the median of many ratios.
_COST_RUN_S = 0.5
_COST_ROUNDS = 50


def _metered(server: Server) -> tuple[Server, int]:
    port = free_port()
    return replace(server, env=(*server.env, ("WSGIFAST_METRICS", f"{HOST}:{port}"))), port


def _pair(app: str, path: str) -> tuple[Contender, Contender]:
    plain = gunicorn(app, worker_class=FAST_WORKER)
    return Contender("without", plain, path), Contender("with metrics", _metered(plain)[0], path)


def _scrape(port: int) -> float:
    """Milliseconds of one scrape, that of a new connection included."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as response:
        text = response.read()
    if b"wsgifast_workers %d.0" % WORKERS not in text:
        raise RuntimeError(f"a scrape does not tell of {WORKERS} workers: {text[:500]!r}")
    return (time.perf_counter() - began) * 1e3


def _scrapes(port: int, *, loaded: bool) -> Client:
    """Scrapes one after the other, while wrk has the server busy."""

    def run(task: Task) -> Load:
        _wait_for_workers(port)
        took = []
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(wrk(32), task) if loaded else None
            began = time.monotonic()
            while (now := time.monotonic() - began) < task.seconds:
                took.append(_scrape(port))
                time.sleep(_PAUSE_S)
            if load is not None:
                load.result()
        return Load(len(took), 0, 0, now, {p: percentile(sorted(took), p) for p in (50, 95, 99)})

    return run


def _wait_for_workers(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            _scrape(port)
        except (OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _scrape_row() -> Row:
    workers = gunicorn(APP, worker_class=FAST_WORKER, workers=WORKERS)
    server, port = _metered(workers)
    path = "/small/1024"
    idle, busy = (_scrapes(port, loaded=loaded) for loaded in (False, True))
    return Row(
        "metrics.scrape",
        f"a scrape of {WORKERS} workers",
        (
            Contender("nobody else asks", server, path, idle),
            Contender("under load, 32 connections", server, path, busy),
        ),
        idle,
        Unit("ms (p50)", lambda m: m.load.latency_ms[50]),
        seconds=3.0,
    )


def _cost_row(key: str, title: str, app: str, path: str) -> Row:
    return Row(
        f"metrics.cost.{key}",
        f"{title}: CPU of a request",
        _pair(app, path),
        wrk(32),
        Unit("CPU us/req", lambda m: m.cpu_us_per_request),
        seconds=_COST_RUN_S,
        rounds=_COST_ROUNDS,
    )


ROWS = [
    _cost_row("small", "1 KiB, 32 connections", APP, "/small/1024"),
    _cost_row("flask", "a page of Flask's, 32", FLASK, "/page"),
    Row("metrics.requests.small", "1 KiB, 32 connections", _pair(APP, "/small/1024"), wrk(32)),
    Row("metrics.requests.flask", "a page of Flask's, 32", _pair(FLASK, "/page"), wrk(32)),
    _scrape_row(),
]
TABLE = table("metrics", "What metrics cost", ROWS)

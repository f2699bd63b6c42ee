"""What metrics cost a FastWorker, and how long a scrape of eight workers takes under load.

The same server with and without WSGIFAST_METRICS, in turn; the exporter's CPU time is part of the
server's. Metrics cost less than two starts of one server differ by, as its memory lies otherwise
each time. So what they cost is the median difference of many pairs of servers, each new, on a core
of its own, and beside it stands what a second server without metrics differs by. What a recorded
request costs by itself is `python -m loadtests calls.metrics`.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from wsgifast.benchmark.load import Client, Load, Task, family
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
_COST_ROUNDS = 40
_IDLE_ROUNDS = 5
_IDLE_RUN_S = 3.0
# After so many, CPython has adapted to what the server does.
_WARM_UP_REQUESTS = 1000


def _metered(server: Server) -> tuple[Server, int]:
    port = free_port()
    return replace(server, env=(*server.env, ("WSGIFAST_METRICS", f"{HOST}:{port}"))), port


def _pair(app: str, path: str) -> tuple[Contender, Contender]:
    plain = gunicorn(app, worker_class=FAST_WORKER)
    return Contender("without", plain, path), Contender("with metrics", _metered(plain)[0], path)


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


def _wait_for_workers(port: int, workers: int = WORKERS) -> None:
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
    plain = gunicorn(app, worker_class=FAST_WORKER)
    metered, port = _metered(plain)
    return Row(
        f"metrics.pinned.{key}",
        f"{title}, on a core: CPU of a request",
        (
            Contender("off", plain, path, fresh=True, ready=_ready()),
            Contender("on", metered, path, fresh=True, ready=_ready(port)),
            Contender("off again", plain, path, fresh=True, ready=_ready()),
        ),
        _on_the_other_core(wrk(32)),
        Unit("CPU us/req", lambda m: m.cpu_us_per_request, difference=True),
        rounds=_COST_ROUNDS,
    )


def _idle_row() -> Row:
    plain = gunicorn(APP, worker_class=FAST_WORKER)
    metered, port = _metered(plain)
    path = "/small/1024"
    return Row(
        "metrics.idle",
        "once a second, whatever comes: CPU of a second",
        (
            Contender("off", plain, path, ready=_ready()),
            Contender("on", metered, path, ready=_ready(port)),
        ),
        _nobody,
        Unit("CPU ms/s", lambda m: m.server_cpu_s * 1e3 / m.load.seconds, difference=True),
        seconds=_IDLE_RUN_S,
        rounds=_IDLE_ROUNDS,
    )


def _ready(port: int | None = None) -> Callable[[Task], None]:
    """Wait until a server is warm, and all of it is there; give it a core of its own."""

    def make(task: Task) -> None:
        connection = http.client.HTTPConnection(*task.address, timeout=10)
        with contextlib.closing(connection):
            for _ in range(_WARM_UP_REQUESTS):
                connection.request("GET", task.path)
                connection.getresponse().read()
        if port is not None:
            _wait_for_workers(port, 1)
        core = {min(os.sched_getaffinity(0))}
        for process in family(task.pid):
            for thread in process.threads():  # those that they start have the same
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, core)

    return make


def _on_the_other_core(client: Client) -> Client:
    def run(task: Task) -> Load:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(cores)})
        try:
            return client(task)
        finally:
            os.sched_setaffinity(0, cores)

    return run


def _nobody(task: Task) -> Load:
    time.sleep(task.seconds)
    return Load(1, 0, 0, task.seconds)


ROWS = [
    _cost_row("small", "1 KiB, 32 connections", APP, "/small/1024"),
    _cost_row("flask", "a page of Flask's, 32", FLASK, "/page"),
    _idle_row(),
    Row("metrics.requests.small", "1 KiB, 32 connections", _pair(APP, "/small/1024"), wrk(32)),
    Row("metrics.requests.flask", "a page of Flask's, 32", _pair(FLASK, "/page"), wrk(32)),
    _scrape_row(),
]
TABLE = table("metrics", "What metrics cost", ROWS)

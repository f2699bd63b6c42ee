"""Measure the goodput under overload: the rate of responses that arrive in time.

A response is in time if it arrives within a second. After this time, the client closes its
connection. Requests are sent at a constant rate, even if the server is slow (an open loop). Each
request has its own connection. The app sleeps for 50 ms, and four threads run it. So the server can
serve 80 requests a second. The ASGI app blocks the event loop for a quarter of this time, so that
the capacity is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from wsgifast.commands.bench.loads import Load
from wsgifast.commands.bench.processes import Server

from .app import WORK_S
from .bench import FAST, row, table
from .clients import percentiles
from .harness.servers import gunicorn, uvicorn
from .harness.tables import Client, Row, Task, Unit
from .servers import granian

APP, ASGI_APP = "loadtests.app:app", "loadtests.asgi_app:bare"
PATH = "/work"
THREADS, CLIENT_TIMEOUT_S = 4, 1.0
CAPACITY = THREADS / WORK_S
QUEUE_TIMEOUT_S = 0.5
# Maps keys to the rate of requests, as a multiple of the capacity.
LOADS = {"half": 0.5, "full": 1.0, "one-and-a-half": 1.5, "twice": 2.0, "four-times": 4.0}
_SECONDS = 8.0
_TICK_S = 0.004
GOODPUT = Unit("in time/s", lambda load: load.requests_per_s)


async def _send_request(task: Task, counts: Counter[str], times_ms: list[float]) -> None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*task.address)
            try:
                host = task.address[0]
                headers = f"GET {task.path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                writer.write(headers.encode())
                response = await reader.read()
            finally:
                writer.close()
    except TimeoutError:
        counts["late"] += 1
        return
    except OSError:
        counts["failed"] += 1
        return
    status = response[9:12].decode("latin-1")
    counts[status] += 1
    if status == "200":
        times_ms.append((time.monotonic() - began) * 1e3)


async def _offer(task: Task, rate: float, counts: Counter[str], times_ms: list[float]) -> None:
    """Send requests at a rate for the task's time, and wait for the last responses."""
    async with asyncio.TaskGroup() as group:
        began, count = time.monotonic(), 0
        while (passed := time.monotonic() - began) < task.seconds:
            while count < passed * rate:
                group.create_task(_send_request(task, counts, times_ms))
                count += 1
            await asyncio.sleep(_TICK_S)


def _client(capacities: float) -> Client:
    def run(task: Task) -> Load:
        counts, times_ms = Counter[str](), list[float]()
        asyncio.run(_offer(task, capacities * CAPACITY, counts, times_ms))
        return Load(
            requests=len(times_ms),
            failures=counts["failed"],
            body_bytes=0,
            seconds=task.seconds,
            latency_ms=percentiles(times_ms),
            facts={
                "offered/s": capacities * CAPACITY,
                "too late/s": counts["late"] / task.seconds,
                "refused/s": counts["503"] / task.seconds,
            },
        )

    return run


def _servers() -> dict[str, Server]:
    timeout = {"WSGIFAST_QUEUE_TIMEOUT_S": str(QUEUE_TIMEOUT_S)}
    fast = gunicorn(APP, worker_class=FAST, threads=THREADS)
    blocking = f"--blocking-threads={THREADS}"
    return {
        f"FastWorker, queue_timeout_s={QUEUE_TIMEOUT_S}": gunicorn(
            APP, worker_class=FAST, threads=THREADS, env=timeout
        ),
        "FastWorker": fast,
        "gthread": gunicorn(APP, threads=THREADS),
        "granian, backpressure 16": granian(APP, blocking, "--backpressure=16", interface="wsgi"),
        "granian, backpressure 128": granian(APP, blocking, "--backpressure=128", interface="wsgi"),
    }


def _asgi_servers() -> dict[str, Server]:
    timeout = {"WSGIFAST_QUEUE_TIMEOUT_S": str(QUEUE_TIMEOUT_S)}
    return {
        f"our protocol, queue_timeout_s={QUEUE_TIMEOUT_S}": uvicorn(
            ASGI_APP, ours=True, env=timeout
        ),
        "our protocol": uvicorn(ASGI_APP, ours=True),
        "uvicorn": uvicorn(ASGI_APP),
        "granian, backpressure 16": granian(ASGI_APP, "--backpressure=16"),
    }


def _row(key: str, capacities: float, servers: dict[str, Server], kind: str = "") -> Row:
    return row(
        f"goodput.{key}",
        f"{capacities:g} times the capacity{kind}",
        servers,
        PATH,
        GOODPUT,
        _client(capacities),
        fresh=True,
        seconds=_SECONDS,
    )


TABLE = table(
    "goodput",
    "Responses in time under overload",
    [
        *(_row(key, capacities, _servers()) for key, capacities in LOADS.items()),
        *(
            _row(f"asgi.{key}", capacities, _asgi_servers(), ", ASGI")
            for key, capacities in LOADS.items()
        ),
    ],
)

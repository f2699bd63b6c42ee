"""What a crowd of hostile clients does to FastWorker: to its other clients, its CPU, its memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from tests.support.servers import LiveServer, wait_for
from tests.support.slow_clients import KINDS, others, slow_clients
from tests.workers.serving import fast_worker

__all__ = ["Load", "load_of", "memory_of", "served"]


@dataclass(frozen=True)
class Load:
    """What a crowd does to a server.

    :ivar p99_ms: of another client's short requests.
    :ivar cpu_s: user and system time of the worker.
    """

    p99_ms: float
    failures: int
    cpu_s: float


@contextlib.contextmanager
def served() -> Iterator[LiveServer]:
    """FastWorker, which waits for no client at its end."""
    with fast_worker("--graceful-timeout=1", "--worker-connections=2000") as server:
        yield server


def load_of(kind: str, *, path: str, seconds: float, clients: int | None = None) -> Load:
    """Measure what a crowd does to another client, and to the worker's CPU.

    Beside readers its first answer is not measured: it has its turn behind their requests, and what
    the app takes for those is not the attack. That it comes is seen.

    :param kind: of tests.support.slow_clients.KINDS.
    """
    with served() as server:
        process = _worker(server)
        with slow_clients(kind, _port(server), clients=clients, path=path):
            if KINDS[kind].does.receive_bytes_per_s:
                assert server.get("/small/1").status == 200
            before = _cpu_seconds(process)
            seen = others(_port(server), seconds=seconds)
            cpu_s = _cpu_seconds(process) - before
    return Load(seen.percentile(99), seen.failures, cpu_s)


def memory_of(kind: str, *, path: str, clients: int) -> int:
    """Bytes of memory that a crowd adds to the worker, once all of it is there."""
    with served() as server:
        process = _worker(server)
        before = process.memory_info().rss
        seen = [-1.0]

        def at_rest() -> bool:
            time.sleep(0.2)
            earlier, seen[0] = seen[0], _cpu_seconds(process)
            return seen[0] - earlier <= 0.02

        with slow_clients(kind, _port(server), clients=clients, path=path) as crowd:
            assert crowd.gathered == clients
            wait_for(at_rest, "the worker has taken in what there is")
            return int(process.memory_info().rss - before)


def _worker(server: LiveServer) -> psutil.Process:
    assert server.get("/small/1").status == 200  # it has begun
    (worker,) = psutil.Process(server.pid).children()
    return worker


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _port(server: LiveServer) -> int:
    assert isinstance(server.address, tuple)
    return server.address[1]

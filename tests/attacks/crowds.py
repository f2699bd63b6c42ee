"""Crowds of clients that behave badly together, and what everybody else sees meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import psutil

from tests.support.http import Connection
from tests.support.servers import LiveServer

__all__ = ["Client", "Load", "cpu_seconds", "crowd", "load_of", "memory_of", "worker_of"]

# What a client of a crowd does once it is connected, until it is cancelled.
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Load:
    """What a crowd does to a server.

    :ivar p99_s: of another client's short requests, in seconds.
    :ivar cpu_s: user and system time of the worker.
    """

    p99_s: float
    cpu_s: float


@contextlib.contextmanager
def crowd(server: LiveServer, client: Client, count: int) -> Iterator[None]:
    """Keep so many clients connected; the block begins when each has begun."""
    assert isinstance(server.address, tuple)
    host, port = server.address
    begun = threading.Barrier(2)
    loop = asyncio.new_event_loop()
    end = asyncio.Event()
    connected = 0

    async def one() -> None:
        nonlocal connected
        reader, writer = await asyncio.open_connection(host, port)
        try:
            connected += 1
            if connected == count:
                await loop.run_in_executor(None, begun.wait)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await client(reader, writer)
                await end.wait()
        finally:
            writer.transport.abort()

    async def run() -> None:
        tasks = [asyncio.create_task(one()) for _ in range(count)]
        await end.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        begun.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def load_of(server: LiveServer, client: Client, count: int, seconds: float) -> Load:
    """Measure what a crowd does to another client, and to the worker's CPU."""
    process = worker_of(server)
    times = []
    with crowd(server, client, count), Connection(server.address) as other:
        before = cpu_seconds(process)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            assert other.request("/small/1024").status == 200
            times.append(time.monotonic() - began)
            time.sleep(0.002)  # the other client is no load by itself
        cpu_s = cpu_seconds(process) - before
    times.sort()
    return Load(times[len(times) * 99 // 100], cpu_s)


def memory_of(server: LiveServer, client: Client, count: int, settled: Callable[[], object]) -> int:
    """Bytes of memory that a crowd adds to the worker, once `settled` is true."""
    process = worker_of(server)
    before = process.memory_info().rss
    with crowd(server, client, count):
        deadline = time.monotonic() + 20
        while not settled():
            assert time.monotonic() < deadline, "the crowd has not come to rest"
            time.sleep(0.02)
        return int(process.memory_info().rss - before)


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def worker_of(server: LiveServer) -> psutil.Process:
    """The worker's process, once it has begun to serve."""
    assert server.get("/small/1").status == 200
    (worker,) = psutil.Process(server.pid).children()
    return worker

"""Crowds of hostile clients on FastWorker.

Other clients get responses, and memory and CPU are bounded.

Each attack is compared with a control: clients that move as many bytes in an honest way. The bound
of their ratio is far above the noise of a busy machine, and far below the effect of the attack.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from tests.support.effort import LONG
from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from tests.support.slow_clients import KINDS, others, slow_clients
from tests.workers.serving import fast_worker, nothing_left_behind, reset

SECONDS = 20.0 if LONG else 1.0
# The largest p99 of another client beside an attack, relative to its p99 beside the control.
# Smaller values are noise.
MAX_P99 = 30
MIN_P99_MS = 10.0
# The same ratio for the worker's CPU.
MAX_CPU = 3
MIN_CPU_S = 0.1
# On a machine that stalls, an attack may seem to work once. A real one works each time.
TRIES = 4

pytestmark = [pytest.mark.long, pytest.mark.timeout(900 if LONG else 300)]

# attack -> clients, path, control
ATTACKS = {
    "two-byte chunks": (20, "/digest", "1 KiB chunks"),
    "790 kB headers": (12, "/small", "headers byte by byte"),
    "500 kB trailers": (12, "/digest", "headers byte by byte"),
    "readers of a list": (40, "/small/5000000", "silent connections"),
}
if LONG:
    ATTACKS |= {
        "one-byte chunks": (20, "/digest", "1 KiB chunks"),
        "readers of a file": (40, "/file", "silent connections"),
        "silent bodies": (200, "/digest", "silent connections"),
    }


@dataclass(frozen=True)
class Load:
    """The effect of a crowd on a server.

    :ivar p99_ms: of another client's short requests.
    :ivar cpu_s: user and system time of the worker.
    """

    p99_ms: float
    failures: int
    cpu_s: float


@contextlib.contextmanager
def served() -> Iterator[LiveServer]:
    """A FastWorker that waits for no client at its end."""
    with fast_worker("--graceful-timeout=1", "--worker-connections=2000") as server:
        yield server


def load_of(kind: str, *, path: str, seconds: float, clients: int | None = None) -> Load:
    """Measure the effect of a crowd on another client, and on the worker's CPU.

    Beside readers, the first response of the other client must arrive, but is not measured. It
    waits until the app has made the readers' responses, which is not part of the attack.

    :param kind: of tests.support.slow_clients.KINDS.
    """
    with served() as server:
        process = _worker(server)
        with slow_clients(kind, _port(server), clients=clients, path=path):
            if KINDS[kind].receive_bytes_per_s:
                assert server.get("/small/1").status == 200
            before = _cpu_seconds(process)
            seen = others(_port(server), seconds=seconds)
            cpu_s = _cpu_seconds(process) - before
    return Load(seen.percentile(99), seen.failures, cpu_s)


def memory_of(kind: str, *, path: str, clients: int) -> int:
    """Return the bytes of memory that a crowd adds to the worker, once all its clients are
    connected.
    """
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
    assert server.get("/small/1").status == 200  # the response has begun
    (worker,) = psutil.Process(server.pid).children()
    return worker


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _port(server: LiveServer) -> int:
    assert isinstance(server.address, tuple)
    return server.address[1]


@pytest.mark.parametrize("attack", ATTACKS)
def test_other_clients_are_answered_beside_an_attack(attack: str) -> None:
    clients, path, control = ATTACKS[attack]
    seen = []
    for _ in range(TRIES):
        honest = load_of(control, path=path, seconds=SECONDS, clients=clients)
        hostile = load_of(attack, path=path, seconds=SECONDS, clients=clients)
        seen.append(f"{hostile}, beside the control {honest}")
        is_quick = hostile.p99_ms < MAX_P99 * max(honest.p99_ms, MIN_P99_MS)
        # Received bytes are not examined again for each new byte. A small chunk costs as much as a
        # large one.
        costs_little = hostile.cpu_s < MAX_CPU * max(honest.cpu_s, MIN_CPU_S)
        if not hostile.failures and is_quick and (costs_little or "chunks" in attack):
            break
    else:
        raise AssertionError("\n".join(seen))


def test_promised_body_costs_no_memory() -> None:
    count = 400
    promised = memory_of("silent bodies", path="/echo", clients=count)
    assert promised < count * 16 * 1024, f"{promised / count:.0f} bytes for each head"


def test_small_chunks_cost_no_more_memory() -> None:
    clients = 20 if LONG else 8
    large = memory_of("a beginning of 1 KiB chunks", path="/echo", clients=clients)
    small = memory_of("a beginning of two-byte chunks", path="/echo", clients=clients)
    assert small < 2 * large, f"{small} bytes for small chunks, {large} for larger ones"


def test_readers_that_stop_reading_cost_bounded_memory() -> None:
    count, size = 60, 5_000_000
    with served() as server:
        process = _worker(server)
        before = process.memory_info().rss

        def buffered() -> int:
            return int(process.memory_info().rss - before)

        def in_files() -> int:
            return sum(os.stat(fd).st_size for fd in _unnamed_files(process.pid))

        kind, path = "readers of a list", f"/small/{size}"
        with slow_clients(kind, _port(server), clients=count, path=path) as crowd:
            assert crowd.gathered == count
            wait_for(
                lambda: in_files() > count * size / 2 > buffered(),
                lambda: f"{buffered()} bytes are held of {count * size}, {in_files()} are in files",
            )


def _unnamed_files(pid: int) -> list[str]:
    """Return the descriptors of a process's temporary files, which have no name."""
    folder = f"/proc/{pid}/fd"
    found = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"{folder}/{fd}").endswith(" (deleted)"):
                found.append(f"{folder}/{fd}")
    return found


def test_floods_leave_nothing_behind() -> None:
    rounds = 20_000 if LONG else 600
    stages = [b"", b"G", b"GET / HTTP/1.1\r\n", b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    with served() as server, nothing_left_behind(server):
        for number in range(rounds):
            connection = Connection(server.address)
            connection.send(stages[number % len(stages)])
            if number % 3:
                reset(connection.sock)
            connection.close()


def test_pipelined_requests_hold_up_nobody() -> None:
    count = 20_000 if LONG else 1000
    request = b"GET /small/5 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served() as server, Connection(server.address) as connection:
        connection.send(request * count)
        assert server.get("/small/5").status == 200
        for _ in range(count):
            assert connection.read_response().status == 200

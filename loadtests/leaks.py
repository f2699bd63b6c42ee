"""Find what a server leaks after abandoned connections: descriptors, threads and memory.

    python -m loadtests leaks. --strict
    python -m loadtests leaks. --strict --seconds 3600      a soak test: an hour for each row

An abandoned connection is one that its client closes or resets before its end. Clients leave in
every state of a connection. At the end of each round, many clients in all states leave at once,
like clients of a killed process. After each round the server must have as many descriptors and
threads as before. Its memory may grow in the first rounds, which allocate caches, buffers and the
allocator's arenas. If the memory continues to grow, the server has a leak, and the row fails.
Resident memory includes the allocator's noise. The number of memory blocks that Python has
allocated is exact.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tests.support.crowds import GATHER_S, TURN_S, Crowd, Kind
from tests.support.slow_clients import opening
from wsgifast.commands.bench.loads import Load, family
from wsgifast.commands.bench.processes import Server
from wsgifast.commands.client import HTTPClient, unverified_tls

from .bench import APP, FAST, resident_bytes, row, table
from .harness.servers import gunicorn, uvicorn
from .harness.tables import Client, Row, Task, Unit

# The number of rounds, and the seconds of a round. Then the number of clients in each state that
# are connected at a time, and the number of clients in each state that leave at once.
ROUNDS, ROUND_S, CLIENTS, LEAVING_CLIENTS = 6, 4.0, 2, 4
# A server notices immediately that a client has left. If descriptors of the connection are still
# open after this time, they are leaks.
SETTLE_S = 10.0
# The maximum growth for each connection in the second half of the rounds. A leaked connection has
# dozens of blocks. If only one state of twelve leaks, the average is still several blocks. The
# limit for resident memory allows for the allocator's noise, which is largest with the large
# buffers of TLS.
GROWTH_BLOCKS = 0.5
GROWTH_BYTES = 1024


def _leaving(sent: bytes = b"", *, answered: bool = False) -> Kind:
    """Return a kind of clients that leave.

    :param answered: whether the clients wait for the first bytes of the response before they leave.
    """
    return Kind(sent, receive_bytes_per_s=answered << 20, leaves=True)


_POST = b"POST /upload HTTP/1.1\r\nHost: a\r\n"
# The states in which clients leave.
STATES = {
    "connected": _leaving(),
    "half of the headers": _leaving(b"GET /file HTTP/1.1\r\nHos"),
    "persistent": _leaving(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    # The body is so large that FastWorker receives it into a temporary file.
    "half an upload": _leaving(_POST + b"Content-Length: 1000000\r\n\r\n" + bytes(50_000)),
    "half a chunk": _leaving(_POST + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n" + bytes(20_000)),
    "in a download": _leaving(b"GET /server-wrapper HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    "in a stream": _leaving(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    "in HTTP/2 streams": _leaving(opening("readers of HTTP/2 streams", "/server-wrapper")),
    "HTTP/2 nonsense": _leaving(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100),
}
# The states of clients that the server disconnects.
_REFUSED = ("HTTP/2 nonsense", "no TLS at all")


def _states(*, tls: bool) -> dict[str, Kind]:
    """Return the states of connections. With TLS, add states without a complete handshake."""
    if not tls:
        return STATES
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        unverified_tls().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    return {
        "connected, no TLS yet": _leaving(),
        "half a hello": _leaving(hello[: len(hello) // 2]),
        "half a handshake": _leaving(hello, answered=True),
        "no TLS at all": _leaving(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        # The handshake happens when the first bytes are sent. Servers ignore an empty line.
        **{n: replace(k, tls=True, opening=k.opening or b"\r\n") for n, k in STATES.items()},
    }


def _abandon(task: Task, kinds: Iterable[Kind], clients: int, seconds: float) -> int:
    """Connect clients of each kind, wait until all are connected, and let all of them leave.

    :returns: the number of clients.
    """
    crowds = [Crowd(kind, task.address, clients) for kind in kinds]
    begun = time.monotonic()
    try:
        while True:
            for crowd in crowds:
                crowd.turn()
            passed = time.monotonic() - begun
            if passed >= seconds and (passed > GATHER_S or all(c.is_gathered for c in crowds)):
                return sum(crowd.seen["opened"] for crowd in crowds)
            time.sleep(TURN_S)
    finally:
        for crowd in crowds:
            crowd.close()


def _blocks(task: Task) -> int:
    """Return the number of memory blocks, which the server's app reports at /blocks."""
    client = HTTPClient(*task.address, tls=unverified_tls() if task.tls else None, limit_s=10.0)
    return int(client.ask("/blocks").body)


@dataclass(frozen=True)
class Count:
    """The resources of a server after a round."""

    connections: int  # the number of abandoned connections so far
    descriptors: int
    threads: int
    memory_bytes: int  # the resident memory
    blocks: int  # memory blocks of Python's objects
    processes: tuple[int, ...]


def measure(
    task: Task, *, rounds: int = ROUNDS, round_s: float = ROUND_S, idle_s: float = 0.0
) -> Iterator[Count]:
    """Abandon connections of a server. Yield its counts at the beginning and after each round.

    :param task: the server, and the minimum time in seconds. If it is longer than the rounds, more
        rounds follow.
    :param idle_s: the seconds without a client before each count. Meanwhile the server's timers
        end.
    :raises OSError: if the server no longer responds.
    """
    states = _states(tls=task.tls)
    kinds = states.values()
    # These clients do not wait for a response, because all threads may be busy. They leave together
    # at the end of the round.
    together = [
        replace(kind, leaves=False, receive_bytes_per_s=0)
        for name, kind in states.items()
        if name not in _REFUSED
    ]
    end = time.monotonic() + task.seconds
    _abandon(task, kinds, CLIENTS, 0.3)  # a warm-up, which starts threads for example
    count = _settled_count(task)
    yield count
    done = 0
    for number in itertools.count(1):
        done += _abandon(task, kinds, CLIENTS, round_s)
        done += _abandon(task, together, LEAVING_CLIENTS, 0.0)
        time.sleep(idle_s)
        count = replace(_settled_count(task, count.descriptors), connections=done)
        yield count
        if number >= rounds and time.monotonic() > end:
            break


def _settled_count(task: Task, max_descriptors: int | None = None) -> Count:
    """Wait until the server has at most `max_descriptors` descriptors, and return its resources.

    If `max_descriptors` is None, wait until the server has the same resources twice.
    """
    deadline = time.monotonic() + SETTLE_S
    count, is_settled = _count(task), False
    while not is_settled and time.monotonic() < deadline:
        time.sleep(0.3)
        before, count = count, _count(task)
        if max_descriptors is None:
            is_settled = (before.descriptors, before.threads) == (count.descriptors, count.threads)
        else:
            is_settled = count.descriptors <= max_descriptors
    return count


def _count(task: Task) -> Count:
    blocks = _blocks(task)
    processes = family(task.pid)
    return Count(
        connections=0,
        descriptors=sum(process.num_fds() for process in processes),
        threads=sum(process.num_threads() for process in processes),
        memory_bytes=resident_bytes(task.pid),
        blocks=blocks,
        processes=tuple(process.pid for process in processes),
    )


def growth(counts: Sequence[Count]) -> dict[str, float]:
    """Return the growth for each connection in the second half of the rounds.

    The growth of resident memory is the minimum of these rounds, because the allocator's noise
    varies.
    """
    middle_index = (len(counts) - 1) // 2
    middle, *later = counts[middle_index:]
    return {
        "bytes each": min(
            (count.memory_bytes - middle.memory_bytes) / (count.connections - middle.connections)
            for count in later
        ),
        "blocks each": (later[-1].blocks - middle.blocks)
        / (later[-1].connections - middle.connections),
    }


def leaked(counts: Sequence[Count], spare_threads: int) -> list[str]:
    """Return a sentence for each resource that the server has not released at the end.

    :param spare_threads: the maximum number of threads that the server starts on demand.
    """
    first, last = counts[0], counts[-1]
    found = []
    if last.descriptors > first.descriptors:
        found.append(f"{last.descriptors - first.descriptors} descriptors are left")
    if last.threads > first.threads + spare_threads:
        found.append(f"{last.threads - first.threads} threads are left")
    if last.processes != first.processes:
        found.append("a process has been replaced")
    return found


def grown(counts: Sequence[Count]) -> list[str]:
    """Return a sentence for each kind of memory that continues to grow.

    This check needs thousands of connections. With fewer connections, only caches and pools grow.
    """
    each, found = growth(counts), []
    if each["blocks each"] > GROWTH_BLOCKS:
        found.append(f"each connection adds {each['blocks each']:.1f} blocks")
    if each["bytes each"] > GROWTH_BYTES:
        found.append(f"each connection adds {each['bytes each']:.0f} bytes")
    return found


def _abandoning(spare_threads: int, timers_s: float = 0.0) -> Client:
    """Return a client that abandons connections.

    :param timers_s: the time for which timers of the server may refer to a closed connection.
    """

    def run(task: Task) -> Load:
        begun = time.monotonic()
        counts = list(measure(task, idle_s=timers_s))
        found = leaked(counts, spare_threads) + grown(counts)
        first, last = counts[0], counts[-1]
        facts = {
            "descriptors": float(last.descriptors), "before": float(first.descriptors),
            "threads": float(last.threads), "before ": float(first.threads), **growth(counts),
        }  # fmt: skip
        errors = dict.fromkeys(found, 1)
        done, seconds = last.connections, time.monotonic() - begun
        return Load(done, len(found), 0, seconds, errors=errors, facts=facts)

    return run


def _row(key: str, name: str, server: Server, client: Client) -> Row:
    return row(
        f"leaks.{key}", name, {name: server}, "/blocks", _CONNECTIONS, client, fresh=True, rounds=1
    )


_CONNECTIONS = Unit("connections", lambda m: m.requests)
_BOTH = ("--http-protocols=h2,h1", "--http2-cleartext=both", "--log-level=critical")
_ASGI_APP = "loadtests.asgi_app:bare"
_PEM = ("--ssl-certfile={folder}/server.pem", "--ssl-keyfile={folder}/server.pem")
# asyncio's default number of threads. These threads read files that are not in the page cache.
ASYNCIO_SPARES = min(32, (os.cpu_count() or 1) + 4)
# uvicorn's time limit for a persistent connection is 5 s.
_UVICORN = _abandoning(ASYNCIO_SPARES, 6.0)
TABLE = table("leaks", "What is left of abandoned connections", [
    _row("FastWorker", "FastWorker", gunicorn(APP, *_BOTH, worker_class=FAST),
         _abandoning(0)),
    _row("FastWorker-tls", "FastWorker, TLS",
         gunicorn(APP, *_BOTH, worker_class=FAST, tls=True), _abandoning(0)),
    _row("uvicorn", "uvicorn, our protocol", uvicorn(_ASGI_APP, ours=True), _UVICORN),
    _row("uvicorn-tls", "uvicorn, our protocol, TLS",
         replace(uvicorn(_ASGI_APP, *_PEM, ours=True), tls=True), _UVICORN),
])  # fmt: skip

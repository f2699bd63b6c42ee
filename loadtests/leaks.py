"""What a server keeps of abandoned connections: descriptors, threads, memory.

    python -m loadtests leaks. --strict
    python -m loadtests leaks. --strict --seconds 3600     a soak: an hour each

Clients leave in every state that a connection can be in, half of them by closing it and half by a
reset. In each round many in all of these states leave at once, as those of a killed process do.
After each round the server must have as many descriptors and threads as before. Its memory must
level off. The first rounds allocate caches, buffers and the allocator's arenas. A leak continues to
grow. Resident memory shows this within the allocator's noise. The number of memory blocks that
Python has allocated shows it exactly. A leak counts as a failure.
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
from wsgifast.commands.bench.serving import gunicorn, uvicorn
from wsgifast.commands.client import HTTPClient, unverified_tls

from .bench import APP, FAST, resident_bytes, row, table
from .harness.tables import Client, Row, Task, Unit

# Rounds of so many seconds, with so many clients in each state at a time. As many more leave all at
# once.
ROUNDS, ROUND_S, CLIENTS, TOGETHER = 6, 4.0, 2, 4
# A server learns at once that a client has left. Later descriptors of it are leaks.
SETTLE_S = 10.0
# What a server may grow by for each connection in the later half of the rounds. A connection that
# is leaked is dozens of blocks, so in one state of twelve only it is still several on average.
# Resident memory has the allocator's noise on top, of which TLS with its large buffers makes most.
GROWTH_BLOCKS = 0.5
GROWTH_BYTES = 1024


def _leaves(sent: bytes = b"", *, answered: bool = False) -> Kind:
    """:param answered: it waits for the first bytes of the response before it leaves."""
    return Kind(sent, receive_bytes_per_s=answered << 20, leaves=True)


_POST = b"POST /upload HTTP/1.1\r\nHost: a\r\n"
# How far clients get before they leave.
STATES = {
    "connected": _leaves(),
    "half of the headers": _leaves(b"GET /file HTTP/1.1\r\nHos"),
    "persistent": _leaves(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    # So large that FastWorker receives it into a temporary file.
    "half an upload": _leaves(_POST + b"Content-Length: 1000000\r\n\r\n" + bytes(50_000)),
    "half a chunk": _leaves(_POST + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n" + bytes(20_000)),
    "in a download": _leaves(b"GET /server-wrapper HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    "in a stream": _leaves(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    "in HTTP/2 streams": _leaves(opening("readers of HTTP/2 streams", "/server-wrapper")),
    "HTTP/2 nonsense": _leaves(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100),
}
# Whom the server sends away itself.
_REFUSED = ("HTTP/2 nonsense", "no TLS at all")


def _states(*, tls: bool) -> dict[str, Kind]:
    """With TLS the same above it, and those in which it is not agreed on."""
    if not tls:
        return STATES
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        unverified_tls().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    return {
        "connected, no TLS yet": _leaves(),
        "half a hello": _leaves(hello[: len(hello) // 2]),
        "half a handshake": _leaves(hello, answered=True),
        "no TLS at all": _leaves(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        # The handshake comes with the first bytes. Servers ignore an empty line.
        **{n: replace(k, tls=True, opening=k.opening or b"\r\n") for n, k in STATES.items()},
    }


def _abandon(task: Task, kinds: Iterable[Kind], clients: int, seconds: float) -> int:
    """Connect so many clients of each kind, wait until all are there, and let all leave.

    Return how many they were.
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
    """What the server's app says at /blocks."""
    client = HTTPClient(*task.address, tls=unverified_tls() if task.tls else None, limit_s=10.0)
    return int(client.ask("/blocks").body)


@dataclass(frozen=True)
class Count:
    """What a server has after a round."""

    connections: int  # abandoned so far
    descriptors: int
    threads: int
    memory_bytes: int  # resident
    blocks: int  # of memory, that Python's objects have
    processes: tuple[int, ...]


def measure(
    task: Task, *, rounds: int = ROUNDS, round_s: float = ROUND_S, idle_s: float = 0.0
) -> Iterator[Count]:
    """Abandon connections of a server. Yield its counts at the beginning and after each round.

    :param task: rounds go on beyond their number for its seconds.
    :param idle_s: seconds without a client before each count, for the server's timers.
    :raises OSError: if the server does not answer any more.
    """
    states = _states(tls=task.tls)
    kinds = states.values()
    # They wait for no response, as threads may all be busy, and leave when the crowd ends.
    together = [
        replace(kind, leaves=False, receive_bytes_per_s=0)
        for name, kind in states.items()
        if name not in _REFUSED
    ]
    end = time.monotonic() + task.seconds
    _abandon(task, kinds, CLIENTS, 0.3)  # for what is made once, such as threads
    count = _settled(task)
    yield count
    done = 0
    for number in itertools.count(1):
        done += _abandon(task, kinds, CLIENTS, round_s)
        done += _abandon(task, together, TOGETHER, 0.0)
        time.sleep(idle_s)
        count = replace(_settled(task, count.descriptors), connections=done)
        yield count
        if number >= rounds and time.monotonic() > end:
            break


def _settled(task: Task, most: int | None = None) -> Count:
    """Return the count, once it has no more descriptors than that.

    Without a number, return it once two counts agree.
    """
    deadline = time.monotonic() + SETTLE_S
    count, is_settled = _count(task), False
    while not is_settled and time.monotonic() < deadline:
        time.sleep(0.3)
        before, count = count, _count(task)
        if most is None:
            is_settled = (before.descriptors, before.threads) == (count.descriptors, count.threads)
        else:
            is_settled = count.descriptors <= most
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
    """What each connection has added in the later half of the rounds.

    Of resident memory it is the least of these rounds: the allocator's noise goes up and down.
    """
    half = (len(counts) - 1) // 2
    middle, *later = counts[half:]
    return {
        "bytes each": min(
            (count.memory_bytes - middle.memory_bytes) / (count.connections - middle.connections)
            for count in later
        ),
        "blocks each": (later[-1].blocks - middle.blocks)
        / (later[-1].connections - middle.connections),
    }


def leaked(counts: Sequence[Count], spare_threads: int) -> list[str]:
    """Return the leaks of a server at the end, a sentence each.

    :param spare_threads: of a bounded pool that it makes when it first needs them. 0 for none.
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
    """Return the counts that go on growing, a sentence each.

    They need some thousand connections. Fewer only fill caches and pools.
    """
    each, found = growth(counts), []
    if each["blocks each"] > GROWTH_BLOCKS:
        found.append(f"each connection adds {each['blocks each']:.1f} blocks")
    if each["bytes each"] > GROWTH_BYTES:
        found.append(f"each connection adds {each['bytes each']:.0f} bytes")
    return found


def _abandoning(spare_threads: int, timers_s: float = 0.0) -> Client:
    """:param timers_s: for so long the server's timers may keep what belonged to a connection."""

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
    return row(f"leaks.{key}", name, {name: server}, "/blocks", _LEFT, client, fresh=True, rounds=1)


_LEFT = Unit("connections", lambda m: m.requests)
_BOTH = ("--http-protocols=h2,h1", "--http2-cleartext=both", "--log-level=critical")
_ASGI_APP = "loadtests.asgi_app:bare"
_PEM = ("--ssl-certfile={folder}/server.pem", "--ssl-keyfile={folder}/server.pem")
# asyncio's own default for its threads, in which files are read that are not in memory.
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

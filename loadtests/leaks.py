"""What a server keeps of connections that were abandoned: descriptors, threads, memory.

    python -m loadtests.leaks [--connections 2000] [--rounds 8] [--seconds 15] [--only WORD]
    python -m loadtests.leaks --minutes 60      a soak: as many rounds as an hour has, each server

Clients leave in every state that a connection can be in, half of them with a goodbye and half with
a reset; and in each round a process that holds connections in all of these states is killed. After
each round the server must have the descriptors and threads again that it had before; and its memory
must level off: the first rounds make what is made once (caches, buffers, the allocator's arenas), a
leak is what goes on growing. Resident memory says so within the allocator's noise, the number of
blocks that Python's objects have says it exactly. Ends with status 1 if something leaks.

A round is over at its count or its time, whichever comes first.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wsgifast.server.pool import MAX_SPARES

from .bench import (
    Server,
    certificate,
    family,
    gunicorn,
    resident_bytes,
    running_server,
    table,
    temporary_folder,
    write_report,
)
from .command import command_line
from .leaving import Clients, killed
from .peers import FAST, uvicorn
from .shapes import FILE_BYTES, payload_file

__all__ = ["SERVERS", "Count", "Kind", "grown", "kept", "measure"]

# A server learns at once that a client has left; what it still has then, it has lost.
SETTLE_S = 10.0
# What a server may grow by for each connection in the later half of the rounds. A connection that
# is kept is dozens of blocks, so in one state of twelve only it is still several on average.
# Resident memory has the allocator's noise on top, of which TLS with its large buffers makes most.
GROWTH_BLOCKS = 0.5
GROWTH_BYTES = 1024
# Of a server's table; a soak has hundreds of rounds.
_MOST_LINES = 40


@dataclass(frozen=True)
class Count:
    """What a server has after a round."""

    connections: int  # abandoned so far
    descriptors: int
    threads: int
    memory_kib: int  # resident
    blocks: int  # of memory, that Python's objects have
    processes: tuple[int, ...]


@dataclass(frozen=True)
class Growth:
    """What each connection has added in the later half of the rounds."""

    memory_bytes: float
    blocks: float


@dataclass(frozen=True)
class Kind:
    """A kind of server.

    :ivar spare_threads: of a bounded pool that it makes when it first needs them.
    :ivar timers_s: for so long its timers may keep what belonged to a connection.
    """

    name: str
    server: Server
    spare_threads: int = 0
    timers_s: float = 0.0


_BOTH = ("--http-protocols=h2,h1", "--http2-cleartext=both", "--log-level=critical")
_UVICORN = "loadtests.asgi_app:bare"
_PEM = ("--ssl-certfile={folder}/server.pem", "--ssl-keyfile={folder}/server.pem")
# FastWorker polls with these while all its threads are taken; the first is there at the start.
_SPARES = MAX_SPARES - 1
# asyncio's own default for its threads, in which files are read that are not in memory.
_ASYNCIO_THREADS = min(32, (os.cpu_count() or 1) + 4)
# uvicorn's time limit for a connection that is kept alive is 5 s.
_TIMERS_S = 6.0
SERVERS = (
    Kind("FastWorker", gunicorn("loadtests.app:app", *_BOTH, worker_class=FAST), _SPARES),
    Kind(
        "FastWorker, TLS",
        gunicorn("loadtests.app:app", *_BOTH, worker_class=FAST, tls=True),
        _SPARES,
    ),
    Kind("uvicorn, our protocol", uvicorn(_UVICORN, ours=True), _ASYNCIO_THREADS, _TIMERS_S),
    Kind(
        "uvicorn, our protocol, TLS",
        dataclasses.replace(uvicorn(_UVICORN, *_PEM, ours=True), tls=True),
        _ASYNCIO_THREADS,
        _TIMERS_S,
    ),
)


def measure(
    kind: Kind,
    *,
    connections: int,
    rounds: int,
    seconds: float,
    idle_s: float = 0.0,
    least_s: float = 0.0,
) -> Iterator[Count]:
    """Abandon connections of a server; yield its counts at the beginning and after each round.

    :param connections: in each round, beside those of the process that is killed.
    :param seconds: the longest that a round's connections take.
    :param idle_s: seconds without a client before each count, for the server's timers.
    :param least_s: seconds; rounds go on beyond their number until then.
    :raises OSError: if the server does not answer any more.
    """
    payload_file(FILE_BYTES)
    server = kind.server
    with temporary_folder("leaks") as folder:
        certificate(folder)
        with running_server(server, kind.name, folder=folder) as process:
            clients = Clients(process.address, tls=server.tls)
            # For what is made once, such as threads.
            clients.abandon(2 * len(clients.states), seconds)
            count = _steady(process.pid, clients)
            yield count
            done = 0
            least = time.monotonic() + least_s
            for number in itertools.count(1):
                done += clients.abandon(connections, seconds) + killed(process.address, server.tls)
                time.sleep(idle_s)
                count = _settled(process.pid, clients, done, count)
                yield count
                if number >= rounds and time.monotonic() > least:
                    break


def _count(pid: int, clients: Clients, connections: int) -> Count:
    blocks = clients.blocks()
    processes = family(pid)
    return Count(
        connections=connections,
        descriptors=sum(process.num_fds() for process in processes),
        threads=sum(process.num_threads() for process in processes),
        memory_kib=resident_bytes(pid) // 1024,
        blocks=blocks,
        processes=tuple(process.pid for process in processes),
    )


def _steady(pid: int, clients: Clients) -> Count:
    """The first count that does not change any more."""
    deadline = time.monotonic() + SETTLE_S
    count = _count(pid, clients, 0)
    while True:
        time.sleep(0.3)
        before, count = count, _count(pid, clients, 0)
        same = (count.descriptors, count.threads) == (before.descriptors, before.threads)
        if same or time.monotonic() > deadline:
            return count


def _settled(pid: int, clients: Clients, connections: int, before: Count) -> Count:
    """The count as soon as the descriptors are as before; the last one, if they never are."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        count = _count(pid, clients, connections)
        if count.descriptors <= before.descriptors or time.monotonic() > deadline:
            return count
        time.sleep(0.05)


def growth(counts: Sequence[Count]) -> Growth:
    """What each connection has added in the later half of the rounds."""
    middle, last = counts[(len(counts) - 1) // 2], counts[-1]
    connections = last.connections - middle.connections
    return Growth(
        memory_bytes=(last.memory_kib - middle.memory_kib) * 1024 / connections,
        blocks=(last.blocks - middle.blocks) / connections,
    )


def kept(kind: Kind, counts: Sequence[Count]) -> list[str]:
    """What a server has not given back at the end, a sentence each."""
    first, last = counts[0], counts[-1]
    found = []
    if last.descriptors > first.descriptors:
        found.append(f"{last.descriptors - first.descriptors} descriptors are left")
    if last.threads > first.threads + kind.spare_threads:
        found.append(f"{last.threads - first.threads} threads are left")
    if last.processes != first.processes:
        found.append("a process has been replaced")
    return found


def grown(counts: Sequence[Count]) -> list[str]:
    """In what the server goes on growing, a sentence each; of some thousand connections at least.

    Fewer only fill caches and pools.
    """
    each = growth(counts)
    found = []
    if each.blocks > GROWTH_BLOCKS:
        found.append(f"each connection adds {each.blocks:.1f} blocks")
    if each.memory_bytes > GROWTH_BYTES:
        found.append(f"each connection adds {each.memory_bytes:.0f} bytes")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = command_line("loadtests.leaks", __doc__)
    parser.add_argument("--connections", type=int, default=2000, help="in each round")
    parser.add_argument("--rounds", type=int, default=8, help="for each server")
    parser.add_argument("--seconds", type=float, default=15.0, help="the longest for a round")
    parser.add_argument("--minutes", type=float, default=0.0, help="at least, for each server")
    parser.add_argument(
        "--only", default="", help="the server of this name, or all whose have it in theirs"
    )
    options = parser.parse_args(arguments)
    if options.connections < 1 or options.rounds < 1:
        parser.error("--connections and --rounds: 1 or more")
    found: list[str] = []
    figures = {}
    names = {kind.name for kind in SERVERS}
    for kind in SERVERS:
        if options.only not in kind.name or options.only in names - {kind.name}:
            continue
        counts = list(
            measure(
                kind,
                connections=options.connections,
                rounds=options.rounds,
                seconds=options.seconds,
                idle_s=kind.timers_s,
                least_s=options.minutes * 60,
            )
        )
        each = growth(counts)
        shown = counts[:: len(counts) // _MOST_LINES + 1]
        if shown[-1] is not counts[-1]:
            shown.append(counts[-1])
        rows = [[c.connections, c.descriptors, c.threads, c.memory_kib, c.blocks] for c in shown]
        print(table([kind.name, "descriptors", "threads", "RSS KiB", "blocks"], rows))
        print(
            f"later half: {each.memory_bytes:.0f} bytes and {each.blocks:.2f} blocks for each "
            "connection\n",
            flush=True,
        )
        found += [f"{kind.name}: {leak}" for leak in kept(kind, counts) + grown(counts)]
        figures[kind.name] = {"counts": counts, "growth": each}
    print("\n".join(found) or "nothing leaks")
    write_report("leaks", {"servers": figures, "leaks": found})
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

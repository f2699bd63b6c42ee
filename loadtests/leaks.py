"""What a server keeps of abandoned connections: descriptors, threads, memory.

    python -m loadtests leaks. --strict
    python -m loadtests leaks. --strict --seconds 3600     a soak: an hour each

Clients leave in every state that a connection can be in, half of them by closing it and half by a
reset; and in each round many in all of these states leave at once, as those of a process that is
killed do. After each round the server must have as many descriptors and threads as before. Its
memory must level off: the first rounds allocate what is allocated once (caches, buffers, the
allocator's arenas); a leak continues to grow. Resident memory shows this within the allocator's
noise, the number of memory blocks that Python has allocated shows it exactly. A leak counts as a
failure.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.support.slow_clients import opening
from wsgifast.benchmark.load import Client, Load, Task, family, resident_bytes
from wsgifast.benchmark.processes import Address, tls_context
from wsgifast.benchmark.serving import gunicorn
from wsgifast.benchmark.tables import Row, Server, Unit
from wsgifast.server.pool import MAX_SPARES

from .bench import FAST, row, table
from .servers import uvicorn

# In each round so many connections, for so long at the most; and how many leave at once, in all
# states together.
ROUNDS, CONNECTIONS, ROUND_S, HELD = 8, 2000, 15.0, 100
CLIENT_TIMEOUT_S = 10.0
# So small that the kernel's buffers take in no answer whole.
RECEIVE_BUFFER_BYTES = 16 * 1024
# A server learns at once that a client has left; what it still has then, it has lost.
SETTLE_S = 10.0
# What a server may grow by for each connection in the later half of the rounds. A connection that
# is kept is dozens of blocks, so in one state of twelve only it is still several on average.
# Resident memory has the allocator's noise on top, of which TLS with its large buffers makes most.
GROWTH_BLOCKS = 0.5
GROWTH_BYTES = 1024


@dataclass(frozen=True)
class State:
    """How far a client gets before it leaves."""

    name: str
    sent: bytes = b""
    answered: bool = False  # it waits for the first bytes of the answer
    below_tls: bool = False  # TLS is not agreed on: it speaks to the socket itself


_POST = b"POST /upload HTTP/1.1\r\nHost: a\r\n"
STATES = (
    State("connected"),
    State("half a head", b"GET /file HTTP/1.1\r\nHos"),
    State("kept alive", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    # So large that FastWorker receives it into a temporary file.
    State("half an upload", _POST + b"Content-Length: 1000000\r\n\r\n" + bytes(50_000)),
    State("half a chunk", _POST + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n" + bytes(20_000)),
    State("in a download", b"GET /server-wrapper HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    State("in a stream", b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n", answered=True),
    State("in HTTP/2 streams", opening("readers of HTTP/2 streams", "/server-wrapper")),
    State("HTTP/2 nonsense", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100),
)


def _tls_states() -> tuple[State, ...]:
    """The same above TLS, and those in which TLS is not agreed on."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        tls_context().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    return (
        State("connected, no TLS yet", below_tls=True),
        State("half a hello", hello[: len(hello) // 2], below_tls=True),
        State("half a handshake", hello, answered=True, below_tls=True),
        State("no TLS at all", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", below_tls=True),
        *STATES,
    )


class Clients:
    """Clients of one server that leave in the middle."""

    def __init__(self, address: Address, *, tls: bool) -> None:
        self.states = _tls_states() if tls else STATES
        self._address = address
        self._tls = tls_context() if tls else None

    def bring_to(self, state: State) -> socket.socket:
        """Connect, and go as far as this.

        :raises TimeoutError: if the server does not answer.
        """
        sock = socket.socket()
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            sock.settimeout(CLIENT_TIMEOUT_S)
            sock.connect(self._address)
            if self._tls is not None and not state.below_tls:
                sock = self._tls.wrap_socket(sock)
            # A server may end what it cannot understand before all of it is sent.
            with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
                sock.sendall(state.sent)
            if state.answered and not sock.recv(1):
                raise ConnectionError(f"no answer to a client that is {state.name!r}")
        except BaseException:
            sock.close()
            raise
        return sock

    def abandon(self, count: int, seconds: float) -> int:
        """Leave one after the other, in each state in turn; returns how many have."""
        deadline = time.monotonic() + seconds
        for number in range(count):
            if time.monotonic() > deadline:
                return number
            turn, place = divmod(number, len(self.states))
            sock = self.bring_to(self.states[place])
            if turn % 2:  # with a reset
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        return count

    def leave_at_once(self, count: int) -> int:
        """They wait for no answer, as threads may all be busy; returns how many they were."""
        with contextlib.ExitStack() as stack:
            for state in itertools.islice(itertools.cycle(self.states), count):
                stack.enter_context(self.bring_to(replace(state, answered=False)))
        return count

    def blocks(self) -> int:
        """What the server's app says at /blocks."""
        request = b"GET /blocks HTTP/1.0\r\nHost: a\r\n\r\n"
        with self.bring_to(State("asking", request)) as sock, sock.makefile("rb") as answer:
            return int(answer.read().rpartition(b"\r\n\r\n")[2])


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
    task: Task,
    *,
    connections: int = CONNECTIONS,
    rounds: int = ROUNDS,
    idle_s: float = 0.0,
) -> Iterator[Count]:
    """Abandon connections of a server; yield its counts at the beginning and after each round.

    :param task: rounds go on beyond their number for its seconds.
    :param connections: in each round, beside those that leave at once.
    :param idle_s: seconds without a client before each count, for the server's timers.
    :raises OSError: if the server does not answer any more.
    """
    clients = Clients(task.address, tls=task.tls)
    end = time.monotonic() + task.seconds
    # For what is made once, such as threads.
    clients.abandon(2 * len(clients.states), ROUND_S)
    count = _count(task.pid, clients, 0)
    before = None
    deadline = time.monotonic() + SETTLE_S
    while before != (count.descriptors, count.threads) and time.monotonic() < deadline:
        time.sleep(0.3)
        before, count = (count.descriptors, count.threads), _count(task.pid, clients, 0)
    yield count
    done = 0
    for number in itertools.count(1):
        done += clients.abandon(connections, ROUND_S) + clients.leave_at_once(HELD)
        time.sleep(idle_s)
        most = count.descriptors
        deadline = time.monotonic() + SETTLE_S
        count = _count(task.pid, clients, done)
        while count.descriptors > most and time.monotonic() < deadline:
            time.sleep(0.05)
            count = _count(task.pid, clients, done)
        yield count
        if number >= rounds and time.monotonic() > end:
            break


def _count(pid: int, clients: Clients, connections: int) -> Count:
    blocks = clients.blocks()
    processes = family(pid)
    return Count(
        connections=connections,
        descriptors=sum(process.num_fds() for process in processes),
        threads=sum(process.num_threads() for process in processes),
        memory_bytes=resident_bytes(pid),
        blocks=blocks,
        processes=tuple(process.pid for process in processes),
    )


def growth(counts: Sequence[Count]) -> dict[str, float]:
    """What each connection has added in the later half of the rounds."""
    middle, last = counts[(len(counts) - 1) // 2], counts[-1]
    connections = last.connections - middle.connections
    return {
        "bytes each": (last.memory_bytes - middle.memory_bytes) / connections,
        "blocks each": (last.blocks - middle.blocks) / connections,
    }


def kept(counts: Sequence[Count], spare_threads: int) -> list[str]:
    """What a server has not given back at the end, a sentence each.

    :param spare_threads: of a bounded pool that it makes when it first needs them.
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
    """In what the server goes on growing, a sentence each; of some thousand connections at least.

    Fewer only fill caches and pools.
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
        found = kept(counts, spare_threads) + grown(counts)
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
_APP, _ASGI_APP = "loadtests.app:app", "loadtests.asgi_app:bare"
_PEM = ("--ssl-certfile={folder}/server.pem", "--ssl-keyfile={folder}/server.pem")
# FastWorker polls with these while all its threads are taken; the first is there at the start.
FAST_SPARES = MAX_SPARES - 1
# asyncio's own default for its threads, in which files are read that are not in memory.
ASYNCIO_SPARES = min(32, (os.cpu_count() or 1) + 4)
# uvicorn's time limit for a connection that is kept alive is 5 s.
_UVICORN = _abandoning(ASYNCIO_SPARES, 6.0)
TABLE = table("leaks", "What is left of abandoned connections", [
    _row("FastWorker", "FastWorker", gunicorn(_APP, *_BOTH, worker_class=FAST),
         _abandoning(FAST_SPARES)),
    _row("FastWorker-tls", "FastWorker, TLS",
         gunicorn(_APP, *_BOTH, worker_class=FAST, tls=True), _abandoning(FAST_SPARES)),
    _row("uvicorn", "uvicorn, our protocol", uvicorn(_ASGI_APP, ours=True), _UVICORN),
    _row("uvicorn-tls", "uvicorn, our protocol, TLS",
         replace(uvicorn(_ASGI_APP, *_PEM, ours=True), tls=True), _UVICORN),
])  # fmt: skip

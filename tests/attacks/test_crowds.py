"""Crowds of hostile clients on FastWorker: others are answered, and memory and CPU are bounded.

Each attack is set beside a control: as many clients that move as many bytes in an honest way. What
is asserted is the ratio of the two, far above what a busy machine makes of it and far below what
the attack was able to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable

import pytest

from tests.attacks.crowds import Client, cpu_seconds, crowd, load_of, memory_of, worker_of
from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from tests.workers.serving import fast_worker, nothing_left_behind, reset, stats

LONG = bool(os.environ.get("WSGIFAST_TEST_LONG"))
SECONDS = 20.0 if LONG else 1.0
# A client that is served on time beside the control waits at most so many times as long.
MOST_P99 = 20
# p99s below it are the machine's, not the server's.
LEAST_P99_S = 0.01
# The same for its CPU, and for times that are no more than the clock's steps.
MOST_CPU = 3
LEAST_CPU_S = 0.1

_CHUNKED = b"POST /digest HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
_BURST_BYTES = 64 * 1024


def served(*options: str) -> contextlib.AbstractContextManager[LiveServer]:
    """FastWorker, which waits for no client at its end."""
    return fast_worker("--graceful-timeout=1", "--worker-connections=2000", *options)


def _chunks(size: int) -> Client:
    """A body of chunks of one size, 64 KiB of it now and then."""
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    burst = chunk * (_BURST_BYTES // len(chunk))

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_CHUNKED)
        while True:
            writer.write(burst)
            await writer.drain()
            await asyncio.sleep(0.5)

    return client


def _dripped(begin: bytes) -> Client:
    """A beginning, and then byte after byte of a line that does not end."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        await writer.drain()
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.002)

    return client


def _long_head(fields: int) -> bytes:
    field = b"X-%d: " + b"x" * 8000 + b"\r\n"
    return b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(field % n for n in range(fields))


def _long_trailer(fields: int) -> bytes:
    return _CHUNKED + b"0\r\n" + b"".join(b"X-%d: %b\r\n" % (n, b"x" * 1000) for n in range(fields))


# name -> clients, attack, control
ATTACKS: dict[str, tuple[int, Client, Client]] = {
    "one-byte chunks": (20, _chunks(1), _chunks(1024)),
    "two-byte chunks": (20, _chunks(2), _chunks(1024)),
    "a long head, byte by byte": (12, _dripped(_long_head(95)), _dripped(_long_head(0))),
    "a long trailer, byte by byte": (12, _dripped(_long_trailer(500)), _dripped(_long_trailer(0))),
}


@pytest.mark.timeout(600 if LONG else 120)
@pytest.mark.parametrize("name", ATTACKS)
def test_others_are_answered_meanwhile(name: str, count_cases: Callable[[int], None]) -> None:
    clients, attack, control = ATTACKS[name]
    with served() as server:
        honest = load_of(server, control, clients, SECONDS)
        hostile = load_of(server, attack, clients, SECONDS)
    assert hostile.p99_s < MOST_P99 * max(honest.p99_s, LEAST_P99_S), f"{hostile} {honest}"
    if "byte by byte" in name:
        # What came before is not looked at again for each byte.
        assert hostile.cpu_s < MOST_CPU * max(honest.cpu_s, LEAST_CPU_S), f"{hostile} {honest}"
    count_cases(clients)


def _says(text: bytes) -> Client:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()

    return client


def _held_connections(server: LiveServer, count: int) -> Callable[[], bool]:
    before = stats(server)["fds"]
    return lambda: stats(server)["fds"] >= before + count


def test_a_promised_body_costs_no_memory(count_cases: Callable[[int], None]) -> None:
    count = 400
    promise = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n"
    with served() as server:
        settled = _held_connections(server, count)
        idle = memory_of(server, _says(b"G"), count, settled)
    with served() as server:
        settled = _held_connections(server, count)
        promised = memory_of(server, _says(promise), count, settled)
    assert promised < 4 * max(idle, count * 4096), f"{promised} bytes, {idle} when idle"
    count_cases(count)


def test_small_chunks_are_no_larger_in_memory(count_cases: Callable[[int], None]) -> None:
    count, size = 20, 400_000

    def unfinished(chunk: int) -> Client:
        return _says(_CHUNKED + b"%x\r\n%b\r\n" % (chunk, b"x" * chunk) * (size // chunk))

    def received(server: LiveServer) -> Callable[[], bool]:
        process = worker_of(server)
        seen = [0.0]

        def at_rest() -> bool:
            time.sleep(0.2)
            before, seen[0] = seen[0], cpu_seconds(process)
            return before == seen[0]

        return at_rest

    grown = {}
    for chunk in (2, 4000):
        with served() as server:
            grown[chunk] = memory_of(server, unfinished(chunk), count, received(server))
    assert grown[2] < 3 * max(grown[4000], count * size), f"{grown}"
    count_cases(count)


def test_readers_who_do_not_read_hold_a_bounded_memory(
    count_cases: Callable[[int], None],
) -> None:
    count, size = 60, 5_000_000
    asked = b"GET /small/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % size

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
        )
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(asked)

    with served() as server:
        other = Connection(server.address)
        answered = [0]

        def settled() -> bool:
            assert other.request("/small/5").status == 200
            answered[0] += 1
            return answered[0] > 20 and server.log().count(f"/small/{size}") == 0

        grown = memory_of(server, client, count, settled)
        other.close()
    assert grown < count * size / 2, f"{grown} bytes held for {count * size} asked"
    count_cases(count)


def test_floods_leave_nothing_behind(count_cases: Callable[[int], None]) -> None:
    rounds = 20_000 if LONG else 600
    stages = [b"", b"G", b"GET / HTTP/1.1\r\n", b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    with served() as server, nothing_left_behind(server):
        for number in range(rounds):
            connection = Connection(server.address)
            connection.send(stages[number % len(stages)])
            if number % 3:
                reset(connection.sock)
            connection.close()
        assert server.get("/small/5").status == 200
    count_cases(rounds)


def test_pipelined_requests_are_answered_in_turn_with_others(
    count_cases: Callable[[int], None],
) -> None:
    """One client with a thousand requests at once holds up nobody, and gets each answer."""
    count = 20_000 if LONG else 1000
    request = b"GET /small/5 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served() as server, Connection(server.address) as connection:
        connection.send(request * count)
        assert server.get("/small/5").status == 200
        for _ in range(count):
            assert connection.read_response().status == 200
        with crowd(server, _says(request * 50), 20):
            wait_for(lambda: server.get("/small/5").status == 200, "others are answered")
    count_cases(count)

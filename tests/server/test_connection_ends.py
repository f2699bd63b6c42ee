"""How a connection ends, and what is left of it."""

from __future__ import annotations

import contextlib
import socket
import tracemalloc
import weakref
from typing import Any

import pytest

from tests.server.connections import (
    KNOWN,
    NONSENSE,
    bench,
    fill,
)
from tests.workers.bench import GET, Bench, make_bench
from wsgifast.errors import ClientGone
from wsgifast.server.endpoint import CLOSED, LINGERING, SENDING
from wsgifast.server.options import Options
from wsgifast.sockets.closing import LINGER_S
from wsgifast.workers.worker import FastWorker

__all__ = ["bench", "make_bench"]


def test_the_last_word_arrives_although_the_client_goes_on_sending(bench: Bench) -> None:
    """A socket that is closed with something unread resets what it has sent."""
    client = bench.begin(NONSENSE + bytes(10_000))
    client.send(bytes(10_000))
    bench.run()
    assert client.is_in(LINGERING)
    assert client.read_response().status == 400
    assert client.read_to_end() == b""
    client.close()
    bench.run()
    assert client.is_in(CLOSED)


def test_who_sends_on_reads_the_answer_behind_it_and_does_so_for_so_long(bench: Bench) -> None:
    client = bench.begin(KNOWN.replace(b"10", b"9" * 11))
    began = bench.clock.now
    while client.is_in(LINGERING) and bench.clock.now < began + 100:
        client.send(bytes(100_000))
        bench.run()
        bench.pass_time(LINGER_S / 2)
    assert 30 <= bench.clock.now - began <= 32
    assert client.read_response().status == 413
    assert client.read_to_end() == b""


def test_a_server_that_ends_waits_for_no_one_who_sends_on(bench: Bench) -> None:
    client = bench.begin(KNOWN.replace(b"10", b"9" * 11))
    bench.server.stop()
    for _ in range(3):
        assert client.is_in(LINGERING)
        client.send(bytes(100_000))
        bench.pass_time(LINGER_S / 2 - 0.1)
    assert client.is_in(CLOSED)


def test_nobody_lingers_for_long(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsgifast.sockets.closing._LINGER_BYTES", 1_000_000)
    silent, talking = bench.begin(NONSENSE), bench.begin(NONSENSE)
    sent = 0
    while talking.is_in(LINGERING) and sent < 10_000_000:
        talking.send(bytes(10_000))
        sent += 10_000
        bench.run()
    assert 1_000_000 <= sent < 1_100_000
    bench.pass_time(LINGER_S - 1)
    assert silent.is_in(LINGERING)
    bench.pass_time(2)
    assert silent.is_in(CLOSED)


@pytest.mark.parametrize(
    ("sent", "status"),
    [(NONSENSE, 400), (KNOWN.replace(b"10", b"9" * 11), 413), (b"GET / HT", 408), (KNOWN, 408)],
)
def test_a_refusal_that_is_not_taken_at_once(bench: Bench, sent: bytes, status: int) -> None:
    client = bench.connect()
    filled = fill(client.near.sock)
    client.send(sent)
    bench.run()
    if status == 408:
        bench.pass_time(FastWorker.body_timeout_s + 1)
    assert client.is_in(SENDING)
    assert client.read(filled) == bytes(filled)
    bench.run()
    assert client.read_response().status == status
    assert client.is_in(LINGERING)
    assert not bench.log.says("Error in a connection")


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (KNOWN.replace(b"10", b"9" * 11), [("POST /", "413 Content Too Large", 0)]),
        (b"GET / HTTP/1.0\r\n\r\n", [("GET /", "200 OK", 0)]),
    ],
)
def test_a_client_that_has_gone_before_its_answer(
    bench: Bench, sent: bytes, logged: list[tuple[str, str, int]]
) -> None:
    client = bench.connect()
    client.send(sent)
    client.close()
    bench.run()
    assert client.is_in(CLOSED)
    assert not bench.log.says("Error in a connection")
    assert bench.log.requests == logged


@pytest.mark.parametrize("failing", ["on_event", "app_is_done", "on_overdue"])
def test_an_error_of_our_own_ends_the_connection_only(
    bench: Bench, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError

    client, other = bench.connect(), bench.connect()
    with monkeypatch.context() as patch:
        patch.setattr(type(client.near), failing, fail)
        bench.clock.now += Options.head_timeout_s - 1
        if failing == "on_overdue":
            other.send_request()
            bench.run()
            bench.pass_time(2)
        else:
            client.send_request()
            bench.run()
    assert client.is_in(CLOSED)
    assert bench.log.lines.count("Error in a connection") == 1
    if failing != "on_overdue":
        other.send_request()
        bench.run()
    assert other.read_response().status == 200


def test_closing_gives_everything_back_and_does_so_once(bench: Bench) -> None:
    client = bench.begin()
    near, server = client.near, bench.server
    forget = server.registry.forget
    order: list[int] = []

    def look(connection: Any) -> None:
        order.append(connection.sock.fileno())
        forget(connection)

    server.registry.forget = look
    near.close()
    # Before the number may belong to another one.
    assert order == [near.fd]
    assert near.sock.fileno() == -1
    assert not server.registry.waiting
    other = bench.connect(number=near.fd)
    assert other.near.fd == near.fd
    near.close()
    assert order == [near.fd]
    assert server.registry.waiting == {other.near.fd: other.near}
    assert server.connections == {other.near}
    with pytest.raises(ClientGone):
        near.output.write(b"late")


def test_an_idle_connection_keeps_little_memory(bench: Bench) -> None:
    count = 50
    pairs = [socket.socketpair() for _ in range(count)]
    bench.begin()  # what is made once
    with contextlib.ExitStack() as stack:
        for near, far in pairs:
            stack.callback(near.close)
            stack.enter_context(far)
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for near, far in pairs:
            connection = bench.accept(near, (f"192.0.2.{near.fileno()}", 4711))
            connection.begin()
            far.sendall(GET)
            bench.run()
            assert far.recv(1000)
        del connection
        bench.log.requests.clear()
        bench.log.environs.clear()
        bench.log.seconds.clear()
        kept, _ = tracemalloc.get_traced_memory()
    assert kept / count <= 1800  # beside the socket object: 2 KiB in all


def test_a_closed_connection_is_garbage_at_once(bench: Bench) -> None:
    """Without the cycle collector, which may take long to come."""
    client = bench.begin()
    bench.log.environs.clear()
    assert client.near.app_socket is not None
    sock = weakref.ref(client.near.app_socket)
    client.near.close()
    assert sock() is None

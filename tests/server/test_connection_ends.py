"""How a connection ends, and what is left of it; and a kernel that refuses."""

from __future__ import annotations

import contextlib
import errno
import socket
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.connections import HEAD, KNOWN, NONSENSE, MakeBench, fill
from tests.workers.bench import GET, HEAD_TIMEOUT_S, LARGE, Bench, large
from wsgifast.errors import ClientGone
from wsgifast.server.channel import CLOSED, LINGERING, RECEIVING, SENDING
from wsgifast.server.poller import WRITE
from wsgifast.sockets.closing import LINGER_S
from wsgifast.workers.worker import FastWorker

TOO_LARGE = KNOWN.replace(b"10", b"9" * 11)


def test_refusal_arrives_while_client_sends_on(bench: Bench) -> None:
    """A socket that is closed with something unread resets what it has sent."""
    client = bench.begin(NONSENSE + bytes(10_000))
    client.run(bytes(10_000))
    assert client.is_in(LINGERING)
    assert client.read_response().status == 400
    assert client.read_to_end() == b""
    client.close()
    bench.run()
    assert client.is_in(CLOSED)


def test_client_that_sends_on_lingers_for_so_long(bench: Bench) -> None:
    client = bench.begin(TOO_LARGE)
    began = bench.clock.now
    while client.is_in(LINGERING) and bench.clock.now < began + 100:
        client.run(bytes(100_000))
        bench.pass_time(LINGER_S / 2)
    assert 30 <= bench.clock.now - began <= 32
    assert client.read_response().status == 413
    assert client.read_to_end() == b""


def test_ending_server_waits_for_no_endless_client(bench: Bench) -> None:
    client = bench.begin(TOO_LARGE)
    bench.server.stop()
    for _ in range(3):
        assert client.is_in(LINGERING)
        client.send(bytes(100_000))
        bench.pass_time(LINGER_S / 2 - 0.1)
    assert client.is_in(CLOSED)


def test_lingering_is_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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
    [(NONSENSE, 400), (TOO_LARGE, 413), (b"GET / HT", 408), (KNOWN, 408)],
)
def test_refusal_not_taken_at_once_is_sent_later(bench: Bench, sent: bytes, status: int) -> None:
    client = bench.connect()
    filled = fill(client.near.sock)
    client.run(sent)
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
        (TOO_LARGE, [("POST /", "413 Content Too Large", 0)]),
        (b"GET / HTTP/1.0\r\n\r\n", [("GET /", "200 OK", 0)]),
    ],
)
def test_client_gone_before_its_answer_is_no_error(
    bench: Bench, sent: bytes, logged: list[tuple[str, str, int]]
) -> None:
    client = bench.connect()
    client.send(sent)
    client.close()
    bench.run()
    assert client.is_in(CLOSED)
    assert not bench.log.says("Error in a connection")
    assert bench.log.requests == logged


@pytest.mark.parametrize("failing", ["on_event", "finish", "on_overdue"])
def test_internal_error_ends_one_connection_only(
    bench: Bench, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError

    client, other = bench.connect(), bench.connect()
    with monkeypatch.context() as patch:
        patch.setattr(type(client.near), failing, fail)
        bench.clock.now += HEAD_TIMEOUT_S - 1
        if failing == "on_overdue":
            other.run_request()
            bench.pass_time(2)
        else:
            client.run_request()
    assert client.is_in(CLOSED)
    assert bench.log.lines.count("Error in a connection") == 1
    if failing != "on_overdue":
        other.run_request()
    assert other.read_response().status == 200


def test_closing_gives_everything_back_once(bench: Bench) -> None:
    client = bench.begin()
    near, server = client.near, bench.server
    claim = server.registry.claim
    order: list[int] = []

    def look(connection: Any) -> None:
        order.append(connection.sock.fileno())
        claim(connection)

    server.registry.claim = look
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


def test_idle_connection_keeps_little_memory(bench: Bench) -> None:
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
        for kept in (bench.log.requests, bench.log.environs, bench.log.seconds):
            kept.clear()
        kept, _ = tracemalloc.get_traced_memory()
    assert kept / count <= 1800  # beside the socket object: 2 KiB in all


def test_closed_connection_is_garbage_at_once(bench: Bench) -> None:
    """Without the cycle collector, which may take long to come."""
    client = bench.begin()
    bench.log.environs.clear()
    assert client.near.app_socket is not None
    sock = weakref.ref(client.near.app_socket)
    client.near.close()
    assert sock() is None


# A kernel that cannot watch them, or that takes nothing.


def refuse(fd: int, events: int = 0) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_connection_that_kernel_cannot_watch_ends(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    client = bench.connect()
    poller = bench.server.poller
    add, poller.add = poller.add, refuse
    assert bench.connect().is_in(CLOSED)
    poller.add = add
    poller.arm = refuse
    client.send(HEAD)
    client.sock.shutdown(socket.SHUT_WR)
    bench.run()
    assert client.is_in(CLOSED)
    assert not bench.server.registry.waiting
    assert bench.log.says("Cannot allocate memory")


@pytest.mark.parametrize("asked_again", [False, True])
def test_unwatchable_connection_ends_after_its_app(
    make_bench: MakeBench, asked_again: bool
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        if not asked_again:
            bench.server.poller.arm = refuse
        yield bytes(LARGE)
        if asked_again:
            bench.server.pool.push((client.near.fd, WRITE))
            bench.run()
            assert client.near.waits_for_memory
            bench.server.poller.arm = refuse
            bench.pass_time(1)
        # It has not been closed under the app, and is not waited for.
        assert client.near.sock.fileno() >= 0
        assert client.near.fd not in bench.server.registry.waiting
        yield b"more"
        pytest.fail("the app gets no error")

    bench = make_bench(app)
    client = bench.connect()
    client.run_request()
    assert client.is_in(CLOSED)


def test_swept_connection_stays_if_kernel_refuses(make_bench: MakeBench) -> None:
    bench = make_bench(large)

    def lose(fd: int, events: int) -> None:
        del bench.server.registry.waiting[fd]
        refuse(fd, events)

    client = bench.connect()
    bench.server.poller.arm = lose
    client.run(HEAD)
    assert client.is_in(RECEIVING)


def test_kernel_without_memory_is_asked_by_the_sweep(make_bench: MakeBench) -> None:
    """It says writable and takes nothing: waiting for that would spin."""
    bench = make_bench(large, keepalive=60)
    client = bench.begin()
    received = 0
    while client.near.output.draining:
        bench.server.pool.push((client.near.fd, WRITE))
        bench.run()
        assert client.near.waits_for_memory
        received += len(client.receive_all_there_is())
        bench.run()  # not by an event
        assert client.receive_all_there_is() == b""
        bench.pass_time(1)  # but by the sweep
    received += len(client.receive_all_there_is())
    assert received > LARGE
    assert bench.log.requests == [("GET /", "200 OK", LARGE)]
    assert not client.near.waits_for_memory
    # And that has an end.
    client.run_request()
    for _ in range(int(FastWorker.send_timeout_s)):
        bench.server.pool.push((client.near.fd, WRITE))
        bench.run()
        bench.clock.now += 1
    bench.pass_time(1)
    assert client.is_in(CLOSED)


def test_deadline_is_set_before_the_sweep_can_look(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    client = bench.connect()
    arm = bench.server.poller.arm
    deadlines = []

    def look(fd: int, events: int) -> None:
        deadlines.append((events, client.near.deadline - bench.clock.now))
        arm(fd, events)

    client.send_request()
    bench.poll()
    bench.clock.now += 10
    bench.server.poller.arm = look
    bench.run()
    assert deadlines == [(WRITE, FastWorker.send_timeout_s)]

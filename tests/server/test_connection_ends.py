"""How a connection ends, the resources that remain, and errors of the kernel."""

from __future__ import annotations

import contextlib
import errno
import socket
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.connections import HEAD, KNOWN, NONSENSE, MakeStepped, fill
from tests.support.calls import raising
from tests.workers.stepped_worker import GET, HEAD_TIMEOUT_S, LARGE, SteppedWorker, large
from wsgifast.errors import ClientGone
from wsgifast.server.endpoint import CLOSED, LINGERING, RECEIVING_HEAD, SENDING
from wsgifast.server.poller import WRITE
from wsgifast.sockets.closing import LINGER_S
from wsgifast.workers.worker import FastWorker

TOO_LARGE = KNOWN.replace(b"10", b"9" * 11)


def test_client_that_sends_on_lingers_for_so_long(stepped: SteppedWorker) -> None:
    client = stepped.begin(TOO_LARGE)
    began = stepped.clock.now
    while client.is_in(LINGERING) and stepped.clock.now < began + 100:
        client.run(bytes(100_000))
        stepped.pass_time(LINGER_S / 2)
    assert 30 <= stepped.clock.now - began <= 32
    assert client.read_response().status == 413
    assert client.read_to_end() == b""


def test_ending_server_waits_for_no_endless_client(stepped: SteppedWorker) -> None:
    client = stepped.begin(TOO_LARGE)
    stepped.server.stop()
    for _ in range(3):
        assert client.is_in(LINGERING)
        client.send(bytes(100_000))
        stepped.pass_time(LINGER_S / 2 - 0.1)
    assert client.is_in(CLOSED)


def test_lingering_is_limited(stepped: SteppedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsgifast.sockets.closing._LINGER_BYTES", 1_000_000)
    silent, talking = stepped.begin(NONSENSE), stepped.begin(NONSENSE)
    sent = 0
    while talking.is_in(LINGERING) and sent < 10_000_000:
        talking.send(bytes(10_000))
        sent += 10_000
        stepped.run()
    assert 1_000_000 <= sent < 1_100_000
    stepped.pass_time(LINGER_S - 1)
    assert silent.is_in(LINGERING)
    stepped.pass_time(2)
    assert silent.is_in(CLOSED)


@pytest.mark.parametrize(
    ("sent", "status"),
    [(NONSENSE, 400), (TOO_LARGE, 413), (b"GET / HT", 408), (KNOWN, 408)],
)
def test_refusal_not_taken_at_once_is_sent_later(
    stepped: SteppedWorker, sent: bytes, status: int
) -> None:
    client = stepped.connect()
    filled = fill(client.near.sock)
    client.run(sent)
    if status == 408:
        stepped.pass_time(FastWorker.body_timeout_s + 1)
    assert client.is_in(SENDING)
    assert client.read(filled) == bytes(filled)
    stepped.run()
    assert client.read_response().status == status
    assert client.is_in(LINGERING)
    assert not stepped.log.says("Error in a connection")


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (TOO_LARGE, [("POST /", "413 Content Too Large", 0)]),
        (b"GET / HTTP/1.0\r\n\r\n", [("GET /", "200 OK", 0)]),
    ],
)
def test_client_gone_before_its_response_is_no_error(
    stepped: SteppedWorker, sent: bytes, logged: list[tuple[str, str, int]]
) -> None:
    client = stepped.connect()
    client.send(sent)
    client.close()
    stepped.run()
    assert client.is_in(CLOSED)
    assert not stepped.log.says("Error in a connection")
    assert stepped.log.requests == logged


@pytest.mark.parametrize("failing", ["on_event", "finish", "on_overdue"])
def test_internal_error_ends_one_connection_only(
    stepped: SteppedWorker, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = stepped.connect(), stepped.connect()
    with monkeypatch.context() as patch:
        patch.setattr(type(client.near), failing, raising(ZeroDivisionError))
        stepped.clock.now += HEAD_TIMEOUT_S - 1
        if failing == "on_overdue":
            other.run_request()
            stepped.pass_time(2)
        else:
            client.run_request()
    assert client.is_in(CLOSED)
    assert stepped.log.lines.count("Error in a connection") == 1
    if failing != "on_overdue":
        other.run_request()
    assert other.read_response().status == 200


def test_closing_gives_everything_back_once(stepped: SteppedWorker) -> None:
    client = stepped.begin()
    near, server = client.near, stepped.server
    claim = server.registry.claim
    order: list[int] = []

    def look(connection: Any) -> None:
        order.append(connection.sock.fileno())
        claim(connection)

    server.registry.claim = look
    near.close()
    # The connection is forgotten before its descriptor's number can belong to another one.
    assert order == [near.fd]
    assert near.sock.fileno() == -1
    assert not server.registry.waiting
    other = stepped.connect(number=near.fd)
    assert other.near.fd == near.fd
    near.close()
    assert order == [near.fd]
    assert server.registry.waiting == {other.near.fd: other.near}
    assert server.connections == {other.near}
    with pytest.raises(ClientGone):
        near.output.write(b"late")


def test_idle_connection_keeps_little_memory(stepped: SteppedWorker) -> None:
    count = 50
    pairs = [socket.socketpair() for _ in range(count)]
    stepped.begin()  # so that the objects of a first call exist
    with contextlib.ExitStack() as stack:
        for near, far in pairs:
            stack.callback(near.close)
            stack.enter_context(far)
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for near, far in pairs:
            connection = stepped.accept(near, (f"192.0.2.{near.fileno()}", 4711))
            connection.begin()
            far.sendall(GET)
            stepped.run()
            assert far.recv(1000)
        del connection
        for recorded in (stepped.log.requests, stepped.log.environs, stepped.log.seconds):
            recorded.clear()
        recorded, _ = tracemalloc.get_traced_memory()
    assert recorded / count <= 1800  # with the socket object, 2 KiB in all


def test_closed_connection_is_garbage_at_once(stepped: SteppedWorker) -> None:
    """Connections are freed without the cycle collector, which may run late."""
    client = stepped.begin()
    stepped.log.environs.clear()
    assert client.near.app_socket is not None
    sock = weakref.ref(client.near.app_socket)
    client.near.close()
    assert sock() is None


# Kernels that cannot watch sockets, or that accept nothing


def refuse(fd: int, events: int = 0) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_connection_that_kernel_cannot_watch_ends(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large)
    client = stepped.connect()
    poller = stepped.server.poller
    add, poller.add = poller.add, refuse
    assert stepped.connect().is_in(CLOSED)
    poller.add = add
    poller.arm = refuse
    client.send(HEAD)
    client.sock.shutdown(socket.SHUT_WR)
    stepped.run()
    assert client.is_in(CLOSED)
    assert not stepped.server.registry.waiting
    assert stepped.log.says("Cannot allocate memory")


@pytest.mark.parametrize("requested_again", [False, True])
def test_unwatchable_connection_ends_after_its_app(
    make_stepped: MakeStepped, requested_again: bool
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        if not requested_again:
            stepped.server.poller.arm = refuse
        yield bytes(LARGE)
        if requested_again:
            stepped.server.pool.push((client.near.fd, WRITE))
            stepped.run()
            assert client.near.waits_for_memory
            stepped.server.poller.arm = refuse
            stepped.pass_time(1)
        # The socket was not closed while the app used it, and nothing waits for it.
        assert client.near.sock.fileno() >= 0
        assert client.near.fd not in stepped.server.registry.waiting
        yield b"more"
        pytest.fail("the app gets no error")

    stepped = make_stepped(app)
    client = stepped.connect()
    client.run_request()
    assert client.is_in(CLOSED)


def test_swept_connection_stays_if_kernel_refuses(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large)

    def lose(fd: int, events: int) -> None:
        del stepped.server.registry.waiting[fd]
        refuse(fd, events)

    client = stepped.connect()
    stepped.server.poller.arm = lose
    client.run(HEAD)
    assert client.is_in(RECEIVING_HEAD)


def test_sweep_tries_a_kernel_without_memory(make_stepped: MakeStepped) -> None:
    """The socket is writable and accepts nothing. Waiting for an event would be a busy loop."""
    stepped = make_stepped(large, keepalive=60)
    client = stepped.begin()
    received = 0
    while client.near.output.is_waiting:
        stepped.server.pool.push((client.near.fd, WRITE))
        stepped.run()
        assert client.near.waits_for_memory
        received += len(client.receive_all_there_is())
        stepped.run()  # not by an event
        assert client.receive_all_there_is() == b""
        stepped.pass_time(1)  # but by the sweep
    received += len(client.receive_all_there_is())
    assert received > LARGE
    assert stepped.log.requests == [("GET /", "200 OK", LARGE)]
    assert not client.near.waits_for_memory
    # The wait has a deadline.
    client.run_request()
    for _ in range(int(FastWorker.send_timeout_s)):
        stepped.server.pool.push((client.near.fd, WRITE))
        stepped.run()
        stepped.clock.now += 1
    stepped.pass_time(1)
    assert client.is_in(CLOSED)


def test_deadline_is_set_before_the_sweep_can_look(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large)
    client = stepped.connect()
    arm = stepped.server.poller.arm
    deadlines = []

    def look(fd: int, events: int) -> None:
        deadlines.append((events, client.near.deadline - stepped.clock.now))
        arm(fd, events)

    client.send_request()
    stepped.poll()
    stepped.clock.now += 10
    stepped.server.poller.arm = look
    stepped.run()
    assert deadlines == [(WRITE, FastWorker.send_timeout_s)]

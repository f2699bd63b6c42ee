"""One connection in its states: the effect of an event in each state, and the deadlines.

The test handles one event at a time in its own thread. See workers/stepped_worker.py.
"""

from __future__ import annotations

import copy
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.server.connections import CHUNKED, KNOWN, MakeStepped
from tests.server.state_checks import FOLLOWS
from tests.workers.serving import POLLERS
from tests.workers.stepped_worker import (
    GET,
    HEAD_TIMEOUT_S,
    LARGE,
    Client,
    SteppedWorker,
    echo,
    large,
)
from wsgifast.server import endpoint
from wsgifast.server.connection import _STEPS
from wsgifast.server.endpoint import (
    CLOSED,
    HANDSHAKE,
    IDLE,
    LINGERING,
    RECEIVING,
    RECEIVING_HEAD,
    RUNNING,
    SENDING,
    STREAMS,
)  # fmt: skip
from wsgifast.server.poller import READ
from wsgifast.sockets.closing import LINGER_S
from wsgifast.workers.worker import FastWorker


def test_every_state_is_handled() -> None:
    # In STREAMS, another object of HTTP/2 has the socket.
    assert {*FOLLOWS} - {STREAMS} == {*_STEPS}
    constants = [value for name, value in vars(endpoint).items() if name.isupper()]
    assert {*FOLLOWS} == {value for value in constants if isinstance(value, str)}


def test_every_state_can_be_reached_and_left() -> None:
    assert {state for states in FOLLOWS.values() for state in states} == {*FOLLOWS} - {HANDSHAKE}
    for state, following in FOLLOWS.items():
        assert (CLOSED in following) is (state is not CLOSED)


def test_state_that_may_not_follow_fails_in_tests(stepped: SteppedWorker) -> None:
    client = stepped.connect()
    with pytest.raises(AssertionError, match="handshake after idle"):
        client.near.state = HANDSHAKE
    client.near.state = RUNNING
    client.near.close()
    with pytest.raises(AssertionError, match="running after closed"):
        client.near.state = RUNNING


@pytest.mark.parametrize(
    ("sent", "state", "seconds", "status"),
    [
        (b"", IDLE, HEAD_TIMEOUT_S, None),
        (b"GET / HT", RECEIVING_HEAD, HEAD_TIMEOUT_S, 408),
        (KNOWN + b"01234", RECEIVING, FastWorker.body_timeout_s, 408),
        (CHUNKED + b"a\r\n01234", RECEIVING, FastWorker.body_timeout_s, 408),
        (GET, IDLE, 5, 200),
    ],
)
def test_request_that_does_not_come_is_given_up(
    stepped: SteppedWorker, sent: bytes, state: str, seconds: float, status: int | None
) -> None:
    client = stepped.begin(sent)
    stepped.pass_time(seconds - 1)
    assert client.is_in(state)
    # An event without data gives the client no more time.
    stepped.server.pool.push((client.near.fd, READ))
    stepped.run()
    stepped.pass_time(2)
    assert client.is_in(LINGERING if status == 408 else CLOSED)
    if status is not None:
        assert client.read_response().status == status
    assert client.read_to_end() == b""
    # Without complete headers there is no request.
    logged = {GET: "200 OK", b"GET / HT": None, b"": None}.get(sent, "408 Request Timeout")
    assert [status for _, status, _ in stepped.log.requests] == ([logged] if logged else [])


@pytest.mark.parametrize("sent", [b"", GET])
def test_request_waiting_for_busy_server_is_not_late(stepped: SteppedWorker, sent: bytes) -> None:
    client = stepped.begin(sent)
    if sent:
        assert client.read_response().status == 200
    client.send(GET)
    stepped.pass_time(HEAD_TIMEOUT_S + 6)
    assert client.read_response().status == 200
    assert client.is_in(IDLE)
    client.send(b"GET / HT")
    stepped.pass_time(6)
    assert client.is_in(RECEIVING_HEAD)
    stepped.pass_time(HEAD_TIMEOUT_S + 1)
    assert client.read_response().status == 408


def test_headers_have_time_from_their_first_byte_on(stepped: SteppedWorker) -> None:
    client = stepped.connect()
    stepped.pass_time(HEAD_TIMEOUT_S - 1)
    client.run(b"GET / HTTP/1.1\r\nHost: a\r\n")
    stepped.pass_time(HEAD_TIMEOUT_S - 1)
    client.run(b"\r\nGET / HTTP/1.1\r\n")
    assert client.read_response().status == 200
    stepped.pass_time(HEAD_TIMEOUT_S - 1)
    client.run(b"Host: a\r\n")  # this gives the client no more time
    stepped.pass_time(2)
    assert client.read_response().status == 408


def test_client_that_takes_nothing_is_given_up(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large)
    client = stepped.begin()
    stepped.pass_time(FastWorker.send_timeout_s - 1)
    assert client.receive_all_there_is()
    stepped.run()  # the connection continues, and has all of its time again
    stepped.pass_time(FastWorker.send_timeout_s - 1)
    assert client.is_in(SENDING)
    assert not stepped.log.requests
    stepped.pass_time(2)
    assert client.is_in(CLOSED)
    ((_, status, size),) = stepped.log.requests
    assert status == "200 OK"
    assert 0 < size < LARGE  # bytes that cannot have reached the client are not counted


def test_client_taking_nothing_is_an_error_to_the_app(make_stepped: MakeStepped) -> None:
    """The app gets an error at its next block. Until then it may use the socket."""
    seen: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        try:
            yield bytes(LARGE)
            stepped.pass_time(FastWorker.send_timeout_s + 1)
            assert client.is_in(RUNNING)
            assert client.near.output.error is not None
            assert client.near.sock.fileno() >= 0
            seen.append("before")
            yield b"more"
            seen.append("after")
        finally:
            seen.append("closed")

    stepped = make_stepped(app)
    client = stepped.connect()
    client.run_request()
    assert seen == ["before", "closed"]
    assert client.is_in(CLOSED)


def test_response_goes_on_after_its_app(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large, keepalive=5)
    client = stepped.connect()
    client.send_request()
    client.run_request()
    assert client.is_in(SENDING)
    assert not stepped.log.requests
    received = b""
    while more := client.receive_all_there_is():
        received += more
        stepped.run()
    assert stepped.log.requests == [("GET /", "200 OK", LARGE)] * 2
    headers, *bodies = received.split(b"HTTP/1.1 200 OK\r\n")
    assert headers == b""
    assert [body.partition(b"\r\n\r\n")[2] for body in bodies] == [bytes(LARGE)] * 2
    assert client.is_in(IDLE)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_client_is_sent_to_while_app_runs(make_stepped: MakeStepped, method: str) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", str(LARGE + 3))])
        yield bytes(LARGE)
        received = b""
        while more := client.receive_all_there_is():
            received += more
            stepped.run()
        assert received.endswith(bytes(LARGE))
        assert not stepped.log.requests  # the response is not over
        yield b"end"

    stepped = make_stepped(large, keepalive=5)
    client = stepped.begin()
    while client.receive_all_there_is():  # the queue has ended the first response by itself
        stepped.run()
    assert stepped.log.requests.pop() == ("GET /", "200 OK", LARGE)
    stepped.worker.application.app = app
    client.run_request(method=method, body=b"body" if method == "POST" else b"")
    assert client.read(3) == b"end"
    assert stepped.log.requests == [(f"{method} /", "200 OK", LARGE + 3)]
    assert not stepped.log.says("Error in a connection")


def test_socket_taken_by_app_blocks_and_is_not_reused(make_stepped: MakeStepped) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        sock = environ["gunicorn.socket"]
        # The bytes are read with MSG_PEEK only.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        assert sock.family == socket.AF_UNIX
        assert sock.gettimeout() == 0
        for name in ("what_no_socket_has", "__enter__"):
            assert not hasattr(sock, name)
        copy.copy(sock)
        if environ["PATH_INFO"] == "/mine":
            sock.sendall(b"mine")
            assert sock.gettimeout() is None
        start_response("200 OK", [("Content-Length", "0")])
        return []

    stepped = make_stepped(app, keepalive=5)
    client = stepped.begin()
    assert client.read_response().keep_alive
    assert client.is_in(IDLE)
    client.run_request("/mine")
    assert client.read(4) == b"mine"
    assert client.read_response().keep_alive  # the event was reported, but is no longer true
    assert client.is_in(LINGERING)
    # Code that waits for the end of the connection does not hang
    assert client.near.sock.gettimeout() == 0


def test_socket_is_handed_over_when_all_is_sent(make_stepped: MakeStepped) -> None:
    received = bytearray()

    def read() -> None:
        """The client, and another thread of the worker."""
        while not received.endswith(b"mine") and len(received) <= 2 * LARGE:
            received.extend(client.sock.recv(16 * 1024))
            stepped.poll()
            while stepped.server.pool.work:
                stepped.take_up()

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", str(LARGE))])(bytes(LARGE))
        other.start()
        environ["gunicorn.socket"].sendall(b"mine")
        raise StopIteration

    other = threading.Thread(target=read, daemon=True)
    stepped = make_stepped(app, keepalive=5)
    client = stepped.connect()
    client.run(GET)
    other.join(60)
    assert bytes(received).partition(b"\r\n\r\n")[2] == bytes(LARGE) + b"mine"


@pytest.mark.parametrize("poller", POLLERS)
@pytest.mark.parametrize("ends", ["in the app", "while it lingers"])
def test_number_of_a_closed_socket_may_be_reused(
    make_stepped: MakeStepped, poller: str, ends: str
) -> None:
    """The socket is closed when the app returns, or later by a WebSocket's own thread."""
    taken: list[Any] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/mine":
            return echo(environ, start_response)
        taken.append(environ["gunicorn.socket"])
        if ends == "in the app":
            taken[0].close()
            others.append(stepped.connect(number=client.near.fd))
        else:
            taken[0].sendall(b"mine")
        raise StopIteration

    others: list[Client] = []
    stepped = make_stepped(app, attributes={"poller": poller})
    client = stepped.connect()
    client.run_request("/mine")
    if ends != "in the app":
        assert client.is_in(LINGERING)
        taken[0].close()
        others.append(stepped.connect(number=client.near.fd))
    (other,) = others
    assert other.near.fd == client.near.fd
    other.run_request("/next")
    assert other.read_response().status == 200
    assert client.is_in(CLOSED)
    assert client.near not in stepped.server.connections


def test_response_ends_after_blocks_of_a_tick(make_stepped: MakeStepped) -> None:
    """Whoever sends at a tick takes the blocks under the lock, and queues them a moment later."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"first, "
        yield b"second"
        output = client.near.output
        assert output.delayed is not None
        lock, taken = output.lock, output.delayed.pop_all()
        assert taken == b"second"

        class LockThatSends:
            """The thread is free after that."""

            def __enter__(self) -> None:
                output.lock = lock
                lock.acquire()
                output._begin_backlog().append(taken)
                output._send()

            def __exit__(self, *_: object) -> None:
                lock.release()

        stand_in: Any = LockThatSends()
        output.lock = stand_in

    stepped = make_stepped(app)
    stepped.log_no_access()  # it would need the lock, too
    stepped.hold_blocks_back()
    client = stepped.connect()
    client.run(b"GET / HTTP/1.0\r\n\r\n")
    assert client.receive_all_there_is().endswith(b"\r\n\r\nfirst, second")
    assert not stepped.log.errors


@pytest.mark.parametrize("fails", [False, True])
def test_delayed_blocks_leave_full_memory_as_app_ends(
    make_stepped: MakeStepped, fails: bool
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield bytes(LARGE)
        for _ in range(100):
            yield b"x" * 1000
        delayed = client.near.output.delayed
        assert delayed is not None
        assert delayed.size == 100_000
        if fails:
            raise ValueError("in the middle")

    stepped = make_stepped(app, attributes={"output_memory_bytes": 1000})
    client = stepped.connect()
    client.run(b"GET / HTTP/1.0\r\n\r\n")
    output = client.near.output
    assert output.delayed is not None
    assert not output.delayed.blocks
    assert stepped.server.output_rules.memory.used_bytes < 32 << 10
    received = b""
    while not client.is_in(LINGERING):
        received += client.receive_all_there_is()
        stepped.run()
    received += client.receive_all_there_is()
    assert received.endswith(bytes(LARGE) + b"x" * 100_000)


def test_only_persistent_connection_is_idle(make_stepped: MakeStepped) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return (large if environ["QUERY_STRING"] else echo)(environ, start_response)

    stepped = make_stepped(app, keepalive=60)
    idle, begun, silent = stepped.begin(), stepped.begin(b"GET / HT"), stepped.connect()
    taking = stepped.connect()
    taking.run_request("/?large")
    cap = stepped.server.registry.cap_deadlines
    cap(stepped.clock.now + LINGER_S, type(idle.near).is_idle)
    cap(stepped.clock.now + 10, type(idle.near).is_idle)  # the earliest deadline counts
    stepped.pass_time(LINGER_S + 1)
    states = [client.near.state for client in (idle, silent, begun, taking)]
    assert states == [CLOSED, CLOSED, RECEIVING_HEAD, SENDING]

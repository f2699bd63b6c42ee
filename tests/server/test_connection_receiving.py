"""A connection receives requests one after the other, their bodies, and events."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Iterable
from typing import Any

import pytest

from tests.server.connections import (
    CHUNKED,
    EXPECTS,
    KNOWN,
    STREAMED,
    MakeStepped,
    descriptors,
    fill,
    responses,
)  # fmt: skip
from tests.workers.stepped_worker import GET, SteppedWorker, echo
from wsgifast.server.endpoint import CLOSED, IDLE, LINGERING, SKIPPING
from wsgifast.server.poller import READ, WRITE
from wsgifast.sockets.closing import UNREAD_BODY_BYTES


def test_pipelined_requests_keep_no_other_waiting(make_stepped: MakeStepped) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/first":
            other.send_request(target="/other")
        start_response("200 OK", [("Content-Length", "0")])
        return []

    stepped = make_stepped(app, keepalive=5)
    client, other = stepped.connect(), stepped.connect()
    paths = ("/first", "/second", "/third")
    client.run(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % p.encode() for p in paths))
    served = [line for line, *_ in stepped.log.requests]
    assert served == ["GET /first", "GET /other", "GET /second", "GET /third"]


@pytest.mark.parametrize("sent", [b"", b"GET / HT", KNOWN + b"a", CHUNKED + b"a\r\n0"])
@pytest.mark.parametrize("reset", [False, True])
def test_client_leaving_its_request_leaves_nothing(
    make_stepped: MakeStepped, sent: bytes, reset: bool
) -> None:
    stepped = make_stepped(echo, attributes={"body_memory_bytes": 0})
    client = stepped.connect()
    before = descriptors()
    client.run(sent)
    if reset:
        # A Unix socket resets the connection if it is closed with unread bytes.
        client.near.sock.send(b"unread")
    client.close()
    stepped.run()
    assert client.is_in(CLOSED)
    assert client.near.fd not in stepped.server.registry.waiting
    assert descriptors() == before - 2
    assert not stepped.log.requests


def test_body_of_many_chunks_is_decoded_in_turns(stepped: SteppedWorker) -> None:
    client = stepped.begin(CHUNKED + b"1\r\na\r\n" * 1200 + b"0\r\n\r\n" + GET)
    assert client.read_response().body == 1200 * b"a"
    assert client.read_response().status == 200


def test_late_continue_is_sent_before_the_body(stepped: SteppedWorker) -> None:
    client = stepped.connect()
    near = client.near
    filled = fill(near.sock)
    events = stepped.armed()
    client.run(EXPECTS)
    assert near.output.is_waiting
    stepped.server.pool.push((near.fd, READ))  # this changes nothing
    stepped.run()
    # The server does not wait for the body before the app reads it.
    assert events == [WRITE, 0]
    assert client.read(filled) == bytes(filled)
    stepped.pass_time(1)  # the kernel accepts it now. The sweep tries again, or an event reports it
    assert client.read_headers().status == 100
    client.run(b"body")
    assert client.read_response().body == b"body"
    assert near.state is IDLE


@pytest.mark.parametrize("buffered", [True, False])
def test_client_that_left_gets_no_100_continue(make_stepped: MakeStepped, buffered: bool) -> None:
    stepped = make_stepped(echo, attributes={"buffer_bodies": buffered})
    client = stepped.connect()
    client.send(EXPECTS)
    client.close()
    stepped.run()
    assert client.is_in(CLOSED)
    assert not stepped.log.says("Error in a connection")


def test_body_of_a_request_is_released_after_it(make_stepped: MakeStepped) -> None:
    bodies: list[weakref.ref[Any]] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        bodies.append(weakref.ref(environ["wsgi.input"]))
        return echo(environ, start_response)

    for memory in (0, 1_000_000):
        stepped = make_stepped(app, attributes={"body_memory_bytes": memory}, keepalive=5)
        stepped.log.environs = type("Nothing", (), {"append": lambda self, environ: None})()
        client = stepped.connect()
        before = descriptors()
        client.run_request(method="POST", body=bytes(10_000))
        assert client.read_response().keep_alive
        assert bodies[-1]() is None
        assert descriptors() == before


UNREAD = responses((), ("Content-Length", "0"))


@pytest.mark.parametrize(
    ("there", "fields", "state"),
    [
        (b"56789", b"", IDLE),
        (b"", b"", SKIPPING),
        (b"56789", b"Connection: close\r\n", LINGERING),
    ],
)
def test_streamed_body_left_unread_is_skipped(
    make_stepped: MakeStepped, there: bytes, fields: bytes, state: str
) -> None:
    stepped = make_stepped(UNREAD, attributes=STREAMED, keepalive=5)
    client = stepped.begin(KNOWN.replace(b"Host", fields + b"Host") + b"01234" + there)
    assert client.read_response().status == 200
    assert client.is_in(state)
    if state is SKIPPING:
        client.run(b"56")
        assert client.is_in(SKIPPING)
        client.run(b"789")
        assert client.is_in(IDLE)
    if state is not LINGERING:
        client.run_request(method="POST", body=b"next")
        assert client.read_response().status == 200


@pytest.mark.parametrize("why", ["too much", "too late", "client gone"])
def test_unread_streamed_body_is_not_waited_for_long(make_stepped: MakeStepped, why: str) -> None:
    stepped = make_stepped(UNREAD, attributes=STREAMED, keepalive=5)
    headers = KNOWN.replace(b": 10\r\n", b": %d\r\n" % (10 * UNREAD_BODY_BYTES))
    client = stepped.begin((headers if why == "too much" else KNOWN) + b"01234")
    assert client.read_response().status == 200
    if why == "too late":
        assert client.is_in(SKIPPING)
        stepped.pass_time(6)
    elif why == "client gone":
        client.close()
        stepped.run()
    assert client.is_in(CLOSED if why == "client gone" else LINGERING)


def test_persistent_connection_is_armed_once_a_request(stepped: SteppedWorker) -> None:
    client = stepped.begin()
    assert client.read_response().status == 200
    calls = stepped.armed()
    for _ in range(3):
        client.run(GET)
        assert client.read_response().status == 200
    assert calls == [READ] * 3
    client.run(GET + GET[:7])
    client.run(GET[7:])
    assert [client.read_response().status for _ in range(2)] == [200, 200]
    assert client.is_in(IDLE)


@pytest.mark.parametrize("also", [b"", b"GET / HT"])
def test_client_closing_its_side_is_answered(stepped: SteppedWorker, also: bytes) -> None:
    """One event reports both data and the end. There is no event for the end alone."""
    client = stepped.connect()
    client.send(GET + also)
    client.sock.shutdown(socket.SHUT_WR)
    stepped.run()
    assert client.read_response().status == 200
    assert client.is_in(CLOSED)


def test_urgent_data_hides_nothing_behind_it(stepped: SteppedWorker) -> None:
    """A receive ends before urgent data, although more follows (RFC 9293, section 3.8.5)."""
    client = stepped.connect(tcp=True)
    for _ in range(2):
        client.send(GET[:7])
        client.sock.send(b"!", socket.MSG_OOB)
        client.run(GET[7:])
        assert client.read_response().status == 200
    assert client.is_in(IDLE)


@pytest.mark.parametrize("what", [GET, b""])
def test_event_while_app_runs_is_not_lost(make_stepped: MakeStepped, what: bytes) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if what and not requested:
            client.send(what)
        elif not what:
            client.sock.shutdown(socket.SHUT_WR)
        requested.append(True)
        # Another thread leads at the same time, and finds no waiting connection.
        stepped.poll()
        while stepped.server.pool.work:
            assert stepped.take_up() is None
        return echo(environ, start_response)

    requested: list[bool] = []
    stepped = make_stepped(app, keepalive=5)
    client = stepped.connect()
    client.run(GET)
    for _ in range(2 if what else 1):
        assert client.read_response().status == 200
    assert client.is_in(IDLE if what else CLOSED)


def test_socket_taken_by_app_is_watched_no_more(make_stepped: MakeStepped) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["gunicorn.socket"].sendall(b"taken")
        client.send(b"for the app")
        stepped.poll()
        assert not stepped.server.pool.work
        raise StopIteration

    stepped = make_stepped(app, keepalive=5)
    client = stepped.connect()
    client.run(GET)
    assert client.receive_all_there_is() == b"taken"

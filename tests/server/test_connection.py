"""One connection through its states: what an event does in each, what the end of its time, and
what a kernel that refuses. One event at a time, in the test's own thread; see workers/bench.py."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import socket
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.workers.bench import GET, LARGE, Bench, Client, echo, large, make_bench
from tests.workers.serving import POLLERS
from wsgifast.errors import ClientGone
from wsgifast.server.endpoint import LINGER_S
from wsgifast.server.poller import READ, WRITE
from wsgifast.server.states import (
    CLOSED,
    IDLE,
    LINGERING,
    RECEIVING,
    RUNNING,
    SENDING,
    SKIPPING,
)
from wsgifast.server.streamed_body import DRAIN_BYTES
from wsgifast.workers.worker import FastWorker

__all__ = ["make_bench"]

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
KNOWN = HEAD + b"Content-Length: 10\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EXPECTS = HEAD + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
NONSENSE = b"G=T / HTTP/1.1\r\n\r\n"
STREAMED = {"buffer_bodies": False}

MakeBench = Callable[..., Bench]
App = Callable[[dict[str, Any], Any], Iterable[bytes]]


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench(echo, keepalive=5, worker_connections=100)


def fill(sock: socket.socket) -> int:
    """Send zeros until a non-blocking socket takes no more, and return how many."""
    sent = 0
    try:
        while True:
            sent += sock.send(bytes(65_536))
    except BlockingIOError:
        return sent


def descriptors() -> int:
    gc.collect()  # no other test's garbage closes its own meanwhile
    return len(os.listdir("/proc/self/fd"))


# The end of its time


@pytest.mark.parametrize(
    ("sent", "state", "seconds", "status"),
    [
        (b"", IDLE, FastWorker.head_timeout_s, None),
        (b"GET / HT", RECEIVING, FastWorker.head_timeout_s, 408),
        (KNOWN + b"01234", RECEIVING, FastWorker.body_timeout_s, 408),
        (CHUNKED + b"a\r\n01234", RECEIVING, FastWorker.body_timeout_s, 408),
        (GET, IDLE, 5, 200),
    ],
)
def test_what_does_not_come_in_time(
    bench: Bench, sent: bytes, state: str, seconds: float, status: int | None
) -> None:
    client = bench.begin(sent)
    bench.pass_time(seconds - 1)
    assert client.is_in(state)
    # A wake-up that brings nothing gives it no more time.
    bench.server.pool.push((client.near.fd, READ))
    bench.run()
    bench.pass_time(2)
    assert client.is_in(LINGERING if status == 408 else CLOSED)
    if status is not None:
        assert client.read_response().status == status
    assert client.read_to_end() == b""
    # What has no head yet is no request.
    logged = {GET: "200 OK", b"GET / HT": None, b"": None}.get(sent, "408 Request Timeout")
    assert [status for _, status, _ in bench.log.requests] == ([logged] if logged else [])


@pytest.mark.parametrize("sent", [b"", GET])
def test_a_request_that_a_busy_server_has_not_come_to_is_not_late(
    bench: Bench, sent: bytes
) -> None:
    client = bench.begin(sent)
    if sent:
        assert client.read_response().status == 200
    client.send(GET)
    bench.pass_time(FastWorker.head_timeout_s + 6)
    assert client.read_response().status == 200
    assert client.is_in(IDLE)
    client.send(b"GET / HT")
    bench.pass_time(6)
    assert client.is_in(RECEIVING)
    bench.pass_time(FastWorker.head_timeout_s + 1)
    assert client.read_response().status == 408


def test_each_head_has_its_time_from_its_first_byte_on(bench: Bench) -> None:
    client = bench.connect()
    bench.pass_time(FastWorker.head_timeout_s - 1)
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
    bench.run()
    bench.pass_time(FastWorker.head_timeout_s - 1)
    client.send(b"\r\nGET / HTTP/1.1\r\n")
    bench.run()
    assert client.read_response().status == 200
    bench.pass_time(FastWorker.head_timeout_s - 1)
    client.send(b"Host: a\r\n")  # which gives it no more
    bench.run()
    bench.pass_time(2)
    assert client.read_response().status == 408


def test_a_client_that_takes_nothing(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    client = bench.begin()
    bench.pass_time(FastWorker.send_timeout_s - 1)
    assert client.receive_all_there_is()
    bench.run()  # it goes on, and has its time again
    bench.pass_time(FastWorker.send_timeout_s - 1)
    assert client.is_in(SENDING)
    assert not bench.log.requests
    bench.pass_time(2)
    assert client.is_in(CLOSED)
    ((_, status, size),) = bench.log.requests
    assert status == "200 OK"
    assert 0 < size < LARGE  # what the client cannot have got is not counted


def test_a_client_that_takes_nothing_while_the_app_goes_on(make_bench: MakeBench) -> None:
    """The app is told at its next block; until then it may use the socket."""
    seen: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        try:
            yield bytes(LARGE)
            bench.pass_time(FastWorker.send_timeout_s + 1)
            assert client.is_in(RUNNING)
            assert client.near.output.error is not None
            assert client.near.sock.fileno() >= 0
            seen.append("before")
            yield b"more"
            seen.append("after")
        finally:
            seen.append("closed")

    bench = make_bench(app)
    client = bench.connect()
    client.send_request()
    bench.run()
    assert seen == ["before", "closed"]
    assert client.is_in(CLOSED)


# Receiving


def test_pipelined_requests_keep_nobody_waiting(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/first":
            other.send_request(target="/other")
        start_response("200 OK", [("Content-Length", "0")])
        return []

    bench = make_bench(app, keepalive=5)
    client, other = bench.connect(), bench.connect()
    paths = ("/first", "/second", "/third")
    client.send(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % p.encode() for p in paths))
    bench.run()
    served = [line for line, *_ in bench.log.requests]
    assert served == ["GET /first", "GET /other", "GET /second", "GET /third"]


@pytest.mark.parametrize("sent", [b"", b"GET / HT", KNOWN + b"a", CHUNKED + b"a\r\n0"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_goes(make_bench: MakeBench, sent: bytes, reset: bool) -> None:
    bench = make_bench(echo, attributes={"body_memory_bytes": 0})
    client = bench.connect()
    before = descriptors()
    client.send(sent)
    bench.run()
    if reset:
        # A Unix socket resets if it is closed with something that was not read.
        client.near.sock.send(b"unread")
    client.close()
    bench.run()
    assert client.is_in(CLOSED)
    assert client.near.fd not in bench.server.registry.waiting
    assert descriptors() == before - 2
    assert not bench.log.requests


def test_a_body_of_many_chunks_is_decoded_in_turns(bench: Bench) -> None:
    client = bench.begin(CHUNKED + b"1\r\na\r\n" * 1200 + b"0\r\n\r\n")
    assert client.read_response().body == 1200 * b"a"


@pytest.mark.parametrize("buffered", [True, False])
def test_continue_is_said_before_the_body(make_bench: MakeBench, buffered: bool) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not buffered:
            client.send(b"body")  # as if it came now
        return echo(environ, start_response)

    bench = make_bench(app, attributes={"buffer_bodies": buffered})
    client = bench.connect()
    client.send(EXPECTS)
    bench.run()
    assert client.read_head().status == 100
    if buffered:
        client.send(b"body")
        bench.run()
    assert client.read_response().body == b"body"


def test_continue_that_the_kernel_does_not_take_at_once(bench: Bench) -> None:
    client = bench.connect()
    near = client.near
    filled = fill(near.sock)
    events = bench.armed()
    client.send(EXPECTS)
    bench.run()
    assert near.output.draining
    bench.server.pool.push((near.fd, READ))  # which changes nothing
    bench.run()
    # The body is not waited for until it has been asked for.
    assert events == [WRITE, 0]
    assert client.read(filled) == bytes(filled)
    bench.pass_time(1)  # the kernel takes it now; the sweep asks, or the event says so
    assert client.read_head().status == 100
    client.send(b"body")
    bench.run()
    assert client.read_response().body == b"body"
    assert near.state is IDLE


@pytest.mark.parametrize("buffered", [True, False])
def test_a_client_that_has_gone_is_not_asked_to_continue(
    make_bench: MakeBench, buffered: bool
) -> None:
    bench = make_bench(echo, attributes={"buffer_bodies": buffered})
    client = bench.connect()
    client.send(EXPECTS)
    client.close()
    bench.run()
    assert client.is_in(CLOSED)
    assert not bench.log.says("Error in a connection")


def test_nothing_of_a_request_is_kept_behind_it(make_bench: MakeBench) -> None:
    bodies: list[weakref.ref[Any]] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        bodies.append(weakref.ref(environ["wsgi.input"]))
        return echo(environ, start_response)

    for memory in (0, 1_000_000):
        bench = make_bench(app, attributes={"body_memory_bytes": memory}, keepalive=5)
        bench.log.environs = type("Nothing", (), {"append": lambda self, environ: None})()
        client = bench.connect()
        before = descriptors()
        client.send_request(method="POST", body=bytes(10_000))
        bench.run()
        assert client.read_response().keep_alive
        assert bodies[-1]() is None
        assert descriptors() == before


@pytest.mark.parametrize(
    ("there", "fields", "state"),
    [
        (b"56789", b"", IDLE),
        (b"", b"", SKIPPING),
        (b"56789", b"Connection: close\r\n", LINGERING),
    ],
)
def test_a_streamed_body_that_nobody_reads(
    make_bench: MakeBench, there: bytes, fields: bytes, state: str
) -> None:
    """The next request is behind it, if there is to be another."""
    bench = make_bench(_unread, attributes=STREAMED, keepalive=5)
    client = bench.begin(KNOWN.replace(b"Host", fields + b"Host") + b"01234" + there)
    assert client.read_response().status == 200
    assert client.is_in(state)
    if state is SKIPPING:
        client.send(b"56")
        bench.run()
        assert client.is_in(SKIPPING)
        client.send(b"789")
        bench.run()
        assert client.is_in(IDLE)
    if state is not LINGERING:
        client.send_request(method="POST", body=b"next")
        bench.run()
        assert client.read_response().status == 200


@pytest.mark.parametrize("why", ["too much", "too late", "client gone"])
def test_a_streamed_body_that_is_not_waited_for(make_bench: MakeBench, why: str) -> None:
    bench = make_bench(_unread, attributes=STREAMED, keepalive=5)
    head = KNOWN.replace(b": 10\r\n", b": %d\r\n" % (10 * DRAIN_BYTES))
    client = bench.begin((head if why == "too much" else KNOWN) + b"01234")
    assert client.read_response().status == 200
    if why == "too late":
        assert client.is_in(SKIPPING)
        bench.pass_time(6)
    elif why == "client gone":
        client.close()
        bench.run()
    assert client.is_in(CLOSED if why == "client gone" else LINGERING)


def _unread(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "0")])
    return []


# Running and sending


def test_a_response_goes_on_after_its_app(make_bench: MakeBench) -> None:
    bench = make_bench(large, keepalive=5)
    client = bench.connect()
    client.send_request()
    client.send_request()
    bench.run()
    assert client.is_in(SENDING)
    assert not bench.log.requests
    received = b""
    while more := client.receive_all_there_is():
        received += more
        bench.run()
    assert bench.log.requests == [("GET /", "200 OK", LARGE)] * 2
    head, *bodies = received.split(b"HTTP/1.1 200 OK\r\n")
    assert head == b""
    assert [body.partition(b"\r\n\r\n")[2] for body in bodies] == [bytes(LARGE)] * 2
    assert client.is_in(IDLE)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_client_is_sent_to_while_the_app_goes_on(make_bench: MakeBench, method: str) -> None:
    """By whichever thread its event comes to; nor does the end of what was before end it."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", str(LARGE + 3))])
        yield bytes(LARGE)
        received = b""
        while more := client.receive_all_there_is():
            received += more
            bench.run()
        assert received.endswith(bytes(LARGE))
        assert not bench.log.requests  # it is not over
        yield b"end"

    bench = make_bench(large, keepalive=5)
    client = bench.begin()
    while client.receive_all_there_is():  # the queue has ended the first response by itself
        bench.run()
    assert bench.log.requests.pop() == ("GET /", "200 OK", LARGE)
    bench.worker.application.app = app
    client.send_request(method=method, body=b"body" if method == "POST" else b"")
    bench.run()
    assert client.read(3) == b"end"
    assert bench.log.requests == [(f"{method} /", "200 OK", LARGE + 3)]
    assert not bench.log.says("Error in a connection")


def test_a_socket_that_the_app_has_taken_is_blocking_and_never_kept(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        sock = environ["gunicorn.socket"]
        # To be looked at only.
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

    bench = make_bench(app, keepalive=5)
    client = bench.begin()
    assert client.read_response().keep_alive
    assert client.is_in(IDLE)
    client.send_request("/mine")
    bench.run()
    assert client.read(4) == b"mine"
    assert client.read_response().keep_alive  # said, but no longer true
    assert client.is_in(LINGERING)
    assert client.near.sock.gettimeout() == 0  # whatever waits for its end does not hang


def test_a_socket_is_handed_over_when_all_that_was_written_is_sent(make_bench: MakeBench) -> None:
    """What the app sends by itself does not land in the middle of it."""
    received = bytearray()

    def read() -> None:
        """The client, and another thread of the worker."""
        while not received.endswith(b"mine") and len(received) <= 2 * LARGE:
            received.extend(client.sock.recv(16 * 1024))
            bench.poll()
            while bench.server.pool.work:
                bench.take_up()

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", str(LARGE))])(bytes(LARGE))
        other.start()
        environ["gunicorn.socket"].sendall(b"mine")
        raise StopIteration

    other = threading.Thread(target=read, daemon=True)
    bench = make_bench(app, keepalive=5)
    client = bench.connect()
    client.send(GET)
    bench.run()
    other.join(60)
    assert bytes(received).partition(b"\r\n\r\n")[2] == bytes(LARGE) + b"mine"


@pytest.mark.parametrize("poller", POLLERS)
def test_the_number_of_a_socket_that_the_app_has_closed(make_bench: MakeBench, poller: str) -> None:
    """It may be another connection's by the time that the app ends."""
    others: list[Client] = []
    bench: Bench

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/mine":
            environ["gunicorn.socket"].close()
            others.append(bench.connect(number=client.near.fd))
            raise StopIteration
        return echo(environ, start_response)

    bench = make_bench(app, attributes={"poller_kind": poller})
    client = bench.connect()
    client.send_request("/mine")
    bench.run()
    assert client.is_in(CLOSED)
    (other,) = others
    assert other.near.fd == client.near.fd
    other.send_request("/next")
    bench.run()
    assert other.read_response().status == 200


# Ends


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
    monkeypatch.setattr("wsgifast.server.endpoint._LINGER_BYTES", 1_000_000)
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
        bench.clock.now += FastWorker.head_timeout_s - 1
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


def test_a_request_on_a_kept_connection_needs_no_arming(bench: Bench) -> None:
    client = bench.begin()
    calls = bench.armed()
    poller: Any = bench.server.poller
    watch = poller.watch

    def look(fd: int, *, known: bool) -> None:
        calls.append(READ)
        watch(fd, known=known)

    poller.watch = look
    for _ in range(3):
        client.send(GET)
        bench.run()
        assert client.read_response().status == 200
    assert not calls
    client.send(GET + GET[:7])
    bench.run()
    client.send(GET[7:])
    bench.run()
    assert [client.read_response().status for _ in range(2)] == [200, 200]
    assert client.is_in(IDLE)


@pytest.mark.parametrize("also", [b"", b"GET / HT"])
def test_a_client_that_closes_its_side_with_its_request(bench: Bench, also: bytes) -> None:
    """One event tells of both, and none of the end alone."""
    client = bench.connect()
    client.send(GET + also)
    client.sock.shutdown(socket.SHUT_WR)
    bench.run()
    assert client.read_response().status == 200
    assert client.is_in(CLOSED)


def test_urgent_data_hides_nothing_that_comes_behind_it(bench: Bench) -> None:
    """RFC 9293 section 3.8.5: a receive ends in front of it, although there is more."""
    client = bench.connect(tcp=True)
    for _ in range(2):
        client.send(GET[:7])
        client.sock.send(b"!", socket.MSG_OOB)
        client.send(GET[7:])
        bench.run()
        assert client.read_response().status == 200
    assert client.is_in(IDLE)


@pytest.mark.parametrize("what", [GET, b""])
def test_what_comes_while_the_app_runs_is_not_lost(make_bench: MakeBench, what: bytes) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if what and not asked:
            client.send(what)
        elif not what:
            client.sock.shutdown(socket.SHUT_WR)
        asked.append(True)
        # Another thread leads meanwhile, and finds nobody waiting.
        bench.poll()
        while bench.server.pool.work:
            assert bench.take_up() is None
        return echo(environ, start_response)

    asked: list[bool] = []
    bench = make_bench(app, keepalive=5)
    client = bench.connect()
    client.send(GET)
    bench.run()
    for _ in range(2 if what else 1):
        assert client.read_response().status == 200
    assert client.is_in(IDLE if what else CLOSED)


def test_a_socket_that_the_app_has_taken_over_is_watched_no_more(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["gunicorn.socket"].sendall(b"taken")
        client.send(b"for the app")
        bench.poll()
        assert not bench.server.pool.work
        raise StopIteration

    bench = make_bench(app, keepalive=5)
    client = bench.connect()
    client.send(GET)
    bench.run()
    assert client.receive_all_there_is() == b"taken"


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


def test_only_who_is_kept_alive_is_idle(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return (large if environ["QUERY_STRING"] else echo)(environ, start_response)

    bench = make_bench(app, keepalive=60)
    idle, begun, silent = bench.begin(), bench.begin(b"GET / HT"), bench.connect()
    taking = bench.connect()
    taking.send_request("/?large")
    bench.run()
    cap = bench.server.registry.cap_deadlines
    cap(bench.clock.now + LINGER_S, type(idle.near).is_idle)
    cap(bench.clock.now + 10, type(idle.near).is_idle)  # the earliest counts
    bench.pass_time(LINGER_S + 1)
    states = [client.near.state for client in (idle, silent, begun, taking)]
    assert states == [CLOSED, CLOSED, RECEIVING, SENDING]


def test_a_response_ends_after_what_a_tick_has_taken_of_it(make_bench: MakeBench) -> None:
    """Whoever sends at a tick takes the blocks under the lock, and queues them a moment later."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"first, "
        yield b"second"
        output = client.near.output
        lock, taken = output.lock, output._held.take()
        assert taken == b"second"

        class Held:
            """Is free when that is done."""

            def __enter__(self) -> None:
                output.lock = lock
                lock.acquire()
                output._begin_backlog().append(taken)
                output._send()

            def __exit__(self, *_: object) -> None:
                lock.release()

        held: Any = Held()
        output.lock = held

    bench = make_bench(app)
    bench.log_no_access()  # which would ask for the lock too
    bench.server.pool.monitor.ticking = True
    client = bench.connect()
    client.send(b"GET / HTTP/1.0\r\n\r\n")
    bench.run()
    assert client.receive_all_there_is().endswith(b"\r\n\r\nfirst, second")

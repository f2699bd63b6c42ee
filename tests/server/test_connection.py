"""One connection, step by step: its time limits, what it keeps, and how it ends."""

from __future__ import annotations

import copy
import errno
import os
import socket
import ssl
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from gunicorn.http.errors import InvalidRequestLine

from tests.workers.bench import PEER, Bench, Client, make_bench
from tests.workers.serving import POLLERS, has_setting
from wsgifast.bodies.files import SegmentedBody
from wsgifast.server import output
from wsgifast.server.connection import LINGER_S
from wsgifast.server.poller import READ, WRITE
from wsgifast.server.states import BEGUN, CLOSED
from wsgifast.sockets import FileSegment
from wsgifast.workers.worker import FastWorker

__all__ = ["make_bench"]

PYTHON_PARSER = {"http_parser": "python"} if has_setting("http_parser") else {}
# More than a Unix socket's buffers take.
LARGE = 1024 * 1024

MakeBench = Callable[..., Bench]
App = Callable[[dict[str, Any], Any], Iterable[bytes]]


def echo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answers with the request's body."""
    data = environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Length", str(len(data)))])
    return [data]


def large(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answers with more than is sent at once."""
    start_response("200 OK", [("Content-Length", str(LARGE))])
    return [bytes(LARGE)]


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench(echo, keepalive=5, worker_connections=100)


def is_open(client: Client) -> bool:
    return client.near.state is not CLOSED


def is_quiet(client: Client) -> bool:
    """Whether nothing has been said, and the connection is not ended."""
    return is_open(client) and client.receive_all_there_is() == b""


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


# Time limits


def test_a_connection_on_which_nothing_comes(bench: Bench) -> None:
    client = bench.connect()
    bench.pass_time(FastWorker.head_timeout_s - 1)
    assert is_open(client)
    bench.pass_time(2)
    assert not is_open(client)
    assert client.read_to_end() == b""


def test_a_head_has_its_time_from_its_first_byte_on(bench: Bench) -> None:
    client = bench.connect()
    bench.pass_time(FastWorker.head_timeout_s - 1)
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
    bench.run()
    bench.pass_time(FastWorker.head_timeout_s - 1)
    client.send(b"X: 1\r\n")  # which gives it no more
    bench.run()
    assert client.receive_all_there_is() == b""
    bench.pass_time(2)
    assert client.read_response().status == 408
    assert client.read_to_end() == b""
    assert not bench.log.requests  # there was none


def test_an_idle_connection_is_closed_without_a_word(bench: Bench) -> None:
    client = bench.connect()
    for _ in range(2):
        client.send_request()
        bench.run()
        assert client.read_response().keep_alive
        bench.pass_time(4)
    client.send_request()
    bench.run()
    client.read_response()
    bench.pass_time(4)
    assert is_open(client)
    bench.pass_time(2)
    assert client.read_to_end() == b""
    assert not is_open(client)


def test_the_next_head_has_its_own_time(bench: Bench) -> None:
    client = bench.connect()
    client.send_request()
    bench.run()
    client.read_response()
    bench.pass_time(3)
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
    bench.run()
    bench.pass_time(FastWorker.head_timeout_s - 1)  # beyond the keep-alive time
    client.send(b"\r\n")
    bench.run()
    assert client.read_response().status == 200


@pytest.mark.parametrize("sent", [0, 100_000])
@pytest.mark.parametrize("framing", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_a_body_that_stops(bench: Bench, framing: str, sent: int) -> None:
    client = bench.connect()
    bench.pass_time(FastWorker.head_timeout_s - 1)
    client.send(
        f"POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n".encode() + b"fffff\r\n" * bool(sent)
    )
    bench.run()
    client.send(bytes(sent))  # the rate alone would give it minutes
    bench.run()
    bench.pass_time(FastWorker.body_timeout_s - 1)
    assert is_quiet(client)
    # A wake-up that brings nothing gives it no more time.
    bench.server.pool.push((client.near.fd, READ))
    bench.run()
    bench.pass_time(2)
    assert client.read_response().status == 408
    assert client.read_to_end() == b""
    assert bench.log.requests == [("POST /", "408 Request Timeout", 0)]


@pytest.mark.parametrize("framing", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize(("rate", "ends"), [(450, True), (600, False)])
def test_a_body_must_keep_up_a_rate(bench: Bench, framing: str, rate: int, ends: bool) -> None:
    """500 bytes a second, beyond the time that every body has."""
    client = bench.connect()
    client.send(f"POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\nfffff\r\n".encode())
    bench.run()
    seconds = 0
    while is_open(client) and seconds < 1000:
        client.send(bytes(rate * 10))
        bench.run()
        bench.pass_time(10)
        seconds += 10
    if ends:
        assert client.read_response().status == 408
        # 30 s, and as much again as the bytes that have come by then are worth.
        assert 250 < seconds < 350
    else:
        assert seconds == 1000
        bench.pass_time(FastWorker.body_timeout_s + 1)  # what has come is not for later
        assert client.read_response().status == 408


def test_a_client_that_takes_nothing(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    client = bench.connect()
    client.send_request()
    bench.run()
    near = client.near
    bench.pass_time(FastWorker.send_timeout_s - 1)
    assert len(client.receive_all_there_is())
    bench.run()  # it goes on, and has its time again
    bench.pass_time(FastWorker.send_timeout_s - 1)
    assert is_open(client)
    assert not bench.log.requests
    bench.pass_time(2)
    assert not is_open(client)
    assert near.sock.fileno() == -1
    ((request, status, size),) = bench.log.requests
    assert (request, status) == ("GET /", "200 OK")
    assert 0 < size < LARGE  # what the client cannot have got is not counted


def test_a_client_that_has_taken_nothing_at_all(bench: Bench) -> None:
    client = bench.connect()
    fill(client.near.sock)
    client.send_request()
    bench.run()
    bench.pass_time(FastWorker.send_timeout_s + 1)
    assert not is_open(client)
    assert bench.log.requests == [("GET /", "200 OK", 0)]


def test_a_client_that_takes_nothing_while_the_app_goes_on(make_bench: MakeBench) -> None:
    """The app is told at its next block; until then it may use the socket."""
    seen: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        try:
            yield bytes(LARGE)
            bench.pass_time(FastWorker.send_timeout_s - 1)
            assert client.near.output.error is None
            bench.pass_time(2)
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
    assert not is_open(client)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_client_is_sent_to_while_the_app_goes_on(make_bench: MakeBench, method: str) -> None:
    """By whichever thread its event comes to."""

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
    client = bench.connect()
    client.send_request()
    bench.run()
    while client.receive_all_there_is():  # the queue has ended the first response by itself
        bench.run()
    assert bench.log.requests.pop() == ("GET /", "200 OK", LARGE)
    bench.worker.application.app = app
    if method == "POST":
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo")
        bench.run()
        client.send(b"dy")
    else:
        client.send_request()
    bench.run()
    assert client.read(3) == b"end"
    assert bench.log.requests == [(f"{method} /", "200 OK", LARGE + 3)]
    assert not bench.log.says("Error in a connection")
    assert is_quiet(client)


def test_a_client_that_does_not_close(make_bench: MakeBench) -> None:
    bench = make_bench(echo, keepalive=0)
    client = bench.connect()
    client.send_request()
    bench.run()
    assert not client.read_response().keep_alive
    assert client.read_to_end() == b""
    client.send(b"what nobody reads")
    bench.run()
    bench.pass_time(LINGER_S - 1)
    assert is_open(client)
    bench.pass_time(2)
    assert not is_open(client)


# Waiting


def test_its_time_is_set_before_the_sweep_can_look(make_bench: MakeBench) -> None:
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


def refuse(fd: int, events: int) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_a_kernel_that_cannot_watch_it(bench: Bench) -> None:
    client = bench.connect()
    bench.server.poller.arm = refuse
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
    bench.run()
    assert not is_open(client)
    assert client.near.fd not in bench.server.registry.waiting
    assert bench.log.says("Cannot allocate memory")


def test_a_kernel_that_cannot_watch_it_while_the_app_runs(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        bench.server.poller.arm = refuse
        yield bytes(LARGE)
        # It has not been closed under the app, and is not waited for.
        assert client.near.sock.fileno() >= 0
        assert client.near.fd not in bench.server.registry.waiting
        yield b"more"
        pytest.fail("the app is not told")

    bench = make_bench(app)
    client = bench.connect()
    client.send_request()
    bench.run()
    assert not is_open(client)


def test_a_kernel_that_cannot_watch_what_the_sweep_asks_for(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield bytes(LARGE)
        bench.server.pool.push((client.near.fd, WRITE))
        bench.run()
        assert client.near.retries
        bench.server.poller.arm = refuse
        bench.pass_time(1)
        assert client.near.sock.fileno() >= 0
        yield b"more"
        pytest.fail("the app is not told")

    bench = make_bench(app)
    client = bench.connect()
    client.send_request()
    bench.run()
    assert not is_open(client)


def test_the_sweep_takes_it_while_the_kernel_refuses(bench: Bench) -> None:
    """Then it is no longer ours to close."""

    def lose(fd: int, events: int) -> None:
        del bench.server.registry.waiting[fd]
        refuse(fd, events)

    client = bench.connect()
    bench.server.poller.arm = lose
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
    bench.run()
    assert is_open(client)


def test_a_kernel_without_memory_is_asked_again_by_the_sweep(make_bench: MakeBench) -> None:
    """It says writable and takes nothing: waiting for that would spin."""
    bench = make_bench(large, keepalive=60)
    client = bench.connect()
    client.send_request()
    bench.run()
    received = 0
    while client.near.output.draining:
        bench.server.pool.push((client.near.fd, WRITE))
        bench.run()
        assert client.near.retries
        received += len(client.receive_all_there_is())
        bench.run()  # not by an event
        assert client.receive_all_there_is() == b""
        bench.pass_time(1)  # but by the sweep
    received += len(client.receive_all_there_is())
    assert received > LARGE
    assert bench.log.requests == [("GET /", "200 OK", LARGE)]
    # Nor does the sweep go on asking.
    assert not client.near.retries
    assert is_open(client)


def test_starving_has_an_end(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    client = bench.connect()
    client.send_request()
    bench.run()
    for _ in range(int(FastWorker.send_timeout_s)):
        bench.server.pool.push((client.near.fd, WRITE))
        bench.run()
        assert client.near.retries
        bench.clock.now += 1
    bench.pass_time(1)
    assert not is_open(client)


# Heads


def count_parsing(client: Client) -> list[int]:
    """The sizes of the heads that the parser has been shown, from now on."""
    sizes: list[int] = []
    receiver: Any = client.near._receiver
    parse = receiver._parser.parse

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(parser, name)

        def parse(self, data: bytes, peer: Any, number: int) -> Any:
            sizes.append(len(data))
            return parse(data, peer, number)

    parser, receiver._parser = receiver._parser, Counting()
    return sizes


def test_a_head_in_pieces_is_not_parsed_again_for_each_of_them(bench: Bench) -> None:
    client = bench.connect()
    sizes = count_parsing(client)
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: %b\r\n" % (b"a" * 93) * 90 + b"\r\n"
    for _ in range(2):  # nor those of the next request
        for start in range(0, len(head), 50):
            client.send(head[start : start + 50])
            bench.run()
        assert client.read_response().status == 200
    assert len(sizes) == 6
    assert sizes[:3] == sizes[3:]


def test_a_head_that_waits_for_its_end_is_kept_whole(bench: Bench) -> None:
    """With one behind it that is not whole yet."""
    client = bench.connect()
    body = b"0123456789"
    client.send(
        b"POST /one HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n" + body + b"GET /two HTT"
    )
    bench.run()
    assert client.read_response().body == body
    client.send(b"P/1.1\r\nHost: a\r\n")
    bench.run()
    assert client.receive_all_there_is() == b""
    client.send(b"\r\nGET /three HTTP/1.1\r\nHost: a\r\n\r\nGET /four")
    bench.run()
    assert client.read_response().body == client.read_response().body == b""
    client.send(b" HTTP/1.1\r\nHost: a\r\n\r\n")
    bench.run()
    assert client.read_response().body == b""
    paths = [request[0].split()[1] for request in bench.log.requests]
    assert paths == ["/one", "/two", "/three", "/four"]


def test_a_head_over_every_limit_is_refused_while_it_comes(make_bench: MakeBench) -> None:
    limits = {"limit_request_fields": 10, "limit_request_field_size": 1000}
    bench = make_bench(echo, **limits, **PYTHON_PARSER)
    client = bench.connect()
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
    sent = 0
    while is_open(client) and not (answer := client.receive_all_there_is()) and sent < 1 << 20:
        client.send(b"X: " + 1000 * b"a")
        sent += 1000
        bench.run()
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert sent < 30_000


@pytest.mark.skipif(not PYTHON_PARSER, reason="gunicorn before 25.3 waits for the end")
def test_a_line_that_ends_with_lf_alone_is_refused_at_once(make_bench: MakeBench) -> None:
    client = (bench := make_bench(echo, **PYTHON_PARSER)).connect()
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\n")
    bench.run()
    assert client.receive_all_there_is().startswith(b"HTTP/1.1 400 ")


def test_a_wake_up_without_anything_to_read(bench: Bench) -> None:
    client = bench.connect()
    bench.server.pool.push((client.near.fd, READ))
    bench.run()
    client.send_request()
    bench.run()
    assert client.read_response().status == 200


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\na"]
)
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_goes(make_bench: MakeBench, sent: bytes, reset: bool) -> None:
    bench = make_bench(echo, attributes={"body_memory_bytes": 0})
    client = bench.connect()
    descriptors = len(os.listdir("/proc/self/fd"))
    client.send(sent)
    bench.run()
    if reset:
        # A Unix socket resets if it is closed with something that was not read.
        client.near.sock.send(b"unread")
    client.close()
    bench.run()
    assert not is_open(client)
    assert client.near.fd not in bench.server.registry.waiting
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2
    assert not bench.log.requests


def test_the_environ_is_new_for_every_request_and_every_connection(make_bench: MakeBench) -> None:
    environs: list[dict[str, Any]] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environs.append(environ)
        environ["mine"] = len(environs)
        return echo(environ, start_response)

    bench = make_bench(app)
    first, second = bench.connect(), bench.connect(peer=("192.0.2.9", 9))
    for client, name in ((first, "A"), (first, "B"), (second, "C")):
        client.send_request(headers=[(name, "1")])
        bench.run()
    assert [environ["mine"] for environ in environs] == [1, 2, 3]
    assert [{k for k in environ if len(k) == 6} for environ in environs] == [
        {"HTTP_A"}, {"HTTP_B"}, {"HTTP_C"},
    ]  # fmt: skip
    assert [environ["REMOTE_ADDR"] for environ in environs] == [PEER[0], PEER[0], "192.0.2.9"]
    assert environs[0]["gunicorn.socket"] is environs[1]["gunicorn.socket"]


def test_a_proxy_header_counts_on_its_connection_only(make_bench: MakeBench) -> None:
    addresses: list[tuple[str, str]] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        addresses.append((environ["REMOTE_ADDR"], environ["REMOTE_PORT"]))
        return echo(environ, start_response)

    bench = make_bench(app, proxy_protocol="auto", proxy_allow_ips="*")
    proxied, plain = bench.connect(), bench.connect()
    header = b"PROXY TCP4 192.0.2.77 192.0.2.2 4712 80\r\n"
    proxied.send(header)
    for client in (proxied, plain, proxied):
        client.send_request()
        bench.run()
        assert client.read_response().status == 200
    assert addresses == [("192.0.2.77", "4712"), ("192.0.2.1", "4711"), ("192.0.2.77", "4712")]
    # A proxy that asks for itself, as to see whether the worker is alive, names no client.
    local = bench.connect()
    local.send(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")
    local.send_request()
    bench.run()
    assert local.read_response().status == 200
    assert addresses[3:] == [("192.0.2.1", "4711")]
    # On a connection that is under way it is no PROXY header, whoever slips it in.
    proxied.send(b"PROXY TCP4 192.0.2.88 192.0.2.2 1 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
    bench.run()
    assert proxied.read_response().status == 400
    assert len(addresses) == 4


@pytest.mark.parametrize(("allowed", "scheme"), [("192.0.2.1", "https"), ("192.0.2.3", "http")])
def test_forwarded_headers_are_believed_of_some(
    make_bench: MakeBench, allowed: str, scheme: str
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        said = environ["wsgi.url_scheme"].encode()
        start_response("200 OK", [("Content-Length", str(len(said)))])
        return [said]

    bench = make_bench(app, forwarded_allow_ips=allowed)
    client = bench.connect()
    client.send_request(headers=[("X-Forwarded-Proto", "https")])
    bench.run()
    assert client.read_response().body == scheme.encode()


def uwsgi(body: bytes = b"", **variables: str) -> bytes:
    """A request as nginx's uwsgi_pass sends it."""
    variables.setdefault("REQUEST_METHOD", "POST" if body else "GET")
    variables["CONTENT_LENGTH"] = str(len(body)) if body else ""
    block = b""
    for name, value in variables.items():
        for text in (name, value):
            block += len(text).to_bytes(2, "little") + text.encode()
    return b"\0" + len(block).to_bytes(2, "little") + b"\0" + block + body


@pytest.mark.skipif(not has_setting("protocol"), reason="this gunicorn speaks HTTP only")
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_uwsgi(make_bench: MakeBench, step: int) -> None:
    paths: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        paths.append(environ["PATH_INFO"])
        data = environ["wsgi.input"].read()
        start_response("200 OK", [] if not data else [("Content-Length", str(len(data)))])
        return [data or b"until the end"]

    bench = make_bench(app, protocol="uwsgi", uwsgi_allow_ips="*", keepalive=5)
    client = bench.connect()
    data = uwsgi(b"body", PATH_INFO="/one") + uwsgi(PATH_INFO="/two")
    for start in range(0, len(data), step):
        client.send(data[start : start + step])
        bench.run()
    assert client.read_response().body == b"body"
    # Nobody behind uwsgi_pass knows of chunks.
    response = client.read_response()
    assert response.header("Transfer-Encoding") is None
    assert response.body == b"until the end"
    assert paths == ["/one", "/two"]


# Bodies


def test_continue_is_asked_for_once_and_only_of_who_waits_for_it(bench: Bench) -> None:
    client = bench.connect()
    expect = ("Expect", "100-continue")
    client.send_request(method="POST", headers=[("Content-Length", "4"), expect])
    bench.run()
    assert client.read_head().status == 100
    client.send(b"bo")
    bench.run()
    assert client.receive_all_there_is() == b""
    client.send(b"dy")
    bench.run()
    assert client.read_response().body == b"body"
    # Who does not wait gets none; nor who expects nothing.
    client.send_request(method="POST", headers=[expect], body=b"whole")
    bench.run()
    assert client.read_response().body == b"whole"
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo")
    bench.run()
    assert client.receive_all_there_is() == b""


@pytest.mark.parametrize("first", [b"", b"bo"])
def test_continue_where_the_app_reads_the_body(make_bench: MakeBench, first: bytes) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        client.send(b"body"[len(first) :])  # as if it came now
        return echo(environ, start_response)

    bench = make_bench(app, attributes={"buffer_bodies": False})
    client = bench.connect()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    client.send(head + first)
    bench.run()
    if not first:
        assert client.read_head().status == 100
    assert client.read_response().body == b"body"
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n" + first)
    bench.run()
    assert client.read_response().body == b"body"


def test_continue_that_the_kernel_does_not_take_at_once(bench: Bench) -> None:
    client = bench.connect()
    near = client.near
    filled = fill(near.sock)
    arm = bench.server.poller.arm
    armed: list[int] = []

    def look(fd: int, events: int) -> None:
        armed.append(events)
        arm(fd, events)

    bench.server.poller.arm = look
    client.send_request(
        method="POST", headers=[("Content-Length", "4"), ("Expect", "100-continue")]
    )
    bench.run()
    assert near.output.draining
    bench.server.pool.push((near.fd, READ))  # which changes nothing
    bench.run()
    # The body is not waited for until it has been asked for.
    assert armed == [WRITE, 0]
    assert client.read(filled) == bytes(filled)
    bench.pass_time(1)  # the kernel takes it now; the sweep asks, or the event says so
    assert client.read_head().status == 100
    client.send(b"body")
    bench.run()
    assert client.read_response().body == b"body"
    assert is_open(client)


def fill(sock: socket.socket) -> int:
    """Send zeros until a non-blocking socket takes no more, and return how many."""
    sent = 0
    try:
        while True:
            sent += sock.send(bytes(65_536))
    except BlockingIOError:
        return sent


def test_a_client_that_has_gone_is_not_asked_to_continue(make_bench: MakeBench) -> None:
    bench = make_bench(echo, attributes={"buffer_bodies": False})
    client = bench.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    client.close()
    bench.run()
    assert not is_open(client)
    assert not bench.log.says("Error in a connection")


def test_a_body_over_the_limit_is_refused_at_its_head(make_bench: MakeBench) -> None:
    bench = make_bench(echo, attributes={"body_limit_bytes": 100})
    client = bench.connect()
    client.send_request(method="POST", body=bytes(100))
    bench.run()
    assert client.read_response().status == 200
    client.send(
        b"POST /over HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n"
    )
    bench.run()
    assert client.read_response().status == 413
    assert client.read_to_end() == b""
    assert bench.log.requests[1:] == [("POST /over", "413 Content Too Large", 0)]


def test_a_body_over_the_limit_is_refused_in_its_middle(make_bench: MakeBench) -> None:
    bench = make_bench(echo, attributes={"body_limit_bytes": 100, "body_memory_bytes": 10})
    client = bench.connect()
    descriptors = len(os.listdir("/proc/self/fd"))
    client.send(
        b"POST /over HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n" + bytes(80)
    )
    bench.run()
    client.send(b"\r\n50\r\n")
    bench.run()
    assert client.read_response().status == 413
    assert bench.log.requests == [("POST /over", "413 Content Too Large", 0)]
    assert len(os.listdir("/proc/self/fd")) == descriptors  # its temporary file has gone


def test_a_malformed_body_is_answered(make_bench: MakeBench) -> None:
    bench = make_bench(echo, attributes={"body_memory_bytes": 0})
    client = bench.connect()
    descriptors = len(os.listdir("/proc/self/fd"))
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    bench.run()
    client.send(b"nonsense\r\n")
    bench.run()
    assert len(os.listdir("/proc/self/fd")) == descriptors  # its temporary file has gone
    assert client.read_response().status in (400, 500)  # as its version has it
    assert client.read_to_end() == b""


def test_a_disk_that_is_full(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    bench = make_bench(echo, attributes={"body_memory_bytes": 10})
    client = bench.connect()
    client.send_request(method="POST", body=bytes(10))
    bench.run()
    assert client.read_response().status == 200  # needs no disk
    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"a\r\n0123456789\r\n0\r\n\r\n"
    client.send(chunked)
    bench.run()
    assert client.read_response().body == b"0123456789"
    client.send_request(method="POST", body=bytes(11))
    bench.run()
    assert client.read_response().status == 500
    assert client.read_to_end() == b""
    assert bench.log.says("Error handling request")


def test_nothing_of_a_request_is_kept_behind_it(make_bench: MakeBench) -> None:
    bodies: list[weakref.ref[Any]] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        bodies.append(weakref.ref(environ["wsgi.input"]))
        return echo(environ, start_response)

    for memory in (0, 1_000_000):
        bench = make_bench(app, attributes={"body_memory_bytes": memory}, keepalive=5)
        bench.log.environs = type("Nothing", (), {"append": lambda self, environ: None})()
        client = bench.connect()
        descriptors = len(os.listdir("/proc/self/fd"))
        client.send_request(method="POST", body=bytes(10_000))
        bench.run()
        assert client.read_response().keep_alive
        assert bodies[-1]() is None
        assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize(
    ("there", "fields", "kept"),
    [(True, "", True), (False, "", False), (True, "Connection: close\r\n", False)],
)
def test_a_streamed_body_that_nobody_reads(
    make_bench: MakeBench, there: bool, fields: str, kept: bool
) -> None:
    """The next request is behind it, if it ends at all, and there is to be another."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", "0")])
        return []

    bench = make_bench(app, attributes={"buffer_bodies": False}, keepalive=5)
    client = bench.connect()
    client.send(f"POST / HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: 10\r\n\r\n01234".encode())
    if there:
        client.send(b"56789")
    bench.run()
    assert client.read_response().status == 200
    if kept:
        client.send_request(method="POST", body=b"next")
        bench.run()
        assert client.read_response().status == 200
    else:
        assert client.read_to_end() == b""


# Output


def test_a_response_goes_on_after_its_app(make_bench: MakeBench) -> None:
    bench = make_bench(large, keepalive=5)
    client = bench.connect()
    client.send_request()
    client.send_request()
    bench.run()
    assert not bench.log.requests
    received = b""
    while more := client.receive_all_there_is():
        received += more
        bench.run()
    assert bench.log.requests == [("GET /", "200 OK", LARGE)] * 2
    head, *bodies = received.split(b"HTTP/1.1 200 OK\r\n")
    assert head == b""
    assert [body.partition(b"\r\n\r\n")[2] for body in bodies] == [bytes(LARGE)] * 2
    bench.pass_time(4)
    assert is_open(client)
    client.send_request()
    bench.run()
    assert client.read_head().status == 200


def test_blocks_in_quick_succession_wait_for_the_next_tick(make_bench: MakeBench) -> None:
    seen: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "100")])
        yield b"1"
        seen.append(client.receive_all_there_is()[-1:])
        yield b"2"
        seen.append(client.receive_all_there_is())
        yield b"3"
        seen.append(client.receive_all_there_is())
        bench.server.pool._on_tick()
        seen.append(client.receive_all_there_is())
        bench.clock.now += 0.01  # later: nothing to wait for
        yield b"4"
        seen.append(client.receive_all_there_is())
        yield b"5"
        bench.server.pool.ticking = False  # nobody would come
        seen.append(client.receive_all_there_is())
        yield b"6"
        seen.append(client.receive_all_there_is())
        bench.server.pool.ticking = True
        yield b"7"
        seen.append(client.receive_all_there_is())
        environ["gunicorn.socket"].send(b"own")
        seen.append(client.receive_all_there_is())

    bench = make_bench(app)
    bench.server.pool.ticking = True
    client = bench.connect()
    client.send_request()
    bench.run()
    assert seen == [b"1", b"", b"", b"23", b"4", b"", b"56", b"", b"7own"]
    assert not bench.server.coalescing.queues


def test_the_last_tick_comes_while_a_block_is_coalesced(make_bench: MakeBench) -> None:
    seen: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "100")])
        yield b"1"
        client.receive_all_there_is()
        yield b"2"
        seen.append(client.receive_all_there_is())

    bench = make_bench(app)
    client = bench.connect()

    class Falling(set[Any]):
        """The monitor's last tick comes just before the block is registered."""

        def add(self, connection: Any) -> None:
            bench.server.pool.ticking = False
            super().add(connection)

    bench.server.pool.ticking = True
    bench.server.coalescing.queues = Falling()
    client.send_request()
    bench.run()
    assert seen == [b"2"]
    assert not bench.server.coalescing.queues


def test_what_is_coalesced_goes_out_with_the_end(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return iter([b"1", b"2", b"3"])

    bench = make_bench(app, keepalive=5)
    bench.server.pool.ticking = True
    client = bench.connect()
    for _ in range(2):
        client.send_request()
        bench.run()
        assert client.read_response().body == b"123"
        assert not bench.server.coalescing.queues


def test_a_socket_that_the_app_has_taken_is_blocking_and_never_kept(
    make_bench: MakeBench,
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        sock = environ["gunicorn.socket"]
        assert sock.gettimeout() == 0
        sock.sendall(b"mine")
        assert sock.gettimeout() is None
        start_response("200 OK", [("Content-Length", "0")])
        return []

    bench = make_bench(app, keepalive=5)
    client = bench.connect()
    client.send_request()
    bench.run()
    assert client.read(4) == b"mine"
    assert client.read_response().keep_alive  # said, but no longer true
    assert client.read_to_end() == b""
    assert client.near.sock.gettimeout() == 0  # whatever waits for its end does not hang


def test_a_socket_that_is_only_looked_at_stays_with_http(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        sock = environ["gunicorn.socket"]
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        assert sock.family == socket.AF_UNIX
        for name in ("what_no_socket_has", "__enter__"):
            assert not hasattr(sock, name)
        copy.copy(sock)
        return echo(environ, start_response)

    bench = make_bench(app, keepalive=5)
    client = bench.connect()
    for _ in range(2):
        client.send_request()
        bench.run()
        assert client.read_response().status == 200
    assert is_quiet(client)


@pytest.mark.parametrize("poller", POLLERS)
def test_the_number_of_a_socket_that_the_app_has_closed(make_bench: MakeBench, poller: str) -> None:
    """It may be another connection's by the time that the app ends."""
    others: list[Client] = []
    bench: Bench

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/mine":
            environ["gunicorn.socket"].close()
            others.append(bench.connect())
            raise StopIteration
        return echo(environ, start_response)

    bench = make_bench(app, attributes={"poller_kind": poller})
    client = bench.connect()
    client.send_request("/mine")
    bench.run()
    assert not is_open(client)
    (other,) = others
    assert other.near.fd == client.near.fd
    other.send_request("/next")
    bench.run()
    assert other.read_response().status == 200


def test_a_client_that_leaves_in_a_response(make_bench: MakeBench) -> None:
    bench = make_bench(large)
    client = bench.connect()
    client.send_request()
    bench.run()
    client.close()
    bench.run()
    assert not is_open(client)
    assert client.near.fd not in bench.server.registry.waiting
    ((_, status, size),) = bench.log.requests
    assert status == "200 OK"
    assert size < LARGE


@pytest.mark.parametrize("options", [{}, {"sendfile": False}])
def test_a_file_that_shrinks_is_told_and_cut_off(
    make_bench: MakeBench, tmp_path: Path, options: dict[str, bool]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(LARGE))

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", str(LARGE))])
        file = path.open("rb")
        return SegmentedBody([FileSegment(file.fileno(), 0, LARGE)], file.close)

    bench = make_bench(app, keepalive=5, **options)
    client = bench.connect()
    client.send_request("/shrinks")
    bench.run()
    os.truncate(path, LARGE // 2)
    received = 0
    while is_open(client):
        received += len(client.receive_all_there_is())
        bench.run()
    received += len(client.read_to_end())
    assert LARGE // 4 < received < LARGE
    assert bench.log.says("Cutting off /shrinks: the file shrank")


@pytest.mark.parametrize("sendfile", [True, False])
def test_sendfile_can_be_switched_off(
    make_bench: MakeBench, tmp_path: Path, sendfile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    calls: list[int] = []
    real = os.sendfile

    def counted(*args: int) -> int:
        calls.append(args[-1])
        return real(*args)

    monkeypatch.setattr(os, "sendfile", counted)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](path.open("rb"))
        return wrapped

    bench = make_bench(app, **({} if sendfile else {"sendfile": False}))
    client = bench.connect()
    client.send_request()
    bench.run()
    assert client.read_response().body == bytes(100_000)
    assert bool(calls) is sendfile
    assert client.near.output._sender.sends_files is sendfile


# Ends


def test_the_last_word_arrives_although_the_client_goes_on_sending(bench: Bench) -> None:
    """A socket that is closed with something unread resets what it has sent."""
    client = bench.connect()
    client.send(b"G=T / HTTP/1.1\r\n\r\n" + bytes(10_000))
    bench.run()
    client.send(bytes(10_000))
    bench.run()
    assert is_open(client)
    assert client.read_response().status == 400
    assert client.read_to_end() == b""
    client.close()
    bench.run()
    assert not is_open(client)


def test_a_client_that_goes_on_sending_is_not_listened_to_for_long(bench: Bench) -> None:
    client = bench.connect()
    client.send(b"G=T / HTTP/1.1\r\n\r\n")
    bench.run()
    assert client.read_response().status == 400
    sent = 0
    while is_open(client) and sent < 1_000_000:
        client.send(bytes(10_000))
        sent += 10_000
        bench.run()
    assert 64 * 1024 <= sent < 100_000


def test_a_refusal_that_is_not_taken_at_once(bench: Bench) -> None:
    for request in (
        b"G=T / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n",
    ):
        client = bench.connect()
        filled = fill(client.near.sock)
        client.send(request)
        bench.run()
        assert is_open(client)
        assert client.read(filled) == bytes(filled)
        bench.run()
        assert client.read_response().status in (400, 413)
        assert client.read_to_end() == b""
        bench.pass_time(LINGER_S + 1)
        assert not is_open(client)


@pytest.mark.parametrize(
    "sent", [b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n01234"]
)
def test_a_time_limit_that_is_not_taken_note_of_at_once(bench: Bench, sent: bytes) -> None:
    client = bench.connect()
    client.send(sent)
    bench.run()
    filled = fill(client.near.sock)
    bench.pass_time(FastWorker.body_timeout_s + 1)
    assert client.near.output.draining
    assert client.read(filled) == bytes(filled)
    bench.run()
    assert client.read_response().status == 408
    assert client.read_to_end() == b""
    assert not bench.log.says("Error in a connection")


@pytest.mark.parametrize("read", [True, False])
def test_a_client_that_goes_before_the_end(make_bench: MakeBench, read: bool) -> None:
    """With a goodbye, or with a reset, for what it has not read."""
    bench = make_bench(echo, keepalive=0)
    client = bench.connect()
    client.send_request()
    bench.run()
    if read:
        assert client.read_response().status == 200
    client.close()
    bench.run()
    assert not is_open(client)


def test_a_long_head_does_not_count_for_what_follows_its_refusal(make_bench: MakeBench) -> None:
    bench = make_bench(echo, **PYTHON_PARSER)
    client = bench.connect()
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
    for _ in range(100):
        client.send(bytes(10_000).replace(b"\0", b"a"))
        bench.run()
        if bench.log.says("Invalid request"):
            break
    client.send(bytes(10_000))
    bench.run()
    assert is_open(client)
    assert client.read_response().status == 431
    assert client.read_to_end() == b""


def test_a_refusal_of_a_client_that_has_gone(bench: Bench) -> None:
    client = bench.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n")
    client.close()
    bench.run()
    assert not is_open(client)
    assert not bench.log.says("Error in a connection")
    assert bench.log.requests == [("POST /", "413 Content Too Large", 0)]


def test_an_error_of_our_own_ends_the_connection_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError

    client, other = bench.connect(), bench.connect()
    with monkeypatch.context() as patch:
        patch.setattr(type(client.near), "on_event", fail)
        client.send_request()
        bench.run()
    assert not is_open(client)
    client = bench.connect()
    with monkeypatch.context() as patch:
        patch.setattr(type(client.near), "app_is_done", fail)
        client.send_request()
        bench.run()
    assert not is_open(client)
    client = bench.connect()
    with monkeypatch.context() as patch:
        patch.setattr(type(client.near), "on_overdue", fail)
        bench.clock.now += FastWorker.head_timeout_s - 1
        other.send_request()
        bench.run()
        assert other.read_response().status == 200
        bench.pass_time(2)
    assert not is_open(client)
    assert bench.log.lines.count("Error in a connection") == 3


def test_closing_gives_everything_back_and_does_so_once(bench: Bench) -> None:
    client = bench.connect()
    near = client.near
    client.send_request()
    bench.run()
    assert bench.worker.nr_conns == 1
    forget = bench.server.registry.forget
    order: list[int] = []

    def look(connection: Any) -> None:
        order.append(connection.sock.fileno())
        forget(connection)

    bench.server.registry.forget = look
    near.close()
    assert bench.worker.nr_conns == 0
    assert not bench.server.registry.waiting
    # Before the number may belong to another one.
    assert order == [near.fd]
    assert near.sock.fileno() == -1
    other = bench.connect()
    assert other.near.fd == near.fd
    near.close()
    assert order == [near.fd]
    assert bench.server.registry.waiting == {other.near.fd: other.near}
    assert bench.server.registry.connections == {other.near}
    assert bench.worker.nr_conns == 1
    with pytest.raises(output.ClientGone):
        near.output.write(b"late")


def test_closing_frees_what_is_queued(make_bench: MakeBench, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(LARGE))

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](path.open("rb"))
        return wrapped

    bench = make_bench(app)
    client = bench.connect()
    descriptors = len(os.listdir("/proc/self/fd"))
    client.send_request()
    bench.run()
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1
    client.near.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1


def test_a_descriptor_that_is_closed_is_waited_for_no_more(make_bench: MakeBench) -> None:
    bench = make_bench(echo, attributes={"poller_kind": "selectors"})
    client = bench.connect()
    bench.run()
    forgotten: list[int] = []
    bench.server.poller.forget = forgotten.append
    client.near.close()
    assert forgotten == [client.near.fd]


def test_a_closed_connection_is_garbage_at_once(bench: Bench) -> None:
    """Without the cycle collector, which may take long to come."""
    client = bench.connect()
    client.send_request()
    bench.run()
    bench.log.environs.clear()
    part = client.near.environ_part
    assert part is not None
    sock = weakref.ref(part["gunicorn.socket"])
    del part
    client.near.close()
    assert sock() is None


def test_a_worker_that_stops_gives_a_moment_to_who_is_kept_alive(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return (
            large(environ, start_response)
            if environ["QUERY_STRING"]
            else echo(environ, start_response)
        )

    bench = make_bench(app, keepalive=60)
    idle, begun, silent, taking = (bench.connect() for _ in range(4))
    idle.send_request()
    begun.send(b"GET / HT")
    taking.send_request("/?large")
    bench.run()
    assert idle.read_response().keep_alive
    cap = bench.server.registry.cap_deadlines
    cap(bench.clock.now + LINGER_S, type(idle.near).is_idle)
    cap(bench.clock.now + 10, type(idle.near).is_idle)  # the earliest counts
    bench.pass_time(LINGER_S + 1)
    assert not is_open(idle)
    assert not is_open(silent)  # nothing has begun there either
    assert is_quiet(begun)
    assert is_open(taking)
    assert not bench.log.says("took no byte")
    assert taking.near.output.error is None


# TLS


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ssl.SSLContext]:
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return str(path), context


def tls_bench(make_bench: MakeBench, pem: tuple[str, ssl.SSLContext], **options: Any) -> Bench:
    return make_bench(echo, certfile=pem[0], keyfile=pem[0], **options)


def test_tls_requests_in_one_record(make_bench: MakeBench, pem: tuple[str, ssl.SSLContext]) -> None:
    bench = tls_bench(make_bench, pem, keepalive=5)
    client = bench.connect(tls=pem[1])
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    # One record each; the first is more than one receive takes.
    for size in (0, 9, 15_000):
        body = b"a" * size
        client.send(head % size + body + head % 3 + b"end")
        bench.run()
        assert client.read_response().body == body
        assert client.read_response().body == b"end"
        client.send(head % (size + 1))
        bench.run()
        # The body is received for itself, and what follows it is decrypted then.
        client.send(b"b" + body + head % 3 + b"end")
        bench.run()
        assert client.read_response().body == b"b" + body
        assert client.read_response().body == b"end"
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 8000 + b"\r\nY: " + b"b" * 7900)
    client.send(b"\r\n\r\n")
    bench.run()
    assert client.read_response().status == 200


@pytest.mark.parametrize("in_memory", [0, 1_000_000])
def test_tls_records_across_the_buffers_of_a_body(
    make_bench: MakeBench, pem: tuple[str, ssl.SSLContext], in_memory: int
) -> None:
    bench = tls_bench(make_bench, pem, attributes={"body_memory_bytes": in_memory})
    client = bench.connect(tls=pem[1])
    body = bytes(range(250)) * 280  # over 64 KiB, the first buffer
    client.send_request(method="POST", body=body)
    bench.run()
    assert client.read_response().body == body


def test_what_only_a_tls_socket_has(make_bench: MakeBench, pem: tuple[str, ssl.SSLContext]) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        found.append(environ["gunicorn.socket"].pending())
        return echo(environ, start_response)

    found: list[int] = []
    bench = make_bench(app, certfile=pem[0], keyfile=pem[0])
    client = bench.connect(tls=pem[1])
    client.send_request()
    bench.run()
    assert client.read_response().status == 200
    assert found == [0]
    assert client.near.hijacked


def test_tls_handshake_that_never_comes_or_fails(
    make_bench: MakeBench, pem: tuple[str, ssl.SSLContext]
) -> None:
    bench = tls_bench(make_bench, pem)
    silent = bench.connect()
    bench.pass_time(FastWorker.head_timeout_s + 1)
    assert not is_open(silent)
    assert silent.read_to_end() == b""
    nonsense = bench.connect()
    nonsense.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    bench.run()
    assert not is_open(nonsense)
    assert bench.log.says("TLS handshake failed")


def test_tls_handshake_that_wants_to_send(
    make_bench: MakeBench, pem: tuple[str, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = tls_bench(make_bench, pem)
    client = bench.connect()
    armed: list[int] = []
    arm = bench.server.poller.arm

    def look(fd: int, events: int) -> None:
        armed.append(events)
        arm(fd, events)

    bench.server.poller.arm = look
    wants = [ssl.SSLWantReadError(), ssl.SSLWantWriteError(), ssl.SSLWantReadError()]

    def handshake(self: ssl.SSLSocket, block: bool = False) -> None:
        raise wants.pop(0)

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", handshake)
    client.send(b"a")
    bench.server._receive((client.near.fd, READ))
    bench.server._receive((client.near.fd, READ))
    bench.server._receive((client.near.fd, WRITE))
    assert armed == [READ, WRITE, READ]


def test_tls_ends_with_a_goodbye(make_bench: MakeBench, pem: tuple[str, ssl.SSLContext]) -> None:
    bench = tls_bench(make_bench, pem, keepalive=0)
    client = bench.connect(tls=pem[1])
    client.send_request()
    bench.run()
    assert client.read_response().status == 200
    assert client.read_to_end() == b""  # an end without it is an error
    assert isinstance(client.sock, ssl.SSLSocket)
    client.sock.send(b"still sent")  # and is not decrypted any more
    bench.run()
    assert is_open(client)
    client.close()
    bench.run()
    assert not is_open(client)


def test_http2_is_for_a_thread_of_its_own(
    make_bench: MakeBench, pem: tuple[str, ssl.SSLContext]
) -> None:
    bench = tls_bench(make_bench, pem, http_protocols="h2,h1")
    context = pem[1]
    context.set_alpn_protocols(["h2"])
    served: list[Any] = []
    bench.server._run_http2 = served.append
    try:
        client = bench.connect(tls=context)
        bench.run()
    finally:
        context.set_alpn_protocols(["http/1.1"])
    assert served == [client.near]
    assert client.near.fd not in bench.server.registry.waiting


def test_an_error_that_gunicorn_has_a_word_for(bench: Bench) -> None:
    client = bench.connect()
    near = client.near
    bench.server.registry.waiting.pop(near.fd)
    near.move(BEGUN)
    near.refuse(InvalidRequestLine("nonsense"))
    assert client.read_response().status == 400

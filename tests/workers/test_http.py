"""HTTP on FastWorker: one suite for both pollers, plain and with TLS."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gunicorn
import pytest

from tests.support.gunicorn import may_end_headers_with_bare_lf
from tests.support.http import Connection
from tests.support.servers import LiveServer, live_server, wait_for
from tests.support.tls import client_context, write_certificate
from tests.workers.app import FILE_BYTES, block
from tests.workers.serving import POLLERS, Client, fast_worker, gunicorn_command, stats

pytestmark = pytest.mark.long

SERVERS = [*POLLERS, "tls", "tls-poll-streamed", "python-parser-read-write"]


def wait_until_closed(client: Client, name: str, times: int = 1) -> None:
    """Wait until an app's iterable is closed, a moment after its last byte has arrived."""
    wait_for(lambda: client.closed(name) >= times, f"{name!r} is told")


@pytest.fixture(scope="module", params=SERVERS)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    kind = request.param
    options: list[str] = []
    attributes: dict[str, object] = {
        "poller": "poll" if "poll" in kind else "epoll",
        "buffer_bodies": "streamed" not in kind,
    }
    tls = None
    if kind.startswith("tls"):
        pem = write_certificate(tmp_path_factory.mktemp("tls") / "server.pem")
        options = [f"--certfile={pem}", f"--keyfile={pem}"]
        tls = client_context()
    if "read-write" in kind:
        options += ["--no-sendfile"]
    parser_options = []
    if "python-parser" in kind:
        parser_options = ["--http-parser=python"]
    with fast_worker(*options, *parser_options, attributes=attributes) as server:
        yield Client(server, tls, parser_options)


@pytest.fixture
def connection(client: Client) -> Iterator[Connection]:
    with client.connect() as made:
        yield made


def test_fastworker_keeps_connection_alive(connection: Connection) -> None:
    for size in (0, 1, 1024, 100_000, 3_000_000, 5):
        response = connection.request(f"/small/{size}")
        assert response.body == block(size)
        assert response.keep_alive
        assert response.header("Server") == "gunicorn"


def test_request_in_packet_of_a_body_is_answered(connection: Connection) -> None:
    connection.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
    connection.send(b"0123456789GET /small/5 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert connection.read_response().body == b"0123456789"
    assert connection.read_response().body == block(5)


def test_connection_close_of_client_is_respected(connection: Connection) -> None:
    response = connection.request("/small", headers=[("Connection", "close")])
    assert not response.keep_alive
    assert connection.read_to_end() == b""


def test_http_1_0_requests_are_answered(client: Client) -> None:
    with client.connect() as connection:
        response = connection.request("/chunks/3-10", version="1.0")
        assert response.header("Transfer-Encoding") is None
        assert response.body == b"".join(block(10, i) for i in range(3))
    with client.connect() as connection:
        for _ in range(2):
            response = connection.request(
                "/small/10", version="1.0", headers=[("Connection", "keep-alive")]
            )
            assert response.body == block(10)
            assert response.keep_alive


def test_fastworker_answers_pipeline_in_order(connection: Connection) -> None:
    for size in range(1, 40):
        connection.send_request(f"/small/{size * 1000}")
    for size in range(1, 40):
        assert connection.read_response().body == block(size * 1000)


def test_pipelined_bodies_and_files_keep_their_order(connection: Connection) -> None:
    connection.send_request("/echo", method="POST", body=b"one")
    connection.send_request("/file/10000000")
    connection.send_request(
        "/echo",
        method="POST",
        headers=[("Transfer-Encoding", "chunked")],
        body=b"3\r\ntwo\r\n0\r\nX-Trailer: 1\r\n\r\n",
    )
    connection.send_request("/small/7")
    assert connection.read_response().body == b"one"
    assert connection.read_response().body == block(FILE_BYTES)[10_000_000:]
    assert connection.read_response().body == b"two"
    assert connection.read_response().body == block(7)


def test_request_byte_by_byte_is_answered(connection: Connection) -> None:
    request = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    request += b"3;a=b\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nX-T: 1\r\n\r\n"
    for i in range(len(request)):
        connection.send(request[i : i + 1])
    assert connection.read_response().body == b"abc0123456789abcdef"
    assert connection.request("/small/3").body == block(3)


def test_head_and_bodyless_statuses_have_no_body(connection: Connection) -> None:
    received = connection.request("/small/1000", method="HEAD")
    assert received.header("Content-Length") == "1000"
    file = connection.request("/file", method="HEAD")
    assert file.header("Content-Length") == str(FILE_BYTES)
    assert connection.request("/status/304").header("X-Kept") == "1"
    assert connection.request("/status/204").header("Content-Length") is None
    assert connection.request("/small/5").body == block(5)


def test_generators_are_sent_in_chunks(client: Client, connection: Connection) -> None:
    response = connection.request("/chunks/200-1000?chunked")
    assert response.header("Transfer-Encoding") == "chunked"
    assert response.body == b"".join(block(1000, i) for i in range(200))
    assert connection.request("/empty_chunks").body == b"ab"
    assert connection.request("/written").body == b"written first, then returned"
    wait_until_closed(client, "chunked same thread")


def test_blocks_are_not_delayed_while_the_app_waits(client: Client) -> None:
    with client.connect() as connection, client.connect() as other:
        connection.send_request("/first_then_wait")
        assert connection.read_headers().status == 200
        assert connection.read(21) == b"5\r\nfirst\r\n6\r\nsecond\r\n"
        assert other.request("/release").status == 200
        assert connection.read_to_end_of_chunks() == b"third"


def test_file_wrapper_sends_file_from_its_position(connection: Connection) -> None:
    small = 16 * 1024  # a part of this size is read
    for offset in (0, 1, *(FILE_BYTES - rest for rest in (small + 1, small, 1, 0))):
        for chunked in ("", "?chunked"):
            response = connection.request(f"/file/{offset}{chunked}")
            assert response.body == block(FILE_BYTES)[offset:], f"from {offset}{chunked}"


def test_segments_of_file_are_sent_in_order(client: Client, connection: Connection) -> None:
    data = block(FILE_BYTES)
    expected = b"--a\r\n" + data[100:1100] + b"--b\r\n" + data[4096:2_004_096] + b"--end"
    assert connection.request("/segments").body == expected
    assert connection.request("/segments/chunked").body == expected
    assert connection.request("/segments", method="HEAD").body == b""
    wait_until_closed(client, "segments", 3)


@pytest.mark.parametrize("size", [1, 1000, 65_536, 600_000, 3_000_000])
def test_request_bodies_of_any_size_are_read(connection: Connection, size: int) -> None:
    data = block(size)
    response = connection.request("/echo", method="POST", body=data)
    assert response.body == data
    parts = [data[start : start + 70_000] for start in range(0, size, 70_000)]
    response = connection.request("/digest", method="POST", body=parts)
    assert json.loads(response.body) == hashlib.sha256(data).hexdigest()
    assert connection.request("/small/3").body == block(3)


def test_unread_body_does_not_poison_the_next_request(connection: Connection) -> None:
    response = connection.request("/ignore_body", method="POST", body=block(5000))
    assert response.body == b"ok"
    assert connection.request("/small/3").body == block(3)


def test_fastworker_sends_100_continue(connection: Connection) -> None:
    connection.send_request(
        "/echo",
        method="POST",
        headers=[("Expect", "100-continue"), ("Content-Length", "4")],
    )
    assert connection.read_headers().status == 100
    connection.send(b"body")
    assert connection.read_response().body == b"body"


def test_early_hints_precede_response(connection: Connection) -> None:
    connection.send_request("/hints")
    hints = connection.read_headers()
    assert hints.status == 103
    assert hints.header("Link") == "</style.css>; rel=preload"
    assert connection.read_response().body == b"ok"


def test_environ_over_http(client: Client) -> None:
    response = client.get(
        "/environ/a%20b?x=1",
        headers=[("X-Two", "1"), ("X-Two", "2"), ("Content-Type", "text/x"), ("X_Bad", "1")],
    )
    environ = json.loads(response.body)
    assert environ["PATH_INFO"] == "/environ/a b"
    assert environ["RAW_URI"] == "/environ/a%20b?x=1"
    assert environ["QUERY_STRING"] == "x=1"
    assert environ["HTTP_X_TWO"] == "1,2"
    assert environ["CONTENT_TYPE"] == "text/x"
    assert "HTTP_X_BAD" not in environ
    assert environ["REMOTE_ADDR"] == "127.0.0.1"
    assert environ["wsgi.url_scheme"] == ("https" if client.tls else "http")
    assert environ["wsgi.multithread"] is True
    assert environ["file_wrapper"] == "gunicorn.http.wsgi"
    assert environ["thread"].startswith("wsgifast-")


BAD_REQUESTS = {
    "method": b"G=T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "version": b"GET / HTTP/3.1\r\nHost: a\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "space in a name": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "long target": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
    "long field": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
    "many fields": b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 200 + b"\r\n",
    "endless field": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 900_000,
    "signed length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nabcde",
    "two framings": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n",
    "coding": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: zip\r\n\r\n",
    "expectation": b"POST / HTTP/1.1\r\nHost: a\r\nExpect: a-lot\r\nContent-Length: 5\r\n\r\n",
    "chunk size": b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunk end": b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"1\r\nabc\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
}


def test_generators_run_ahead_of_slow_readers(client: Client) -> None:
    targets = ["/chunks/30-100000", "/chunks/300-10000"] * 3
    with contextlib.ExitStack() as stack:
        readers = []
        for number, target in enumerate(targets):
            connection = Connection(client.server.address, receive_buffer=4096, tls=client.tls)
            readers.append(stack.enter_context(connection))
            connection.send_request(f"{target}?ahead-{number}")
        names = [f"ahead-{number}" for number in range(len(targets))]
        wait_for(
            lambda: set(names) <= set(stats(client.server, tls=client.tls)["exhausted"]),
            "the generators have ended",
        )
        for name in names:
            wait_until_closed(client, f"{name} same thread")
        with ThreadPoolExecutor(len(readers)) as threads:
            bodies = threads.map(lambda reader: reader.read_response().body, readers)
        for target, body in zip(targets, bodies, strict=True):
            count, size = map(int, target.removeprefix("/chunks/").split("-"))
            assert body == b"".join(block(size, number) for number in range(count))


@pytest.fixture(scope="module")
def gthread(client: Client) -> Iterator[LiveServer]:
    """gunicorn's own threaded worker, with the same parser."""
    options = ("-k", "gthread", "-b", "127.0.0.1:{port}", *client.parser_options)
    with live_server(gunicorn_command(*options, "tests.workers.app:app")) as server:
        yield server


# Requests that gunicorn's parser itself rejects.
SAID_IN_OUR_WORDS = ("chunk size", "chunk end", "endless field")


def test_bad_requests_get_responses_of_gthread(client: Client, gthread: LiveServer) -> None:
    bare_lf = may_end_headers_with_bare_lf(gthread)
    for name, request in BAD_REQUESTS.items():
        if name in SAID_IN_OUR_WORDS and gunicorn.version_info < (27,):
            continue  # with today's gunicorn_h1c, its gthread closes without a response
        responses = []
        for connection in (Connection(gthread.address, bare_lf=bare_lf), client.connect()):
            with connection:
                # A server that responds before all has arrived may close before all is sent.
                with contextlib.suppress(ConnectionError):
                    connection.send(request)
                response = connection.read_response()
                # The packets decide how much had arrived when a limit was reached.
                message = re.sub(rb"\d+", b"N", response.body)
                if name in SAID_IN_OUR_WORDS:
                    message = re.sub(rb"(</hN>\s+).*", rb"\1", message)
                responses.append((response.status, response.reason, response.keep_alive, message))
                if not response.keep_alive:
                    assert connection.read_to_end() == b"", name
        assert responses[1] == responses[0], name
        if name != "bare LF":
            assert responses[1][0] >= 400, name


def test_app_error_before_response_is_500(client: Client) -> None:
    for kind in ("before", "first", "exit", "header"):
        with client.connect() as connection:
            response = connection.request(f"/raise/{kind}")
            assert response.status == 500, f"{kind}: {response}"
            assert b"Injected" not in response.body
            assert connection.read_to_end() == b""
    wait_until_closed(client, "first same thread")


def test_app_error_during_response_cuts_it_off(client: Client, connection: Connection) -> None:
    connection.send_request("/raise/after")
    assert connection.read_headers().header("Content-Length") == "100"
    assert connection.read_to_end() == b"some of it"
    wait_until_closed(client, "after same thread")


def test_body_breaking_content_length_is_cut(client: Client, connection: Connection) -> None:
    assert connection.request("/long").body == b"long,"
    connection.send_request("/short")
    connection.read_headers()
    assert connection.read_to_end() == b"short"
    said = ("/long: the body is longer", "/short: the body has 5 bytes")
    wait_for(lambda: all(each in client.server.log() for each in said), "the log says so")


def test_wsgi_errors_reaches_the_log(client: Client) -> None:
    assert client.get("/errors").status == 200
    client.server.wait_for_log("said by the app")


def test_hijacked_socket_is_the_app_s(connection: Connection) -> None:
    connection.send_request("/hijack")
    assert connection.read(7) == b"yours: "
    connection.send(b"hello")
    assert connection.read_to_end() == b"HELLO"


def test_server_name_comes_from_listener(client: Client) -> None:
    """The scheme does not come from the client, which may send any scheme, or none in HTTP/1.0."""
    for host in (b"", b"Host: elsewhere:99\r\n"):
        with client.connect() as connection:
            connection.send(b"GET /environ HTTP/1.0\r\n" + host + b"\r\n")
            environ = json.loads(connection.read_response().body)
            named = [environ["SERVER_NAME"], int(environ["SERVER_PORT"])]
            assert named == list(client.server.address)


def test_inspected_socket_keeps_speaking_http(connection: Connection) -> None:
    for _ in range(2):
        response = connection.request("/peer")
        assert json.loads(response.body) == list(connection.sock.getsockname())
        assert response.keep_alive


def test_half_closed_client_gets_its_response(
    client: Client, connection: Connection, tmp_path: Path
) -> None:
    if client.tls is not None:
        pytest.skip("TLS has no half-close")
    connection.send_request("/file")
    connection.sock.shutdown(1)
    assert connection.read_response().body == block(FILE_BYTES)
    assert connection.read_to_end() == b""


def test_access_log_has_status_and_bytes(client: Client) -> None:
    client.get("/file?logged")
    client.get("/chunks/3-5?logged")
    client.server.wait_for_log(f'"GET /file?logged HTTP/1.1" 200 {FILE_BYTES} ')
    client.server.wait_for_log('"GET /chunks/3-5?logged HTTP/1.1" 200 15 ')

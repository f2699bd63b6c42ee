"""Responses to requests that FastWorker rejects, and the end of the connection."""

from __future__ import annotations

import errno
import os
import re
import socket
import tempfile
from collections.abc import Iterable
from typing import Any

import pytest

from tests.server.connections import CHUNKED, HEAD, MakeStepped, responses
from tests.server.http2_peer import HTTP2, Peer
from tests.support.calls import raising
from tests.workers.stepped_worker import GET, SteppedWorker, echo

hello = responses([b"hello"], ("Content-Length", "5"))
STREAMED = {"buffer_bodies": False, "body_timeout_s": 0.05}
UNFINISHED = [HEAD + b"Content-Length: 10\r\n\r\n01234", CHUNKED + b"5\r\n012"]


def status_of(stepped: SteppedWorker, *pieces: bytes, ends: bool = False) -> int | None:
    """Return the status of the response, or None if the connection ends without one."""
    client = stepped.connect()
    for piece in pieces:
        client.send(piece)
        if ends:
            client.sock.shutdown(socket.SHUT_WR)
        stepped.run()
    try:
        response = client.read_response()
    except EOFError:
        return None
    if response.status >= 400:
        assert client.read_to_end() == b""
    return response.status


@pytest.mark.parametrize("sent", UNFINISHED)
def test_streamed_body_that_stops_is_408(make_stepped: MakeStepped, sent: bytes) -> None:
    stepped = make_stepped(echo, attributes=STREAMED)
    stepped.clock.runs = True
    assert status_of(stepped, sent) == 408
    assert_page_is_logged(stepped, "408 Request Timeout")


def assert_page_is_logged(stepped: SteppedWorker, expected: str) -> None:
    ((requested, status, size),) = stepped.log.requests
    assert (requested, status) == ("POST /", expected)
    assert size > 100  # the page
    assert not stepped.log.errors  # no traceback


@pytest.mark.parametrize("sent", UNFINISHED)
@pytest.mark.parametrize("streamed", [True, False])
def test_body_cut_off_is_not_whole_to_app(
    make_stepped: MakeStepped, sent: bytes, streamed: bool
) -> None:
    seen: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        seen.append(environ["wsgi.input"].read())
        return hello(environ, start_response)

    stepped = make_stepped(app, attributes={"buffer_bodies": not streamed})
    assert status_of(stepped, sent, ends=True) is None
    assert not seen
    assert not stepped.log.errors
    assert not stepped.server.registry.connections


@pytest.mark.parametrize("streamed", [True, False])
def test_malformed_chunk_is_400(make_stepped: MakeStepped, streamed: bool) -> None:
    stepped = make_stepped(echo, attributes={"buffer_bodies": not streamed}, keepalive=5)
    assert status_of(stepped, CHUNKED + b"1\r\nab\r\n") == 400
    assert stepped.log.says("a chunk is longer than its size says")
    assert_page_is_logged(stepped, "400 Bad Request")


def test_failure_of_wrapped_body_decides_the_status(make_stepped: MakeStepped) -> None:
    """Frameworks raise such errors. The client is the reason in any case."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            environ["wsgi.input"].read()
        except OSError as error:
            raise RuntimeError("unreadable") from error
        return []

    stepped = make_stepped(app, attributes=STREAMED)
    stepped.clock.runs = True
    assert status_of(stepped, HEAD + b"Content-Length: 9\r\n\r\n") == 408
    assert not stepped.log.errors


@pytest.mark.parametrize("streamed", [True, False])
def test_trailers_reach_the_request(make_stepped: MakeStepped, streamed: bool) -> None:
    trailers: list[Any] = []

    def note(worker: Any, req: Any, environ: Any, resp: Any) -> None:
        trailers.append(req.trailers)

    attributes = {"buffer_bodies": not streamed}
    stepped = make_stepped(echo, attributes=attributes, keepalive=5, post_request=note)
    assert status_of(stepped, CHUNKED + b"1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n") == 200
    assert trailers == [[("X-SUM", "1")]]
    # gunicorn's policy still applies to them.
    stepped = make_stepped(echo, attributes=attributes, header_map="refuse")
    assert status_of(stepped, CHUNKED + b"1\r\na\r\n0\r\nX_Sum: 1\r\n\r\n") == 400


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"Host: a\r\n", 200),
        (b"", 400),
        (b"Host: a b\r\n", 400),
        (b"Host: a\r\nHost: a\r\n", 400),
        (b"Host: a/b\r\n", 400),
    ],
)
def test_host_missing_or_malformed_is_400(
    make_stepped: MakeStepped, host: bytes, status: int
) -> None:
    """RFC 9112, section 3.2"""
    stepped = make_stepped(hello, keepalive=5)
    for _ in range(2):  # also behind a good request
        assert status_of(stepped, b"GET / HTTP/1.1\r\n" + host + b"\r\n") == status
        assert status_of(stepped, GET) == 200
    if status == 400:
        said = [line.startswith("Invalid request from ") for line in stepped.log.lines]
        assert said.count(True) == 2
        assert not stepped.log.errors
    if host.count(b"Host") < 2:  # this rule is gunicorn's own
        lax = make_stepped(hello, keepalive=5, attributes={"check_host": False})
        assert status_of(lax, b"GET / HTTP/1.1\r\n" + host + b"\r\n") == 200
    assert status_of(stepped, b"GET / HTTP/1.0\r\n\r\n") == 200


@pytest.mark.parametrize(
    "header",
    [
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c" + bytes(12),  # version 3
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x01\0",  # no room for its addresses
        b"PROXY TCP4 nonsense 192.0.2.2 1 2\r\n",
    ],
)
def test_malformed_proxy_header_is_400(make_stepped: MakeStepped, header: bytes) -> None:
    stepped = make_stepped(hello, proxy_protocol="auto", proxy_allow_ips="*")
    assert status_of(stepped, header + GET) == 400
    assert not stepped.log.errors
    assert len(stepped.log.lines) == 1


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        ("close", False),
        ("x, close", False),
        ("close, x", False),
        ("x,CLOSE", False),
        ("x\r\nConnection: close", False),
        ("x", True),
        ("keep-alive", True),
        ("closed", True),
    ],
)
def test_close_of_client_ends_connection(
    make_stepped: MakeStepped, options: str, stays: bool
) -> None:
    """The client may say so in several ways (RFC 9110, section 7.6.1)."""
    stepped = make_stepped(hello, keepalive=5)
    client = stepped.begin(f"GET / HTTP/1.1\r\nHost: a\r\nConnection: {options}\r\n\r\n".encode())
    assert client.read_response().keep_alive is stays
    if not stays:
        assert client.read_to_end() == b""


@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (errno.ENOSPC, 503, "A request from .* is not served: There is no room"),
        (errno.EDQUOT, 503, "A request from .* is not served: There is no room"),
        (errno.EIO, 500, "Error handling request"),
    ],
)
@pytest.mark.parametrize("http2", [False, True])
def test_disk_error_is_not_logged_as_the_clients(
    make_stepped: MakeStepped,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    status: int,
    line: str,
    http2: bool,
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", raising(OSError, number, os.strerror(number)))
    stepped = make_stepped(echo, attributes={"body_memory_bytes": 0}, **HTTP2)
    stepped.log.warnings.clear()
    if http2:
        assert Peer(stepped).get("/", "POST", body=b"1234").status == status
    else:
        assert status_of(stepped, HEAD + b"Content-Length: 4\r\n\r\n1234") == status
    assert stepped.server.shared.counters.refused == {status: 1}
    (said,) = stepped.log.warnings
    assert re.search(line, said)


def failing(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    raise ValueError("the app fails")


@pytest.mark.parametrize(
    ("app", "attributes", "fields", "body", "status"),
    [
        (failing, {}, [], b"", 500),
        (echo, {"body_limit_bytes": 3}, [("content-length", "4")], b"1234", 413),
        (echo, {"bodies_on_disk_bytes": 0, "body_memory_bytes": 0},
         [("content-length", "4")], b"1234", 503),
        (echo, {"head_limit_bytes": 500}, [("a", "b" * 500)], b"", 431),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_error_response_is_the_same_over_http2(
    make_stepped: MakeStepped,
    app: Any,
    attributes: dict[str, Any],
    fields: list[tuple[str, str]],
    body: bytes,
    status: int,
    method: str,
) -> None:
    """The response has a Date (RFC 9110, section 6.6.1), and no body for HEAD (section 9.3.2)."""
    stepped = make_stepped(app, attributes=attributes, keepalive=5, **HTTP2)
    lines = "".join(f"{name}: {value}\r\n" for name, value in [("host", "a"), *fields])
    client = stepped.begin(f"{method} / HTTP/1.1\r\n{lines}\r\n".encode() + body)
    received = client.read_to_end()
    start, _, page = received.partition(b"\r\n\r\n")
    first, *rest = start.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    assert headers.pop("connection") == "close"
    peer = Peer(stepped)
    response = peer.get("/", method, headers=fields, body=body or None)
    assert (first.split()[1], response.status) == (str(status), status)
    found = {name: value for name, value in response.headers.items() if name[0] != ":"}
    assert headers.pop("date")[:16] == found.pop("date")[:16]  # the second may have changed
    assert found == headers
    assert response.body == page
    assert bool(page) is (method != "HEAD")
    assert int(headers["content-length"]) > 0
    assert response.ended
    assert not peer.goaways

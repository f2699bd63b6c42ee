"""Requests on a persistent connection over every kind of server: checks of headers and bodies."""

from __future__ import annotations

import io
from collections.abc import Iterator
from http.client import parse_headers
from typing import TYPE_CHECKING, Any, cast
from wsgiref.validate import validator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.calls import raising
from tests.support.http import Connection
from tests.support.wsgi import TEXT, answering
from wsgifast.devservers.request import CheckedLines, RequestBody, check_headers
from wsgifast.errors import ClientGone
from wsgifast.http.chunked import ChunkDecoder, LengthDecoder

from .serving import assert_alive, path_of, router, serve, talking

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

NEXT = b"GET /next HTTP/1.1\r\n"


def test_connection_with_many_requests_answers_each(kind: str) -> None:
    with talking(answering(path_of), kind) as (_, client):
        for number in range(20):
            response = client.request(f"/{number}")
            assert response.body == b"/%d" % number
            assert response.header("Content-Length") == str(len(response.body))
            assert response.keep_alive


def test_server_under_validator_keeps_to_wsgi(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> Iterator[bytes]:
        return iter([environ["wsgi.input"].read(3), environ["wsgi.input"].readline()])

    app = validator(answering(echo))
    with talking(app, kind) as (served, client):
        for _ in range(2):
            assert client.request("/a?b", method="POST", body=b"one\ntwo\n").body == b"one\n"
            assert client.request("/a?b", method="HEAD").status == 200
    assert "Error" not in served.log


def test_absolute_target_is_split(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        names = ("HTTP_HOST", "PATH_INFO", "QUERY_STRING")
        return [" ".join([environ[name] for name in names]).encode("latin-1")]

    with talking(answering(echo), kind) as (_, client):
        for target, expected in [
            ("http://elsewhere:81/a%20b%C3%BC?c=d", b"elsewhere:81 /a b\xc3\xbc c=d"),
            ("HTTP://[::1]:81/?c", b"[::1]:81 / c"),
            ("/http://elsewhere/", b"localhost /http://elsewhere/ "),
        ]:
            assert client.request(target).body == expected


def test_http10_client_with_keep_alive_stays_connected(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        with Connection(served.address) as client:
            response = client.request(version="1.0", headers=[("Connection", "Keep-Alive")])
            assert response.header("Connection") == "keep-alive"
            assert_alive(client)
        with Connection(served.address) as client:
            assert client.request(version="1.0").header("Connection") == "close"
            assert client.read_to_end() == b""


def test_connection_close_is_obeyed_and_sent(kind: str) -> None:
    leaving = answering(path_of, headers=[*TEXT, ("Connection", "close")])
    with serve(router(leaving=leaving), kind) as served:
        for target, headers in [("/", [("Connection", "TE, close")]), ("/leaving", [])]:
            with Connection(served.address) as client:
                response = client.request(target, headers=headers)
                assert response.header("Connection") == "close"
                assert client.read_to_end() == b""


def test_dev_server_answers_pipeline_in_order(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        return [environ["PATH_INFO"].encode(), environ["wsgi.input"].read()]

    with talking(answering(echo), kind) as (_, client):
        for number in range(10):
            client.send_request(f"/{number}", method="POST", body=b"body%d" % number)
        for number in range(10):
            assert client.read_response().body == b"/%dbody%d" % (number, number)


@pytest.mark.parametrize("chunked", [False, True])
def test_unread_body_does_not_become_a_request(kind: str, chunked: bool) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    with talking(answering(path_of), kind) as (served, client):
        for _ in range(3):
            headers = [("Transfer-Encoding", "chunked")] if chunked else []
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(smuggled), smuggled) if chunked else smuggled
            response = client.request("/outer", method="POST", headers=headers, body=body)
            assert (response.body, response.keep_alive) == (b"/outer", True)
        assert_alive(client)
    assert "smuggled" not in served.log


def test_large_unread_body_closes_after_the_response(kind: str) -> None:
    app = answering(path_of, "413 Content Too Large")
    with talking(app, kind) as (_, client):
        # The client sends all of it before it reads the response, like http.client.
        response = client.request("/big", method="POST", body=b"x" * 20_000_000)
        assert (response.status, response.header("Connection")) == (413, "close")
        assert client.read_to_end() == b""


def test_chunked_request_is_decoded(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        assert "HTTP_TRANSFER_ENCODING" not in environ
        return [environ["wsgi.input"].read()]

    wire = b"3;x=y\r\nabc\r\n" + b"2\r\nde\r\n" + b"0\r\nX-Sum: t\r\n\r\n"
    with talking(router(echo=answering(echo)), kind) as (_, client):
        headers = [("Transfer-Encoding", "chunked")]
        response = client.request("/echo", method="POST", headers=headers, body=wire)
        assert response.body == b"abcde"
        assert_alive(client)
        response = client.request("/echo", method="POST", headers=headers, body=b"x\r\n")
        assert response.status in (400, 500), str(response)
        assert client.read_to_end() == b""


def test_malformed_unread_chunks_end_the_connection(kind: str) -> None:
    with talking(answering(path_of), kind) as (served, client):
        headers = [("Transfer-Encoding", "chunked")]
        smuggled = b"x\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        response = client.request("/outer", method="POST", headers=headers, body=smuggled)
        assert response.body == b"/outer"
        assert client.read_to_end() == b""
    assert "smuggled" not in served.log


AMBIGUOUS = [
    b"",
    b"Host: a\r\nHost: b\r\n",
    b"Host: a/b\r\n",
    b"Host: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n",
    b"Host: a\r\nContent-Length: 1, 1\r\n",
    b"Host: a\r\nContent-Length: +1\r\n",
    b"Host: a\r\nContent-Length: 1_0\r\n",
    b"Host: a\r\nContent-Length: -1\r\n",
    b"Host: a\r\nContent-Length:\r\n",
    b"Host: a\r\nContent-Length: \xb2\r\n",
    b"Host: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
    b"Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length : 1\r\n",
    b"Host: a\r\nno header at all\r\nContent-Length: 1\r\n",
    b"Host: a\r\n: nameless\r\n",
    b"From here\r\nHost: a\r\n",
    b"Host: a\r\nFrom here\r\n",
    b"Host: a\r\nX: 1\rContent-Length: 5\r\n",
    b"Host: a\r\nX: 1\0\r\n",
    b"Host: a\r\nX: 1\r\n folded\r\n",
]
CODINGS = [b"gzip", b"gzip, chunked", b"chunked, chunked", b"identity"]
LINES = [b"GET /", b"GET  / HTTP/1.1", b"GET /\x0bHTTP/1.1", b"G(T / HTTP/1.1", b"GET / HTTP/1.11"]
BROKEN = [
    *[(b"POST / HTTP/1.1\r\n" + headers, 400) for headers in AMBIGUOUS],
    *[(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: %b\r\n" % c, 501) for c in CODINGS],
    *[(line + b"\r\nHost: a\r\n", 400) for line in LINES],
    (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4x\r\n", 400),
    (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n", 414),
    (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n", 431),
    (b"GET / HTTP/3.0\r\n", 505),
    (b"nonsense\r\n", 400),
    (b"GET http://[ HTTP/1.1\r\nHost: a\r\n", 400),
    (b"GET http://host:port/ HTTP/1.1\r\nHost: a\r\n", 400),
    (b"GET http://host:99999/ HTTP/1.1\r\nHost: a\r\n", 400),
    (b"GET http://[ HTTP/1.1\r\nno header\r\n", 400),
    (b"GET http://host:port/ HTTP/1.1\r\n" + b"X: 1\r\n" * 200, 431),
]


def test_broken_request_gets_status_and_ends(kind: str) -> None:
    with serve(answering(raising(AssertionError, "the app was called")), kind) as served:
        for headers, status in BROKEN:
            with Connection(served.address) as client:
                client.send(headers + b"\r\n" + b"GET /smuggled HTTP/1.1\r\n")
                response = client.read_response()
                seen = (response.status, response.header("Connection"))
                assert seen == (status, "close"), f"{headers[:100]!r}: {response}"
                assert client.read_to_end() == b"", headers[:100]
    assert "smuggled" not in served.log
    assert "Traceback" not in served.log


def test_empty_line_before_a_request_is_skipped(kind: str) -> None:
    with talking(answering(path_of), kind) as (_, client):
        client.send(b"\r\n")
        assert_alive(client)


def test_continue_is_sent_before_the_body(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        return [environ["wsgi.input"].read(5)]

    length = ("Content-Length", "5")
    # White space does not end a value (section 5.1)
    headers = [("Expect", "100-Continue \t"), length]
    with talking(router(echo=answering(echo)), kind) as (_, client):
        client.send_request("/echo", method="POST", headers=headers)
        assert client.read_response().status == 100
        client.send(b"hello")
        assert client.read_response().body == b"hello"
        # The app responds without reading: the server skips the body.
        client.send_request("/unread", method="POST", headers=headers)
        assert [client.read_response().status for _ in range(2)] == [100, 200]
        client.send(b"hello")
        assert_alive(client)
        # Expectations that a server need not meet (RFC 9110, section 10.1.1).
        for ignored, version in (("100-continue", "1.0"), ("tea", "1.1")):
            headers = [("Expect", ignored), length, ("Connection", "keep-alive")]
            client.send_request(
                "/echo", method="POST", headers=headers, body=b"hello", version=version
            )
            assert client.read_response().body == b"hello"
        assert_alive(client)


def checked(headers: bytes, line: str = "POST / HTTP/1.1") -> int | None:
    lines = cast(Any, CheckedLines(io.BytesIO(headers + b"\r\n")))
    return check_headers(line, parse_headers(lines))


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        (b"Host: a\r\n", 0),
        (b"Host: a\r\nContent-Length: 12\r\n", 12),
        (b"Host: a\r\nTransfer-Encoding: Chunked\r\n", None),
        (b"Host: a\nContent-Length: 7\n", 7),
        # A parser of mail would expect parts after these two, which a request does not have.
        (
            b"Host: a\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 7\r\n",
            7,
        ),
        (b"Host: a\r\nContent-Type: message/http\r\nContent-Length: 7\r\n", 7),
    ],
)
def test_headers_with_framing_give_the_end_of_the_body(headers: bytes, length: int | None) -> None:
    assert checked(headers) == length


def test_headers_that_are_cut_off_raise() -> None:
    lines = CheckedLines(io.BytesIO(b"Host: a\r\nContent-Le"))
    assert lines.readline() == b"Host: a\r\n"
    with pytest.raises(EOFError):
        lines.readline()


def test_header_with_underscore_is_removed() -> None:
    lines = cast(Any, CheckedLines(io.BytesIO(b"Host: a\r\nX_Real_Ip: 1\r\nX-A: 2\r\n\r\n")))
    headers = parse_headers(lines)
    check_headers("GET / HTTP/1.1", headers)
    assert headers.keys() == ["Host", "X-A"]


class Pieces(io.RawIOBase):
    """The input of a connection that arrives in pieces of a given size."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._data[: min(self._size, len(buffer))]
        self._data = self._data[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)


def received(data: bytes, length: int | None, size: int = 1 << 16) -> tuple[RequestBody, Any]:
    stream = io.BufferedReader(cast(Any, Pieces(data, size)))
    decoder = ChunkDecoder(line_limit=4096) if length is None else LengthDecoder(length)
    return RequestBody(cast(Any, stream), decoder), stream


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=70), max_size=5),
    extension=st.sampled_from([b"", b";a=b", b" ;x"]),
    trailer=st.sampled_from([b"", b"X: y\r\n"]),
    size=st.sampled_from([1, 2, 7, 1 << 16]),
)
def test_body_is_read_to_its_end_and_the_rest_is_left(
    chunks: list[bytes], extension: bytes, trailer: bytes, size: int
) -> None:
    whole = b"".join(chunks)
    wire = b"".join(b"%X%s\r\n%s\r\n" % (len(c), extension, c) for c in chunks)
    for sent, length in ((wire + b"0\r\n" + trailer + b"\r\n", None), (whole, len(whole))):
        body, stream = received(sent + NEXT, length, size)
        assert io.BufferedReader(body).read() == whole
        assert body.at_end
        assert stream.read() == NEXT


@pytest.mark.parametrize(
    ("wire", "length"), [(b"abc", 5), (b"5\r\nabc", None), (b"5\r\nhello\r\n", None), (b"5", None)]
)
def test_body_of_a_client_that_leaves_raises(wire: bytes, length: int | None) -> None:
    body, _ = received(wire, length)
    with pytest.raises(ClientGone):
        io.BufferedReader(body).read()


def test_unread_rest_is_skipped_up_to_a_limit() -> None:
    body, stream = received(b"x" * 10 + NEXT, 10)
    assert not body.skip(9)
    assert body.skip(10)
    assert stream.read() == NEXT
    body, stream = received(b"5\r\nhello\r\n5\r\nhello\r\n0\r\n\r\n" + NEXT, None)
    assert not body.skip(6)
    assert body.skip(10)
    assert stream.read() == NEXT


def test_body_after_finish_cannot_be_read() -> None:
    body, stream = received(b"hello" + NEXT, 5)
    buffered = io.BufferedReader(body)
    body.finish()
    with pytest.raises(ValueError, match="over"):
        buffered.read()
    assert body.skip(5)
    assert stream.read() == NEXT

"""Requests on a persistent connection, over every kind of development server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from wsgiref.validate import validator

import pytest

from tests.support.http import Connection

from .apps import TEXT, answering, assert_alive, each_kind, path_of, router
from .serving import serve

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


@each_kind
def test_many_requests_on_one_connection(kind: str) -> None:
    with serve(answering(path_of), kind) as served, Connection(served.address) as client:
        for number in range(20):
            response = client.request(f"/{number}")
            assert response.body == b"/%d" % number
            assert response.header("Content-Length") == str(len(response.body))
            assert response.keep_alive


@each_kind
def test_the_server_keeps_to_wsgi(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> Iterator[bytes]:
        return iter([environ["wsgi.input"].read(3), environ["wsgi.input"].readline()])

    app = validator(answering(echo))
    with serve(app, kind) as served, Connection(served.address) as client:
        for _ in range(2):
            assert client.request("/a?b", method="POST", body=b"one\ntwo\n").body == b"one\n"
            assert client.request("/a?b", method="HEAD").status == 200
    assert "Error" not in served.log


@each_kind
def test_an_absolute_target_is_split(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        names = ("HTTP_HOST", "PATH_INFO", "QUERY_STRING")
        return [" ".join([environ[name] for name in names]).encode("latin-1")]

    with serve(answering(echo), kind) as served, Connection(served.address) as client:
        for target, expected in [
            ("http://elsewhere:81/a%20b%C3%BC?c=d", b"elsewhere:81 /a b\xc3\xbc c=d"),
            ("HTTP://[::1]:81/?c", b"[::1]:81 / c"),
            ("/http://elsewhere/", b"localhost /http://elsewhere/ "),
        ]:
            assert client.request(target).body == expected


@each_kind
def test_an_old_client_may_ask_to_stay(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        with Connection(served.address) as client:
            response = client.request(version="1.0", headers=[("Connection", "Keep-Alive")])
            assert response.header("Connection") == "keep-alive"
            assert_alive(client)
        with Connection(served.address) as client:
            assert client.request(version="1.0").header("Connection") == "close"
            assert client.read_to_end() == b""


@each_kind
def test_close_is_heard_and_said(kind: str) -> None:
    leaving = answering(path_of, headers=[*TEXT, ("Connection", "close")])
    with serve(router(leaving=leaving), kind) as served:
        for target, headers in [("/", [("Connection", "TE, close")]), ("/leaving", [])]:
            with Connection(served.address) as client:
                response = client.request(target, headers=headers)
                assert response.header("Connection") == "close"
                assert client.read_to_end() == b""


@each_kind
def test_pipelined_requests_are_answered_in_order(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        return [environ["PATH_INFO"].encode(), environ["wsgi.input"].read()]

    with serve(answering(echo), kind) as served, Connection(served.address) as client:
        for number in range(10):
            client.send_request(f"/{number}", method="POST", body=b"body%d" % number)
        for number in range(10):
            assert client.read_response().body == b"/%dbody%d" % (number, number)


@each_kind
@pytest.mark.parametrize("chunked", [False, True])
def test_an_unread_request_body_does_not_become_a_request(kind: str, chunked: bool) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    with serve(answering(path_of), kind) as served, Connection(served.address) as client:
        for _ in range(3):
            headers = [("Transfer-Encoding", "chunked")] if chunked else []
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(smuggled), smuggled) if chunked else smuggled
            response = client.request("/outer", method="POST", headers=headers, body=body)
            assert (response.body, response.keep_alive) == (b"/outer", True)
        assert_alive(client)
    assert "smuggled" not in served.log


@each_kind
def test_a_large_unread_body_closes_and_the_answer_still_arrives(kind: str) -> None:
    app = answering(path_of, "413 Content Too Large")
    with serve(app, kind) as served, Connection(served.address) as client:
        # Sent whole before the answer is read, as http.client does.
        response = client.request("/big", method="POST", body=b"x" * 20_000_000)
        assert (response.status, response.header("Connection")) == (413, "close")
        assert client.read_to_end() == b""


@each_kind
def test_a_chunked_request_is_decoded(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        assert "HTTP_TRANSFER_ENCODING" not in environ
        return [environ["wsgi.input"].read()]

    wire = b"3;x=y\r\nabc\r\n" + b"2\r\nde\r\n" + b"0\r\nX-Sum: t\r\n\r\n"
    with serve(router(echo=answering(echo)), kind) as served, Connection(served.address) as client:
        headers = [("Transfer-Encoding", "chunked")]
        response = client.request("/echo", method="POST", headers=headers, body=wire)
        assert response.body == b"abcde"
        assert_alive(client)
        response = client.request("/echo", method="POST", headers=headers, body=b"x\r\n")
        assert response.status in (400, 500), str(response)
        assert client.read_to_end() == b""


@each_kind
def test_malformed_chunks_that_nobody_reads_end_the_connection(kind: str) -> None:
    with serve(answering(path_of), kind) as served, Connection(served.address) as client:
        headers = [("Transfer-Encoding", "chunked")]
        smuggled = b"x\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        response = client.request("/outer", method="POST", headers=headers, body=smuggled)
        assert response.body == b"/outer"
        assert client.read_to_end() == b""
    assert "smuggled" not in served.log


@each_kind
def test_doubtful_framing_is_refused_and_ends_the_connection(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        for head in (
            b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            b"Content-Length: 4\r\nContent-Length: 5\r\n",
            b"Content-Length: 4x\r\n",
            b"not a header\r\nContent-Length: 4\r\n",
            b"Folded: a\r\n b\r\n",
            b"X: a\rb\r\n",
        ):
            with Connection(served.address) as client:
                whole = b"POST / HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n"
                client.send(whole + b"GET /smuggled HTTP/1.1\r\n")
                response = client.read_response()
                assert (response.status, response.header("Connection")) == (400, "close"), head
                assert client.read_to_end() == b"", head
            assert "smuggled" not in served.log, head
    assert "smuggled" not in served.log


@each_kind
def test_broken_requests_get_a_status(kind: str) -> None:
    with serve(answering(path_of), kind) as served:
        for wire, status in (
            (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
            (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
            (b"GET / HTTP/3.0\r\n\r\n", 505),
            (b"GET /\r\n\r\n", 400),
            (b"nonsense\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417),
            (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        ):
            with Connection(served.address) as client:
                client.send(wire)
                assert client.read_response().status == status, wire[:100]
                assert client.read_to_end() == b"", wire[:100]


@each_kind
def test_one_empty_line_before_a_request_is_forgiven(kind: str) -> None:
    with serve(answering(path_of), kind) as served, Connection(served.address) as client:
        client.send(b"\r\n")
        assert_alive(client)


@each_kind
def test_100_continue_is_sent_when_the_app_reads(kind: str) -> None:
    def echo(environ: WSGIEnvironment) -> list[bytes]:
        return [environ["wsgi.input"].read(5)]

    headers = [("Expect", "100-continue"), ("Content-Length", "5")]
    with serve(router(echo=answering(echo)), kind) as served:
        with Connection(served.address) as client:
            client.send_request("/echo", method="POST", headers=headers)
            assert client.read_response().status == 100
            client.send(b"hello")
            assert client.read_response().body == b"hello"
            assert_alive(client)
        with Connection(served.address) as client:  # the app answers without reading
            client.send_request("/refused", method="POST", headers=headers)
            response = client.read_response()
            assert (response.status, response.header("Connection")) == (200, "close")
            assert client.read_to_end() == b""


@each_kind
def test_100_continue_never_stands_inside_a_response(kind: str) -> None:
    def late(environ: WSGIEnvironment) -> Iterator[bytes]:
        yield b"first "
        yield environ["wsgi.input"].read(5)

    headers = [("Expect", "100-continue"), ("Content-Length", "5")]
    with serve(answering(late), kind) as served, Connection(served.address) as client:
        client.send_request(method="POST", headers=headers, body=b"hello")
        assert client.read_response().body == b"first hello"
        assert client.read_to_end() == b""

"""Responses byte by byte: framing, keep-alive, and bodies of another length than they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.server.connections import MakeStepped, responses
from tests.server.responses import Ask, Headers, Received, segmented
from tests.support.calls import raising, recorded
from tests.support.wsgi import exc_info
from wsgifast import BodyError
from wsgifast.errors import ClientGone
from wsgifast.http.fields import HOP_BY_HOP
from wsgifast.server.output import OutputQueue


def test_status_without_a_body_has_no_framing(ask: Ask) -> None:
    """RFC 9110 section 8.6: with a length only where a GET would have had that."""
    for status, method, stays in (
        ("204 No Content", "GET", False),
        ("304 Not Modified", "GET", True),
        ("200 OK", "HEAD", True),
        ("204 No Content", "HEAD", False),
    ):
        for body in ([b"body"], iter([b"bo", b"dy"]), segmented([b"body"])):
            received = ask(
                responses(body, ("Content-Length", "4"), ("X", "1"), status=status), method
            )
            length = ["Content-Length: 4"] if stays else []
            assert received.headers[1:] == ["Connection: keep-alive", "X: 1", *length]
            assert received.body == b""
            assert not received.is_closed
            assert not received.stepped.log.says("Content-Length is")


def test_dropped_body_is_logged_once(ask: Ask) -> None:
    received = ask(responses(iter([b"", b"bo", b"dy"]), status="204 No Content"))
    text = "GET /: the body is dropped: 204 responses have none (RFC 9110 6.4.1)"
    assert received.warnings == [text]
    assert not ask(responses([b""], status="304 Not Modified")).warnings
    # Most apps respond to HEAD like to GET. A correct length needs no warning.
    assert not ask(responses([b"body"]), "HEAD").warnings


def test_client_gone_of_another_request_is_an_error(ask: Ask) -> None:
    received = ask(raising(ClientGone, "in the middle of another request's body"))
    assert received.failed
    assert received.stepped.log.says("Error handling request")


@pytest.mark.parametrize(("method", "status"), [("HEAD", "200 OK"), ("GET", "204 No Content")])
def test_endless_write_without_body_ends_in_ten_s(
    make_stepped: MakeStepped, method: str, status: str
) -> None:
    """The server sends no byte from which the app could learn that its client has left."""
    written = 0

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        nonlocal written
        write = start_response(status, [])
        for _ in range(100):
            write(b"to nobody")
            written += 1
            stepped.clock.now += 1
        return []

    stepped = make_stepped(app, keepalive=5)
    client = stepped.connect()
    client.run_request(method=method)
    assert written == 11  # the headers are sent with the first block
    received = Received(stepped, client)
    assert received.raw.startswith(b"HTTP/1.1 20")
    assert received.is_closed
    assert not stepped.log.failures
    assert not stepped.log.says("Error handling request")


@pytest.mark.parametrize(
    ("version", "headers", "asks", "stays"),
    [
        ("1.1", [], [], True),
        ("1.1", [("Content-Length", "4")], [], True),
        ("1.1", [], [("Connection", "close")], False),
        ("1.0", [("Content-Length", "4")], [], False),
        ("1.0", [("Content-Length", "4")], [("Connection", "keep-alive")], True),
        ("1.0", [], [("Connection", "keep-alive")], False),
    ],
)
def test_connection_stays_open_with_a_known_end(
    ask: Ask, version: str, headers: Headers, asks: Headers, stays: bool
) -> None:
    for body in ([b"bo", b"dy"], iter([b"bo", b"dy"]), segmented([b"bo", b"dy"])):
        received = ask(responses(body, *headers), version=version, headers=asks)
        assert f"Connection: {'keep-alive' if stays else 'close'}" in received.headers
        chunked = "Transfer-Encoding: chunked" in received.headers
        assert chunked == (version == "1.1" and not headers)
        assert received.body == (b"2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n" if chunked else b"body")
        assert received.is_closed is not stays
        assert received.stepped.log.requests == [("GET /", "200 OK", 4)]


@pytest.mark.parametrize("chunked", [True, False])
def test_empty_blocks_are_not_sent(ask: Ask, chunked: bool) -> None:
    headers = [] if chunked else [("Content-Length", "2")]
    expected = b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n" if chunked else b"ab"
    blocks = [b"", b"a", b"", b"b", b""]
    assert ask(responses(iter(blocks), *headers)).body == expected
    assert ask(responses(blocks, *headers)).body == expected
    assert ask(responses(segmented([*blocks]), *headers)).body == expected


def test_block_of_a_subclass_is_sent_by_its_bytes(ask: Ask) -> None:
    class Longer(bytes):
        def __len__(self) -> int:
            return 99

        def __getitem__(self, key: Any) -> Any:
            return b"x" * 99

        def __bytes__(self) -> bytes:
            return b"y"

    block = Longer(b"body")
    for wrapped in (list, tuple, iter, segmented):
        for blocks in ([block], [b"", block]):
            assert ask(responses(wrapped(blocks))).body == b"4\r\nbody\r\n0\r\n\r\n"
            assert ask(responses(wrapped(blocks), ("Content-Length", "3"))).body == b"bod"


def test_empty_body_is_framed(ask: Ask) -> None:
    for body in ([], [b""], (), iter([]), iter([b""]), segmented([])):
        assert ask(responses(body)).body == b"0\r\n\r\n"
    for body in ([], [b""], (), iter([]), iter([b""]), segmented([])):
        received = ask(responses(body, ("Content-Length", "0")))
        assert received.body == b""
        assert len(received.headers) == 3


def test_headers_wait_for_the_first_byte(ask: Ask) -> None:
    """An app may replace its headers until then (PEP 3333)."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b""
        start_response("503 Later", [("Content-Length", "5")], exc_info())
        yield b"sorry"

    assert ask(app).headers[0] == "HTTP/1.1 503 Later"


def test_head_request_gets_headers_at_the_first_write(
    make_stepped: MakeStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [("Content-Length", "4")])
        write(b"bo")
        seen.append(client.receive_all_there_is())
        return [b"dy"]

    written = recorded(monkeypatch, OutputQueue, "write", lambda _, data: data)
    stepped = make_stepped(app)
    client = stepped.connect()
    client.run_request(method="HEAD")
    assert seen[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"".join(written) == seen[0]


def test_written_and_returned_blocks_are_one_body(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [("Content-Length", "9")])
        write(b"one")
        write(b"")
        write(b"two")
        return [b"end"] if environ["REQUEST_METHOD"] == "GET" else segmented([b"end"])

    for method in ("GET", "POST"):
        received = ask(app, method)
        assert received.body == b"onetwoend"
        assert not received.is_closed
        assert received.stepped.log.requests == [(f"{method} /", "200 OK", 9)]


@pytest.mark.parametrize("kind", [list, iter, segmented])
def test_body_longer_than_its_length_is_cut(ask: Ask, kind: Callable[..., Any]) -> None:
    received = ask(responses(kind([b"abc", b"defg", b"hi"]), ("Content-Length", "5")))
    assert received.body == b"abcde"
    assert not received.is_closed
    assert received.stepped.log.requests == [("GET /", "200 OK", 5)]
    assert received.warnings == ["GET /: the body is longer than its Content-Length, 5: it is cut"]


@pytest.mark.parametrize("kind", [list, iter, segmented])
@pytest.mark.parametrize("blocks", [[], [b"abc"]])
def test_body_shorter_than_length_ends_connection(
    ask: Ask, kind: Callable[..., Any], blocks: list[bytes]
) -> None:
    received = ask(responses(kind(blocks), ("Content-Length", "5")))
    body = b"".join(blocks)
    assert received.body == body
    assert received.is_closed
    assert received.warnings == [
        f"GET /: the body has {len(body)} bytes, and its Content-Length is 5"
    ]


@pytest.mark.parametrize(
    ("status", "method"), [("200 OK", "GET"), ("200 OK", "HEAD"), ("204 No Content", "GET")]
)
def test_blocks_beyond_the_length_are_not_requested(ask: Ask, status: str, method: str) -> None:
    """PEP 3333, "Handling the Content-Length Header". The surplus may be endless."""
    closed: list[int] = []

    def endless() -> Iterator[bytes]:
        made = 0
        try:
            while made < 1000:
                made += 1
                yield b"abc"
        finally:
            closed.append(made)

    length = [("Content-Length", "5")] if method == "GET" and status == "200 OK" else []
    received = ask(responses(endless(), *length, status=status), method)
    assert received.body == (b"abcab" if length else b"")
    assert closed == [2 if length else 1]
    assert not received.is_closed


def test_last_block_of_known_length_is_not_delayed(make_stepped: MakeStepped) -> None:
    seen: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "3")])
        for block in (b"1", b"2", b"3"):
            yield block
            seen.append(client.receive_all_there_is()[-2:])

    stepped = make_stepped(app)
    stepped.hold_blocks_back()
    client = stepped.connect()
    client.run_request()
    assert seen == [b"\n1", b"", b"23"]


def test_early_hints_are_checked_and_sent_first(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        hint = environ["wsgi.early_hints"]
        of_the_server = [(name.title(), "5") for name in (*HOP_BY_HOP, "content-length")]
        hint([("Link", " </a>; rel=preload\t"), (b"link", b"</b>; rel=preload"), *of_the_server])
        hint(of_the_server)
        for wrong in ([("Li nk", "a")], [("Link", "a\r\nX: 1")], [(b"Link", b"a\nX: 1")]):
            if environ["SERVER_PROTOCOL"] == "HTTP/1.0":
                hint(wrong)  # not checked
                continue
            with pytest.raises(BodyError):
                hint(wrong)
        start_response("200 OK", [("Content-Length", "2")])
        yield b"o"
        hint([("Link", "too late")])
        yield b"k"

    received = ask(app)
    assert received.raw.startswith(
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nlink: </b>; rel=preload\r\n\r\n"
        b"HTTP/1.1 200 OK\r\n"
    )
    assert received.raw.endswith(b"\r\n\r\nok")
    assert b"103" not in ask(app, version="1.0").raw


@pytest.mark.parametrize("swallows", [True, False])
def test_endless_write_ends_at_the_content_length(ask: Ask, swallows: bool) -> None:
    """PEP 3333, "Handling the Content-Length Header": write() beyond it raises."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [("Content-Length", "5")])
        try:
            while True:
                write(b"123")
        except BodyError:
            if not swallows:
                raise
        return []

    received = ask(app)
    assert received.body == b"12312"
    assert received.stepped.log.requests == [("GET /", "200 OK", 5)]
    complaints = received.warnings + [str(error) for error in received.stepped.log.errors]
    logged = [each for each in complaints if "longer than its Content-Length, 5" in each]
    assert len(logged) == 1
    assert received.stepped.log.says("Error handling request GET /") is not swallows
    assert received.is_closed is not swallows


def test_write_beyond_the_length_of_head_is_accepted(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [("Content-Length", "4")])
        write(b"body")
        write(b"more")
        return []

    received = ask(app, "HEAD")
    assert (received.headers[0], received.body) == ("HTTP/1.1 200 OK", b"")

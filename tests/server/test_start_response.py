"""start_response, byte by byte: its rules, what is refused, and the head that it makes."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.connections import answers
from tests.server.responses import Ask, exc_info, segmented
from wsgifast import BodyError
from wsgifast.server.response import HeaderLines, Response


def test_error_replaces_an_unsent_head(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", "100"), ("X-First", "1")])
        start_response("503 Later", [("X-Second", "1")], exc_info())
        return [b"sorry"]

    asked = ask(app)
    assert asked.head == [
        "HTTP/1.1 503 Later", "Connection: keep-alive", "X-Second: 1", "Transfer-Encoding: chunked",
    ]  # fmt: skip
    assert asked.body == b"5\r\nsorry\r\n0\r\n\r\n"
    assert not asked.is_closed


def test_error_replaces_an_upgrade(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("101 Switching", [("Upgrade", "websocket"), ("Connection", "upgrade")])
        start_response("503 Later", [("Content-Length", "0")], exc_info())
        return []

    assert ask(app).head == ["HTTP/1.1 503 Later", "Connection: keep-alive", "Content-Length: 0"]


def test_error_after_the_head_is_raised_again(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"some"
        with pytest.raises(ValueError, match="the app's own"):
            start_response("503 Later", [], exc_info())
        yield b"more"

    assert ask(app).body == b"4\r\nsome\r\n4\r\nmore\r\n0\r\n\r\n"


def test_exc_info_in_the_first_call_is_accepted(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("503 Later", [("Content-Length", "0")], exc_info())
        return []

    assert ask(app).head[0] == "HTTP/1.1 503 Later"


class Again:
    def __init__(self, blocks: list[Any]) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[Any]:
        return iter(self._blocks)


WRONG: dict[str, Callable[..., Any]] = {
    "bytes for a status": answers((), status=b"200 OK"),
    "bytes for a name": answers((), (b"X", "1")),
    "a number for a value": answers((), ("X", 1)),
    "a value with a line end": answers((), ("X", "1\r\nY: 1")),
    "a length with a sign": answers((), ("Content-Length", "+5")),
    "two lengths": answers([b"a"], ("Content-Length", "1"), ("Content-Length", "2")),
    "an interim status": answers((), status="103 Early Hints"),
    "a number for a hop-by-hop value": answers((), ("Connection", 1)),
    "a hop-by-hop value with a line end": answers((), ("Connection", "close\r\nX: 1")),
    "a list of a bytearray": answers([bytearray(b"text")]),
    "an iterator of a bytearray": answers(Again([bytearray(b"text")])),
    "a list of a string": answers(["text"]),
    "an iterator of a string": answers(Again(["text"])),
    "no start_response, a list": lambda environ, start_response: [b"a"],
    "no start_response, an empty list": lambda environ, start_response: [],
    "no start_response, an iterator": lambda environ, start_response: iter([b"a"]),
    "no start_response, nothing at all": lambda environ, start_response: iter([b""]),
    "no start_response, segments": lambda environ, start_response: segmented([b"a"]),
    "start_response twice": lambda environ, start_response: [
        b"" for _ in range(2) if start_response("200 OK", [])
    ],
    "a block before start_response": lambda environ, start_response: (
        block for block in (b"a", b"b") if block == b"a" or start_response("200 OK", [])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_violation_of_pep_3333_is_a_500(ask: Ask, name: str) -> None:
    asked = ask(WRONG[name])
    assert asked.failed, asked.raw
    assert b"\r\nX: 1" not in asked.raw
    assert asked.bench.log.says("Error handling request GET /")
    if name.startswith(("bytes for", "a number for")):
        assert "give a str" in str(asked.bench.log.errors[0])


def test_refused_value_is_not_logged(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """It may be a secret; its name is not."""
    errors: list[Exception] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            start_response("200 OK", [("Set-Cookie", "s3cret\n")])
        except Exception as error:
            errors.append(error)
            raise
        return []

    assert ask(app).failed
    assert "s3cret" not in str(errors[0])
    assert "Set-Cookie" in str(errors[0])


def test_header_values_are_trimmed_and_kept(ask: Ask) -> None:
    headers = [("X", " \tpadded\t "), ("Y", "tab\tinside"), ("Z", "\xfc\xa0"), ("E", "")]
    asked = ask(answers([b"ok"], *headers, ("content-length", " 2 ")))
    assert asked.head[2:] == [
        "X: padded", "Y: tab\tinside", "Z: \xfc\xa0", "E: ", "Content-Length: 2",
    ]  # fmt: skip
    assert asked.body == b"ok"


def test_status_without_a_phrase_is_sent(ask: Ask) -> None:
    assert ask(answers((), ("Content-Length", "0"), status="299")).head[0] == "HTTP/1.1 299 "


def test_hop_by_hop_headers_of_the_app_are_dropped(ask: Ask) -> None:
    hops = [("Keep-Alive", "timeout=1"), ("Transfer-Encoding", "gzip"), ("Upgrade", "h2c")]
    asked = ask(answers((), *hops, ("Content-Length", "0")))
    assert asked.head[1:] == ["Connection: keep-alive", "Content-Length: 0"]
    assert not asked.is_closed


def test_date_and_server_are_sent_once(ask: Ask) -> None:
    own = [("Date", "Thu, 01 Jan 1970 00:00:00 GMT"), ("server", "mine"), ("Content-Length", "0")]
    head = ask(answers((), *own)).raw.decode("latin-1")
    assert head.count("Date: ") == head.lower().count("server: ") == 1
    assert "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nserver: mine\r\n" in head
    head = ask(answers((), *own[2:])).raw.decode("latin-1")
    assert head.count("Date: ") == head.count("Server: gunicorn\r\n") == 1


def test_connection_close_of_the_app_ends_the_connection(ask: Ask) -> None:
    asked = ask(answers((), ("Connection", "close"), ("Content-Length", "0")))
    assert asked.head[1:] == ["Connection: close", "Content-Length: 0"]
    assert asked.is_closed


def test_websocket_handshake_is_sent(ask: Ask) -> None:
    headers = [("Upgrade", " websocket "), ("Connection", " Upgrade ")]
    asked = ask(answers((), *headers, status="101 Switching Protocols"))
    assert asked.head == [
        "HTTP/1.1 101 Switching Protocols", "Connection: upgrade", "Upgrade: websocket",
    ]  # fmt: skip
    assert asked.body == b""


def test_date_is_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [1.0, 1.9, 2.0, 2.0]
    monkeypatch.setattr("time.time", lambda: seconds.pop(0))
    header_lines = HeaderLines()
    first = header_lines.date()
    assert first == "Thu, 01 Jan 1970 00:00:01 GMT"
    assert header_lines.date() is first
    second = header_lines.date()
    assert second == "Thu, 01 Jan 1970 00:00:02 GMT"
    assert header_lines.date() is second


def test_header_lines_are_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 1.0
    monkeypatch.setattr("time.time", lambda: seconds)
    header_lines = HeaderLines()
    lines = header_lines.get("server", "close", dates=True)
    assert lines == (
        "Server: server\r\nDate: Thu, 01 Jan 1970 00:00:01 GMT\r\nConnection: close\r\n"
    )
    assert header_lines.get("server", "close", dates=True) is lines
    assert header_lines.get(None, "keep-alive", dates=False) == "Connection: keep-alive\r\n"
    assert header_lines.get("server", "close", dates=True) is lines
    seconds = 2.0
    assert "00:00:02" in header_lines.get("server", "close", dates=True)


def test_replaced_error_is_not_kept_alive(ask: Ask) -> None:
    """Not by the frame that it went through, until the cycle collector comes."""
    errors: list[weakref.ref[Exception]] = []

    class Own(Exception):
        pass

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"some"
        try:
            raise Own
        except Own as error:
            errors.append(weakref.ref(error))
            with contextlib.suppress(Own):
                start_response("503 Later", [], sys.exc_info())

    gc.disable()
    try:
        assert ask(app).body == b"4\r\nsome\r\n0\r\n\r\n"
        assert errors[0]() is None
    finally:
        gc.enable()


def test_start_response_at_the_first_byte_is_in_time(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        yield b""
        start_response("200 OK", [])
        yield b"a"

    assert ask(app).body == b"1\r\na\r\n0\r\n\r\n"


# A response on its own.


def make_response() -> Any:
    req = SimpleNamespace(method="GET", version=(1, 1), should_close=lambda: False)
    output: Any = None
    return Response(req, output, SimpleNamespace(server_name="server", sends_chunks=True))


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (200, [], r"status is 200; give a str such as '200 OK'"),
        ("103 Early Hints", [], r"give a final status"),
        ("200 OK", [("X-A", 42)], r"X-A has a value of type int; give a str"),
        ("200 OK", [("Content-Length", "1"), ("Content-Length", "2")], r"set to 1 and to '2'"),
    ],
)
def test_head_that_cannot_be_sent_says_why(status: Any, headers: Any, says: str) -> None:
    with pytest.raises(BodyError, match=says):
        make_response().start_response(status, headers)


def test_call_in_the_wrong_order_says_why() -> None:
    response = make_response()
    with pytest.raises(BodyError, match="a body before it called start_response"):
        response.write(b"x")
    with pytest.raises(BodyError, match="without calling start_response"):
        response.write_all([b"x"])
    with pytest.raises(BodyError, match="without calling start_response"):
        response.close()
    response.start_response("200 OK", [])
    with pytest.raises(BodyError, match="start_response twice without exc_info"):
        response.start_response("200 OK", [])


def test_exc_info_without_an_error_is_refused_once_the_head_is_sent() -> None:
    response = make_response()
    response.start_response("200 OK", [])
    response.start_response("503 Later", [], (None, None, None))
    response.headers_sent = True
    with pytest.raises(BodyError, match="inside the except block"):
        response.start_response("503 Later", [], (None, None, None))


@pytest.mark.parametrize("block", ["text", 1, None])
def test_block_that_is_no_bytes_says_what_to_do(block: Any) -> None:
    response = make_response()
    response.start_response("200 OK", [])
    with pytest.raises(BodyError, match=rf"a {type(block).__name__} in it: yield bytes, or wrap"):
        response.write(block)

"""start_response, byte by byte: its rules, what is refused, and the head that it makes."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.server.responses import Ask, ask, exc_info, says, segmented
from tests.workers.bench import make_bench
from wsgifast.server.response import HeaderLines

__all__ = ["ask", "make_bench"]


def test_an_error_replaces_what_is_not_sent_yet(ask: Ask) -> None:
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


def test_an_upgrade_is_forgotten_with_what_an_error_replaces(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("101 Switching", [("Upgrade", "websocket"), ("Connection", "upgrade")])
        start_response("503 Later", [("Content-Length", "0")], exc_info())
        return []

    assert ask(app).head == ["HTTP/1.1 503 Later", "Connection: keep-alive", "Content-Length: 0"]


def test_an_error_is_raised_again_once_the_head_is_sent(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"some"
        with pytest.raises(ValueError, match="the app's own"):
            start_response("503 Later", [], exc_info())
        yield b"more"

    assert ask(app).body == b"4\r\nsome\r\n4\r\nmore\r\n0\r\n\r\n"


def test_exc_info_before_any_other_call(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("503 Later", [("Content-Length", "0")], exc_info())
        return []

    assert ask(app).head[0] == "HTTP/1.1 503 Later"


class Again:
    """Not a list, and iterated anew each time."""

    def __init__(self, blocks: list[bytes]) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._blocks)


WRONG: dict[str, Callable[..., Any]] = {
    "bytes for a status": says(b"200 OK", []),  # type: ignore[arg-type]
    "bytes for a name": says("200 OK", [(b"X", "1")]),  # type: ignore[list-item]
    "a number for a value": says("200 OK", [("X", 1)]),  # type: ignore[list-item]
    "a value with a line end": says("200 OK", [("X", "1\r\nY: 1")]),
    "a length with a sign": says("200 OK", [("Content-Length", "+5")]),
    "two lengths": says("200 OK", [("Content-Length", "1"), ("Content-Length", "2")], [b"a"]),
    "an interim status": says("103 Early Hints", []),
    "a number for a hop-by-hop value": says("200 OK", [("Connection", 1)]),  # type: ignore[list-item]
    "a hop-by-hop value with a line end": says("200 OK", [("Connection", "close\r\nX: 1")]),
    "a list of a bytearray": says("200 OK", [], [bytearray(b"text")]),  # type: ignore[list-item]
    "an iterator of a bytearray": says("200 OK", [], Again([bytearray(b"text")])),  # type: ignore[list-item]
    "a list of a string": says("200 OK", [], ["text"]),  # type: ignore[list-item]
    "an iterator of a string": says("200 OK", [], Again(["text"])),  # type: ignore[list-item]
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
def test_what_an_app_must_not_do_is_a_500(ask: Ask, name: str) -> None:
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


def test_values_as_they_may_be(ask: Ask) -> None:
    headers = [("X", " \tpadded\t "), ("Y", "tab\tinside"), ("Z", "\xfc\xa0"), ("E", "")]
    asked = ask(says("200 OK", [*headers, ("content-length", " 2 ")], [b"ok"]))
    assert asked.head[2:] == [
        "X: padded", "Y: tab\tinside", "Z: \xfc\xa0", "E: ", "Content-Length: 2",
    ]  # fmt: skip
    assert asked.body == b"ok"


def test_a_status_without_a_phrase(ask: Ask) -> None:
    assert ask(says("299", [("Content-Length", "0")])).head[0] == "HTTP/1.1 299 "


def test_hop_by_hop_headers_are_the_servers(ask: Ask) -> None:
    hops = [("Keep-Alive", "timeout=1"), ("Transfer-Encoding", "gzip"), ("Upgrade", "h2c")]
    asked = ask(says("200 OK", [*hops, ("Content-Length", "0")]))
    assert asked.head[1:] == ["Connection: keep-alive", "Content-Length: 0"]
    assert not asked.is_closed


def test_date_and_server_are_sent_once(ask: Ask) -> None:
    own = [("Date", "Thu, 01 Jan 1970 00:00:00 GMT"), ("server", "mine"), ("Content-Length", "0")]
    head = ask(says("200 OK", own)).raw.decode("latin-1")
    assert head.count("Date: ") == head.lower().count("server: ") == 1
    assert "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nserver: mine\r\n" in head
    head = ask(says("200 OK", own[2:])).raw.decode("latin-1")
    assert head.count("Date: ") == head.count("Server: gunicorn\r\n") == 1


def test_an_app_may_end_the_connection(ask: Ask) -> None:
    asked = ask(says("200 OK", [("Connection", "close"), ("Content-Length", "0")]))
    assert asked.head[1:] == ["Connection: close", "Content-Length: 0"]
    assert asked.is_closed


def test_a_websocket_handshake_is_let_through(ask: Ask) -> None:
    headers = [("Upgrade", " websocket "), ("Connection", " Upgrade ")]
    asked = ask(says("101 Switching Protocols", headers))
    assert asked.head == [
        "HTTP/1.1 101 Switching Protocols", "Connection: upgrade", "Upgrade: websocket",
    ]  # fmt: skip
    assert asked.body == b""


def test_the_date_is_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [1.0, 1.9, 2.0, 2.0]
    monkeypatch.setattr("time.time", lambda: seconds.pop(0))
    header_lines = HeaderLines()
    first = header_lines.date()
    assert first == "Thu, 01 Jan 1970 00:00:01 GMT"
    assert header_lines.date() is first
    second = header_lines.date()
    assert second == "Thu, 01 Jan 1970 00:00:02 GMT"
    assert header_lines.date() is second


def test_the_servers_own_lines_are_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_error_that_was_replaced_is_not_kept_alive(ask: Ask) -> None:
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


def test_start_response_may_come_as_late_as_the_first_byte(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        yield b""
        start_response("200 OK", [])
        yield b"a"

    assert ask(app).body == b"1\r\na\r\n0\r\n\r\n"

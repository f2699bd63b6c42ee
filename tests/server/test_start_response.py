"""start_response, byte by byte: its rules, its errors, and the headers that it sends."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.server.connections import responses
from tests.server.http2_peer import Begin
from tests.server.responses import Ask, segmented
from tests.support.wsgi import exc_info
from wsgifast.server.response import HeaderLines


def test_error_replaces_unsent_headers(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", "100"), ("X-First", "1")])
        start_response("500 Error", [], (None, None, None))
        start_response("503 Later", [("X-Second", "1")], exc_info())
        return [b"sorry"]

    received = ask(app)
    assert received.headers == [
        "HTTP/1.1 503 Later", "Connection: keep-alive", "X-Second: 1", "Transfer-Encoding: chunked",
    ]  # fmt: skip
    assert received.body == b"5\r\nsorry\r\n0\r\n\r\n"
    assert not received.is_closed


def test_error_replaces_an_upgrade(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("101 Switching", [("Upgrade", "websocket"), ("Connection", "upgrade")])
        start_response("503 Later", [("Content-Length", "0")], exc_info())
        return []

    assert ask(app).headers == ["HTTP/1.1 503 Later", "Connection: keep-alive", "Content-Length: 0"]


def test_error_after_the_headers_is_raised_again(ask: Ask) -> None:
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

    assert ask(app).headers[0] == "HTTP/1.1 503 Later"


UNSTARTED = "a body without calling start_response"


class Again:
    def __init__(self, blocks: list[Any]) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[Any]:
        return iter(self._blocks)


def _stops(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    raise StopIteration


# The mistake of each app, and the text of its error.
WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "a number for a status": (responses((), status=200), "status is 200; give a str such as"),
    "bytes for a status": (responses((), status=b"200 OK"), "status is b'200 OK'; give a str"),
    "an interim status": (responses((), status="103 Early Hints"), "give a final status"),
    "a status without a number": (responses((), status="OK"), "status is 'OK'; give a str"),
    "a status with a line end": (responses((), status="200 OK\r\nX: 1"), "give a str such as"),
    "a blank in a name": (responses((), ("Bad name", "a")), "name is 'Bad name'; give a str of"),
    "a header that is no pair": (responses((), "A"), "not a list of (name, value) tuples of str"),
    "a value beyond Latin-1": (responses((), ("X", "\u20ac")), "X has a value with a control char"),
    "bytes for a name": (responses((), (b"X", "1")), "name is b'X'; give a str"),
    "a number for a value": (responses((), ("X", 1)), "X has a value of type int; give a str"),
    "a value with a line end": (responses((), ("X", "1\r\nY: 1")), "X has a value with a control"),
    "a length with a sign": (responses((), ("Content-Length", "+5")), "set to '+5'; give one"),
    "a length with an underscore": (responses((), ("Content-Length", "1_0")), "set to '1_0'; give"),
    "two lengths": (
        responses([b"a"], ("Content-Length", "1"), ("Content-Length", "2")), "set to 1 and to '2'",
    ),
    "a number for a hop-by-hop value": (responses((), ("Connection", 1)), "type int; give a str"),
    "a hop-by-hop value with a line end": (
        responses((), ("Connection", "close\r\nX: 1")), "Connection has a value with a control",
    ),
    "a list of a bytearray": (responses([bytearray(b"text")]), "a bytearray in it: yield bytes"),
    "an iterator of a bytearray": (responses(Again([bytearray(b"text")])), "a bytearray in it"),
    "a list of nothing": (responses([None]), "a NoneType in it: yield bytes, or wrap"),
    "a list of a string": (responses(["text"]), "a str in it: yield bytes, or wrap"),
    "an iterator of a string": (responses(Again(["text"])), "a str in it: yield bytes, or wrap"),
    "an iterator of nothing": (responses(Again([None])), "a NoneType in it: yield bytes, or wrap"),
    "no start_response, a list": (lambda environ, start_response: [b"a"], UNSTARTED),
    "no start_response, an empty list": (lambda environ, start_response: [], UNSTARTED),
    "no start_response, an iterator": (lambda environ, start_response: iter([b"a"]), UNSTARTED),
    "no start_response, an empty block": (lambda environ, start_response: iter([b""]), UNSTARTED),
    "no start_response, segments": (lambda environ, start_response: segmented([b"a"]), UNSTARTED),
    "StopIteration": (_stops, ""),
    "start_response twice": (
        lambda environ, start_response: [b"" for _ in range(2) if start_response("200 OK", [])],
        "start_response twice without exc_info",
    ),
    "a block before start_response": (
        lambda environ, start_response: (
            block for block in (b"a", b"b") if block == b"a" or start_response("200 OK", [])
        ),
        "a body before it called start_response",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("http2", [False, True])
def test_violation_of_pep_3333_is_a_500(ask: Ask, begin: Begin, name: str, http2: bool) -> None:
    app, says = WRONG[name]
    if http2:
        peer = begin(app)
        assert peer.get("/").status == 500
        log = peer.stepped.log
    else:
        received = ask(app)
        assert received.failed, received.raw
        assert b"\r\nX: 1" not in received.raw
        log = received.stepped.log
    assert log.says("Error handling request GET /")
    assert says in str(log.errors[0])


def test_refused_value_is_not_logged(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """The value may be a secret. Its name is not."""
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


def test_header_values_are_trimmed_and_preserved(ask: Ask) -> None:
    headers = [("X", " \tpadded\t "), ("Y", "tab\tinside"), ("Z", "\xfc\xa0"), ("E", "")]
    received = ask(responses([b"ok"], *headers, ("content-length", " 2 ")))
    assert received.headers[2:] == [
        "X: padded", "Y: tab\tinside", "Z: \xfc\xa0", "E: ", "Content-Length: 2",
    ]  # fmt: skip
    assert received.body == b"ok"


def test_status_without_a_phrase_is_sent(ask: Ask) -> None:
    assert ask(responses((), ("Content-Length", "0"), status="299")).headers[0] == "HTTP/1.1 299 "


def test_hop_by_hop_headers_of_the_app_are_dropped(ask: Ask) -> None:
    hops = [("Keep-Alive", "timeout=1"), ("Transfer-Encoding", "gzip"), ("Upgrade", "h2c")]
    received = ask(responses((), *hops, ("Content-Length", "0")))
    assert received.headers[1:] == ["Connection: keep-alive", "Content-Length: 0"]
    assert not received.is_closed


def test_date_and_server_are_sent_once(ask: Ask) -> None:
    own = [("Date", "Thu, 01 Jan 1970 00:00:00 GMT"), ("server", "mine"), ("Content-Length", "0")]
    headers = ask(responses((), *own)).raw.decode("latin-1")
    assert headers.count("Date: ") == headers.lower().count("server: ") == 1
    assert "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nserver: mine\r\n" in headers
    headers = ask(responses((), *own[2:])).raw.decode("latin-1")
    assert headers.count("Date: ") == headers.count("Server: gunicorn\r\n") == 1


def test_connection_close_of_the_app_is_obeyed(ask: Ask) -> None:
    received = ask(responses((), ("Connection", "close"), ("Content-Length", "0")))
    assert received.headers[1:] == ["Connection: close", "Content-Length: 0"]
    assert received.is_closed


def test_websocket_handshake_is_sent(ask: Ask) -> None:
    headers = [("Upgrade", " websocket "), ("Connection", " Upgrade ")]
    received = ask(responses((), *headers, status="101 Switching Protocols"))
    assert received.headers == [
        "HTTP/1.1 101 Switching Protocols", "Connection: upgrade", "Upgrade: websocket",
    ]  # fmt: skip
    assert received.body == b""


def test_date_and_header_lines_are_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 1.0
    monkeypatch.setattr("time.time", lambda: seconds)
    header_lines = HeaderLines()
    date, lines = header_lines.date(), header_lines.get("server", "close", dates=True)
    assert date == "Thu, 01 Jan 1970 00:00:01 GMT"
    assert lines == f"Server: server\r\nDate: {date}\r\nConnection: close\r\n"
    seconds = 1.9
    assert header_lines.get(None, "keep-alive", dates=False) == "Connection: keep-alive\r\n"
    assert header_lines.date() is date
    assert header_lines.get("server", "close", dates=True) is lines
    seconds = 2.0
    assert "00:00:02" in header_lines.get("server", "close", dates=True)
    assert header_lines.date() == "Thu, 01 Jan 1970 00:00:02 GMT"


def test_replaced_error_is_freed(ask: Ask) -> None:
    """No frame of its call keeps it in memory until the cycle collector runs."""
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

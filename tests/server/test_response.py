"""Responses byte by byte: the rules of start_response, framing, and what is refused."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.server.responses import Ask, Headers, MakeBench, ask, says, segmented
from tests.workers.bench import make_bench
from wsgifast import BodyError
from wsgifast.server.output import OutputQueue
from wsgifast.server.response import HeaderLines

__all__ = ["ask", "make_bench"]


# start_response


def exc_info() -> Any:
    try:
        raise ValueError("the app's own")
    except ValueError:
        return sys.exc_info()


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


def test_a_value_that_is_refused_is_not_told(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
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


# Framing and keep-alive


def test_statuses_without_a_body(ask: Ask) -> None:
    """RFC 9110 section 8.6: with a length only where a GET would have had that."""
    for status, method, kept in (
        ("204 No Content", "GET", False),
        ("304 Not Modified", "GET", True),
        ("200 OK", "HEAD", True),
        ("204 No Content", "HEAD", False),
    ):
        for body in ([b"body"], iter([b"bo", b"dy"]), segmented([b"body"])):
            asked = ask(says(status, [("Content-Length", "4"), ("X", "1")], body), method)
            length = ["Content-Length: 4"] if kept else []
            assert asked.head[1:] == ["Connection: keep-alive", "X: 1", *length]
            assert asked.body == b""
            assert not asked.is_closed
            assert not asked.bench.log.says("Content-Length is")


def test_a_body_that_is_dropped_is_told_once(ask: Ask) -> None:
    asked = ask(says("204 No Content", [], iter([b"", b"bo", b"dy"])))
    assert asked.bench.log.lines[1:] == [
        "GET /: the body is dropped: 204 has none (RFC 9110 6.4.1)"
    ]
    assert not ask(says("304 Not Modified", [], [b""])).bench.log.lines[1:]
    # To HEAD most apps answer as to GET: what is right needs no warning.
    assert not ask(says("200 OK", [], [b"body"]), "HEAD").bench.log.lines[1:]


@pytest.mark.parametrize(
    ("version", "headers", "asks", "kept"),
    [
        ("1.1", [], [], True),
        ("1.1", [("Content-Length", "4")], [], True),
        ("1.1", [], [("Connection", "close")], False),
        ("1.0", [("Content-Length", "4")], [], False),
        ("1.0", [("Content-Length", "4")], [("Connection", "keep-alive")], True),
        ("1.0", [], [("Connection", "keep-alive")], False),
    ],
)
def test_keep_alive(ask: Ask, version: str, headers: Headers, asks: Headers, kept: bool) -> None:
    for body in ([b"bo", b"dy"], iter([b"bo", b"dy"]), segmented([b"bo", b"dy"])):
        asked = ask(says("200 OK", headers, body), version=version, headers=asks)
        assert f"Connection: {'keep-alive' if kept else 'close'}" in asked.head
        chunked = "Transfer-Encoding: chunked" in asked.head
        assert chunked == (version == "1.1" and not headers)
        assert asked.body == (b"2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n" if chunked else b"body")
        assert asked.is_closed is not kept
        assert asked.bench.log.requests == [("GET /", "200 OK", 4)]


@pytest.mark.parametrize("chunked", [True, False])
def test_empty_blocks_end_nothing_and_begin_nothing(ask: Ask, chunked: bool) -> None:
    headers = [] if chunked else [("Content-Length", "2")]
    expected = b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n" if chunked else b"ab"
    blocks = [b"", b"a", b"", b"b", b""]
    assert ask(says("200 OK", headers, iter(blocks))).body == expected
    assert ask(says("200 OK", headers, blocks)).body == expected
    assert ask(says("200 OK", headers, segmented([*blocks]))).body == expected


def test_a_body_of_nothing(ask: Ask) -> None:
    for body in ([], [b""], (), iter([]), iter([b""]), segmented([])):
        assert ask(says("200 OK", [], body)).body == b"0\r\n\r\n"
    for body in ([], [b""], (), iter([]), iter([b""]), segmented([])):
        asked = ask(says("200 OK", [("Content-Length", "0")], body))
        assert asked.body == b""
        assert len(asked.head) == 3


def test_headers_wait_for_the_first_byte(ask: Ask) -> None:
    """An app may change its mind until then (PEP 3333)."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b""
        start_response("503 Later", [("Content-Length", "5")], exc_info())
        yield b"sorry"

    assert ask(app).head[0] == "HTTP/1.1 503 Later"


def test_the_head_goes_out_with_what_a_head_request_does_not_get(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [("Content-Length", "4")])
        write(b"bo")
        seen.append(client.receive_all_there_is())
        return [b"dy"]

    written: list[bytes] = []
    write = OutputQueue.write

    def look(queue: OutputQueue, data: bytes) -> None:
        written.append(data)
        write(queue, data)

    monkeypatch.setattr(OutputQueue, "write", look)
    bench = make_bench(app)
    client = bench.connect()
    client.send_request(method="HEAD")
    bench.run()
    assert seen[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"".join(written) == seen[0]


def test_write_and_then_a_list(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [("Content-Length", "9")])
        write(b"one")
        write(b"")
        write(b"two")
        return [b"end"] if environ["REQUEST_METHOD"] == "GET" else segmented([b"end"])

    for method in ("GET", "POST"):
        asked = ask(app, method)
        assert asked.body == b"onetwoend"
        assert not asked.is_closed
        assert asked.bench.log.requests == [(f"{method} /", "200 OK", 9)]


@pytest.mark.parametrize("size", [65_000, 66_000, 300_000])
def test_a_list_arrives_whole_whatever_its_size(ask: Ask, size: int) -> None:
    blocks = [b"a" * (size // 2), b"", b"b" * (size // 2)]
    asked = ask(says("200 OK", [("Content-Length", str(size))], blocks))
    received = asked.raw
    while len(received) < size:
        asked.bench.run()
        more = asked.client.receive_all_there_is()
        assert more
        received += more
    assert received.partition(b"\r\n\r\n")[2] == b"".join(blocks)


@pytest.mark.parametrize("kind", [list, iter, segmented])
def test_a_body_longer_than_its_length(ask: Ask, kind: Callable[..., Any]) -> None:
    asked = ask(says("200 OK", [("Content-Length", "5")], kind([b"abc", b"defg", b"hi"])))
    assert asked.body == b"abcde"
    assert not asked.is_closed
    assert asked.bench.log.requests == [("GET /", "200 OK", 5)]
    assert asked.bench.log.lines[1:] == [
        "GET /: the body is longer than its Content-Length, 5: it is cut"
    ]


@pytest.mark.parametrize("kind", [list, iter, segmented])
@pytest.mark.parametrize("blocks", [[], [b"abc"]])
def test_a_body_shorter_than_its_length(
    ask: Ask, kind: Callable[..., Any], blocks: list[bytes]
) -> None:
    asked = ask(says("200 OK", [("Content-Length", "5")], kind(blocks)))
    body = b"".join(blocks)
    assert asked.body == body
    assert asked.is_closed
    assert asked.bench.log.lines[1:] == [
        f"GET /: the body has {len(body)} bytes, and its Content-Length is 5"
    ]


@pytest.mark.parametrize(
    ("status", "method"), [("200 OK", "GET"), ("200 OK", "HEAD"), ("204 No Content", "GET")]
)
def test_what_has_no_place_is_not_asked_for(ask: Ask, status: str, method: str) -> None:
    """PEP 3333, "Handling the Content-Length Header"; there may be no end of it."""
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
    asked = ask(says(status, length, endless()), method)
    assert asked.body == (b"abcab" if length else b"")
    assert closed == [2 if length else 1]
    assert not asked.is_closed


def test_the_last_block_of_a_known_length_is_not_held_back(make_bench: MakeBench) -> None:
    """Nothing can follow that would be worth waiting for."""
    seen: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "3")])
        for block in (b"1", b"2", b"3"):
            yield block
            seen.append(client.receive_all_there_is()[-2:])

    bench = make_bench(app)
    bench.server.pool.monitor.ticking = True
    client = bench.connect()
    client.send_request()
    bench.run()
    assert seen == [b"\n1", b"", b"23"]


# Early hints


def test_early_hints(ask: Ask) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        hint = environ["wsgi.early_hints"]
        hint([("Link", " </a>; rel=preload\t"), (b"link", b"</b>; rel=preload")])
        for wrong in ([("Li nk", "a")], [("Link", "a\r\nX: 1")], [(b"Link", b"a\nX: 1")]):
            if environ["SERVER_PROTOCOL"] == "HTTP/1.0":
                hint(wrong)  # not looked at
                continue
            with pytest.raises(BodyError):
                hint(wrong)
        start_response("200 OK", [("Content-Length", "2")])
        yield b"o"
        hint([("Link", "too late")])
        yield b"k"

    asked = ask(app)
    assert asked.raw.startswith(
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nlink: </b>; rel=preload\r\n\r\n"
        b"HTTP/1.1 200 OK\r\n"
    )
    assert asked.raw.endswith(b"\r\n\r\nok")
    assert b"103" not in ask(app, version="1.0").raw


# Bodies that no slow client may hold a thread for


def test_close_comes_once_and_after_the_body(ask: Ask) -> None:
    calls: list[str] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            calls.append("iter")
            yield b"body"
            calls.append("end")

        def close(self) -> None:
            calls.append("close")

    assert ask(says("200 OK", [], Body())).body == b"4\r\nbody\r\n0\r\n\r\n"
    assert calls == ["iter", "end", "close"]


@pytest.mark.parametrize("swallows", [True, False])
def test_write_without_end_ends_at_the_content_length(ask: Ask, swallows: bool) -> None:
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

    asked = ask(app)
    assert asked.body == b"12312"
    assert asked.bench.log.requests == [("GET /", "200 OK", 5)]
    complaints = asked.bench.log.lines[1:] + [str(error) for error in asked.bench.log.errors]
    told = [each for each in complaints if "longer than its Content-Length, 5" in each]
    assert len(told) == 1
    assert asked.bench.log.says("Error handling request GET /") is not swallows
    assert asked.is_closed is not swallows


def test_write_to_head_goes_on(ask: Ask) -> None:
    """An app may answer to HEAD as it does to GET."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [("Content-Length", "4")])
        write(b"body")
        write(b"more")
        return []

    asked = ask(app, "HEAD")
    assert (asked.head[0], asked.body) == ("HTTP/1.1 200 OK", b"")

"""start_response, write(), exc_info and close() through WSGIFast."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import shapes
from tests.support.calls import raising
from tests.support.notes import Notes
from tests.support.wsgi import (
    Closing,
    Server,
    answering,
    by_wsgiref,
    exc_info,
    new_environ,
    returning,
    serve,
)
from wsgifast import BodyError, WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


# start_response, write(), exc_info


@pytest.mark.parametrize("chunks", [[], [b""], [b"some"]])
def test_app_that_never_starts_a_response_is_named(chunks: list[bytes]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        yield from chunks

    server = Server(WSGIFast(app))
    with pytest.raises(BodyError, match="start_response"):
        server.finish()
    assert server.start[0] == "500 Internal Server Error"
    assert server.sent == []


def test_lazy_app_starts_at_the_first_chunk() -> None:
    server = Server(WSGIFast(shapes.SHAPES["lazy"].view))
    assert server.starts == []
    chunks = iter(server.result)
    assert next(chunks) == b"lazy "
    assert len(server.starts) == 1


def test_generator_yields_no_more_than_wanted() -> None:
    made = []

    def body() -> Iterator[bytes]:
        for number in range(3):
            made.append(number)
            yield b"x"

    server = serve(body())
    assert made == []
    for count, _ in enumerate(server.result, start=1):
        assert len(made) == count


def test_start_response_twice_needs_exc_info() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        start_response("500 No", [])
        return []

    with pytest.raises(BodyError, match="twice without exc_info"):
        Server(WSGIFast(app))


def test_exc_info_replaces_headers_before_they_leave() -> None:
    server = Server(WSGIFast(shapes.SHAPES["started-again"].view))
    assert server.finish() == b"second try"
    assert [status for status, _ in server.starts] == ["200 OK"]
    assert server.header("X-First") is None


def test_exc_info_is_raised_again_after_the_headers() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        yield b"sent"
        start_response("500 No", [], exc_info(LookupError("too late")))

    server = Server(WSGIFast(app))
    with pytest.raises(LookupError, match="too late"):
        server.finish()


def test_write_goes_straight_to_the_server() -> None:
    sent_by_then = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        write = start_response("200 OK", [("Content-Length", "9")])
        write(b"abc")
        sent_by_then.append(list(server_sent))
        write(bytearray(b"def"))  # type: ignore[arg-type]
        return [b"ghi"]

    server_sent: list[bytes] = []

    def start(status: str, headers: Any, exc_info: Any = None, /) -> Callable[[bytes], object]:
        return server_sent.append

    result = WSGIFast(app)(new_environ(), start)
    assert sent_by_then == [[b"abc"]]
    assert [*server_sent, *result] == [b"abc", b"def", b"ghi"]


def test_write_on_a_server_without_one_is_an_error() -> None:
    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Any:
        return None

    app = answering(lambda _: [], written=b"written")
    with pytest.raises(BodyError, match=r"calls write\(\), which this server does not have"):
        WSGIFast(app)(new_environ(), start)


def test_write_beyond_the_length_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    app = answering(lambda _: [b"d"], headers=[("Content-Length", "2")], written=b"abc")
    server = Server(WSGIFast(app))
    server.finish()
    assert b"".join(server.sent) == b"ab"
    assert "more than its Content-Length of 2 bytes" in caplog.text


@pytest.mark.parametrize("status", ["", None, 200, b"200 OK", "103 Early Hints", "20 OK"])
def test_malformed_status_of_an_app_is_refused(status: Any) -> None:
    with pytest.raises(BodyError, match=r"the app tests\.support\.wsgi.*status"):
        serve([b"x"], status=status)


def test_status_205_has_length_0() -> None:
    """Clients expect a body after 205.

    So the headers must say that there is none (RFC 9110, section 15.3.6).
    """
    for body in ([b"x"], iter([b"x"]), io.BytesIO(b"x")):
        server = serve(body, ("Content-Length", "1"), status="205 Reset Content")
        assert server.finish() == b""
        assert server.header("Content-Length") == "0"


@pytest.mark.parametrize("empty", [b"", ""])
def test_empty_chunk_before_start_says_nothing(empty: Any) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        yield empty
        yield empty
        start_response("200 OK", [("Content-Length", "4")])
        yield b"body"

    server = Server(WSGIFast(app))
    assert not server.starts
    assert server.finish() == b"body"
    assert server.start == ("200 OK", [("Content-Length", "4")])


def test_headers_of_any_iterable_are_sent() -> None:
    given = [("Content-Type", "text/plain"), ("X-Name", "value")]
    for headers in (tuple(given), iter(given), dict(given).items()):
        app = answering(lambda _: [b"x"], headers=headers)
        assert Server(WSGIFast(app)).start[1] == [*given, ("Content-Length", "1")]


@pytest.mark.parametrize(
    "headers", [{"Content-Type": "text/plain"}, None, "a", [("A", "b", "c")], [1], [(1, "a")]]
)
def test_malformed_headers_are_refused(headers: Any) -> None:
    app = answering(lambda _: [b"x"], headers=headers)
    with pytest.raises(BodyError, match=r"the app .* the headers are a .* list of \(name, value\)"):
        Server(WSGIFast(app))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("starts_before", [False, True])
@pytest.mark.parametrize("options", [{}, {"report_slow_shapes": 1.0}, {"metrics": "recorder"}])
def test_exc_info_reaches_the_server(
    lazy: bool, starts_before: bool, options: dict[str, Any]
) -> None:
    error = ValueError("boom")
    if "metrics" in options:
        options = {"metrics": Notes()}

    def response(start_response: Any) -> list[bytes]:
        if starts_before:
            start_response("200 OK", [])
        start_response("500 Error", [("Content-Type", "text/plain")], exc_info=exc_info(error))
        return [b"error"]

    def at_once(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        return response(start_response)

    def while_iterated(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        yield from response(start_response)

    app = WSGIFast(while_iterated if lazy else at_once, **options)
    server = Server(app, {"REQUEST_METHOD": "GET"})
    assert server.finish() == b"error"
    assert (server.start[0], server.error) == ("500 Error", error)


@pytest.mark.parametrize("ends", ["raises", "returns nothing", "returns"])
def test_error_is_not_referenced_by_the_response(ends: str) -> None:
    class CacheEntry:
        pass

    references: list[weakref.ref[CacheEntry]] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        local = CacheEntry()
        references.append(weakref.ref(local))
        try:
            raise ValueError
        except ValueError:
            start_response("500 Error", [], sys.exc_info())
        if ends == "raises":
            raise LookupError
        return [b"error"] if ends == "returns" else None

    gc.disable()
    try:
        with contextlib.suppress(LookupError, BodyError):
            WSGIFast(app)({"REQUEST_METHOD": "GET"}, lambda *given: print)
        assert references[0]() is None
    finally:
        gc.enable()


SPLIT = ["a\r\nX-Injected: yes", "a\nb", "a\rb", "a\0b", "\n", "a\r\n"]


@pytest.mark.parametrize("text", SPLIT)
@pytest.mark.parametrize("place", ["status", "name", "value", "bytes", "subclass"])
@pytest.mark.parametrize("how", ["at once", "lazily", "written", "again", "again once sent"])
def test_line_end_reaches_no_server(text: str, place: str, how: str) -> None:
    class OwnStr(str):
        pass

    status, name, value = "200 OK", "X-Name", "value"
    if place == "status":
        status = f"200 {text}"
    elif place == "name":
        name = text
    else:
        made: dict[str, Callable[[], Any]] = {
            "value": lambda: text,
            "bytes": lambda: text.encode(),
            "subclass": lambda: OwnStr(text),
        }
        value = made[place]()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        bad = [("Content-Type", "text/plain"), (name, value)]
        if not how.startswith("again"):
            write = start_response(status, bad)
            if how == "written":
                write(b"x")
            return [b"x"]
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        if how == "again once sent":
            write(b"x")
        start_response(status, bad, exc_info())
        return [b"x"]

    def lazy(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        yield from app(environ, start_response)

    calls: list[Any] = []

    def start(status: str, headers: Any, exc_info: Any = None) -> Any:
        calls.append((status, headers))
        return lambda data: None

    with pytest.raises(BodyError):
        list(WSGIFast(lazy if how == "lazily" else app)({"REQUEST_METHOD": "GET"}, start))
    sent = [("200 OK", [("Content-Type", "text/plain")])] if how == "again once sent" else []
    assert calls == sent


@given(st.lists(st.text("a :\t\r\n\0\x7fé", min_size=1, max_size=4), min_size=3, max_size=3))
def test_wsgiref_sends_no_line_of_a_header(texts: list[str]) -> None:
    """wsgiref checks neither names nor values of headers."""

    app = answering(lambda _: [b"x"], f"200 {texts[0]}", [(texts[1], texts[2])])
    sent, _ = by_wsgiref(WSGIFast(app), new_environ())
    is_one_line = not set("".join(texts)) & set("\r\n\0")
    start = sent.partition(b"\r\n\r\n")[0]
    if is_one_line and b"500 Internal" not in start:
        # Date, Server and Content-Length are added by wsgiref or by us
        assert start.count(b"\n") == 3
    elif not is_one_line:
        assert b"500 Internal Server Error" in start


def test_odd_headers_that_servers_take_are_passed_on() -> None:
    headers = [("X-Blank", " a "), ("X-Control", "a\x01"), ("Content-Length", " 5\t")]
    server = Server(WSGIFast(answering(lambda _: iter([b"hello more"]), headers=headers)))
    assert server.finish() == b"hello"
    assert server.start[1] == headers


@pytest.mark.parametrize(
    "options", [{}, {"report_slow_shapes": 1.0}, {"metrics": Notes()}, {"nodelay": False}]
)
@pytest.mark.parametrize("make", [lambda: [b"a"], lambda: iter([b"a"]), lambda: io.BytesIO(b"a")])
def test_environ_without_optional_keys_is_enough(
    options: dict[str, Any], make: Callable[[], Any]
) -> None:
    """PEP 3333 allows some keys to be missing. Programs that call apps directly omit more keys."""
    app = answering(lambda _: make(), headers=[])
    assert Server(WSGIFast(app, **options), {}).finish() == b"a"


# close()


@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_close_is_called_once(read: int, method: str) -> None:
    body = Closing([b"a", b"b"])
    server = serve(body, method=method)
    chunks = iter(server.result)
    for _ in range(read):
        next(chunks, None)
    server.result.close()  # type: ignore[attr-defined]
    server.result.close()  # type: ignore[attr-defined]
    assert body.closed == 1


def test_close_is_called_when_the_body_is_refused() -> None:
    class Refused:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    body = Refused()
    with pytest.raises(BodyError):
        serve(body)
    assert body.closed == 1


def test_close_is_called_when_server_refuses_headers() -> None:
    body = Closing([b"a", b"b"])

    with pytest.raises(ValueError, match="does not like"):
        WSGIFast(returning(body))(
            new_environ(), raising(ValueError, "a header that the server does not like")
        )
    assert body.closed == 1

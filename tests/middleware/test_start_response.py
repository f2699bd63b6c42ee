"""start_response, write(), exc_info and close() through WSGIFast."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import shapes
from tests.support.wsgi import Server, new_environ, returning, serve
from wsgifast import BodyError, WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


# start_response, write(), exc_info


@pytest.mark.parametrize("chunks", [[], [b""], [b"some"]])
def test_an_app_that_never_starts_a_response_is_named(chunks: list[bytes]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        yield from chunks

    server = Server(WSGIFast(app))
    with pytest.raises(BodyError, match="start_response"):
        server.finish()
    assert server.head[0] == "500 Internal Server Error"
    assert server.sent == []


def test_a_lazy_app_starts_at_the_first_chunk() -> None:
    server = Server(WSGIFast(shapes.SHAPES["lazy"].view))
    assert server.heads == []
    chunks = iter(server.result)
    assert next(chunks) == b"lazy "
    assert len(server.heads) == 1


def test_a_generator_is_not_asked_for_more_than_the_server_wants() -> None:
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


def test_exc_info_replaces_the_head_before_it_is_sent() -> None:
    server = Server(WSGIFast(shapes.SHAPES["started-again"].view))
    assert server.finish() == b"second try"
    assert [status for status, _ in server.heads] == ["200 OK"]
    assert server.header("X-First") is None


def test_exc_info_is_raised_again_once_the_head_is_sent() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        yield b"sent"
        try:
            raise LookupError("too late")
        except LookupError:
            start_response("500 No", [], sys.exc_info())

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


def test_write_on_a_server_without_one_is_a_plain_error() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])(b"written")
        return []

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Any:
        return None

    with pytest.raises(BodyError, match=r"calls write\(\), which this server does not have"):
        WSGIFast(app)(new_environ(), start)


def test_write_beyond_the_length_is_an_error() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [("Content-Length", "2")])(b"abc")
        return []

    with pytest.raises(BodyError, match="wrote 3 bytes, more than its Content-Length of 2"):
        Server(WSGIFast(app))


@pytest.mark.parametrize("status", ["", None, 200, b"200 OK", "103 Early Hints", "20 OK"])
def test_a_status_that_is_none(status: Any) -> None:
    with pytest.raises(BodyError, match=r"the app tests\.support\.wsgi.*status"):
        serve([b"x"], status=status)


def test_a_reset_content_has_none() -> None:
    """RFC 9110 15.3.6: clients look for a body after 205, so it has to say that there is none."""
    for body in ([b"x"], iter([b"x"]), io.BytesIO(b"x")):
        server = serve(body, ("Content-Length", "1"), status="205 Reset Content")
        assert server.finish() == b""
        assert server.header("Content-Length") == "0"


@pytest.mark.parametrize("empty", [b"", ""])
def test_an_empty_chunk_before_start_response_says_nothing(empty: Any) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        yield empty
        yield empty
        start_response("200 OK", [("Content-Length", "4")])
        yield b"body"

    server = Server(WSGIFast(app))
    assert not server.heads
    assert server.finish() == b"body"
    assert server.head == ("200 OK", [("Content-Length", "4")])


def test_headers_of_any_iterable_are_sent() -> None:
    given = [("Content-Type", "text/plain"), ("X-Name", "value")]
    for headers in (tuple(given), iter(given), dict(given).items()):

        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
            start_response("200 OK", headers)  # type: ignore[arg-type] # noqa: B023
            return [b"x"]

        assert Server(WSGIFast(app)).head[1] == [*given, ("Content-Length", "1")]


@pytest.mark.parametrize(
    "headers", [{"Content-Type": "text/plain"}, None, "a", [("A", "b", "c")], [1], [(1, "a")]]
)
def test_headers_that_are_none(headers: Any) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", headers)
        return [b"x"]

    with pytest.raises(BodyError, match=r"the app .* the headers are a .* list of \(name, value\)"):
        Server(WSGIFast(app))


# close()


class Closing:
    """A body that counts its close() calls; iterated or read as asked."""

    def __init__(self) -> None:
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"a", b"b"])

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_close_is_called_once(read: int, method: str) -> None:
    body = Closing()
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


def test_close_is_called_when_the_server_refuses_the_head() -> None:
    body = Closing()

    def start(status: str, headers: Any, exc_info: Any = None, /) -> Callable[[bytes], object]:
        raise ValueError("a header that the server does not like")

    with pytest.raises(ValueError, match="does not like"):
        WSGIFast(returning(body))(new_environ(), start)
    assert body.closed == 1

"""Request bodies with a limit, with WSGIFast alone and on live servers."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import servers_with
from tests.support.calls import raising
from tests.support.http import Connection
from tests.support.limited_app import LIMIT
from tests.support.notes import Notes
from tests.support.servers import LiveServer
from tests.support.wsgi import Closing, Server, answering, new_environ, returning
from wsgifast import WSGIFast
from wsgifast.bodies.requests import LimitedInput
from wsgifast.errors import BodyTooLarge

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

App = Callable[..., Iterable[bytes]]


def chunked(body: bytes, method: str = "POST") -> dict[str, Any]:
    """The environ of a request without a Content-Length. The server ends the body."""
    environ = new_environ(method, HTTP_TRANSFER_ENCODING="chunked")
    environ.pop("CONTENT_LENGTH", None)
    environ.update({"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True})
    return environ


def served(app: App, body: bytes, limit: int = 10, method: str = "POST", **options: Any) -> Server:
    server = Server(WSGIFast(app, body_limit_bytes=limit, **options), chunked(body, method))
    server.finish()
    return server


echo = answering(lambda environ: [environ["wsgi.input"].read()])


def read_steps(source: Any, steps: Iterable[Any]) -> Iterator[bytes]:
    """Read the body to its end: first by the given calls, and then all remaining bytes."""
    for way, size in steps:
        if way == "read":
            yield source.read(size)
        elif way == "readline":
            yield source.readline(size)
        elif way == "readlines":
            yield from source.readlines(size)
        else:
            yield next(iter(source), b"")
    yield source.read()
    assert source.read() == source.readline() == b""


_SIZES = st.sampled_from([-1, None, 0, 1, 2, 7, 1000])


@given(
    body=st.binary(max_size=60) | st.text("a\n", max_size=60).map(str.encode),
    limit=st.integers(0, 70),
    steps=st.lists(
        st.tuples(st.sampled_from(["read", "readline", "readlines", "iterate"]), _SIZES), max_size=8
    ),
)
def test_any_reads_get_the_body_or_an_error(
    body: bytes, limit: int, steps: list[tuple[str, int | None]]
) -> None:
    source = LimitedInput(io.BytesIO(body), limit)
    if len(body) <= limit:
        plain = io.BufferedReader(io.BytesIO(body))
        assert list(read_steps(source, steps)) == list(read_steps(plain, steps))
        assert source.error is None
        return
    got: list[bytes] = []
    with pytest.raises(BodyTooLarge):
        got.extend(read_steps(source, steps))
    assert body.startswith(b"".join(got))
    assert len(b"".join(got)) <= limit
    for read in (source.read, source.readline, source.readlines, lambda: list(source)):
        with pytest.raises(BodyTooLarge):
            read()


def test_limited_input_is_read_as_text_like_any_file() -> None:
    source = LimitedInput(io.BytesIO("grün\nrot".encode()), 100)
    assert io.TextIOWrapper(source, encoding="utf-8").readlines() == ["grün\n", "rot"]  # type: ignore[type-var]


@given(size=st.integers(0, 30), limit=st.integers(0, 30), step=st.integers(1, 30))
def test_app_gets_413_once_for_a_longer_body(size: int, limit: int, step: int) -> None:
    app = answering(lambda environ: [*iter(lambda: environ["wsgi.input"].read(step), b"")])
    server = served(app, b"x" * size, limit)
    assert [start[0] for start in server.starts] == [
        "200 OK" if size <= limit else "413 Content Too Large"
    ]
    if size <= limit:
        assert b"".join(server.sent) == b"x" * size


def test_declared_body_over_limit_precedes_the_app() -> None:
    calls: list[str] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        calls.append(environ["REQUEST_METHOD"])
        return echo(environ, start_response)

    limited = WSGIFast(app, body_limit_bytes=5)
    for length, status in (("5", "200 OK"), ("6", "413 Content Too Large")):
        body = io.BytesIO(b"x" * int(length))
        environ = new_environ("POST", CONTENT_LENGTH=length)
        environ["wsgi.input"] = body
        server = Server(limited, environ)
        response = server.finish()
        assert server.start[0] == status
        assert environ["wsgi.input"] is body, "within its length the server's own is left"
    assert calls == ["POST"]
    assert response == b"The request body is longer than 5 bytes\n"
    assert server.header("Content-Length") == str(len(response))


def test_websockets_keep_the_servers_own_input() -> None:
    environ = chunked(b"frames")
    environ["HTTP_UPGRADE"] = "websocket"
    plain = {name: value for name, value in environ.items() if name != "HTTP_TRANSFER_ENCODING"}
    original = plain["wsgi.input"]
    Server(WSGIFast(returning(b"", status="200 OK"), body_limit_bytes=0), plain)
    assert plain["wsgi.input"] is original
    server = Server(WSGIFast(echo, body_limit_bytes=0), environ)
    server.finish()
    assert server.start[0].startswith("413"), "a body that came with the header is limited"


def test_content_length_beside_chunks_is_ignored() -> None:
    environ = chunked(b"x" * 100)
    environ["CONTENT_LENGTH"] = "1"
    server = Server(WSGIFast(echo, body_limit_bytes=10), environ)
    server.finish()
    assert server.start[0].startswith("413")


def caught_whole(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    headers = [("Access-Control-Allow-Origin", "*"), ("Content-Type", "text/html"), ("ETag", '"1"')]
    try:
        environ["wsgi.input"].read()
    except OSError:
        start_response("500 Internal Server Error", headers)
        return [b"<h1>the app's page</h1>"]
    raise AssertionError("it was not limited")


def caught_with_exc_info(
    environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    import sys

    start_response("200 OK", [("Access-Control-Allow-Origin", "*")])
    try:
        environ["wsgi.input"].read()
    except OSError:
        start_response("500 Oops", [("Access-Control-Allow-Origin", "*")], sys.exc_info())
    return [b"the app's page"]


def caught_in_generator(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    with contextlib.suppress(OSError):
        environ["wsgi.input"].read()
    start_response("200 OK", [("Access-Control-Allow-Origin", "*")])
    yield b"the app's page"


def started_then_lazy(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Access-Control-Allow-Origin", "*"), ("Content-Length", "1000")])
    return iter(lambda: environ["wsgi.input"].read(1000), b"")


def empty_block_first(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Access-Control-Allow-Origin", "*")])
    yield b""
    yield environ["wsgi.input"].read()


@pytest.mark.parametrize(
    "app",
    [
        caught_whole, caught_with_exc_info, caught_in_generator, started_then_lazy,
        empty_block_first,
    ],
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"compress": True, "coalesce": True}], ids=str)
def test_head_of_wsgi_app_that_read_too_much_is_413(app: App, options: dict[str, Any]) -> None:
    server = served(app, b"x" * 2000, **options)
    status, headers = server.start
    assert status == "413 Content Too Large"
    assert ("Access-Control-Allow-Origin", "*") in headers
    assert server.header("ETag") is None
    assert server.header("Content-Type") == "text/plain; charset=utf-8"
    assert b"".join(server.sent) == b"The request body is longer than 10 bytes\n"


def test_wsgi_app_raising_at_the_limit_gets_413() -> None:
    server = served(echo, b"x" * 2000)
    assert server.start[0] == "413 Content Too Large"


def test_wsgi_app_with_begun_response_gets_the_error() -> None:
    def begun(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [])
        yield b"begun"
        yield environ["wsgi.input"].read()

    def written(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [])(b"begun")
        return [environ["wsgi.input"].read()]

    with pytest.raises(BodyTooLarge):
        served(written, b"x" * 2000)
    server = Server(WSGIFast(begun, body_limit_bytes=10), chunked(b"x" * 2000))
    with pytest.raises(BodyTooLarge):
        server.finish()
    assert [start[0] for start in server.starts] == ["200 OK"]
    assert server.sent == [b"begun"]


def test_other_errors_stay_the_apps() -> None:
    with pytest.raises(LookupError):
        served(raising(LookupError), b"short")


def test_body_that_is_replaced_is_closed() -> None:
    body = Closing([b"the app's page"])

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        with contextlib.suppress(OSError):
            environ["wsgi.input"].read()
        start_response("200 OK", [])
        return body

    assert served(app, b"x" * 2000).start[0].startswith("413")
    assert body.closed == 1


def test_413_to_head_has_no_body() -> None:
    server = served(echo, b"x" * 2000, method="HEAD")
    assert server.start[0] == "413 Content Too Large"
    assert b"".join(server.sent) == b""


def test_file_of_limited_request_uses_servers_wrapper() -> None:
    class Wrapper:
        def __init__(self, file: Any, block_size: int = 8192) -> None:
            self.file = file

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        assert environ["wsgi.input"].read() == b"short"
        start_response("200 OK", [])
        return open(__file__, "rb")

    environ = chunked(b"short")
    environ["wsgi.file_wrapper"] = Wrapper
    result: Any = WSGIFast(app, body_limit_bytes=10)(environ, lambda *_: lambda data: None)
    assert type(result) is Wrapper
    result.file.close()


def test_recorded_status_is_the_one_that_was_sent() -> None:
    notes = Notes()
    for app in (caught_whole, echo, started_then_lazy):
        served(app, b"x" * 2000, metrics=notes)
    assert [request.status for request in notes.requests] == [413, 413, 413]


# Live servers

CHUNKED = (
    "gunicorn-sync", "gunicorn-gthread", "gunicorn-fastworker", "gunicorn-gevent", "waitress",
    "fast-wsgiref", "fast-werkzeug", "cheroot", "pywsgi",
)  # fmt: skip
# These servers are configured to decode no chunks
OTHERS = ("wsgiref", "werkzeug", "uwsgi", "mod_wsgi")
APP = "tests.support.limited_app:wsgi"


server = servers_with(APP, [*CHUNKED, *OTHERS])
chunked_server = servers_with(APP, CHUNKED)


@pytest.mark.long
@pytest.mark.parametrize("path", ["/whole", "/raw", "/unread", "/lazy"])
def test_declared_body_is_limited_on_wsgi_servers(server: LiveServer, path: str) -> None:
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413)):
        with Connection(server.address) as connection:
            response = connection.request(path, method="POST", body=bytes(size))
            assert response.status == status, response
    assert server.get("/whole", method="POST", body=b"12345").body == b"5"


@pytest.mark.long
@pytest.mark.parametrize("path", ["/whole", "/raw", "/caught", "/lazy"])
def test_chunked_body_is_limited_on_wsgi_servers(chunked_server: LiveServer, path: str) -> None:
    headers = [("Transfer-Encoding", "chunked")]
    for blocks, status in ((10, 200), (11, 413)):
        with Connection(chunked_server.address) as connection:
            connection.send_request(path, method="POST", headers=headers)
            connection.send((b"2710\r\n" + bytes(10_000) + b"\r\n") * blocks + b"0\r\n\r\n")
            response = connection.read_response()
            assert response.status == status, response
            if status == 413:
                assert response.body == b"The request body is longer than 100000 bytes\n"

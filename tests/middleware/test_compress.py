"""WSGIFast(app, compress=True): the client's response, and when each part arrives."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import flask
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import servers_with
from tests.support.decoders import Decoder, decoded
from tests.support.servers import LiveServer
from tests.support.wsgi import Server, ask_compressed, exc_info, new_environ, returning
from wsgifast import Compression, WSGIFast, compress_response
from wsgifast.bodies.start_response import AppResponse
from wsgifast.bodies.writer import ResponseWriter
from wsgifast.compression.response import ResponseCoding

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

TEXT = b"All work and no play makes Jack a dull boy.\n" * 200
# No content coding makes these bytes smaller.
NOISE = os.urandom(1500)
CODINGS = ("zstd", "br", "gzip")


def begun(app: WSGIApplication, coding: str = "gzip") -> Server:
    """A compressed response before any of its blocks was requested."""
    return Server(WSGIFast(app, compress=True), new_environ(HTTP_ACCEPT_ENCODING=coding))


@pytest.mark.parametrize("coding", CODINGS)
@given(
    blocks=st.lists(
        st.sampled_from([b"", b"a", TEXT, TEXT[:70], b"\0" * 70_000, NOISE]), max_size=6
    ),
    kind=st.sampled_from(["list", "tuple", "generator"]),
    declares=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_body_decodes_to_the_same(
    coding: str, blocks: list[bytes], kind: str, declares: bool
) -> None:
    kinds: dict[str, Any] = {"list": list, "tuple": tuple, "generator": iter}
    body = kinds[kind](blocks)
    whole = b"".join(blocks)
    headers = [("Content-Length", str(len(whole)))] if declares else []
    server, sent = ask_compressed(returning(body, *headers), coding)
    used = server.header("Content-Encoding")
    assert used in (None, coding)
    assert decoded(used, sent) == whole
    length = server.header("Content-Length")
    assert length in (None, str(len(sent)))
    if used is not None:
        assert server.header("Vary") == "Accept-Encoding"
        assert server.environ["wsgifast.coding"] == coding
        assert server.environ["wsgifast.uncoded_bytes"] == len(whole)
        assert server.environ["wsgifast.coded_bytes"] == len(sent)
    else:
        assert not {"wsgifast.uncoded_bytes", "wsgifast.coded_bytes"} & server.environ.keys()
    if len(whole) >= 1000 and kind != "generator" and NOISE not in blocks:
        assert used == coding
        assert length == str(len(sent))


class OwnServer(ResponseWriter):
    """One of our own servers, for which headers are checked before it gets them."""

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        return None


@given(
    status=st.sampled_from(["200 OK", "206 Partial Content", "204 No Content", "404 Not Found"]),
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    headers=st.lists(
        st.sampled_from(
            [
                *(("Content-Type", kind) for kind in ("text/html", "image/png", "a/x+JSON", "")),
                *(("content-type", "text/css"), ("Content-Encoding", "gzip"), ("VARY", "Cookie")),
                *(("Cache-Control", "no-transform"), ("cache-control", "no-store"), ("X", "1")),
            ]
        ),
        max_size=4,
    ),
    size=st.sampled_from([0, 10, 999, 1000, 5000]),
    accepts=st.sampled_from([None, "", "gzip", "identity", "br;q=0, gzip;q=0.1"]),
    wish=st.sampled_from([[], [True], [False]]),
    is_own=st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_quick_decision_is_that_of_the_rules(
    status: str, method: str, headers: Any, size: int, accepts: Any, wish: Any, is_own: bool
) -> None:
    compression = Compression()
    environ = new_environ(REQUEST_METHOD=method, HTTP_ACCEPT_ENCODING=accepts)
    output: Any = None  # no body is sent
    start: Any = OwnServer(output).start_response if is_own else lambda *start: None
    response = AppResponse(None, environ, start, compression)
    response.wish.extend(wish)
    response.start(status, headers)
    coding = ResponseCoding(compression, method, accepts, wish)
    known_size = None if method == "HEAD" and not size else size
    expected = coding.decide(response.code, response.headers, known_size)
    changed = response.headers if expected is None else expected.apply(response.headers)
    decision = response.decide_whole(size)
    sent = response.headers if decision is None else decision.apply(response.headers)
    assert sent == changed
    assert (decision and decision.coding) == (expected and expected.coding)


def test_each_stream_block_arrives_before_the_next() -> None:
    made: list[int] = []

    def events() -> Iterator[bytes]:
        for number in range(5):
            made.append(number)
            yield b"data: %d\n\n" % number

    for coding in CODINGS:
        made.clear()
        server = begun(returning(events()), coding)
        decoder = Decoder(coding)
        for number, block in enumerate(server.result):
            if number < 5:
                assert decoder.add(block) == b"data: %d\n\n" % number
                assert made[-1] == number
        assert made == [*range(5)]


def test_compressed_wsgi_stream_that_fails_has_no_end() -> None:
    def failing() -> Iterator[bytes]:
        yield TEXT
        raise RuntimeError("midway")

    server = begun(returning(failing()))
    sent: list[bytes] = []
    with pytest.raises(RuntimeError, match="midway"):
        sent.extend(server.result)
    assert Decoder("gzip").add(b"".join(sent)) == TEXT
    with pytest.raises(AssertionError):
        decoded("gzip", b"".join(sent))


def test_compressed_head_has_the_headers_of_get() -> None:
    app = returning([TEXT], ("Content-Length", str(len(TEXT))), ("ETag", '"a"'))
    get, _ = ask_compressed(app)
    start, sent = ask_compressed(app, method="HEAD")
    assert sent == b""
    ours = [(name, value) for name, value in get.start[1] if name != "Content-Length"]
    assert sorted(start.start[1]) == sorted(ours)


def test_write_and_lazy_apps_are_compressed_or_not() -> None:
    def lazy(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield TEXT[:50]
        yield TEXT[50:]

    server, sent = ask_compressed(lazy)
    assert decoded("gzip", sent) == TEXT

    def writing(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(TEXT[:50])
        return [TEXT[50:]]

    server, sent = ask_compressed(writing)
    assert decoded(server.header("Content-Encoding"), sent) == TEXT

    def writing_late(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(TEXT[:50])
        yield TEXT[50:]

    server = begun(writing_late)
    sent = server.finish()
    assert decoded(server.header("Content-Encoding"), sent) == TEXT


def test_headers_replaced_before_first_byte_count() -> None:
    def failing(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/html")])
        yield b""
        start_response("500 No", [("Content-Type", "image/png")], exc_info())
        yield TEXT

    server = begun(failing)
    assert server.finish() == TEXT
    assert server.start[0] == "500 No"
    assert server.header("Content-Encoding") is None


def _replacing(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    start_response("500 No", [("Content-Type", "text/html"), ("X-New", "1")], exc_info())
    yield TEXT
    yield TEXT


def _replacing_headers(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Replace the headers before the first byte, of an app that is lazy or not."""
    headers = [("Content-Type", "text/html"), ("X-Old", "1")]
    if environ["PATH_INFO"] != "/lazy":
        start_response("200 OK", headers)
        return _replacing(environ, start_response)

    def lazy() -> Iterator[bytes]:
        start_response("200 OK", headers)
        yield from _replacing(environ, start_response)

    return lazy()


replacing_headers = WSGIFast(_replacing_headers, compress=True)
server = servers_with("tests.middleware.test_compress:replacing_headers")


@pytest.mark.long
@pytest.mark.parametrize("path", ["/", "/lazy"])
def test_replaced_headers_are_sent_once(server: LiveServer, path: str) -> None:
    response = server.get(path, headers=[("Accept-Encoding", "gzip")])
    assert response.status == 500
    assert response.header("Content-Encoding") == "gzip"
    assert response.header("X-New") == "1"
    assert response.header("X-Old") is None
    assert decoded("gzip", response.body) == TEXT * 2


def test_compress_response_without_middleware_is_idle() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        compress_response(environ, True)
        start_response("200 OK", [("Content-Type", "application/octet-stream")])
        return [TEXT]

    assert Server(app, new_environ()).finish() == TEXT


def test_large_whole_body_is_compressed_while_sent() -> None:
    blocks = [TEXT * 20] * 30
    server, sent = ask_compressed(returning(blocks))
    assert server.header("Content-Length") is None
    assert decoded("gzip", sent) == b"".join(blocks)


def test_flask_streams_preconditions_work_compressed() -> None:
    app = flask.Flask(__name__)

    @app.get("/page")
    def page() -> flask.Response:
        response = flask.make_response(TEXT.decode())
        response.add_etag()
        return response.make_conditional(flask.request)  # type: ignore[return-value]

    @app.get("/rows")
    def rows() -> flask.Response:
        return flask.Response((b"%d\n" % n for n in range(500)), mimetype="text/csv")

    server, sent = ask_compressed(app.wsgi_app, "zstd", path="/page")
    assert decoded("zstd", sent) == TEXT
    again, sent = ask_compressed(
        app.wsgi_app, "zstd", path="/page", HTTP_IF_NONE_MATCH=server.header("ETag")
    )
    assert (again.start[0][:3], sent) == ("304", b"")
    server, sent = ask_compressed(app.wsgi_app, "zstd", path="/rows")
    assert decoded("zstd", sent) == b"".join(b"%d\n" % n for n in range(500))


def test_options_reach_the_compressor() -> None:
    options = Compression(codings=["gzip"], min_bytes=1, padding=False)
    _, sent = ask_compressed(returning([b"x" * 60]), "zstd, gzip", options=options)
    assert decoded("gzip", sent) == b"x" * 60

"""Bodies in the wrappers of frameworks: unwrapped, closed once, and otherwise unchanged."""

from __future__ import annotations

import contextlib
import io
import threading
import wsgiref.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flask
import psutil
import pytest
import werkzeug.wsgi
from werkzeug.wrappers import Response
from werkzeug.wsgi import ClosingIterator

from tests.bodies.wrapped import CONTENT, Source, ask, check, closed
from tests.support.wsgi import Server, new_environ
from wsgifast import WSGIFast

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def flask_app(make: Callable[[], object], **options: Any) -> WSGIApplication:
    app = flask.Flask(__name__)

    @app.get("/")
    def view() -> Response:
        response = flask.Response(make(), **options)  # type: ignore[arg-type]
        response.call_on_close(lambda: closed.append("first"))
        response.call_on_close(lambda: closed.append(threading.get_ident()))
        return response

    return app.wsgi_app


def cherrypy_app(make: Callable[[], object]) -> WSGIApplication:
    cherrypy = pytest.importorskip("cherrypy")

    class Root:
        @cherrypy.expose
        def index(self) -> object:
            cherrypy.request.hooks.attach("on_end_request", lambda: closed.append("first"))
            cherrypy.request.hooks.attach(
                "on_end_request", lambda: closed.append(threading.get_ident())
            )
            return make()

        index._cp_config = {"response.stream": True}  # noqa: RUF012

    return cherrypy.Application(Root(), "")  # type: ignore[no-any-return]


# Flask and Werkzeug


@pytest.mark.parametrize(
    ("content", "sent_as"),
    [
        ("page", "as-is"),
        ([b"one", "zwölf".encode("latin-1")], "joined"),
        (["text", b"bytes", "zwölf"], "joined"),
        (("a", "b"), "joined"),
        ([], "as-is"),
        ([b"x" * 100_000, b"y" * 100_000], "as-is"),
    ],
)
def test_flask_response_of_existing_chunks_is_joined(content: object, sent_as: str) -> None:
    server = check(flask_app(lambda: content, content_type="text/plain; charset=latin-1"), sent_as)
    assert server.header("Content-Length") is not None


def test_flask_response_of_large_list_is_in_blocks() -> None:
    chunks = [b"%04d" % (number % 10_000) * 100 for number in range(5000)]
    server = check(flask_app(lambda: chunks), "joined")
    assert server.header("Content-Length") == "2000000"
    assert len(server.sent) < 10


@pytest.mark.parametrize("wrapper", [wsgiref.util.FileWrapper, None])
def test_flask_response_of_a_file_is_sent_as_one(path: Path, wrapper: object) -> None:
    sent_as = "file" if wrapper else "blocks"
    server = check(flask_app(lambda: path.open("rb")), sent_as, server_wrapper=wrapper)
    assert server.header("Accept-Ranges") == "bytes"
    assert len(server.sent) < 20


def test_flask_file_response_answers_ranges_and_closes(path: Path) -> None:
    file = path.open("rb")
    environ = new_environ(HTTP_RANGE="bytes=5-8")
    environ["wsgi.file_wrapper"] = wsgiref.util.FileWrapper
    server = Server(WSGIFast(flask_app(lambda: file)), environ)
    assert server.finish() == CONTENT[5:9]
    assert server.start[0] == "206 Partial Content"
    assert closed == ["first", threading.get_ident()]
    assert file.closed


@pytest.mark.parametrize(
    "make",
    [
        lambda path: io.BytesIO(CONTENT),
        lambda path: werkzeug.wsgi.FileWrapper(path.open("rb")),
        lambda path: wsgiref.util.FileWrapper(path.open("rb")),
        lambda path: ClosingIterator(path.open("rb"), lambda: closed.append("inner")),
    ],
)
def test_flask_response_of_other_files_is_read(path: Path, make: Callable[[Path], Any]) -> None:
    check(flask_app(lambda: make(path)), "file")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [200, 204, 304])
def test_flask_response_without_a_body_sends_none(method: str, status: int) -> None:
    sent_as = "no-body" if method == "HEAD" or status != 200 else "as-is"
    check(flask_app(list, status=status), sent_as, method=method)


def test_flask_generator_is_streamed_and_closed_first() -> None:
    check(flask_app(lambda: Source(f"{number}\n" for number in range(9))), "stream-small")
    assert closed[0] == "source"


def test_wrapped_block_of_declared_length_is_passed_on() -> None:
    returned: list[object] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        returned.append(flask_app(lambda: b"page")(environ, start_response))
        return returned[-1]  # type: ignore[return-value]

    server = check(app, "as-is")
    assert server.result is returned[-1]
    assert server.sent == [b"page"]


class Shouting(ClosingIterator):
    def __next__(self) -> bytes:
        return super().__next__().upper()


class Encoding(Response):
    def iter_encoded(self) -> Iterator[bytes]:
        return (chunk.upper() for chunk in super().iter_encoded())


def test_werkzeug_subclasses_are_left_alone(path: Path) -> None:
    def shouting(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        mine = [lambda: closed.append("first"), lambda: closed.append(threading.get_ident())]
        return Shouting([b"a", b"b"], mine)

    def encoding(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        response = Encoding(path.open("rb"))
        response.call_on_close(lambda: closed.append("first"))
        response.call_on_close(lambda: closed.append(threading.get_ident()))
        return response(environ, start_response)

    check(shouting, "stream-small")
    server = check(encoding, "stream-small")
    assert b"".join(server.sent) == CONTENT.upper()


def test_body_that_was_begun_goes_on_where_it_was(path: Path) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body = flask_app(lambda: path.open("rb"))(environ, start_response)
        next(iter(body))
        return body

    server = check(app, "stream-small")
    assert b"".join(server.sent) == CONTENT[6:]


# CherryPy


def test_cherrypy_bodies_are_sent_as_what_they_wrap(path: Path) -> None:
    check(cherrypy_app(lambda: ["a", b"b"]), "joined")
    check(cherrypy_app(lambda: Source([b"a"] * 9)), "stream-small")
    with contextlib.ExitStack() as opened:  # CherryPy does not close a streamed file
        check(cherrypy_app(lambda: opened.enter_context(path.open("rb"))), "file")


# Sentry


@pytest.mark.parametrize(
    ("make", "sent_as"),
    [
        (lambda path: ["a", b"b"], "joined"),
        (lambda path: path.open("rb"), "file"),
        (lambda path: Source([b"a"] * 9), "stream-small"),
    ],
)
def test_sentry_bodies_are_sent_as_what_they_wrap(
    make: Callable[[Path], Any], sent_as: str, path: Path
) -> None:
    """Sentry gives every response a separate scope."""
    sentry = pytest.importorskip("sentry_sdk.integrations.wsgi")

    app = flask_app(lambda: make(path), mimetype="text/plain")
    check(sentry.SentryWsgiMiddleware(app), sent_as)


# Pyramid, Falcon and Bottle


def pyramid_app(make: Callable[[], Any]) -> WSGIApplication:
    from pyramid.config import Configurator

    with Configurator() as config:
        config.add_route("index", "/")
        config.add_view(lambda request: make(), route_name="index")
    return config.make_wsgi_app()  # type: ignore[no-any-return]


def falcon_app(make: Callable[[], Any]) -> WSGIApplication:
    import falcon

    class Index:
        def on_get(self, request: object, response: Any) -> None:
            response.stream = make()

    app = falcon.App()
    app.add_route("/", Index())
    return app


def bottle_app(make: Callable[[], Any]) -> WSGIApplication:
    import bottle

    app = bottle.Bottle()
    app.get("/")(make)
    return app  # type: ignore[no-any-return]


def pyramid_response(content: object) -> Any:
    from pyramid.response import Response

    return Response(app_iter=content)


def pyramid_file(path: Path) -> Any:
    from pyramid.response import FileResponse

    return FileResponse(str(path))


def bottle_file(path: Path) -> Any:
    import bottle

    return bottle.static_file(path.name, root=path.parent)


@pytest.mark.filterwarnings("ignore::Warning")  # the imports of Pyramid and WebOb
@pytest.mark.parametrize("server_wrapper", [wsgiref.util.FileWrapper, None])
@pytest.mark.parametrize(
    ("app", "make", "sent_as"),
    [
        (pyramid_app, lambda path: pyramid_response([b"a", b"b"]), "joined"),
        (pyramid_app, lambda path: pyramid_response((b"a", b"b")), "joined"),
        (pyramid_app, lambda path: pyramid_response(path.open("rb")), "file"),
        (pyramid_app, pyramid_file, "file"),
        (pyramid_app, lambda path: pyramid_response(bytes([n]) for n in range(9)), "stream-small"),
        (falcon_app, lambda path: [b"a", b"b"], "joined"),
        (falcon_app, lambda path: (b"a", b"b"), "joined"),
        (falcon_app, lambda path: path.open("rb"), "file"),
        (falcon_app, lambda path: io.BytesIO(CONTENT), "file"),
        (falcon_app, lambda path: (bytes([n]) for n in range(9)), "stream-small"),
        (bottle_app, lambda path: ["a", "b"], "as-is"),  # Bottle joins these chunks
        (bottle_app, lambda path: ("a", "b"), "as-is"),
        (bottle_app, lambda path: path.open("rb"), "file"),
        (bottle_app, bottle_file, "file"),
        (bottle_app, lambda path: (f"{n}" for n in range(9)), "stream-small"),
    ],
)
def test_framework_bodies_are_sent_as_they_wrap(
    app: Callable[[Callable[[], Any]], WSGIApplication],
    make: Callable[[Path], Any],
    sent_as: str,
    server_wrapper: object,
    path: Path,
) -> None:
    """Files are sent in the same way with the file wrapper of the server or of the framework."""
    raw, expected, _ = ask(app(lambda: make(path)), "GET", server_wrapper)
    wrapped, body, _ = ask(WSGIFast(app(lambda: make(path))), "GET", server_wrapper)
    assert body == expected
    assert wrapped.start[0] == raw.start[0]
    # Bottle sends the Date header, and the time changes between the two responses.
    assert {field for field in raw.start[1] if field[0] != "Date"} <= {*wrapped.start[1]}
    blocks = sent_as == "file" and server_wrapper is None
    assert wrapped.environ["wsgifast.sent_as"] == ("blocks" if blocks else sent_as)
    opened = [file.path for file in psutil.Process().open_files()]
    assert str(path) not in opened

"""Bodies in the wrappers of frameworks: seen through, closed once, and otherwise left alone."""

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

from tests.support import django_project
from tests.support.wsgi import Server, new_environ
from wsgifast import WSGIFast
from wsgifast.bodies.segments import SegmentedBody
from wsgifast.sockets import FileSegment

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

CONTENT = b"line\r\n" * 20_000

closed: list[object] = []


@pytest.fixture(autouse=True, scope="module")
def data() -> Path:
    return django_project.set_up()


@pytest.fixture(autouse=True)
def nothing_closed() -> None:
    closed.clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file.txt").write_bytes(CONTENT)
    return tmp_path / "file.txt"


class Source:
    """What a response is made of: notes where it was closed."""

    def __init__(self, chunks: Iterable[Any]) -> None:
        self.chunks = iter(chunks)

    def __iter__(self) -> Iterator[Any]:
        return self.chunks

    def close(self) -> None:
        closed.append("source")


def flask_app(content: object, **options: Any) -> WSGIApplication:
    app = flask.Flask(__name__)

    @app.get("/")
    def view() -> Response:
        response = flask.Response(content, **options)  # type: ignore[arg-type]
        response.call_on_close(lambda: closed.append("first"))
        response.call_on_close(lambda: closed.append(threading.get_ident()))
        return response

    return app.wsgi_app


def django_app(make: Callable[[], Any]) -> WSGIApplication:
    from django.core.handlers.wsgi import WSGIHandler

    class Handler(WSGIHandler):
        def get_response(self, request: object) -> Any:
            response = make()
            response._resource_closers.append(lambda: closed.append("first"))
            response._resource_closers.append(lambda: closed.append(threading.get_ident()))
            return response

    return Handler()


def cherrypy_app(content: object) -> WSGIApplication:
    cherrypy = pytest.importorskip("cherrypy")

    class Root:
        @cherrypy.expose
        def index(self) -> object:
            cherrypy.request.hooks.attach("on_end_request", lambda: closed.append("first"))
            cherrypy.request.hooks.attach(
                "on_end_request", lambda: closed.append(threading.get_ident())
            )
            return content

        index._cp_config = {"response.stream": True}  # noqa: RUF012

    return cherrypy.Application(Root(), "")  # type: ignore[no-any-return]


def ask(
    app: WSGIApplication, method: str, server_wrapper: object
) -> tuple[Server, bytes, list[object]]:
    closed.clear()
    environ = new_environ(method)
    if server_wrapper is not None:
        environ["wsgi.file_wrapper"] = server_wrapper
    server = Server(app, environ)
    assert closed == []
    return server, server.finish(), closed.copy()


def check(
    app: WSGIApplication,
    route: str,
    *,
    method: str = "GET",
    server_wrapper: object = wsgiref.util.FileWrapper,
) -> Server:
    """Call an app raw and wrapped: bytes, status and the close callbacks are the same."""

    raw, expected, closers = ask(app, method, server_wrapper)
    wrapped, body, wrapped_closers = ask(WSGIFast(app), method, server_wrapper)
    assert body == (b"" if method == "HEAD" else expected)
    assert wrapped.head[0] == raw.head[0]
    # A second may have passed between the two.
    own = {name: value for name, value in raw.head[1] if name != "Date"}
    assert {**dict(wrapped.head[1]), **own} == dict(wrapped.head[1])
    assert wrapped_closers == closers
    assert closers[-2:] == ["first", threading.get_ident()]
    assert wrapped.environ["wsgifast.route"] == route
    return wrapped


# Flask and Werkzeug


@pytest.mark.parametrize(
    ("content", "route"),
    [
        ("page", "as-is"),
        ([b"one", "zwölf".encode("latin-1")], "joined"),
        (["text", b"bytes", "zwölf"], "joined"),
        (("a", "b"), "joined"),
        ([], "as-is"),
        ([b"x" * 100_000, b"y" * 100_000], "as-is"),
    ],
)
def test_flask_response_of_what_is_there(content: object, route: str) -> None:
    server = check(flask_app(content, content_type="text/plain; charset=latin-1"), route)
    assert server.header("Content-Length") is not None


def test_flask_response_of_a_large_list() -> None:
    chunks = [b"%04d" % (number % 10_000) * 100 for number in range(5000)]
    server = check(flask_app(chunks), "joined")
    assert server.header("Content-Length") == "2000000"
    assert len(server.sent) < 10


@pytest.mark.parametrize("wrapper", [wsgiref.util.FileWrapper, None])
def test_flask_response_of_a_file(path: Path, wrapper: object) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return flask_app(path.open("rb"))(environ, start_response)

    route = "file" if wrapper else "blocks"
    server = check(app, route, server_wrapper=wrapper)
    assert server.header("Accept-Ranges") == "bytes"
    assert len(server.sent) < 20


def test_flask_response_of_a_file_answers_ranges_and_closes(path: Path) -> None:
    file = path.open("rb")
    environ = new_environ(HTTP_RANGE="bytes=5-8")
    environ["wsgi.file_wrapper"] = wsgiref.util.FileWrapper
    server = Server(WSGIFast(flask_app(file)), environ)
    assert server.finish() == CONTENT[5:9]
    assert server.head[0] == "206 Partial Content"
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
def test_flask_response_of_other_files(path: Path, make: Callable[[Path], Any]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return flask_app(make(path))(environ, start_response)

    check(app, "file")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [200, 204, 304])
def test_flask_response_without_a_body(method: str, status: int) -> None:
    route = "no-body" if method == "HEAD" or status != 200 else "as-is"
    check(flask_app([], status=status), route, method=method)


def test_a_generator_in_flask_is_streamed_and_closed_first() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return flask_app(Source(f"{number}\n" for number in range(9)))(environ, start_response)

    check(app, "stream-small")
    assert closed[0] == "source"


def test_one_block_of_the_declared_length_is_passed_on_as_the_app_returned_it() -> None:
    returned: list[object] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        returned.append(flask_app(b"page")(environ, start_response))
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


def test_werkzeug_subclasses_that_iterate_otherwise_are_left_alone(path: Path) -> None:
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


def test_a_body_that_was_begun_goes_on_where_it_was(path: Path) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body = flask_app(path.open("rb"))(environ, start_response)
        next(iter(body))
        return body

    server = check(app, "stream-small")
    assert b"".join(server.sent) == CONTENT[6:]


# Django


def test_django_pages() -> None:
    from django.http import HttpResponse, JsonResponse

    check(django_app(lambda: HttpResponse("page")), "as-is")
    check(django_app(lambda: HttpResponse(str(n) for n in range(9))), "as-is")
    check(django_app(lambda: JsonResponse({"a": 1})), "as-is")
    check(django_app(lambda: HttpResponse("page")), "no-body", method="HEAD")

    def written() -> Any:
        response = HttpResponse("a")
        response.write("b")
        return response

    check(django_app(written), "joined")


def test_django_template_response() -> None:
    from django.template import engines
    from django.template.response import TemplateResponse

    def make() -> Any:
        template = engines["django"].from_string("{{ name }}")
        return TemplateResponse(None, template, {"name": "zwölf"}).render()

    server = check(django_app(make), "as-is")
    assert b"".join(server.sent) == "zwölf".encode()


def test_django_streams(path: Path) -> None:
    from django.http import FileResponse, StreamingHttpResponse

    check(django_app(lambda: StreamingHttpResponse(["a", b"b"])), "joined")
    lines = django_app(lambda: StreamingHttpResponse(Source(str(n) for n in range(99))))
    check(lines, "stream-small")
    assert closed[0] == "source"
    check(django_app(lambda: StreamingHttpResponse(path.open("rb"))), "file")
    wrapped = django_app(lambda: StreamingHttpResponse(wsgiref.util.FileWrapper(path.open("rb"))))
    check(wrapped, "file")
    for wrapper, route in (wsgiref.util.FileWrapper, "file"), (None, "blocks"):
        for make in (
            lambda: FileResponse(path.open("rb")),
            lambda: FileResponse(io.BytesIO(CONTENT)),
        ):
            check(django_app(make), route, server_wrapper=wrapper)


def test_django_looks_up_no_charset_for_each_chunk() -> None:
    from django.http import StreamingHttpResponse
    from django.utils.safestring import mark_safe

    class Bytes(bytes):
        pass

    chunks = ["zwölf", mark_safe("zwölf"), b"bytes", Bytes(b"more"), memoryview(b"view"), 7]
    types: list[str | None] = ["text/csv", "text/csv; charset=latin-1", None]
    for content_type in types:

        def make(content_type: str | None = content_type) -> Any:
            return StreamingHttpResponse((c for c in chunks), content_type=content_type)

        check(django_app(make), "stream-small")
    asked: list[object] = []

    class Counted(StreamingHttpResponse):
        @property
        def charset(self) -> Any:
            asked.append(self)
            return super().charset

        @charset.setter
        def charset(self, value: str) -> None: ...

    app = django_app(lambda: Counted(("zwölf" for _ in range(99)), content_type="text/csv"))
    Server(WSGIFast(app), new_environ()).finish()
    assert len(asked) == 1


def test_django_files_of_models_go_out_as_what_they_wrap(path: Path) -> None:
    from django.core.files.storage import FileSystemStorage
    from django.http import FileResponse

    def make() -> Any:
        return FileResponse(FileSystemStorage(path.parent).open(path.name))

    for wrapper, route in (wsgiref.util.FileWrapper, "file"), (None, "blocks"):
        server = check(django_app(make), route, server_wrapper=wrapper)
        assert server.header("ETag") is not None


def test_several_ranges_behind_django_stay_runs_of_their_file(path: Path) -> None:
    from django.http import StreamingHttpResponse

    def make(begun: bool = False) -> Any:
        file = path.open("rb")
        runs = [FileSegment(file.fileno(), 10, 20), FileSegment(file.fileno(), 90_000, 30)]
        response = StreamingHttpResponse(SegmentedBody([b"<", runs[0], b"|", runs[1]], file.close))
        response._resource_closers.append(lambda: closed.append(file.closed))
        if begun:
            next(iter(response))
        return response

    server = check(django_app(make), "segments")
    assert closed[0] is True
    assert b"".join(server.sent) == b"<" + CONTENT[10:30] + b"|" + CONTENT[90_000:90_030]
    assert isinstance(server.result, SegmentedBody)
    check(django_app(make), "no-body", method="HEAD")
    check(django_app(lambda: make(begun=True)), "stream-small")


def test_django_subclasses_that_iterate_otherwise_are_left_alone(path: Path) -> None:
    from django.http import FileResponse, HttpResponse, StreamingHttpResponse

    class Iterated(HttpResponse):
        def __iter__(self) -> Iterator[bytes]:
            return (chunk.upper() for chunk in super().__iter__())

    class Made(StreamingHttpResponse):
        def make_bytes(self, value: Any) -> Any:
            return super().make_bytes(value).upper()

    class Streamed(FileResponse):
        @property
        def streaming_content(self) -> Any:
            return map(bytes.upper, super().streaming_content)

        @streaming_content.setter
        def streaming_content(self, value: Any) -> None:
            self._set_streaming_content(value)

    check(django_app(lambda: Iterated("page")), "stream")
    check(django_app(lambda: Made(["a", "b"])), "stream-small")
    server = check(django_app(lambda: Made(path.open("rb"))), "stream-small")
    assert b"".join(server.sent) == CONTENT.upper()
    check(django_app(lambda: Streamed(path.open("rb"))), "stream-blocks", server_wrapper=None)


# CherryPy


def test_cherrypy(path: Path) -> None:
    def streamed(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return cherrypy_app(Source([b"a"] * 9))(environ, start_response)

    def file(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return cherrypy_app(opened.enter_context(path.open("rb")))(environ, start_response)

    check(cherrypy_app(["a", b"b"]), "joined")
    check(streamed, "stream-small")
    with contextlib.ExitStack() as opened:  # CherryPy closes no file that is streamed
        check(file, "file")


# Sentry


@pytest.mark.parametrize(
    ("make", "route"),
    [
        (lambda path: ["a", b"b"], "joined"),
        (lambda path: path.open("rb"), "file"),
        (lambda path: Source([b"a"] * 9), "stream-small"),
    ],
)
def test_sentry(make: Callable[[Path], Any], route: str, path: Path) -> None:
    """It gives every response a scope of its own."""
    sentry = pytest.importorskip("sentry_sdk.integrations.wsgi")

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        inner = flask_app(make(path), mimetype="text/plain")
        body: Iterable[bytes] = sentry.SentryWsgiMiddleware(inner)(environ, start_response)
        return body

    check(app, route)


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


@pytest.mark.filterwarnings("ignore::Warning")  # of what Pyramid and WebOb import
@pytest.mark.parametrize("server_wrapper", [wsgiref.util.FileWrapper, None])
@pytest.mark.parametrize(
    ("app", "make", "route"),
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
        (bottle_app, lambda path: ["a", "b"], "as-is"),  # which Bottle joins
        (bottle_app, lambda path: ("a", "b"), "as-is"),
        (bottle_app, lambda path: path.open("rb"), "file"),
        (bottle_app, bottle_file, "file"),
        (bottle_app, lambda path: (f"{n}" for n in range(9)), "stream-small"),
    ],
)
def test_others(
    app: Callable[[Callable[[], Any]], WSGIApplication],
    make: Callable[[Path], Any],
    route: str,
    server_wrapper: object,
    path: Path,
) -> None:
    """What they hold goes the same way, whether the server has a file wrapper or they their own."""
    raw, expected, _ = ask(app(lambda: make(path)), "GET", server_wrapper)
    wrapped, body, _ = ask(WSGIFast(app(lambda: make(path))), "GET", server_wrapper)
    assert body == expected
    assert wrapped.head[0] == raw.head[0]
    # Bottle tells the time, which goes on from one to the other.
    assert {field for field in raw.head[1] if field[0] != "Date"} <= {*wrapped.head[1]}
    blocks = route == "file" and server_wrapper is None
    assert wrapped.environ["wsgifast.route"] == ("blocks" if blocks else route)
    opened = [file.path for file in psutil.Process().open_files()]
    assert str(path) not in opened

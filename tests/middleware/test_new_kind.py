"""A kind of body that only this module knows, and a header that names each body's kind."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.conftest import wsgi_server
from tests.support import shapes
from tests.support.decoders import decoded
from tests.support.notes import Notes
from tests.support.servers import LiveServer
from tests.support.wsgi import Server, new_environ
from tests.workers.serving import fast_worker
from wsgifast import Compression, WSGIFast, middleware
from wsgifast.bodies.body import Body
from wsgifast.bodies.classify import classify
from wsgifast.bodies.start_response import AppResponse, Respond
from wsgifast.metrics import Answered

# The two ways of sending differ, so that a client sees which one the server has used.
ITERATED = b"".join(b"row %d\n" % number for number in range(1000))
SENT = b"all rows\n" * 100
FORMAT = "%(m)s %(s)s was sent as %({wsgifast.sent_as}e)s, %(B)s bytes"


class Table:
    """The object that the app returns."""

    def __init__(self, environ: dict[str, Any]) -> None:
        self._environ = environ

    def close(self) -> None:
        self._environ["wsgi.errors"].write("the table is closed\n")


class Rows(Body):
    """The kind of body for a Table."""

    sent_as = "rows"

    def __iter__(self) -> Iterator[bytes]:
        return iter(ITERATED.splitlines(keepends=True))

    def send_to(self, writer: Any) -> None:
        writer.write_all([SENT])


def app(environ: dict[str, Any], start_response: Any) -> Any:
    write = start_response("200 OK", [("Content-Type", "text/csv")])
    if environ["PATH_INFO"] == "/written":
        write(b"head\n")
    return Table(environ)


def add_sent_as(respond: Respond) -> Respond:
    """A stage that adds a header with the kind of the body."""

    def call(response: AppResponse) -> Iterable[bytes]:
        response.edits = [*response.edits, _add_header]
        return respond(response)

    return call


def _add_header(response: AppResponse) -> None:
    response.headers.append(("X-Sent-As", response.environ["wsgifast.sent_as"]))


class Printer(Notes):
    """A recorder that also prints the kind and the size of each body."""

    def record(self, request: Answered) -> None:
        super().record(request)
        print(f"recorded {request.sent_as}, {request.size} bytes", file=sys.stderr, flush=True)


@functools.cache
def fast_app(*, compress: bool, records: bool = False) -> WSGIFast:
    """Return the app in a WSGIFast that knows the kind. Only the process of a server calls this."""

    def classify_table(body: Any, wrapper: object = None) -> Body:
        return Rows(body, body) if isinstance(body, Table) else classify(body, wrapper)

    setattr(middleware, "classify", classify_table)  # noqa: B010 - mypy would reject an assignment
    compression = Compression(codings=["gzip"]) if compress else False
    wrapped = WSGIFast(app, compress=compression, metrics=Printer() if records else None)
    wrapped._respond = add_sent_as(wrapped._respond)
    return wrapped


def uncompressed(environ: dict[str, Any], start_response: Any) -> Any:
    return fast_app(compress=False)(environ, start_response)


def compressed(environ: dict[str, Any], start_response: Any) -> Any:
    return fast_app(compress=True)(environ, start_response)


def recorded(environ: dict[str, Any], start_response: Any) -> Any:
    return fast_app(compress=True, records=True)(environ, start_response)


@pytest.fixture(scope="module", params=["uncompressed", "compressed", "recorded"])
def fast(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    app_name = f"{__name__}:{request.param}"
    with fast_worker(f"--access-logformat={FORMAT}", app=app_name) as running:
        yield running


def test_new_kind_is_sent_by_its_own_send_to(fast: LiveServer) -> None:
    response = fast.get("/")
    assert response.body == SENT
    assert response.header("X-Sent-As") == "rows"
    fast.wait_for_log(f"GET 200 was sent as rows, {len(SENT)} bytes")
    fast.wait_for_log("the table is closed")


def test_new_kind_to_head_has_no_body(fast: LiveServer) -> None:
    response = fast.get("/", method="HEAD")
    assert (response.body, response.header("X-Sent-As")) == (b"", "no-body")
    fast.wait_for_log("HEAD 200 was sent as no-body, 0 bytes")


def test_new_kind_after_write_is_iterated(fast: LiveServer) -> None:
    assert fast.get("/written").body == b"head\n" + ITERATED
    fast.wait_for_log(f"GET 200 was sent as stream-small, {len(ITERATED) + 5} bytes")


def test_new_kind_is_compressed_as_a_stream() -> None:
    with wsgi_server("gunicorn-fastworker", f"{__name__}:compressed") as server:
        response = server.get("/", headers=[("Accept-Encoding", "gzip")])
    assert response.header("Content-Encoding") == "gzip"
    assert decoded("gzip", response.body) == ITERATED
    assert response.header("X-Sent-As") == "stream"


def test_new_kind_is_recorded_with_its_name_and_size() -> None:
    with wsgi_server("gunicorn-fastworker", f"{__name__}:recorded") as server:
        assert server.get("/").body == SENT
        server.wait_for_log(f"recorded rows, {len(SENT)} bytes")
        response = server.get("/", headers=[("Accept-Encoding", "gzip")])
        server.wait_for_log(f"recorded stream-small, {len(response.body)} bytes")


@pytest.mark.parametrize(
    ("name", "body"),
    [("gunicorn-gthread", ITERATED), ("waitress", ITERATED), ("fast-wsgiref", SENT)],
)
def test_new_kind_on_another_server(name: str, body: bytes) -> None:
    with wsgi_server(name, f"{__name__}:uncompressed") as server:
        response = server.get("/")
    assert response.body == body
    assert response.header("X-Sent-As") == "rows"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_header_can_depend_on_the_kind_of_body(name: str, method: str) -> None:
    wrapped = WSGIFast(shapes.SHAPES[name].view)
    wrapped._respond = add_sent_as(wrapped._respond)
    server = Server(wrapped, new_environ(method, f"/{name}"))
    server.finish()
    sent_as, header = server.environ["wsgifast.sent_as"], server.header("X-Sent-As")
    if name.startswith("written") and method == "GET":  # write() sends the headers before the body
        assert header == "stream"
    else:  # the name of a stream may be more exact at its end
        assert sent_as.startswith(header)

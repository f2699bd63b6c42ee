"""The values that WSGIFast records for a request. It does not change the request."""

from __future__ import annotations

import gc
import io
import logging
import sys
import weakref
import wsgiref.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.files import write_old
from tests.support.notes import Notes, values_of
from tests.support.wsgi import Server, new_environ, returning
from wsgifast import BodyError, ConfigurationError, WSGIFast
from wsgifast.bodies.files import FileReader
from wsgifast.metrics import Answered, RequestMetrics
from wsgifast.metrics.requests import RECORDER

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class Failing(Notes):
    def begin(self, method: str, scheme: str) -> None:
        raise RuntimeError("the back end is down")

    def record(self, request: Answered) -> None:
        raise RuntimeError("the back end is down")


def ask(app: WSGIApplication, environ: dict[str, Any] | None = None, **options: Any) -> Notes:
    """Send one request, and read the whole response."""
    notes = Notes()
    Server(WSGIFast(app, metrics=notes, **options), environ).finish()
    return notes


def test_list_is_recorded_when_the_app_returns() -> None:
    notes = Notes()
    body = [b"abc"]
    app = WSGIFast(returning(body), metrics=notes)
    assert Server(app).result is body
    (request,) = notes.requests
    assert request[:5] == ("GET", "http", 200, None, "as-is")
    assert request.size == 3
    assert request.seconds > 0


@pytest.mark.parametrize(
    ("body", "sent_as", "size"),
    [
        ("text", "rescued", 4),
        ([b"x"] * 1000, "joined", 1000),
        ((b"x" for _ in range(1000)), "stream-small", 1000),
        (io.BytesIO(b"12345"), "blocks", 5),
    ],
)
def test_request_records_its_body_and_size(body: Any, sent_as: str, size: int) -> None:
    (request,) = ask(returning(body)).requests
    assert (request.sent_as, request.size) == (sent_as, size)


@pytest.mark.parametrize("wrapper", [None, wsgiref.util.FileWrapper])
def test_file_is_recorded_when_it_is_closed(tmp_path: Path, wrapper: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    environ = new_environ(**({} if wrapper is None else {"wsgi.file_wrapper": wrapper}))
    notes = Notes()
    file = path.open("rb")
    body: Any = Server(WSGIFast(returning(file), metrics=notes), environ).result
    assert wrapper is None or type(body) is wrapper
    assert not notes.requests
    body.close()
    body.close()
    assert file.closed
    (request,) = notes.requests
    assert (request.sent_as, request.size) == ("file" if wrapper else "blocks", 100_000)


def test_file_read_by_its_wrapper_is_counted() -> None:
    environ = new_environ("GET", "/", **{"wsgi.file_wrapper": wsgiref.util.FileWrapper})
    notes = Notes()
    body: Any = Server(WSGIFast(returning(io.BytesIO(b"12345")), metrics=notes), environ).result
    assert type(body.filelike) is FileReader
    assert b"".join(body) == b"12345"
    body.close()
    assert notes.requests[0].size == 5


def test_several_ranges_are_recorded_as_segments(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_old(path, b"0123456789")
    environ = new_environ(HTTP_RANGE="bytes=0-1,5-6")
    notes = Notes()
    sent = Server(WSGIFast(returning(path.open("rb")), metrics=notes), environ).finish()
    (request,) = notes.requests
    assert (request.status, request.sent_as, request.size) == (206, "segments", len(sent))


def test_head_is_recorded_without_a_body() -> None:
    (request,) = ask(returning(iter([b"abc"])), new_environ("HEAD")).requests
    assert (request.method, request.sent_as, request.size) == ("HEAD", "no-body", 0)


def test_body_of_another_length_is_counted() -> None:
    assert ask(returning([b"abc"], ("Content-Length", "5"))).length_errors == ["corrected"]
    too_long = returning(iter([b"abc", b"def"]), ("Content-Length", "5"))
    assert ask(too_long).length_errors == ["long"]
    notes = Notes()
    app = WSGIFast(returning(iter([b"abc"]), ("Content-Length", "5")), metrics=notes)
    with pytest.raises(EOFError):
        Server(app).finish()
    assert notes.length_errors == ["short"]
    assert not notes.clients_left


def test_client_that_leaves_is_counted() -> None:
    notes = Notes()
    app = WSGIFast(returning(iter([b"a", b"b"])), metrics=notes)
    body: Any = Server(app).result
    assert next(iter(body)) == b"a"
    body.close()
    assert (notes.clients_left, len(notes.requests)) == (1, 1)
    assert notes.requests[0].size == 1


def test_body_that_exits_is_no_client_that_leaves() -> None:
    def blocks() -> Iterator[bytes]:
        yield b"a"
        sys.exit()

    notes = Notes()
    body: Any = Server(WSGIFast(returning(blocks()), metrics=notes)).result
    with pytest.raises(SystemExit):
        list(body)
    body.close()
    assert (notes.clients_left, len(notes.requests)) == (0, 1)


def test_app_that_raises_is_recorded_as_500() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [])
        raise ZeroDivisionError

    notes = Notes()
    with pytest.raises(ZeroDivisionError):
        Server(WSGIFast(app, metrics=notes))
    assert [request.status for request in notes.requests] == [500]


def test_status_of_a_lazy_app_is_recorded() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("404 Not Found", [])
        yield b"no"

    assert [request.status for request in ask(app).requests] == [404]


def test_failing_recorder_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = WSGIFast(returning([b"abc"]), metrics=Failing())
    with caplog.at_level(logging.ERROR):
        assert [Server(app).finish() for _ in range(3)] == [b"abc"] * 3
    assert len(caplog.records) == 1
    assert "the back end is down" in caplog.text


def active(metrics: RequestMetrics) -> dict[tuple[str, ...], Any]:
    return values_of(metrics, "http_server_active_requests")


def _fail(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    raise ZeroDivisionError


@pytest.mark.parametrize("pattern", [None, "/items/<id>"])
def test_list_is_active_while_the_app_runs(pattern: str | None) -> None:
    metrics = RequestMetrics()
    seen = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        seen.append(active(metrics))
        if pattern is not None:
            environ["wsgifast.pattern"] = pattern
        start_response("200 OK", [])
        return [b"a", b"b"]

    instrumented = WSGIFast(app, metrics=metrics)
    for _ in range(3):  # the first one, and those that find its labels
        Server(instrumented).finish()
    assert seen == [{("GET", "http"): 1}] * 3
    assert active(metrics) == {("GET", "http"): 0}
    (sizes,) = values_of(metrics, "http_server_response_body_size_bytes").values()
    assert sizes.total == 6


def test_stream_is_active_until_it_is_closed() -> None:
    metrics = RequestMetrics()
    app = WSGIFast(returning(iter([b"a", b"b"])), metrics=metrics)
    body: Any = Server(app, new_environ("POST")).result
    next(iter(body))
    assert active(metrics) == {("POST", "http"): 1}
    body.close()  # its client has left
    assert active(metrics) == {("POST", "http"): 0}


def test_request_whose_app_raises_is_no_longer_active() -> None:
    metrics = RequestMetrics()
    for app in (_fail, returning(1), returning(iter([b"a", 1]))):
        instrumented = WSGIFast(app, metrics=metrics)
        with pytest.raises((ZeroDivisionError, BodyError)):
            Server(instrumented).finish()
    assert active(metrics) == {("GET", "http"): 0}


def test_request_recorded_outside_is_recorded_once() -> None:
    metrics = RequestMetrics()
    inner = WSGIFast(returning([b"abc"]), metrics=metrics)
    environ = new_environ("GET", "/", **{RECORDER: metrics})  # a server's own key
    Server(inner, environ).finish()
    Server(WSGIFast(inner, metrics=metrics)).finish()
    assert [*values_of(metrics, "wsgifast_responses_total").values()] == [1]
    assert active(metrics) == {("GET", "http"): 0}


@pytest.mark.parametrize("body", [list, iter])
def test_request_leaves_no_garbage(body: Any) -> None:
    app = WSGIFast(returning(body([b"abc"])), metrics=Notes())
    gc.disable()
    try:
        # A handler of wsgiref refers to the environ, which refers to its objects. It drops the body
        # at its end.
        server = Server(app, new_environ("GET", "/", **{"server.socket": Notes()}))
        closed = weakref.ref(server.environ["server.socket"])
        server.finish()
        server.result = ()
        del server
        assert closed() is None
    finally:
        gc.enable()


def test_wsgifast_within_another_is_recorded_by_both(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    inner, outer = Notes(), Notes()
    for body in ([b"abc"], iter([b"abc"]), (tmp_path / "file").open("rb")):
        app = WSGIFast(WSGIFast(returning(body), metrics=inner), metrics=outer)
        Server(app).finish()
    for notes in (inner, outer):
        assert [request.status for request in notes.requests] == [200] * 3
        assert [request.size for request in notes.requests] == [3, 3, 10]


@pytest.mark.parametrize("metrics", ["statsd", True, 1, object()])
def test_invalid_metrics_option_is_refused(metrics: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected 'prometheus', 'opentelemetry'"):
        WSGIFast(returning([]), metrics=metrics)

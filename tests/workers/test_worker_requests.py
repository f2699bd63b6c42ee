"""What a FastWorker does around each request: hooks, the app, its errors, logs."""

from __future__ import annotations

import logging
import signal
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.workers import gthread

from tests.server.http2_peer import HTTP2, Peer
from tests.workers.bench import GET, PEER, Log, MakeBench, answers, ask, hello
from wsgifast.bodies.files import SegmentedBody
from wsgifast.workers import FastWorker
from wsgifast.workers.access_line import AccessLog


def test_keepalive_depends_on_settings_and_load(make_bench: MakeBench) -> None:
    bench = make_bench(hello, keepalive=0)
    assert ask(bench)[:2] == (200, False)
    bench = make_bench(hello, keepalive=5, worker_connections=5, threads=3)
    first, second, third = (bench.connect() for _ in range(3))
    # Connections for as many threads as there are, at least.
    assert ask(bench, first)[:2] == (200, False)
    first.close()
    bench.run()
    assert ask(bench, second)[:2] == (200, True)
    bench.worker.handle_exit(signal.SIGTERM, None)
    assert ask(bench, third)[:2] == (200, False)


class Hooks:
    """The hooks around a request, one of which may fail."""

    def __init__(self, failing: str, error: type[BaseException]) -> None:
        self.calls: list[tuple[str, Any, Any]] = []
        self._failing = failing
        self._error = error

    def pre_request(self, worker: Any, req: Any) -> None:
        self._note("pre", None, None)

    def post_request(self, worker: Any, req: Any, environ: Any, resp: Any) -> None:
        self._note("post", environ.get("PATH_INFO"), resp and resp.status)

    def _note(self, name: str, path: Any, status: Any) -> None:
        self.calls.append((name, path, status))
        if name == self._failing:
            raise self._error("of a hook")


@pytest.mark.parametrize("failing", ["", "pre", "post"])
def test_failing_hook_ends_its_request_only(make_bench: MakeBench, failing: str) -> None:
    hooks = Hooks(failing, RuntimeError)
    bench = make_bench(
        hello, keepalive=5, pre_request=hooks.pre_request, post_request=hooks.post_request
    )
    status, kept, _ = ask(bench, target="/a")
    assert (status, kept) == ((500, False) if failing == "pre" else (200, True))
    seen = (None, None) if failing == "pre" else ("/a", "200 OK")
    assert hooks.calls == [("pre", None, None), ("post", *seen)]
    assert bench.log.says("Exception in post_request hook") == (failing == "post")
    assert len(bench.log.requests) == 1


@pytest.mark.parametrize("speaks_http2", [False, True])
def test_hook_may_change_request_and_response(make_bench: MakeBench, speaks_http2: bool) -> None:
    seen: list[Any] = []

    def post_request(worker: Any, req: Any, environ: Any, resp: Any) -> None:
        req.mark = resp.mark = resp.status = resp.must_close = 5
        resp.sent = 7
        seen.append(weakref.ref(resp)())

    bench = make_bench(hello, keepalive=5, post_request=post_request, **HTTP2)
    assert (Peer(bench).get().status if speaks_http2 else ask(bench)[0]) == 200
    (resp,) = seen
    assert (resp.mark, vars(resp)["mark"]) == (5, 5)
    assert bench.log.requests == [("GET /", 5, 7)]
    assert not bench.log.errors


@pytest.mark.parametrize("hook", [True, False])
def test_stop_iteration_of_hook_or_app_is_an_error(make_bench: MakeBench, hook: bool) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", "0")])
        raise StopIteration

    hooks = Hooks("pre" if hook else "", StopIteration)
    bench = make_bench(app, keepalive=5, pre_request=hooks.pre_request)
    assert bench.begin().read_to_end().startswith(b"HTTP/1.1 500 ")
    assert bench.log.says("Error")


class FailsToClose:
    """A body whose close() raises."""

    def __init__(self, blocks: Iterator[bytes], error: Exception) -> None:
        self._blocks = blocks
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks

    def close(self) -> None:
        raise self._error


def test_app_error_after_empty_body_sends_nothing_more(make_bench: MakeBench) -> None:
    body = FailsToClose(iter(()), ValueError("of the app"))
    app = answers(body, ("Content-Length", "0"))
    raw = make_bench(app, keepalive=5).begin().read_to_end()
    assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
    assert raw.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, ConnectionError])
@pytest.mark.parametrize("where", ["app", "head", "body", "close"])
def test_app_error_of_any_kind_is_answered_and_logged(
    make_bench: MakeBench, error: type[BaseException], where: str
) -> None:
    class Body:
        def __iter__(self) -> Iterator[bytes]:
            if where == "head":
                raise error("of the app")
            yield b"some"
            if where == "body":
                raise error("of the app")

        def close(self) -> None:
            if where == "close":
                raise error("of the app")

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if where == "app":
            raise error("of the app")
        start_response("200 OK", [])
        return Body()

    bench = make_bench(app, keepalive=5)
    raw = bench.begin().read_to_end()
    if where in ("app", "head"):
        assert raw.startswith(b"HTTP/1.1 500 ")
        page = raw.partition(b"\r\n\r\n")[2]
        expected = [("GET /", "500 Internal Server Error", len(page))]
        assert bench.log.environs[0]["PATH_INFO"] == "/"
    else:
        assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
        assert raw.endswith(b"some\r\n" if where == "body" else b"some\r\n0\r\n\r\n")
        expected = [("GET /", "200 OK", 4)]
    assert bench.log.says("Error handling request")
    assert not bench.log.says("Error in a connection")
    assert bench.log.requests == expected


@pytest.mark.parametrize(
    "error", [None, BrokenPipeError("in its own words"), ValueError("of the app")]
)
def test_app_error_after_client_left_is_logged_if_own(
    make_bench: MakeBench, error: Exception | None
) -> None:
    def blocks(start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"some"
        client.close()
        yield bytes(1 << 20)
        pytest.fail("it goes on")

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = blocks(start_response)
        return body if error is None else FailsToClose(body, error)

    bench = make_bench(app)
    client = bench.connect()
    client.run(GET)
    assert not bench.server.registry.connections
    is_its_own = isinstance(error, ValueError)
    assert bench.log.says("Error handling request") is is_its_own
    assert bench.log.says("Ignoring a lost connection") is not is_its_own
    assert len(bench.log.requests) == 1


@pytest.mark.parametrize("kind", [list, tuple, iter, "segments", "file"])
def test_body_is_closed_once(make_bench: MakeBench, kind: Any, tmp_path: Path) -> None:
    closed: list[str] = []
    path = tmp_path / "file"
    path.write_bytes(b"body")

    class File:
        def __init__(self) -> None:
            self._file = path.open("rb")
            self.read = self._file.read

        def close(self) -> None:
            self._file.close()
            closed.append("file")

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [("Content-Length", "4")])
        if kind == "segments":
            return SegmentedBody([b"body"], lambda: closed.append("segments"))
        if kind == "file":
            return environ["wsgi.file_wrapper"](File())
        return kind([b"body"])

    bench = make_bench(app)
    assert ask(bench)[2] == b"body"
    assert closed == ([kind] if isinstance(kind, str) else [])


def test_access_log_gets_duration_and_environ(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        bench.clock.now += 1.5
        return hello(environ, start_response)

    bench = make_bench(app)
    ask(bench)
    assert bench.log.seconds == [1.5]
    assert bench.log.environs[0]["REQUEST_METHOD"] == "GET"


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_access_log_is_called_only_if_read(
    make_bench: MakeBench, writes: bool, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Counting(Logger):  # type: ignore[misc]
        if own:

            def access(self, resp: Any, req: Any, environ: Any, request_time: Any) -> None:
                calls.append(resp.status)

    if not own:
        monkeypatch.setattr(Logger, "access", lambda self, resp, *rest: calls.append(resp.status))
    cfg = Config()
    cfg.set("accesslog", "-" if writes else None)
    log = Counting(cfg)
    bench = make_bench(hello, attributes={"body_limit_bytes": 10})
    bench.worker.log = log
    bench.begin_anew()
    ask(bench)
    bench.begin(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n")
    assert calls == (["200 OK", "413 Content Too Large"] if own or writes else [])
    for handler in [*log.access_log.handlers, *log.error_log.handlers]:
        handler.close()
    logging.getLogger("gunicorn.access").handlers.clear()
    logging.getLogger("gunicorn.error").handlers.clear()


def test_failing_logger_costs_no_answer(make_bench: MakeBench) -> None:
    class Failing(Log):
        def access(self, *args: Any) -> None:
            raise OSError("the log cannot be written")

    bench = make_bench(hello, keepalive=5, attributes={"body_limit_bytes": 10})
    bench.worker.log = bench.worker.application.log = log = Failing()
    bench.worker.application.log_access = AccessLog(log).write
    client = bench.connect()
    for _ in range(2):
        assert ask(bench, client) == (200, True, b"hello")
    assert log.lines.count("Error in the access log") == 2
    bench.worker.application.app = None  # not callable: the app's error
    assert ask(bench, client)[0] == 500
    for framing, status in (
        (b"Content-Length: 11\r\n\r\n", 413),
        (b"Content-Length: 10\r\n\r\nshort", 408),
        (b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400),
        (b"X-Long: %b\r\n\r\n" % (10_000 * b"a"), 431),
    ):
        client = bench.begin(b"POST / HTTP/1.1\r\nHost: a\r\n" + framing)
        bench.pass_time(FastWorker.body_timeout_s + 1)
        assert client.read_response().status == status
        assert client.read_to_end() == b""
    # What has too long a head is no request yet.
    assert log.lines.count("Error in the access log") == 6
    assert not log.says("Error in a connection")


def test_path_outside_script_name_is_400(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPT_NAME", "/inside")
    bench = make_bench(hello, attributes={"body_limit_bytes": 10})
    client = bench.begin(b"POST /outside HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n")
    assert client.read_response().status == 413
    assert ask(bench, target="/outside")[0] == 400
    assert [line for line in bench.log.lines if "SCRIPT" in line] == [
        f"Invalid request from {PEER}: Request path '/outside' does not start with "
        "SCRIPT_NAME '/inside'"
    ]
    assert ask(bench, target="/inside/a")[0] == 200
    assert [status for _, status, _ in bench.log.requests] == [
        "413 Content Too Large",
        "400 Bad Request",
        "200 OK",
    ]


def test_hijacked_response_is_not_logged(make_bench: MakeBench) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["gunicorn.socket"].sendall(b"mine")
        raise StopIteration

    bench = make_bench(app)
    client = bench.begin()
    assert client.read_to_end() == b"mine"
    assert not bench.log.requests


def test_worker_has_attributes_of_gthread(make_bench: MakeBench) -> None:
    bench = make_bench(hello, worker_connections=20, threads=3)
    worker = bench.worker
    assert isinstance(worker, gthread.ThreadWorker)
    assert worker.max_keepalived == 17
    bench.connect()
    assert worker.tpool is None

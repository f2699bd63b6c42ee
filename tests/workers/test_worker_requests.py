"""FastWorker's work for each request: hooks, the app, its errors, and logs."""

from __future__ import annotations

import logging
import signal
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.workers import gthread

from tests.server.http2_peer import HTTP2, Peer
from tests.workers.stepped_worker import GET, PEER, MakeStepped, ask, hello, responses


def test_keepalive_depends_on_settings_and_load(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(hello, keepalive=0)
    assert ask(stepped)[:2] == (200, False)
    stepped = make_stepped(hello, keepalive=5, worker_connections=5, threads=3)
    first, second, third = (stepped.connect() for _ in range(3))
    # Up to worker_connections - threads connections stay open after a response.
    assert ask(stepped, first)[:2] == (200, False)
    first.close()
    stepped.run()
    assert ask(stepped, second)[:2] == (200, True)
    stepped.worker.handle_exit(signal.SIGTERM, None)
    assert ask(stepped, third)[:2] == (200, False)


class Hooks:
    """The hooks of a request. One of them may fail."""

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
@pytest.mark.parametrize("error", [RuntimeError, StopIteration])
def test_failing_hook_ends_its_request_only(
    make_stepped: MakeStepped, failing: str, error: type[Exception]
) -> None:
    hooks = Hooks(failing, error)
    stepped = make_stepped(
        hello, keepalive=5, pre_request=hooks.pre_request, post_request=hooks.post_request
    )
    status, stays, _ = ask(stepped, target="/a")
    assert (status, stays) == ((500, False) if failing == "pre" else (200, True))
    seen = (None, None) if failing == "pre" else ("/a", "200 OK")
    assert hooks.calls == [("pre", None, None), ("post", *seen)]
    assert stepped.log.says("Exception in post_request hook") == (failing == "post")
    assert len(stepped.log.requests) == 1


@pytest.mark.parametrize("speaks_http2", [False, True])
def test_hook_may_change_request_and_response(
    make_stepped: MakeStepped, speaks_http2: bool
) -> None:
    seen: list[Any] = []

    def post_request(worker: Any, req: Any, environ: Any, resp: Any) -> None:
        req.mark = resp.mark = resp.status = resp.must_close = 5
        resp.sent = 7
        seen.append(weakref.ref(resp)())

    stepped = make_stepped(hello, keepalive=5, post_request=post_request, **HTTP2)
    assert (Peer(stepped).get().status if speaks_http2 else ask(stepped)[0]) == 200
    (resp,) = seen
    assert (resp.mark, vars(resp)["mark"]) == (5, 5)
    assert stepped.log.requests == [("GET /", 5, 7)]
    assert not stepped.log.errors


class FailsToClose:
    """A body whose close() raises."""

    def __init__(self, blocks: Iterator[bytes], error: Exception) -> None:
        self._blocks = blocks
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks

    def close(self) -> None:
        raise self._error


def test_app_error_after_empty_body_sends_nothing_more(make_stepped: MakeStepped) -> None:
    body = FailsToClose(iter(()), ValueError("of the app"))
    app = responses(body, ("Content-Length", "0"))
    raw = make_stepped(app, keepalive=5).begin().read_to_end()
    assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
    assert raw.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, ConnectionError])
@pytest.mark.parametrize("where", ["app", "head", "body", "close"])
def test_app_error_of_any_kind_is_answered_and_logged(
    make_stepped: MakeStepped, error: type[BaseException], where: str
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

    stepped = make_stepped(app, keepalive=5)
    raw = stepped.begin().read_to_end()
    if where in ("app", "head"):
        assert raw.startswith(b"HTTP/1.1 500 ")
        page = raw.partition(b"\r\n\r\n")[2]
        expected = [("GET /", "500 Internal Server Error", len(page))]
        assert stepped.log.environs[0]["PATH_INFO"] == "/"
    else:
        assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
        assert raw.endswith(b"some\r\n" if where == "body" else b"some\r\n0\r\n\r\n")
        expected = [("GET /", "200 OK", 4)]
    assert stepped.log.says("Error handling request")
    assert not stepped.log.says("Error in a connection")
    assert stepped.log.requests == expected


@pytest.mark.parametrize(
    "error", [None, BrokenPipeError("in its own words"), ValueError("of the app")]
)
def test_app_error_after_client_left_is_logged_if_own(
    make_stepped: MakeStepped, error: Exception | None
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

    stepped = make_stepped(app)
    client = stepped.connect()
    client.run(GET)
    assert not stepped.server.registry.connections
    is_its_own = isinstance(error, ValueError)
    assert stepped.log.says("Error handling request") is is_its_own
    assert stepped.log.says("Ignoring a lost connection") is not is_its_own
    assert len(stepped.log.requests) == 1


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_access_log_is_called_only_if_read(
    make_stepped: MakeStepped, writes: bool, own: bool, monkeypatch: pytest.MonkeyPatch
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
    stepped = make_stepped(hello, attributes={"body_limit_bytes": 10})
    stepped.worker.log = log
    stepped.begin_anew()
    ask(stepped)
    stepped.begin(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n")
    assert calls == (["200 OK", "413 Content Too Large"] if own or writes else [])
    for handler in [*log.access_log.handlers, *log.error_log.handlers]:
        handler.close()
    logging.getLogger("gunicorn.access").handlers.clear()
    logging.getLogger("gunicorn.error").handlers.clear()


def test_path_outside_script_name_is_400(
    make_stepped: MakeStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPT_NAME", "/inside")
    stepped = make_stepped(hello, attributes={"body_limit_bytes": 10})
    client = stepped.begin(b"POST /outside HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n")
    assert client.read_response().status == 413
    assert ask(stepped, target="/outside")[0] == 400
    assert [line for line in stepped.log.lines if "SCRIPT" in line] == [
        f"Invalid request from {PEER}: Request path '/outside' does not start with "
        "SCRIPT_NAME '/inside'"
    ]
    assert ask(stepped, target="/inside/a")[0] == 200
    assert [status for _, status, _ in stepped.log.requests] == [
        "413 Content Too Large",
        "400 Bad Request",
        "200 OK",
    ]


def test_hijacked_response_is_not_logged(make_stepped: MakeStepped) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["gunicorn.socket"].sendall(b"mine")
        raise StopIteration

    stepped = make_stepped(app)
    client = stepped.begin()
    assert client.read_to_end() == b"mine"
    assert not stepped.log.requests


def test_worker_has_attributes_of_gthread(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(hello, worker_connections=20, threads=3)
    worker = stepped.worker
    assert isinstance(worker, gthread.ThreadWorker)
    assert worker.max_keepalived == 17
    stepped.connect()
    assert worker.tpool is None

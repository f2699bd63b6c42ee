"""The access log of requests that have failed, and of clients that have left."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from gunicorn.http.wsgi import FileWrapper

from tests.server.http2_peer import HTTP2, Peer
from tests.support.http import reset_on_close
from tests.support.servers import wait_for
from tests.workers.serving import fast_worker
from tests.workers.stepped_worker import (
    LARGE,
    PEER,
    Client,
    MakeStepped,
    SteppedWorker,
    hello,
    request_for,
    responses,
)
from wsgifast.bodies.access_log import QUEUE_US
from wsgifast.errors import RequestError

BLOCKS = [bytes(LARGE // 4)] * 4


def blocks() -> Iterator[bytes]:
    yield from BLOCKS


def reset(client: Client) -> None:
    """Leave without reading anything."""
    reset_on_close(client.sock)
    client.stream.close()
    client.sock.close()


BODIES: dict[str, Callable[[Path], Iterable[bytes]]] = {
    "one block": lambda path: [bytes(LARGE)],
    "small": lambda path: [b"small"],
    "list": lambda path: list(BLOCKS),
    "generator": lambda path: blocks(),
    "file": lambda path: FileWrapper(path.open("rb")),
    "in memory": lambda path: FileWrapper(io.BytesIO(bytes(LARGE))),
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize("when", ["before the headers", "after the headers"])
def test_access_log_omits_bytes_for_client_that_left(
    make_stepped: MakeStepped, tmp_path: Path, body: str, length: bool, when: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(LARGE))
    size = 5 if body == "small" else LARGE

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        headers = [("Content-Length", str(size + 6))] if length else []
        write = start_response("200 OK", headers)
        if when == "after the headers":
            write(b"before")
        reset(client)
        return BODIES[body](path)

    stepped = make_stepped(app)
    client = stepped.connect(tcp=True)
    client.run_request()
    assert not stepped.log.errors
    # A first small block is delayed until the next one, unless a length is declared.
    sent = 6 if when == "after the headers" and length else 0
    assert [logged for _, _, logged in stepped.log.requests] == [sent]


@pytest.mark.parametrize("body", ["one block", "list", "generator", "file"])
def test_access_log_omits_bytes_not_taken_by_kernel(
    make_stepped: MakeStepped, tmp_path: Path, body: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(LARGE))

    stepped = make_stepped(responses(lambda: BODIES[body](path)))
    client = stepped.connect()  # a Unix socket, since its client cannot enlarge the buffer
    client.run_request()
    taken = len(client.receive_all_there_is())
    assert taken < LARGE
    client.close()
    stepped.run()
    ((_, _, size),) = stepped.log.requests
    assert size <= taken


def test_access_log_of_reset_stream_counts_its_window(
    make_stepped: MakeStepped,
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        peer.state.reset_stream(1)
        peer.send_only()
        peer.stepped.poll()
        peer.stepped.take_up()
        return [bytes(LARGE)]

    peer = Peer(make_stepped(app, **HTTP2))
    peer.ask()
    peer.run()
    assert [size for _, _, size in peer.stepped.log.requests] == [0]


@pytest.mark.parametrize("streams", [1, 3])
def test_access_log_omits_frames_not_taken_by_kernel(
    make_stepped: MakeStepped, streams: int
) -> None:
    app = responses([bytes(2 * LARGE)])
    peer = Peer(make_stepped(app, **HTTP2), window=4 * LARGE, reads=False)
    peer.open(4 * LARGE)
    for _ in range(streams):
        peer.ask()
    peer.send_only()
    peer.stepped.run()
    taken = len(peer.socket.receive_all_there_is())
    assert taken < LARGE
    assert peer.near.output.unsent_bytes() > 10_000
    peer.socket.close()
    peer.stepped.run()
    assert len(peer.stepped.log.requests) == streams
    assert sum(size for _, _, size in peer.stepped.log.requests) <= taken


# Requests that fail


class Unreadable:
    """A body that fails at once, or at its end."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("of the app"), "500 Internal Server Error"),
        (SystemExit(1), "500 Internal Server Error"),
        (RequestError(413, "too long"), "413 Content Too Large"),
    ],
)
@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("http2", [True, False])
def test_access_log_of_failure_has_path_times_and_size(
    make_stepped: MakeStepped, error: BaseException, status: str, started: bool, http2: bool
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["of.the.app"] = "kept"
        if started:
            start_response("200 OK", [("Content-Length", "3")])
            return Unreadable(error)
        raise error

    if http2:
        peer = Peer(make_stepped(app, **HTTP2))
        stepped, size = peer.stepped, len(peer.get("/orders/17%20?q=1").body)
    else:
        stepped = make_stepped(app)
        client = stepped.begin(request_for("/orders/17%20?q=1"))
        size = len(client.read_response().body)
    ((requested, logged, sent),) = stepped.log.requests
    assert requested == "GET /orders/17%20?q=1"
    assert logged.split()[0] == status.split()[0]
    assert sent == size > 0
    environ = stepped.log.environs[0]
    assert environ["PATH_INFO"] == "/orders/17 "
    assert environ["wsgi.url_scheme"] == "http"
    assert environ["of.the.app"] == "kept"
    assert environ["wsgifast.app_us"] >= 0


def test_access_log_of_refusal_by_hook_has_path(make_stepped: MakeStepped) -> None:
    def refuse(worker: Any, req: Any) -> None:
        raise ValueError("of the hook")

    stepped = make_stepped(lambda environ, start_response: [], pre_request=refuse)
    client = stepped.begin(request_for("/orders/17"))
    assert client.read_response().status == 500
    ((requested, status, _),) = stepped.log.requests
    assert (requested, status) == ("GET /orders/17", "500 Internal Server Error")
    assert stepped.log.environs[0]["PATH_INFO"] == "/orders/17"


def test_access_log_omits_an_unreadable_request(make_stepped: MakeStepped) -> None:
    """The access log is like gunicorn's. The error log has the traceback."""
    stepped = make_stepped(lambda environ, start_response: [])
    client = stepped.begin(b"GET /orders/17%20?q=1 HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n")
    assert client.read_response().status == 400
    assert stepped.log.requests == []


def test_subclass_handle_error_is_logged_once(make_stepped: MakeStepped) -> None:
    seen: list[object] = []

    def handle_error(self: Any, req: Any, client: Any, addr: Any, error: Any) -> None:
        seen.append((req.uri, addr, self.cfg.threads, isinstance(self, made)))
        super(made, self).handle_error(req, client, addr, error)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        raise ValueError("of the app")

    stepped = make_stepped(app, attributes={"handle_error": handle_error})
    made = type(stepped.worker)
    client = stepped.connect()
    client.run_request("/orders/17")
    assert client.read_response().status == 500
    assert [each[0] for each in seen] == ["/orders/17"]  # type: ignore[index]
    assert len(stepped.log.requests) == 1
    assert stepped.log.says("Error handling request GET /orders/17")


def test_text_access_log_of_failure_has_status_size(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with fast_worker(
        f"--access-logfile={log}", "--access-logformat=%(m)s %(U)s %(s)s %(B)s"
    ) as server:
        sent = len(server.get("/raise/before").body)
        wait_for(lambda: log.exists() and bool(log.read_text()), "the request is logged")
        assert log.read_text().splitlines() == [f"GET /raise/before 500 {sent}"]


# How a response has ended


def test_outcome_of_whole_response_is_sent(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(responses([b"ok"]))
    stepped.begin().read_response()
    assert stepped.log.environs[0]["wsgifast.outcome"] == "sent"


def test_outcome_of_failed_app_is_cut_off(make_stepped: MakeStepped) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", "10")])
        yield b"short"
        if environ["PATH_INFO"] == "/raises":
            raise ValueError("of the app")

    for target in ("/raises", "/short"):
        stepped = make_stepped(app)
        stepped.connect().run_request(target=target)
        assert stepped.log.environs[0]["wsgifast.outcome"] == "cut off"
        peer = Peer(make_stepped(app, **HTTP2))
        peer.get(target)
        assert peer.stepped.log.environs[0]["wsgifast.outcome"] == "cut off"


@pytest.mark.parametrize("http2", [True, False])
@pytest.mark.parametrize("ends", ["the client leaves", "the client is slow", "the worker ends"])
def test_outcome_of_unfinished_response_is_named(
    make_stepped: MakeStepped, http2: bool, ends: str
) -> None:
    if http2:
        peer = Peer(make_stepped(responses([bytes(LARGE)]), **HTTP2))
        peer.ask()
        peer.send_only()
        stepped, client = peer.stepped, peer.socket
        stepped.run()
    else:
        stepped = make_stepped(responses([bytes(LARGE)]))
        client = stepped.connect()
        client.run_request()
    assert not stepped.log.requests
    if ends == "the client leaves":
        client.close()
    elif ends == "the client is slow":
        near = peer.near.streams[1] if http2 else client.near
        near.on_overdue()
    else:
        stepped.worker.application.shared.is_disconnecting = True
        client.near.cut_off()
    stepped.run()
    outcome = "client left" if ends == "the client leaves" else "cut off"
    assert [each["wsgifast.outcome"] for each in stepped.log.environs] == [outcome]


# The thread and the context in which a line is written


class Values:
    """The data of requests in a filter of the log: a context variable, and a thread's own value."""

    def __init__(self, lines: int) -> None:
        self._var: ContextVar[str] = ContextVar("request_id", default="none")
        self._local = threading.local()
        self._missing = threading.Semaphore(0)
        self._lines = lines
        self._seen: list[tuple[str, str, str]] = []

    def app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self._local.path = environ["PATH_INFO"]
        self._var.set(environ["PATH_INFO"])
        start_response("200 OK", [])
        return [bytes(LARGE if environ["PATH_INFO"] == "/download" else 1)]

    def log(self, resp: Any, req: Any, environ: Any, *_: Any) -> None:
        self._seen.append((req.uri, self._var.get(), getattr(self._local, "path", "none")))
        self._missing.release()

    def seen(self) -> list[tuple[str, str, str]]:
        """Wait for all lines. Return the request and the two values of each line."""
        for _ in range(self._lines):
            assert self._missing.acquire(timeout=30)
        return self._seen

    def watch(self, stepped: SteppedWorker) -> None:
        application = stepped.worker.application
        application.log_access = self.log
        application.write_late = stepped.server.output_rules.disk.write_line


@pytest.mark.parametrize("http2", [True, False])
def test_late_line_sees_no_value_of_another_request(make_stepped: MakeStepped, http2: bool) -> None:
    values = Values(2)
    stepped = make_stepped(values.app, keepalive=5, **(HTTP2 if http2 else {}))
    values.watch(stepped)
    if http2:
        peer = Peer(stepped)
        peer.ask("/download")
        peer.send_only()
        client = peer.socket
    else:
        client = stepped.connect()
        client.send_request("/download")
    stepped.run()
    stepped.connect().run_request("/other")
    client.close()
    stepped.run()
    assert values.seen() == [
        ("/other", "/other", "/other"),
        ("/download", "/download", "none"),
    ]


def test_line_of_refused_request_sees_no_value(make_stepped: MakeStepped) -> None:
    values = Values(2)
    stepped = make_stepped(values.app, keepalive=5, attributes={"body_limit_bytes": 5})
    values.watch(stepped)
    stepped.connect().run_request("/other")
    stepped.connect().run(b"POST /long HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n")
    assert values.seen()[1:] == [("/long", "none", "none")]


def test_late_line_is_written_without_a_thread(
    make_stepped: MakeStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    values = Values(1)
    stepped = make_stepped(values.app)
    values.watch(stepped)
    monkeypatch.setattr(threading.Thread, "start", fail)
    client = stepped.connect()
    client.run_request("/download")
    client.close()
    stepped.run()
    assert [line[:2] for line in values.seen()] == [("/download", "/download")]


def test_worker_ends_after_its_last_late_line(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(responses([b"ok"]))
    written: list[str] = []
    beaten = threading.Event()

    def write() -> None:
        assert beaten.wait(30)
        written.append("line")

    stepped.clock.runs = True
    stepped.server.output_rules.disk.write_line(write)
    stepped.server.end_now(beaten.set)
    assert written == ["line"]


@pytest.mark.parametrize(("trusted", "http2"), [(True, False), (False, False), (False, True)])
def test_queue_time_comes_from_trusted_peers_only(
    make_stepped: MakeStepped, trusted: bool, http2: bool
) -> None:
    allowed = PEER[0] if trusted else "192.0.2.99"
    stepped = make_stepped(hello, forwarded_allow_ips=allowed, **HTTP2)
    begun = f"t={time.time() - 3500:.3f}"
    if http2:
        Peer(stepped).get("/", headers=[("x-request-start", begun)])
    else:
        stepped.begin(b"GET / HTTP/1.1\r\nHost: a\r\nX-Request-Start: %b\r\n\r\n" % begun.encode())
    (environ,) = stepped.log.environs
    assert (environ.get(QUEUE_US, 0) > 3_000_000_000) is trusted
    assert (QUEUE_US in environ) is trusted

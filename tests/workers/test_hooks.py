"""Hooks of gunicorn's configuration: the request that they receive, and their changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from gunicorn.glogging import Logger

from tests.server.http2_peer import HTTP2, Peer
from tests.support.http import Connection
from tests.support.servers import wait_for
from tests.workers.serving import fast_worker, using
from tests.workers.stepped_worker import MakeStepped, SteppedWorker, ask, hello

PARSERS = ("httptools", "gunicorn")
# The attributes of gunicorn.http.message.Request and gunicorn.http.wsgi.Response.
OF_REQUESTS = [
    "method", "uri", "path", "query", "fragment", "version", "headers", "trailers", "body",
    "scheme", "must_close", "remote_addr", "peer_addr", "req_number", "proxy_protocol_info", "cfg",
    "unreader", "limit_request_line", "limit_request_fields", "limit_request_field_size",
    "max_buffer_headers", "force_close", "should_close",
]  # fmt: skip
OF_RESPONSES = [
    "req", "version", "status", "status_code", "chunked", "must_close", "headers", "headers_sent",
    "response_length", "sent", "upgrade", "cfg", "force_close", "should_close", "is_chunked",
]  # fmt: skip


def environ_app(seen: list[dict[str, Any]]) -> Callable[..., Iterable[bytes]]:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        seen.append({**environ, "body": environ["wsgi.input"].read()})
        return hello(environ, start_response)

    return app


def send(stepped: SteppedWorker, protocol: str) -> int:
    """Send a request with a body. Return the status."""
    if protocol == "HTTP/2":
        return Peer(stepped).get(headers=[("x-one", "1"), ("x-two", "2")]).status
    beginning = "POST / HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nX-Two: 2\r\nContent-Length: 3\r\n\r\nabc"
    client = stepped.connect()
    client.run(beginning.encode())
    return client.read_response().status


def append(req: Any) -> None:
    req.headers.append(("X-REQUEST-ID", "made"))


def assign(req: Any) -> None:
    req.headers = [*req.headers, ("X-REQUEST-ID", "made")]


def replace(req: Any) -> None:
    req.headers[:] = [h for h in req.headers if h[0] != "X-TWO"] + [("X-ONE", "more")]


def route(req: Any) -> None:
    req.path = "/other"
    req.scheme = "https"
    req.remote_addr = ("10.0.0.1", 5)
    req.headers.append(("SCRIPT_NAME", "/other"))


class Upper:
    """A body that replaces the received one."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self) -> bytes:
        data: bytes = self._body.read()
        return data.upper()


def wrap(req: Any) -> None:
    req.body = Upper(req.body)


CHANGES: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "a header is appended": (append, {"HTTP_X_REQUEST_ID": "made", "HTTP_X_ONE": "1"}),
    "headers are assigned": (assign, {"HTTP_X_REQUEST_ID": "made", "HTTP_X_TWO": "2"}),
    "a header is removed": (replace, {"HTTP_X_ONE": "1,more", "HTTP_X_TWO": None}),
    "path and scheme": (
        route,
        {"wsgi.url_scheme": "https", "SCRIPT_NAME": "/other", "PATH_INFO": ""},
    ),
    "the body is wrapped": (wrap, {"body": b"ABC"}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("protocol", ["HTTP/1", "HTTP/2"])
def test_change_by_pre_request_reaches_the_app(
    make_stepped: MakeStepped, protocol: str, parser: str, change: str
) -> None:
    hook, expected = CHANGES[change]
    if protocol == "HTTP/2" and "body" in expected:
        expected = {"body": b""}  # the request has none
    seen: list[dict[str, Any]] = []
    options = HTTP2 if protocol == "HTTP/2" else {}
    with using(parser):
        stepped = make_stepped(
            environ_app(seen), pre_request=lambda worker, req: hook(req), keepalive=5, **options
        )
        assert send(stepped, protocol) == 200
    (environ,) = seen
    assert {name: environ.get(name) for name in expected} == expected


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("protocol", ["HTTP/1", "HTTP/2"])
def test_hooks_find_attributes_of_gunicorn(
    make_stepped: MakeStepped, protocol: str, parser: str
) -> None:
    missing: list[str] = []
    seen: list[Any] = []

    def pre_request(worker: Any, req: Any) -> None:
        missing.extend(name for name in OF_REQUESTS if not hasattr(req, name))
        seen.append((req.req_number, req.body is None, req.limit_request_fields))
        req.unreader.sock.gettimeout()

    def post_request(worker: Any, req: Any, environ: Any, resp: Any) -> None:
        missing.extend(name for name in OF_REQUESTS if not hasattr(req, name))
        missing.extend(name for name in OF_RESPONSES if not hasattr(resp, name))
        seen.append((resp.chunked, resp.version, resp.upgrade))

    options = HTTP2 if protocol == "HTTP/2" else {}
    with using(parser):
        stepped = make_stepped(
            hello, pre_request=pre_request, post_request=post_request, keepalive=5, **options
        )
        assert send(stepped, protocol) == 200
    assert not missing
    assert seen == [(1, False, 100), (False, "gunicorn", False)]


def test_chunked_body_keeps_its_length_after_a_hook(make_stepped: MakeStepped) -> None:
    seen: list[dict[str, Any]] = []
    stepped = make_stepped(environ_app(seen), pre_request=lambda worker, req: append(req))
    beginning = (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    )
    stepped.begin(beginning.encode())
    (environ,) = seen
    assert environ["CONTENT_LENGTH"] == "3"
    assert "HTTP_TRANSFER_ENCODING" not in environ
    assert environ["HTTP_X_REQUEST_ID"] == "made"


def test_default_hook_is_called_only_for_its_line(make_stepped: MakeStepped) -> None:
    class Own(Logger):  # type: ignore[misc]
        def debug(self, msg: str, *args: object, **kwargs: object) -> None:
            said.append(msg % args)

    said: list[str] = []
    stepped = make_stepped(hello, keepalive=5)
    application = stepped.worker.application
    assert application.post_request is None
    stepped.worker.log = Own(stepped.worker.cfg)
    stepped.begin_anew()
    assert stepped.worker.application.pre_request is not None
    assert ask(stepped)[0] == 200
    assert "GET /" in said


def test_nr_counts_each_request(make_stepped: MakeStepped) -> None:
    seen: list[tuple[str, int]] = []
    stepped = make_stepped(
        hello,
        keepalive=5,
        pre_request=lambda worker, req: seen.append(("pre", worker.nr)),
        post_request=lambda worker, req, environ, resp: seen.append(("post", worker.nr)),
    )
    assert stepped.worker.nr == 0
    for _ in range(2):
        ask(stepped)
    assert seen == [("pre", 0), ("post", 1), ("pre", 1), ("post", 2)]
    stepped.worker.nr = 10
    ask(stepped)
    assert seen[-2:] == [("pre", 10), ("post", 11)]
    assert stepped.server.application.requests == 3


# Two requests are counted before one of their hooks reads the count.
NOTES_NUMBER = """
import threading
met = threading.Barrier(2)
def post_request(worker, req, environ, resp):
    if req.path == "/small/5":
        met.wait(30)
        worker.log.info("its number is %d", worker.nr)
"""


def test_post_request_sees_its_own_number() -> None:
    with fast_worker(configuration=NOTES_NUMBER) as server:
        with Connection(server.address) as first, Connection(server.address) as second:
            for client in (first, second):
                client.send_request("/small/5")
            for client in (first, second):
                assert client.read_response().status == 200
        wait_for(lambda: server.log().count("its number is") == 2, "both hooks have run")
        assert len(set(re.findall(r"its number is (\d+)", server.log()))) == 2


@pytest.mark.parametrize(("set_to", "ends"), [(3, True), (100, False)])
def test_max_requests_of_a_hook_counts(make_stepped: MakeStepped, set_to: int, ends: bool) -> None:
    def post_request(worker: Any, req: Any, environ: Any, resp: Any) -> None:
        worker.max_requests = set_to

    stepped = make_stepped(hello, keepalive=5, max_requests=2, post_request=post_request)
    ask(stepped)
    ask(stepped)
    assert stepped.worker._beat()
    ask(stepped)
    assert stepped.worker._beat() is not ends


ADDS_ID = """
def pre_request(worker, req):
    req.headers.append(("X-REQUEST-ID", "made"))
"""


def test_access_log_shows_header_of_pre_request() -> None:
    line = "--access-logformat=id=%({x-request-id}i)s"
    with fast_worker(line, configuration=ADDS_ID) as server:
        assert server.get("/small/5").status == 200
        wait_for(lambda: "id=made" in server.log(), "the line has the header")


SETS_LIMIT = """
def post_worker_init(worker):
    worker.max_requests = 3
"""


def test_max_requests_of_a_hook_replaces_the_worker() -> None:
    with fast_worker("--max-requests=1000", configuration=SETS_LIMIT) as server:
        for _ in range(4):
            server.get("/small/5")
        server.wait_for_log("max_requests=3")

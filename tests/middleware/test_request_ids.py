"""Request ids: WSGIFast and ASGIFast with `request_id`, and `wsgifast run --request-id`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from asgifast import ASGIFast

from tests.asgi.support import call, scope_of
from tests.support.servers import LiveServer, live_server, wait_for
from wsgifast import WSGIFast
from wsgifast.bodies.access_log import REQUEST_ID, TRACE_ID
from wsgifast.errors import BodyError

Pairs = Sequence[tuple[str, str]]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
NEW = re.compile("[0-9a-f]{32}")


class Got(NamedTuple):
    """Return the ids that the app received, and the ids in its response headers."""

    request_id: str | None
    trace_id: str | None
    header: str | None
    sent: list[str]


Ask = Callable[..., Got]


def ask_wsgi(requested: Pairs, own: Pairs = (), *, twice: bool = False, **options: Any) -> Got:
    environ: Any = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "wsgi.url_scheme": "http"}
    for name, value in requested:
        key = f"HTTP_{name.upper().replace('-', '_')}"
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        keys = (REQUEST_ID, TRACE_ID, "HTTP_X_REQUEST_ID")
        seen.append([environ.get(key) for key in keys])
        start_response("200 OK", [("Content-Type", "text/plain"), *own])
        return [b"ok"]

    wrapped = WSGIFast(app, **{"request_id": True, **options})
    if twice:
        wrapped = WSGIFast(wrapped, request_id=True)
    start: Any = lambda *args: seen.append(args)  # noqa: E731
    assert b"".join(wrapped(environ, start)) == b"ok"
    found = [value for name, value in seen[1][1] if name.lower() == "x-request-id"]
    request_id, trace_id, header = seen[0]
    return Got(request_id, trace_id, header, found)


def ask_asgi(requested: Pairs, own: Pairs = (), *, twice: bool = False, **options: Any) -> Got:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        values = [value.decode() for name, value in scope["headers"] if name == b"x-request-id"]
        seen.extend([scope.get(REQUEST_ID), scope.get(TRACE_ID), ",".join(values) or None])
        raw = [(name.lower().encode(), value.encode()) for name, value in own]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": b"ok"})

    wrapped = ASGIFast(app, **{"request_id": True, **options})
    if twice:
        wrapped = ASGIFast(wrapped, request_id=True)
    scope = scope_of()
    scope["headers"] = [(name.lower().encode(), value.encode()) for name, value in requested]
    received = call(wrapped, scope)
    found = [value for name, value in received.headers if name == "x-request-id"]
    request_id, trace_id, header = seen
    return Got(request_id, trace_id, header, found)


@pytest.fixture(params=[ask_wsgi, ask_asgi], ids=["WSGIFast", "ASGIFast"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("options", [{}, {"compress": True, "etag": True}, {"twice": True}])
@pytest.mark.parametrize("sent", ["a", "7f3e-11/+=", "a.b_c:d@e~f", "x" * 128])
def test_valid_id_is_passed_on(ask: Ask, sent: str, options: dict[str, Any]) -> None:
    found = ask([("X-Request-ID", sent), ("traceparent", TRACEPARENT)], **options)
    assert found == (sent, TRACE, sent, [sent])


@pytest.mark.parametrize(
    "sent",
    [(), ("",), ("x" * 129,), ("a b",), ('a"b',), ("a\tb",), ("a\r\nX: y",), ("a\n",), ("\x00",),
     ("\x7f",), ("caf\xe9",), ("a,b",), ("a", "b")],
)  # fmt: skip
def test_other_id_is_replaced_by_a_new_one(ask: Ask, sent: Sequence[str]) -> None:
    first, second = (ask([("X-Request-ID", value) for value in sent]) for _ in range(2))
    assert first.request_id is not None
    assert NEW.fullmatch(first.request_id)
    assert first == Got(first.request_id, None, first.request_id, [first.request_id])
    assert first.request_id != second.request_id


@pytest.mark.parametrize("sent", ["cc" + TRACEPARENT[2:], "01" + TRACEPARENT[2:] + "-more"])
def test_later_traceparent_has_a_trace_id(ask: Ask, sent: str) -> None:
    assert ask([("traceparent", sent)]).trace_id == TRACE


@pytest.mark.parametrize(
    "sent",
    [
        "", "ff" + TRACEPARENT[2:], TRACEPARENT.upper(), TRACEPARENT + "-more", TRACEPARENT + "0",
        TRACEPARENT.replace(TRACE, "0" * 32), TRACEPARENT.replace("00f067aa0ba902b7", "0" * 16),
        f"{TRACEPARENT},{TRACEPARENT}", TRACEPARENT + "\n",
    ],
)  # fmt: skip
def test_malformed_traceparent_has_no_trace_id(ask: Ask, sent: str) -> None:
    assert ask([("traceparent", sent)]).trace_id is None


def test_header_of_the_app_stays(ask: Ask) -> None:
    assert ask([("X-Request-ID", "a")], [("X-Request-Id", "own")]) == ("a", None, "a", ["own"])


def test_without_the_option_there_is_no_id(ask: Ask) -> None:
    requested = [("X-Request-ID", "a b"), ("traceparent", TRACEPARENT)]
    assert ask(requested, request_id=False) == (None, None, "a b", [])


def test_refused_body_has_the_id_in_its_response() -> None:
    sent: list[Any] = []
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": "9", "HTTP_X_REQUEST_ID": "a"}
    wrapped = WSGIFast(lambda *_: [], request_id=True, body_limit_bytes=1)
    start: Any = lambda *args: sent.append(args)  # noqa: E731
    assert b"".join(wrapped(environ, start))
    assert (sent[0][0][:3], dict(sent[0][1])["X-Request-ID"]) == ("413", "a")


@pytest.mark.parametrize("options", [{}, {"compress": True}])
def test_lazy_app_without_a_start_has_id_in_its_500(options: dict[str, Any]) -> None:
    sent: list[Any] = []
    environ = {"REQUEST_METHOD": "GET", "HTTP_X_REQUEST_ID": "a", "HTTP_ACCEPT_ENCODING": "gzip"}
    wrapped = WSGIFast(lambda *_: iter(()), request_id=True, server_timing=True, **options)
    start: Any = lambda *args: sent.append(args)  # noqa: E731
    with pytest.raises(BodyError, match="start_response"):
        b"".join(wrapped(environ, start))
    headers = dict(sent[0][1])
    assert (sent[0][0][:3], headers["Content-Length"], headers["X-Request-ID"]) == ("500", "0", "a")
    assert "app" in headers["Server-Timing"]


# Under `wsgifast run`

APPS = {
    "FastWorker": """\
def app(environ, start_response):
    start_response("200 OK", [])
    if environ["PATH_INFO"] == "/stream":
        return (part for part in (b"", environ["HTTP_X_REQUEST_ID"].encode()))
    return [environ["wsgifast.request_id"].encode()]
""",
    "uvicorn": """\
import asyncio


async def app(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError(scope["type"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/stream":
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": scope["wsgifast.request_id"].encode()})
""",
}
ON_BOTH = pytest.mark.parametrize("server", APPS)


@contextmanager
def running(folder: Path, code: str, *arguments: str) -> Iterator[LiveServer]:
    (folder / "own.py").write_text(code)
    command = ["python", "-m", "wsgifast", "run", "--bind=127.0.0.1:{port}", "--workers=1"]
    with live_server([*command, str(folder / "own.py"), *arguments]) as server:
        yield server


def logged(server: LiveServer, count: int) -> dict[str, dict[str, Any]]:
    """Return the lines of the access log, by their paths."""

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in server.log().splitlines() if line[:1] == "{"]
        return [line for line in found if "url.path" in line]

    wait_for(lambda: len(lines()) == count, "all requests are logged")
    return {line["url.path"]: line for line in lines()}


@ON_BOTH
def test_app_response_and_log_have_one_id(server: str, tmp_path: Path) -> None:
    with running(tmp_path, APPS[server], "--request-id", "--access-log=json") as live:
        for number, path in enumerate(("/page", "/stream")):
            sent = [("X-Request-ID", f"id-{number}"), ("traceparent", TRACEPARENT)]
            found = live.get(path, headers=sent)
            assert (found.body.decode(), found.header("X-Request-ID")) == (f"id-{number}",) * 2
        fresh = live.get("/fresh")
        assert fresh.header("X-Request-ID") == fresh.body.decode()
        assert NEW.fullmatch(fresh.body.decode())
        lines = logged(live, 3)
        ids = {path: (line[REQUEST_ID], line.get("trace_id")) for path, line in lines.items()}
        assert ids == {
            "/page": ("id-0", TRACE),
            "/stream": ("id-1", TRACE),
            "/fresh": (fresh.body.decode(), None),
        }


def test_id_of_an_untrusted_client_is_replaced(tmp_path: Path) -> None:
    untrusted = ("--", "--forwarded-allow-ips=192.0.2.1")
    options = ("--request-id", "--access-log=json", *untrusted)
    with running(tmp_path, APPS["FastWorker"], *options) as live:
        sent = [("X-Request-ID", "id-0"), ("traceparent", TRACEPARENT)]
        found = live.get("/page", headers=sent)
        assert NEW.fullmatch(found.body.decode())
        assert found.header("X-Request-ID") == found.body.decode()
        (line,) = logged(live, 1).values()
        assert (line[REQUEST_ID], "trace_id" in line) == (found.body.decode(), False)


@ON_BOTH
def test_option_for_a_wrapped_app_is_refused(server: str, tmp_path: Path) -> None:
    name = "asgifast import ASGIFast" if server == "uvicorn" else "wsgifast import WSGIFast"
    code = f"from {name} as Fast\n{APPS[server]}\napp = Fast(app)\n"
    refusal = pytest.raises(AssertionError, match=r"wrapped in (ASGI|WSGI)Fast already")
    with refusal, running(tmp_path, code, "--request-id"):
        pass

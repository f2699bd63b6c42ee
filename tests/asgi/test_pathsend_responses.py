"""The responses of an app are equal with and without an offer of http.response.pathsend."""

from __future__ import annotations

import asyncio
import gzip
import logging
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast import files as files_module
from asgifast.messages import PATHSEND, ASGIApp, Scope
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from tests.support.calls import recorded
from tests.support.servers import live_server

from .layers import BEARING, MIDDLEWARE, TEXT, Counting, bare, routes, starlette
from .protocols import served
from .support import call, scope_of


def test_route_and_middleware_added_later_are_examined(texts: Path) -> None:
    app = starlette(texts)
    fast = ASGIFast(app)
    seen: list[bool] = []

    async def look(request: Request) -> Response:
        seen.append(PATHSEND in request.scope["extensions"])
        return PlainTextResponse("")

    app.router.routes.append(Route("/look", look))
    scope: Scope = {**scope_of("/look"), "extensions": {}}
    call(fast, scope)
    call(fast, scope)
    app.router.routes.append(Mount("", Counting(bare)))
    call(fast, scope)
    app.router.routes.pop()
    call(fast, scope)
    assert app.middleware_stack is not None
    app.middleware_stack = Counting(app.middleware_stack)
    call(fast, scope)
    assert seen == [True, True, False, True, False]


def test_decision_on_pathsend_is_logged_once(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for app in (ASGIFast(starlette(texts, "GZip")), ASGIFast(starlette(texts))):
        for _ in range(3):
            call(app, scope_of("/json"))
    first, second = (record.getMessage() for record in caplog.records)
    assert "GZipMiddleware" in first
    assert "ASGIFast(app, pathsend=True)" in first
    assert "ASGIFast(app, pathsend=False)" in second


def test_asgifast_decision_is_not_logged_again(
    texts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = ASGIFast(starlette(texts, "GZip"))
    asyncio.run(served(HttpToolsProtocol, app, "/json", {}))
    asyncio.run(served(HttpToolsProtocol, starlette(texts, "Counting"), "/json", {}))
    said = [r.getMessage() for r in caplog.records if "bytes" in r.getMessage()]
    assert ["GZipMiddleware" in each for each in said] == [True, False]
    assert "Counting" in said[1]


# No response fails, grows or changes

STACKS = st.lists(st.sampled_from(sorted(MIDDLEWARE)), max_size=3).map(tuple)
PATHS = st.sampled_from(
    [
        f"{prefix}/{path}"
        for prefix in ("", "/inner")
        for path in ("file/text.txt", "file/small.txt", "file/missing", "static/text.txt",
                     "static/missing", "json", "stream", "endpoint", "nowhere")
    ]
)  # fmt: skip
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "accept_encoding": st.sampled_from(["gzip", "br"]),
        "range": st.sampled_from(["bytes=5-9"]),
        "origin": st.just("http://a"),
    },
)
QUIET = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def seen_by_client(status: int, headers: dict[str, str], body: bytes) -> tuple[object, ...]:
    """Return the status, the decoded body, and the headers that describe it."""
    decoders: list[Callable[[bytes], bytes]] = []
    if headers.get("content-encoding") == "gzip":
        decoders.append(gzip.decompress)
    deflated = "x-deflated" in headers
    if deflated and body:
        decoders.append(zlib.decompress)
    # The header names gzip: a client decodes the last coding first
    if not body.startswith(b"\x1f\x8b"):
        decoders.reverse()
    for decode in decoders:
        body = decode(body)
    return status, body, headers.get("content-type"), headers.get("content-encoding"), deflated


def request(app: ASGIApp, path: str, method: str, headers: dict[str, str]) -> Any:
    """Return the response to a request, or the type of the app's error."""
    scope = {**scope_of(path, method, host="a", **headers), "extensions": {}}
    try:
        response = call(app, scope, whole=False, body=b"")
    except Exception as error:  # noqa: BLE001 - any error of the app's
        while inner := getattr(error, "exceptions", None):
            error = inner[0]
        return type(error).__name__, 0
    found = {name.lower(): value for name, value in response.headers}
    body = b"" if method == "HEAD" else response.body  # like a server
    return seen_by_client(response.status, found, body), len(body)


@QUIET
@given(STACKS, STACKS, PATHS, st.sampled_from(["GET", "GET", "HEAD"]), REQUESTS)
def test_asgifast_changes_no_response_of_any_stack(
    texts: Path,
    stack: tuple[str, ...],
    inner: tuple[str, ...],
    path: str,
    method: str,
    headers: dict[str, str],
) -> None:
    raw, raw_bytes = request(starlette(texts, *stack, inner=inner), path, method, headers)
    app = ASGIFast(starlette(texts, *stack, inner=inner))
    for _ in range(2):  # the first request creates the middleware
        wrapped, wrapped_bytes = request(app, path, method, headers)
        assert wrapped == raw
        assert wrapped_bytes <= raw_bytes


@settings(QUIET, max_examples=25)
@given(STACKS, STACKS, PATHS, REQUESTS, st.sampled_from([H11Protocol, HttpToolsProtocol]))
def test_our_protocols_change_no_response_of_any_stack(
    texts: Path,
    stack: tuple[str, ...],
    inner: tuple[str, ...],
    path: str,
    headers: dict[str, str],
    protocol: Any,
) -> None:
    raw, raw_bytes = request(starlette(texts, *stack, inner=inner), path, "GET", headers)
    for wrap in (lambda app: app, ASGIFast):
        app = wrap(starlette(texts, *stack, inner=inner))
        received = asyncio.run(served(protocol, app, path, headers))
        if received is None:
            assert isinstance(raw, str), "the app fails, without the protocol too"
            continue
        size = len(received[2])
        status, body, *others = seen_by_client(*received)
        if isinstance(raw, str):
            assert status == 500
        else:
            assert (status, body, *others) == raw
            assert size <= raw_bytes


# The server sends the files with the offer


@pytest.mark.parametrize("protocol", [H11Protocol, HttpToolsProtocol])
@pytest.mark.parametrize("make", [Starlette, FastAPI])
def test_our_protocols_send_files_of_known_apps(
    protocol: Any, make: Any, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = recorded(monkeypatch, files_module, "open_for_pathsend")
    middleware = [BEARING["adds_a_header"], BEARING["CORS"]]
    for app, expected in (
        (make(routes=routes(texts)), True),
        (make(routes=routes(texts), middleware=middleware), True),
        (make(routes=routes(texts), middleware=[Middleware(GZipMiddleware)]), False),
        (ASGIFast(make(routes=routes(texts))), True),
        (ASGIFast(make(routes=routes(texts), middleware=middleware)), True),
    ):
        for path in ("/file/text.txt", "/static/text.txt", "/endpoint"):
            opened.clear()
            received = asyncio.run(served(protocol, app, path, {}))
            assert received is not None
            status, body, *_ = seen_by_client(*received)
            assert (status, body) == (200, TEXT)
            # ASGIFast passes an open file on if it has planned ranges.
            assert bool(opened) is expected, (app, path)


def test_unknown_middleware_fails_with_pathsend(texts: Path) -> None:
    """These apps fail with the offer.

    So the middleware of the tests does not support the extension.
    """
    for name in ("reads_the_body", "Counting", "Dropping"):
        app = ASGIFast(starlette(texts, name), pathsend=True)
        outcome, _ = request(app, "/file/text.txt", "GET", {})
        assert outcome in ("TypeError", "KeyError") or outcome[1] == b"", (name, outcome)


# Real servers

SERVED = """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

async def file(request):
    return FileResponse("static/app.js")

routes = [Route("/file", file), Mount("/static", StaticFiles(directory="static"))]
compressed = Starlette(routes=routes, middleware=[Middleware(GZipMiddleware)])
plain = Starlette(routes=routes)
"""
SCRIPT = b"function f(value) { return value + 1; }\n" * 40_000
COMMANDS = {
    "uvicorn": "-m uvicorn --port {port} served:{app}",
    "our protocol": "-m uvicorn --port {port} --http asgifast.uvicorn:HttpToolsProtocol "
    "served:{app}",
    "run": "-m wsgifast run served:{app} --bind 127.0.0.1:{port}",
}


def test_no_server_of_ours_sends_more_bytes(tmp_path: Path) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "app.js").write_bytes(SCRIPT)
    (tmp_path / "served.py").write_text(SERVED)
    sizes: dict[tuple[str, str], int] = {}
    for name, command in COMMANDS.items():
        for app in ("compressed", "plain"):
            argv = [sys.executable, *command.format(app=app, port="{port}").split()]
            env = {"PYTHONPATH": str(tmp_path)}
            with live_server(argv, cwd=tmp_path, env=env, forked=False) as server:
                for path in ("/file", "/static/app.js"):
                    response = server.get(path, headers=[("Accept-Encoding", "gzip")])
                    compressed = response.header("Content-Encoding") == "gzip"
                    body = gzip.decompress(response.body) if compressed else response.body
                    assert body == SCRIPT, (name, app, path)
                    assert len(response.body) <= sizes.setdefault((app, path), len(response.body))
                if name != "uvicorn" and app == "compressed":
                    assert "GZipMiddleware compresses them" in server.log()

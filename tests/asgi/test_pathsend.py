"""Which apps are offered http.response.pathsend: those in which every layer is known to bear it."""

from __future__ import annotations

import asyncio
import functools
import gc
import gzip
import linecache
import logging
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.messages import PATHSEND, ZEROCOPYSEND, ASGIApp, Receive, Scope, Send
from asgifast.pathsend import Offer
from asgifast.protocols import response
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol
from fastapi import APIRouter, FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Host, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from tests.support.servers import free_port, live_server

from .layers import BEARING, MIDDLEWARE, NOT_BEARING, Counting, adds_a_header
from .protocols import serving
from .servers import UVICORN_TAKES_NAMES
from .support import call, scope_of

TEXT = b"".join(b"line %d of a text that can be compressed\n" % n for n in range(9000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "text.txt").write_bytes(TEXT)
    (folder / "small.txt").write_bytes(b"small")
    return folder


def routes(folder: Path) -> list[Any]:
    async def file(request: Request) -> Response:
        return FileResponse(folder / request.path_params["name"])

    def json(request: Request) -> Response:
        return JSONResponse({"json": "x" * 2000})

    def stream(request: Request) -> Response:
        return StreamingResponse(iter([b"a" * 1000, b"b" * 1000]))

    class Endpoint(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return FileResponse(folder / "text.txt", headers={"X-Endpoint": "1"})

    return [
        Route("/file/{name}", file),
        Route("/json", json),
        Route("/stream", stream),
        Route("/endpoint", Endpoint),
        Mount("/static", StaticFiles(directory=folder)),
    ]


def starlette(folder: Path, *middleware: str, inner: tuple[str, ...] = ()) -> Starlette:
    """An app with middleware around it, and around an app that is mounted in it at /inner."""
    mounted = Starlette(routes=routes(folder), middleware=[MIDDLEWARE[each] for each in inner])
    return Starlette(
        routes=[*routes(folder), Mount("/inner", mounted)],
        middleware=[MIDDLEWARE[each] for each in middleware],
    )


def offered_to(app: ASGIApp) -> bool:
    decision = app.pathsend_decision if isinstance(app, ASGIFast) else Offer(app).decision
    return decision.offered and not decision.withheld


# What is decided


@pytest.mark.parametrize("name", BEARING)
def test_middleware_that_leaves_bodies_alone_is_offered_it(name: str, folder: Path) -> None:
    assert offered_to(starlette(folder, name))
    assert offered_to(starlette(folder, inner=(name,)))
    app = FastAPI(routes=routes(folder), middleware=[MIDDLEWARE[name]])
    assert offered_to(app)
    call(app, {**scope_of("/json"), "extensions": {}})
    assert app.middleware_stack is not None
    assert offered_to(app), "and when its middleware is made"


@pytest.mark.parametrize("name", NOT_BEARING)
def test_unknown_middleware_is_not_offered_it(name: str, folder: Path) -> None:
    assert not offered_to(starlette(folder, name))
    assert not offered_to(starlette(folder, "adds_a_header", name, "CORS"))
    assert not offered_to(starlette(folder, inner=(name,)))
    app = FastAPI(routes=routes(folder), middleware=[MIDDLEWARE[name]])
    assert not offered_to(app)
    call(app, scope_of("/json"))
    assert not offered_to(app), "nor when its middleware is made"


def test_an_asgifast_inside_decides_for_its_app(folder: Path) -> None:
    assert offered_to(starlette(folder, "adds_a_header", "ASGIFast", "Counting"))
    assert not offered_to(starlette(folder, "Counting", "ASGIFast"))
    assert not offered_to(ASGIFast(starlette(folder, "Counting")))
    assert offered_to(ASGIFast(starlette(folder, "Counting"), pathsend=True))
    assert not offered_to(ASGIFast(starlette(folder), pathsend=False))


class OwnRouter(Router):
    pass


class OwnStarlette(Starlette):
    pass


class OwnEndpoint(HTTPEndpoint):
    async def dispatch(self) -> None:
        await super().dispatch()


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotImplementedError


def test_unknown_parts_are_not_offered_it(folder: Path) -> None:
    apps: tuple[Any, ...] = (
        bare,
        Counting(starlette(folder)),
        OwnStarlette(),
        OwnRouter(),
        Router(default=bare),
        Router(routes=[Mount("/", bare)]),
        Router(routes=[Host("a", Counting(bare))]),
        Router(routes=[Route("/", Counting(bare))]),
        Router(routes=[Route("/", OwnEndpoint)]),
        Router(middleware=[Middleware(Counting)]),
        Starlette(routes=[Mount("/", routes=[Route("/", bare_endpoint)], middleware=[COUNTED])]),
        Starlette(routes=[Route("/", bare_endpoint, middleware=[COUNTED])]),
        Starlette(routes=[Mount("/{name}", Counting(bare))]),
        Starlette(routes=[Mount(f"/{n}", Counting(bare)) for n in range(100)]),
    )
    for app in apps:
        decision = Offer(app).decision
        assert not decision.offered, app
        assert "pathsend=True" in decision.reason, decision


async def bare_endpoint(request: Request) -> Response:
    return Response()


COUNTED = Middleware(Counting)


def test_endpoints_that_may_wrap_send_are_not_offered_it(folder: Path) -> None:
    path = folder / "text.txt"

    async def captured(response: Response, request: Request) -> Response:
        blocks = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                blocks.append(message["body"])

        await response(request.scope, request.receive, send)
        return Response(b"".join(blocks).upper())

    def upper(endpoint: Any) -> Any:
        @functools.wraps(endpoint)
        async def wrapper(request: Request) -> Response:
            return await captured(endpoint(request), request)

        return wrapper

    def plain(request: Request) -> Response:
        return FileResponse(path)

    async def direct(request: Request) -> Response:
        return await captured(FileResponse(path), request)

    async def of_an_app(request: Request) -> Response:
        app: Any = Starlette(routes=[Route("/{path:path}", plain)])
        return await captured(app, request)

    class Own(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return await captured(FileResponse(path), request)

    async def failing(request: Request) -> Response:
        raise LookupError

    async def on_error(request: Request, error: Exception) -> Response:
        return await captured(FileResponse(path), request)

    fast = FastAPI()
    fast.get("/file", response_model=None)(direct)
    endpoints: tuple[Any, ...] = (upper(plain), direct, of_an_app, functools.partial(direct), Own)
    apps: list[Any] = [Starlette(routes=[Route("/file", each)]) for each in endpoints]
    apps.append(Starlette(routes=[Route("/", failing)], exception_handlers={LookupError: on_error}))
    apps.append(fast)
    for app in apps:
        decision = Offer(app).decision
        assert not decision.offered or decision.withheld == ("/file",), app
    assert offered_to(Starlette(routes=[Route("/file", plain)]))


def test_it_is_withheld_below_an_unknown_mount_alone(folder: Path) -> None:
    seen: list[bool] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(PATHSEND in scope["extensions"])
        await PlainTextResponse("")(scope, receive, send)

    async def known(request: Request) -> Response:
        seen.append(PATHSEND in request.scope["extensions"])
        return PlainTextResponse("")

    shared = Counting(look)
    inner = Starlette(routes=[Mount("/deep", shared), Route("/known", known)])
    routes = [
        Mount("/unknown", shared),
        Mount("/inner", inner),
        Route("/known", known),
        Route("/raw/{name}", shared),
    ]
    app = Starlette(routes=routes, middleware=[BEARING["CORS"]])
    decision = Offer(app).decision
    assert decision.withheld == ("/deep", "/raw/", "/unknown")
    assert "below /deep as bytes, since tests.asgi.layers.Counting is not known" in decision.reason
    asked = ("/unknown/x", "/inner/deep/x", "/raw/x", "/known", "/inner/known")
    for path in asked:
        call(ASGIFast(app), {**scope_of(path), "extensions": {}}, whole=False)
        asyncio.run(_served(HttpToolsProtocol, app, path, {}))
    assert seen == [path.endswith("known") for path in asked for _ in range(2)]


def test_frameworks_as_they_come_are_offered_it(folder: Path) -> None:
    api = FastAPI()
    api.mount("/static", StaticFiles(directory=folder))
    sub = FastAPI()
    api.mount("/sub", sub)

    @sub.get("/")
    def file() -> FileResponse:
        return FileResponse(folder / "text.txt")

    router = Router(routes=routes(folder))
    api.include_router(_included())
    for app in (api, sub, router, StaticFiles(directory=folder), Starlette()):
        decision = Offer(app).decision
        assert decision.offered, decision
        assert decision.zerocopy
        assert "pathsend=False" in decision.reason


def _included() -> Any:
    inner, outer = APIRouter(), APIRouter(prefix="/outer")

    @inner.get("/item")
    def item() -> dict[str, str]:
        return {}

    outer.include_router(inner)
    return outer


def test_base_middleware_is_not_offered_zerocopysend(folder: Path) -> None:
    seen: list[Any] = []

    def look(request: Request) -> Response:
        seen.append(request.scope["extensions"])
        return PlainTextResponse("")

    for middleware in ([], [BEARING["adds_a_header"]]):
        app = ASGIFast(Starlette(routes=[Route("/", look)], middleware=middleware))
        for name in ("of.a.server", "of.the.server"):
            call(app, {**scope_of("/"), "extensions": {name: {}}})
    assert [ZEROCOPYSEND in each for each in seen] == [True, True, False, False]
    assert all(each[PATHSEND] == {"ranges": True} for each in seen)
    assert ["of.the.server" in each for each in seen] == [False, True, False, True]


def test_an_unknown_app_keeps_what_its_server_offers() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(set(scope["extensions"]))
        await PlainTextResponse("")(scope, receive, send)

    scope = {**scope_of("/"), "extensions": {PATHSEND: {}, "other": {}}}
    call(ASGIFast(app), scope)
    call(ASGIFast(app, pathsend=False), scope)
    call(ASGIFast(ASGIFast(app), pathsend=True), scope)
    assert seen == [{PATHSEND, "other"}, {"other"}, {"other"}]


def test_a_response_that_wraps_send_counts_as_unknown(folder: Path) -> None:
    app = starlette(folder)
    assert offered_to(app)

    class CountedFile(FileResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)

    assert not offered_to(app)
    del CountedFile
    gc.collect()
    assert offered_to(app)


def test_a_replaced_method_of_a_known_class_counts_as_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Starlette.__call__

    async def instrumented(self: Any, scope: Any, receive: Any, send: Any) -> None:
        await original(self, scope, receive, send)

    monkeypatch.setattr(Starlette, "__call__", instrumented)
    assert not offered_to(starlette(folder))


def test_the_source_must_be_the_one_that_runs(folder: Path, tmp_path: Path) -> None:
    source = (
        "async def dispatch(request, call_next):\n"
        "    response = await call_next(request)\n"
        "    return response\n"
    )
    path = tmp_path / "dispatched.py"

    def app(text: str, on_disk: str | None) -> Starlette:
        path.unlink(missing_ok=True)
        if on_disk is not None:
            path.write_text(on_disk)
        linecache.checkcache()
        names: dict[str, Any] = {"__name__": "dispatched"}
        exec(compile(text, str(path), "exec"), names)
        return Starlette(middleware=[Middleware(BaseHTTPMiddleware, dispatch=names["dispatch"])])

    reading = source.replace("return response", "return response.body_iterator and response")
    assert not offered_to(app(source.replace("response", "answer"), None))
    assert not offered_to(app(reading, source))
    assert not offered_to(app(source.replace("request", "asked"), "not Python at all ("))
    assert offered_to(app(source, source))


HARMLESS = [
    "return await call_next(request)",
    "response = await call_next(request); response.headers['a'] = 'b'; return response",
    "response: object = await call_next(request); return response",
    "a = b = await call_next(request); a.set_cookie('c', 'd'); return b",
    "other = response = await call_next(request); third = other; return third",
    "try:\n        return await call_next(request)\n    except ValueError:\n        return None",
    "async with request.state.lock:\n        return await call_next(request)",
    "return None if request.url.path == '/' else 5",
    "await call_next(request)",
    "response = await call_next(request)\n"
    "    if response.status_code == 404 and 'a' in response.headers:\n"
    "        response.status_code = 410\n"
    "    return response",
]
TOUCHING = [
    "response = await call_next(request); return response.body",
    "response = await call_next(request); response.body_iterator = None; return response",
    "response = await call_next(request); del response.body_iterator; return response",
    "response = await call_next(request); log(response); return response",
    "response = await call_next(request); log(a=response); return response",
    "response = await call_next(request); log(*[response]); return response",
    "response = await call_next(request); request.state.kept = response; return response",
    "response = await call_next(request); kept = (response,); return response",
    "response = await call_next(request); kept = lambda: response; return kept()",
    "response = await call_next(request); log(f'{response}'); return response",
    "response = await call_next(request)\n"
    "    def inner(): return response\n"
    "    return log(inner())",
    "log(response := await call_next(request)); return response",
    "response = await call_next(request); log(locals()); return response",
    "response = await call_next(request); other = response; log(other); return response",
    "log(other) if (other := None) else 0; other = await call_next(request); return other",
    "return log(await call_next(request))",
    "return (await call_next(request)) or 5",
    "response = await asyncio.wait_for(call_next(request), 5); return response",
    "going = call_next(request); return await going",
    "again = call_next; return await again(request)",
    "return await helper(request, call_next)",
    "return [await call_next(request)][0]",
    "response, other = await call_next(request), 1; return response",
    "response = await call_next(request); yield response",
    "response = await call_next(request)\n    for response.x in []: pass\n    return response",
    "await request.app(request.scope, request.receive, print); return await call_next(request)",
    "request._send = print; return await call_next(request)",
    "await HANDLERS['a'](request); return await call_next(request)",
    "global response; response = await call_next(request); return response",
]


def _dispatching(body: str, tmp_path: Path, parameters: str = "request, call_next") -> Starlette:
    path = tmp_path / "dispatching.py"
    source = f"async def dispatch({parameters}):\n    {body}\n"
    path.write_text(source)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "dispatching"}
    exec(compile(source, str(path), "exec"), names)
    return Starlette(middleware=[Middleware(BaseHTTPMiddleware, dispatch=names["dispatch"])])


@pytest.mark.parametrize("body", HARMLESS)
def test_dispatch_functions_that_leave_bodies_alone_are_known(body: str, tmp_path: Path) -> None:
    assert offered_to(_dispatching(body, tmp_path))
    assert offered_to(_dispatching(body.replace("call_next", "next_one"), tmp_path,
                                   "request, next_one"))  # fmt: skip


@pytest.mark.parametrize("body", TOUCHING)
def test_dispatch_functions_that_may_touch_bodies_are_unknown(body: str, tmp_path: Path) -> None:
    assert not offered_to(_dispatching(body, tmp_path))


@pytest.mark.parametrize("parameters", ["*args", "request, call_next, other=1", "call_next"])
def test_dispatch_functions_of_other_parameters_are_unknown(
    parameters: str, tmp_path: Path
) -> None:
    assert not offered_to(_dispatching("pass", tmp_path, parameters))


# At run time


def test_what_is_added_later_is_looked_at(folder: Path) -> None:
    app = starlette(folder)
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


def test_what_is_decided_is_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for app in (ASGIFast(starlette(folder, "GZip")), ASGIFast(starlette(folder))):
        for _ in range(3):
            call(app, scope_of("/json"))
    first, second = (record.getMessage() for record in caplog.records)
    assert "GZipMiddleware" in first
    assert "ASGIFast(app, pathsend=True)" in first
    assert "ASGIFast(app, pathsend=False)" in second


def test_what_an_asgifast_decides_is_logged_by_it_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = ASGIFast(starlette(folder, "GZip"))
    asyncio.run(_served(HttpToolsProtocol, app, "/json", {}))
    asyncio.run(_served(HttpToolsProtocol, starlette(folder, "Counting"), "/json", {}))
    said = [r.getMessage() for r in caplog.records if "bytes" in r.getMessage()]
    assert ["GZipMiddleware" in each for each in said] == [True, False]
    assert "Counting" in said[1]


# Nothing fails, grows or changes

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
    """Status, decoded body, and the headers that tell what it is."""
    decoders: list[Callable[[bytes], bytes]] = []
    if headers.get("content-encoding") == "gzip":
        decoders.append(gzip.decompress)
    deflated = "x-deflated" in headers
    if deflated and body:
        decoders.append(zlib.decompress)
    if not body.startswith(b"\x1f\x8b"):  # gzip's: what was coded last is decoded first
        decoders.reverse()
    for decode in decoders:
        body = decode(body)
    return status, body, headers.get("content-type"), headers.get("content-encoding"), deflated


def asked(app: ASGIApp, path: str, method: str, headers: dict[str, str]) -> Any:
    """What comes of a request; the error's type, where the app fails."""
    scope = {**scope_of(path, method, host="a", **headers), "extensions": {}}
    try:
        answer = call(app, scope, whole=False, body=b"")
    except Exception as error:  # noqa: BLE001 - any error of the app's
        while inner := getattr(error, "exceptions", None):
            error = inner[0]
        return type(error).__name__, 0
    found = {name.lower(): value for name, value in answer.headers}
    body = b"" if method == "HEAD" else answer.body  # as a server has it
    return seen_by_client(answer.status, found, body), len(body)


@QUIET
@given(STACKS, STACKS, PATHS, st.sampled_from(["GET", "GET", "HEAD"]), REQUESTS)
def test_wrapping_changes_no_answer(
    folder: Path,
    stack: tuple[str, ...],
    inner: tuple[str, ...],
    path: str,
    method: str,
    headers: dict[str, str],
) -> None:
    raw, raw_bytes = asked(starlette(folder, *stack, inner=inner), path, method, headers)
    app = ASGIFast(starlette(folder, *stack, inner=inner))
    for _ in range(2):  # the first request has the middleware made
        wrapped, wrapped_bytes = asked(app, path, method, headers)
        assert wrapped == raw
        assert wrapped_bytes <= raw_bytes


@settings(QUIET, max_examples=25)
@given(STACKS, STACKS, PATHS, REQUESTS, st.sampled_from([H11Protocol, HttpToolsProtocol]))
def test_our_protocols_change_no_answer(
    folder: Path,
    stack: tuple[str, ...],
    inner: tuple[str, ...],
    path: str,
    headers: dict[str, str],
    protocol: Any,
) -> None:
    raw, raw_bytes = asked(starlette(folder, *stack, inner=inner), path, "GET", headers)
    for wrap in (lambda app: app, ASGIFast):
        app = wrap(starlette(folder, *stack, inner=inner))
        served = asyncio.run(_served(protocol, app, path, headers))
        if served is None:
            assert isinstance(raw, str), "the app fails, without the protocol too"
            continue
        (status, body, *others), size = served
        if isinstance(raw, str):
            assert status == 500
        else:
            assert (status, body, *others) == raw
            assert size <= raw_bytes


async def _served(protocol: Any, app: ASGIApp, path: str, headers: dict[str, str]) -> Any:
    """What a client has of a response; None if it broke off."""
    lines = [f"GET {path} HTTP/1.1", "Host: a", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    async with serving(protocol, app, pathsend=None) as client:
        await client.send("\r\n".join([*lines, "", ""]).encode())
        answer = await asyncio.wait_for(client.to_end(), 60)
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *fields = head.decode("latin-1").split("\r\n")
    found = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
    if "transfer-encoding" in found:
        data, left = b"", body
        while left:
            size, _, left = left.partition(b"\r\n")
            count = int(size, 16)
            data, left = data + left[:count], left[count + 2 :]
        if not body.endswith(b"0\r\n\r\n"):
            return None
        body = data
    elif len(body) != int(found["content-length"]):
        return None
    return seen_by_client(int(status.split()[1]), found, body), len(body)


# Files still go out by the server


@pytest.mark.parametrize("protocol", [H11Protocol, HttpToolsProtocol])
@pytest.mark.parametrize("make", [Starlette, FastAPI])
def test_our_protocols_send_files_of_known_apps(
    protocol: Any, make: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    original = response.open_for_pathsend  # type: ignore[attr-defined]

    def noted(path: str) -> Any:
        opened.append(path)
        return original(path)

    monkeypatch.setattr(response, "open_for_pathsend", noted)
    middleware = [BEARING["adds_a_header"], BEARING["CORS"]]
    for app, expected in (
        (make(routes=routes(folder)), True),
        (make(routes=routes(folder), middleware=middleware), True),
        (make(routes=routes(folder), middleware=[Middleware(GZipMiddleware)]), False),
        (ASGIFast(make(routes=routes(folder))), True),
        (ASGIFast(make(routes=routes(folder), middleware=middleware)), True),
    ):
        for path in ("/file/text.txt", "/static/text.txt", "/endpoint"):
            opened.clear()
            (status, body, *_), _ = asyncio.run(_served(protocol, app, path, {}))
            assert (status, body) == (200, TEXT)
            # ASGIFast hands over an open file, where it has planned for ranges.
            assert bool(opened) is expected, (app, path)


def test_a_message_of_another_type_is_the_reason(folder: Path) -> None:
    """Were it offered, these apps would fail: the test's own middleware is of the kind."""
    for name in ("reads_the_body", "Counting", "Dropping"):
        app = ASGIFast(starlette(folder, name), pathsend=True)
        outcome, _ = asked(app, "/file/text.txt", "GET", {})
        assert outcome in ("TypeError", "KeyError") or outcome[1] == b"", (name, outcome)


def test_dispatch_that_runs_is_offered_it(folder: Path) -> None:
    async def of_one_argument(message: Any) -> Any:
        raise AssertionError

    odd: Any = of_one_argument

    app = Starlette(middleware=[Middleware(BaseHTTPMiddleware, dispatch=adds_a_header)])
    assert offered_to(app)
    app = Starlette(middleware=[Middleware(BaseHTTPMiddleware, adds_a_header)])
    assert offered_to(app)
    app = Starlette(middleware=[Middleware(BaseHTTPMiddleware, dispatch=odd)])
    assert not offered_to(app)


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


@pytest.mark.skipif(not UVICORN_TAKES_NAMES, reason="this uvicorn's command line takes no class")
def test_no_server_of_ours_sends_more_bytes(tmp_path: Path) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "app.js").write_bytes(SCRIPT)
    (tmp_path / "served.py").write_text(SERVED)
    sizes: dict[tuple[str, str], int] = {}
    for name, command in COMMANDS.items():
        for app in ("compressed", "plain"):
            port = free_port()
            argv = [sys.executable, *command.format(port=port, app=app).split()]
            env = {"PYTHONPATH": str(tmp_path)}
            with live_server(
                argv, ("127.0.0.1", port), cwd=tmp_path, env=env, forked=False
            ) as server:
                for path in ("/file", "/static/app.js"):
                    answer = server.get(path, headers=[("Accept-Encoding", "gzip")])
                    coded = answer.header("Content-Encoding") == "gzip"
                    body = gzip.decompress(answer.body) if coded else answer.body
                    assert body == SCRIPT, (name, app, path)
                    assert len(answer.body) <= sizes.setdefault((app, path), len(answer.body))
                if name != "uvicorn" and app == "compressed":
                    assert "GZipMiddleware compresses them" in server.log()

"""http.response.pathsend is offered to an app if all its layers are known to support it."""

from __future__ import annotations

import asyncio
import functools
import gc
import linecache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.messages import PATHSEND, ZEROCOPYSEND, ASGIApp, Receive, Scope, Send
from asgifast.pathsend import Offer
from asgifast.uvicorn import HttpToolsProtocol
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from .layers import (
    BEARING,
    MIDDLEWARE,
    NOT_BEARING,
    Counting,
    adds_a_header,
    bare,
    routes,
    starlette,
)
from .protocols import served
from .support import call, scope_of


def offered_to(app: ASGIApp) -> bool:
    decision = app.pathsend_decision if isinstance(app, ASGIFast) else Offer(app).decision
    return decision.offered and not decision.withheld


# Decisions


@pytest.mark.parametrize("name", BEARING)
def test_middleware_leaving_bodies_alone_is_offered_it(name: str, texts: Path) -> None:
    assert offered_to(starlette(texts, name))
    assert offered_to(starlette(texts, inner=(name,)))
    app = FastAPI(routes=routes(texts), middleware=[MIDDLEWARE[name]])
    assert offered_to(app)
    call(app, {**scope_of("/json"), "extensions": {}})
    assert app.middleware_stack is not None
    assert offered_to(app), "and when its middleware is made"


@pytest.mark.parametrize("name", NOT_BEARING)
def test_unknown_middleware_is_not_offered_it(name: str, texts: Path) -> None:
    assert not offered_to(starlette(texts, name))
    assert not offered_to(starlette(texts, "adds_a_header", name, "CORS"))
    assert not offered_to(starlette(texts, inner=(name,)))
    app = FastAPI(routes=routes(texts), middleware=[MIDDLEWARE[name]])
    assert not offered_to(app)
    call(app, scope_of("/json"))
    assert not offered_to(app), "nor when its middleware is made"


def test_decision_builds_middleware_as_the_app_does(texts: Path) -> None:
    """The app and the decision use the same objects. So each middleware is made once."""
    made: list[Any] = []

    class Made(CORSMiddleware):
        def __init__(self, app: ASGIApp) -> None:
            super().__init__(app)
            made.append(self)

    app = Starlette(routes=routes(texts), middleware=[Middleware(Made)])
    assert not offered_to(app), "a subclass is unknown"
    call(app, scope_of("/json"))
    assert not offered_to(app)
    assert len(made) == 1


def test_asgifast_inside_decides_for_its_app(texts: Path) -> None:
    assert offered_to(starlette(texts, "adds_a_header", "ASGIFast", "Counting"))
    assert not offered_to(starlette(texts, "Counting", "ASGIFast"))
    assert not offered_to(ASGIFast(starlette(texts, "Counting")))
    assert offered_to(ASGIFast(starlette(texts, "Counting"), pathsend=True))
    assert not offered_to(ASGIFast(starlette(texts), pathsend=False))


class OwnRouter(Router):
    pass


class OwnStarlette(Starlette):
    pass


class OwnEndpoint(HTTPEndpoint):
    async def dispatch(self) -> None:
        await super().dispatch()


def test_unknown_parts_are_not_offered_it(texts: Path) -> None:
    apps: tuple[Any, ...] = (
        bare,
        Counting(starlette(texts)),
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


def test_endpoints_that_may_wrap_send_are_not_offered(texts: Path) -> None:
    path = texts / "text.txt"

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


def test_unknown_mount_alone_is_not_offered_it(texts: Path) -> None:
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
    assert (
        "below /deep are sent as bytes, because tests.asgi.layers.Counting is not known"
        in decision.reason
    )
    requested = ("/unknown/x", "/inner/deep/x", "/raw/x", "/known", "/inner/known")
    for path in requested:
        call(ASGIFast(app), {**scope_of(path), "extensions": {}}, whole=False)
        asyncio.run(served(HttpToolsProtocol, app, path, {}))
    assert seen == [path.endswith("known") for path in requested for _ in range(2)]


def test_frameworks_as_they_come_are_offered_it(texts: Path) -> None:
    api = FastAPI()
    api.mount("/static", StaticFiles(directory=texts))
    sub = FastAPI()
    api.mount("/sub", sub)

    @sub.get("/")
    def file() -> FileResponse:
        return FileResponse(texts / "text.txt")

    router = Router(routes=routes(texts))
    api.include_router(_included())
    for app in (api, sub, router, StaticFiles(directory=texts), Starlette()):
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


def test_base_middleware_is_not_offered_zerocopysend(texts: Path) -> None:
    seen: list[Any] = []

    def look(request: Request) -> Response:
        seen.append(request.scope["extensions"])
        return PlainTextResponse("")

    for middleware in ([], [BEARING["adds_a_header"]]):
        app = ASGIFast(Starlette(routes=[Route("/", look)], middleware=middleware))
        for name in ("of.a.server", "of.the.server"):
            call(app, {**scope_of("/"), "extensions": {name: {}}})
    assert [ZEROCOPYSEND in each for each in seen] == [True, True, False, False]
    assert all(each[PATHSEND]["ranges"] is True for each in seen)
    assert ["of.the.server" in each for each in seen] == [False, True, False, True]


def test_unknown_app_keeps_extensions_of_its_server() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(set(scope["extensions"]))
        await PlainTextResponse("")(scope, receive, send)

    scope = {**scope_of("/"), "extensions": {PATHSEND: {}, "other": {}}}
    call(ASGIFast(app), scope)
    call(ASGIFast(app, pathsend=False), scope)
    call(ASGIFast(ASGIFast(app), pathsend=True), scope)
    assert seen == [{PATHSEND, "other"}, {"other"}, {"other"}]


def test_response_that_wraps_send_counts_as_unknown(texts: Path) -> None:
    app = starlette(texts)
    assert offered_to(app)

    class CountedFile(FileResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)

    assert not offered_to(app)
    del CountedFile
    gc.collect()
    assert offered_to(app)


def test_replaced_method_of_known_class_is_unknown(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Starlette.__call__

    async def instrumented(self: Any, scope: Any, receive: Any, send: Any) -> None:
        await original(self, scope, receive, send)

    monkeypatch.setattr(Starlette, "__call__", instrumented)
    assert not offered_to(starlette(texts))


@pytest.mark.parametrize("on_disk", ["another", "not Python at all (", None])
def test_dispatch_with_other_source_is_unknown(tmp_path: Path, on_disk: str | None) -> None:
    app = _dispatching(TOUCHING[0] if on_disk == "another" else HARMLESS[0], tmp_path)
    path = tmp_path / "dispatching.py"
    path.unlink()
    if on_disk is not None:
        harmless = f"async def dispatch(request, call_next):\n    {HARMLESS[0]}\n"
        path.write_text(harmless if on_disk == "another" else on_disk)
    assert not offered_to(app)


HARMLESS = [
    "return await call_next(request)",
    "response = await call_next(request); response.headers['a'] = 'b'; return response",
    "response: object = await call_next(request); return response",
    "a = b = await call_next(request); a.set_cookie('c', 'd'); return b",
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
    "other = response = await call_next(request); third = other; return third",
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
    exec(compile(source, str(path), "exec", dont_inherit=True), names)
    return Starlette(middleware=[Middleware(BaseHTTPMiddleware, dispatch=names["dispatch"])])


@pytest.mark.parametrize("body", HARMLESS)
def test_dispatch_that_leaves_bodies_alone_is_known(body: str, tmp_path: Path) -> None:
    assert offered_to(_dispatching(body, tmp_path))
    assert offered_to(_dispatching(body.replace("call_next", "next_one"), tmp_path,
                                   "request, next_one"))  # fmt: skip


@pytest.mark.parametrize("body", TOUCHING)
def test_dispatch_that_may_touch_bodies_is_unknown(body: str, tmp_path: Path) -> None:
    assert not offered_to(_dispatching(body, tmp_path))


@pytest.mark.parametrize("parameters", ["*args", "request, call_next, other=1", "call_next"])
def test_dispatch_with_other_parameters_is_unknown(parameters: str, tmp_path: Path) -> None:
    assert not offered_to(_dispatching("pass", tmp_path, parameters))


def test_dispatch_that_runs_is_offered_it(texts: Path) -> None:
    async def of_one_argument(message: Any) -> Any:
        raise AssertionError

    odd: Any = of_one_argument

    app = Starlette(middleware=[Middleware(BaseHTTPMiddleware, dispatch=adds_a_header)])
    assert offered_to(app)
    app = Starlette(middleware=[Middleware(BaseHTTPMiddleware, adds_a_header)])
    assert offered_to(app)
    app = Starlette(middleware=[Middleware(BaseHTTPMiddleware, dispatch=odd)])
    assert not offered_to(app)


def _without_pathsend(code: CodeType) -> CodeType:
    consts = (_without_pathsend(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_consts=tuple("other" if c == PATHSEND else c for c in consts))


def test_starlette_without_pathsend_is_not_offered_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Starlette(middleware=[Middleware(BaseHTTPMiddleware, dispatch=adds_a_header)])
    method = BaseHTTPMiddleware.__call__
    monkeypatch.setattr(method, "__code__", _without_pathsend(method.__code__))
    assert not offered_to(app)

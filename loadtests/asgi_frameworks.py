"""Provide apps of ASGI frameworks with a file, a stream and a small response, in a middleware.

`plain_NAME` is an app without ASGIFast. `fast_NAME` is the same app in ASGIFast, or for Django in
asgifast.django. `pip install --group frameworks` installs Litestar, Quart and Sanic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from asgifast import ASGIFast
from asgifast.messages import ASGIApp

from . import django_app
from .payloads import FILE_BYTES, blocks, payload, payload_file

SMALL_BYTES = 1024
HEADER = ("X-Middleware", "passed")


def _starlette() -> ASGIApp:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response, StreamingResponse
    from starlette.routing import Route

    async def mark(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers[HEADER[0]] = HEADER[1]
        return response

    async def file(request: Request) -> Response:
        return FileResponse(payload_file(FILE_BYTES))

    async def stream(request: Request) -> Response:
        return StreamingResponse(blocks())

    async def small(request: Request) -> Response:
        return Response(payload(SMALL_BYTES))

    return Starlette(
        routes=[Route(f"/{endpoint.__name__}", endpoint) for endpoint in (file, stream, small)],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=mark)],
    )


def _django(module: str = "django.core.asgi") -> ASGIApp:
    return django_app.asgi(f"{django_app.__name__}.Mark", module=module)  # type: ignore[no-any-return]


def _litestar() -> ASGIApp:
    litestar, middleware = import_module("litestar"), import_module("litestar.middleware")
    response = import_module("litestar.response")

    class Mark(middleware.ASGIMiddleware):  # type: ignore[name-defined]
        async def handle(self, scope: Any, receive: Any, send: Any, next_app: Any) -> None:
            async def marked(message: Any) -> None:
                if message["type"] == "http.response.start":
                    header = HEADER[0].lower().encode(), HEADER[1].encode()
                    message = {**message, "headers": [*message["headers"], header]}
                await send(message)

            await next_app(scope, receive, marked)

    async def file() -> Any:
        return response.File(path=payload_file(FILE_BYTES))

    async def stream() -> Any:
        return response.Stream(blocks())

    async def small() -> bytes:
        return payload(SMALL_BYTES)

    routes = []
    for view, kind in ((file, response.File), (stream, response.Stream), (small, bytes)):
        view.__annotations__["return"] = kind
        routes.append(
            litestar.get(f"/{view.__name__}", media_type="application/octet-stream")(view)
        )
    app: ASGIApp = litestar.Litestar(routes, middleware=[Mark()])
    return app


def _quart() -> ASGIApp:
    quart = import_module("quart")
    app: Any = quart.Quart(__name__)

    @app.after_request
    async def mark(response: Any) -> Any:
        response.headers[HEADER[0]] = HEADER[1]
        return response

    @app.route("/file")
    async def file() -> Any:
        return await quart.send_file(payload_file(FILE_BYTES), conditional=True)

    @app.route("/stream")
    async def stream() -> Any:
        return blocks(), 200

    @app.route("/small")
    async def small() -> Any:
        return payload(SMALL_BYTES), 200

    return app  # type: ignore[no-any-return]


def _sanic() -> ASGIApp:
    sanic = import_module("sanic")
    app: Any = sanic.Sanic("loadtests")

    @app.on_response
    async def mark(request: Any, response: Any) -> None:
        response.headers[HEADER[0]] = HEADER[1]

    @app.get("/file")
    async def file(request: Any) -> Any:
        return await sanic.response.file_stream(payload_file(FILE_BYTES))

    @app.get("/stream")
    async def stream(request: Any) -> None:
        received = await request.respond()
        async for block in blocks():
            await received.send(block)
        await received.eof()

    @app.get("/small")
    async def small(request: Any) -> Any:
        return sanic.response.raw(payload(SMALL_BYTES))

    return app  # type: ignore[no-any-return]


# Maps the name of a framework to the title of its row, and to the function that makes its app.
FRAMEWORKS: dict[str, tuple[str, Callable[[], ASGIApp]]] = {
    "starlette": ("Starlette's BaseHTTPMiddleware", _starlette),
    "django": ("Django's middleware", _django),
    "litestar": ("Litestar's ASGIMiddleware", _litestar),
    "quart": ("Quart's after_request", _quart),
    "sanic": ("Sanic's on_response", _sanic),
}


@cache  # Sanic refuses a second app of the same name, and Django a second configuration
def _make_app(kind: str, name: str) -> ASGIApp:
    if (kind, name) == ("fast", "django"):
        return _django("asgifast.django")
    app = FRAMEWORKS[name][1]()
    return ASGIFast(app) if kind == "fast" else app


def __getattr__(name: str) -> ASGIApp:
    """Return an app by its name, for the servers."""
    kind, _, framework = name.partition("_")
    if kind in ("plain", "fast") and framework in FRAMEWORKS:
        return _make_app(kind, framework)
    raise AttributeError(name)

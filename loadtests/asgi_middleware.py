"""Files, streams and small responses through the middleware of ASGI frameworks.

    python -m loadtests.asgi_middleware [litestar | .file] [--profile release]

Each framework's own kind of middleware, around its own file response, and two servers: uvicorn with
the app as it is, and asgifast's protocol with the app in ASGIFast (Django's by asgifast.django).
Litestar, Quart and Sanic come with `pip install --group frameworks`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from asgifast import ASGIFast
from asgifast.messages import ASGIApp

from .bench import BYTES, REQUESTS, Case, Load, Row, Table, Task, case_rows, raw, wrk
from .command import main
from .peers import uvicorn
from .shapes import FILE_BYTES, MIB, chunks, payload, payload_file, payload_files

__all__ = ["TABLES", "rows"]

MODULE = "loadtests.asgi_middleware"
SMALL_BYTES, BLOCK_BYTES = 1024, 1024
HEADER = ("X-Middleware", "passed")


async def _blocks() -> AsyncIterator[bytes]:
    for block in chunks(MIB, BLOCK_BYTES):
        yield block


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
        return StreamingResponse(_blocks())

    async def small(request: Request) -> Response:
        return Response(payload(SMALL_BYTES))

    return Starlette(
        routes=[Route(f"/{endpoint.__name__}", endpoint) for endpoint in (file, stream, small)],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=mark)],
    )


def _django_middleware(get_response: Callable[[Any], Awaitable[Any]]) -> Any:
    async def mark(request: Any) -> Any:
        response = await get_response(request)
        response[HEADER[0]] = HEADER[1]
        return response

    return mark


def _django_urls() -> list[Any]:
    from django.http import FileResponse, HttpResponse, StreamingHttpResponse
    from django.urls import path

    async def file(request: Any) -> Any:
        return FileResponse(payload_file(FILE_BYTES).open("rb"))

    async def stream(request: Any) -> Any:
        return StreamingHttpResponse(_blocks())

    async def small(request: Any) -> Any:
        return HttpResponse(payload(SMALL_BYTES))

    return [path("file", file), path("stream", stream), path("small", small)]


def _django(module: str = "django.core.asgi") -> ASGIApp:
    from django.conf import settings

    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=MODULE,
        MIDDLEWARE=[f"{MODULE}.django_middleware"],
        SECRET_KEY="of a load test",
    )
    app: ASGIApp = import_module(module).get_asgi_application()
    return app


def _litestar() -> ASGIApp:
    litestar, middleware = import_module("litestar"), import_module("litestar.middleware")
    response = import_module("litestar.response")

    class Mark(middleware.ASGIMiddleware):  # type: ignore[name-defined, misc]
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
        return response.Stream(_blocks())

    async def small() -> bytes:
        return payload(SMALL_BYTES)

    file.__annotations__["return"] = response.File
    stream.__annotations__["return"] = response.Stream
    small.__annotations__["return"] = bytes
    routes = [
        litestar.get(f"/{function.__name__}", media_type="application/octet-stream")(function)
        for function in (file, stream, small)
    ]
    app: ASGIApp = litestar.Litestar(routes, middleware=[Mark()])
    return app


def _quart() -> ASGIApp:
    quart = import_module("quart")
    app = quart.Quart(__name__)

    async def mark(response: Any) -> Any:
        response.headers[HEADER[0]] = HEADER[1]
        return response

    async def file() -> Any:
        return await quart.send_file(payload_file(FILE_BYTES))

    async def stream() -> Any:
        return _blocks(), 200

    async def small() -> Any:
        return payload(SMALL_BYTES), 200

    app.after_request(mark)
    for function in (file, stream, small):
        app.route(f"/{function.__name__}")(function)
    found: ASGIApp = app
    return found


def _sanic() -> ASGIApp:
    sanic = import_module("sanic")
    app = sanic.Sanic("loadtests")

    async def mark(request: Any, response: Any) -> None:
        response.headers[HEADER[0]] = HEADER[1]

    async def file(request: Any) -> Any:
        return await sanic.response.file_stream(payload_file(FILE_BYTES))

    async def stream(request: Any) -> None:
        answer = await request.respond()
        async for block in _blocks():
            await answer.send(block)
        await answer.eof()

    async def small(request: Any) -> Any:
        return sanic.response.raw(payload(SMALL_BYTES))

    app.on_response(mark)
    for function in (file, stream, small):
        app.get(f"/{function.__name__}")(function)
    found: ASGIApp = app
    return found


# name -> its title, how its app is made, and how ours.
FRAMEWORKS: dict[str, tuple[str, Callable[[], ASGIApp], Callable[[], ASGIApp]]] = {
    "starlette": ("Starlette's BaseHTTPMiddleware", _starlette, lambda: ASGIFast(_starlette())),
    "django": ("Django's middleware", _django, lambda: _django("asgifast.django")),
    "litestar": ("Litestar's ASGIMiddleware", _litestar, lambda: ASGIFast(_litestar())),
    "quart": ("Quart's after_request", _quart, lambda: ASGIFast(_quart())),
    "sanic": ("Sanic's on_response", _sanic, lambda: ASGIFast(_sanic())),
}
CASES: list[Case] = [
    ("file", "a file of 10 MiB", "/file", BYTES, raw()),
    ("stream", "1 MiB in blocks of 1 KiB", "/stream", BYTES, raw()),
    ("small", "a response of 1 KiB", "/small", REQUESTS, wrk(8)),
]


@cache  # Sanic refuses a second app of a name, and Django a second configuration
def _made(name: str) -> ASGIApp:
    kind, _, framework = name.partition("_")
    _, plain, fast = FRAMEWORKS[framework]
    return fast() if kind == "fast" else plain()


def __getattr__(name: str) -> Any:
    """plain_NAME and fast_NAME, for the servers; for Django its URLs and its middleware."""
    if name == "urlpatterns":
        return _django_urls()
    if name == "django_middleware":
        return import_module("django.utils.decorators").async_only_middleware(_django_middleware)
    if name.partition("_")[2] in FRAMEWORKS:
        return _made(name)
    raise AttributeError(name)


def rows(framework: str, title: str) -> list[Row]:
    """A file, a stream and a small response through one framework."""
    sides = {
        "uvicorn": uvicorn(f"{MODULE}:plain_{framework}"),
        "our protocol + ASGIFast": uvicorn(f"{MODULE}:fast_{framework}", ours=True),
    }
    made = case_rows(f"asgi.middleware.{framework}", title, sides, CASES)
    return made if find_spec(framework) else [_missing(row, framework) for row in made]


def _missing(row: Row, framework: str) -> Row:
    way_out = f"{framework} is not installed: .venv/bin/pip install --group frameworks"

    def client(task: Task) -> Load:
        return Load(0, 1, 0, 0.0, errors={way_out: 1})

    contenders = tuple(replace(contender, server=None) for contender in row.contenders)
    return replace(row, contenders=contenders, client=client, http=False, rounds=1)


TABLES = [
    Table(
        "asgi-middleware",
        "Through the middleware of ASGI frameworks",
        [row for name, (title, *_) in FRAMEWORKS.items() for row in rows(name, title)],
        payload_files(FILE_BYTES),
    )
]

if __name__ == "__main__":
    raise SystemExit(main(MODULE, __doc__, TABLES))

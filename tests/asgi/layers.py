"""Apps in middleware that does or does not support pathsend, or that changes bodies."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from asgifast import ASGIFast
from asgifast.messages import ASGIApp, Message, Receive, Scope, Send
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

__all__ = [
    "BEARING", "MIDDLEWARE", "NOT_BEARING", "TEXT", "Counting", "adds_a_header", "bare", "routes",
    "starlette",
]  # fmt: skip


async def adds_a_header(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    response.headers["X-Seen"] = f"{request.url.path} {response.status_code}"
    return response


async def refuses_some(request: Request, call_next: RequestResponseEndpoint) -> Response:
    if request.url.path == "/forbidden":
        return Response("forbidden", 403)
    try:
        return await call_next(request)
    finally:
        request.state.seen = True


async def reads_the_body(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response: Any = await call_next(request)
    body = b"".join([chunk async for chunk in response.body_iterator])
    return Response(body, response.status_code, dict(response.headers))


async def wraps_the_body(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response: Any = await call_next(request)

    async def counted(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in parts:
            yield part + b""  # accepts bytes only

    response.body_iterator = counted(response.body_iterator)
    return response  # type: ignore[no-any-return]


def total_of(response: Any) -> None:
    parts = response.body_iterator

    async def counted() -> AsyncIterator[bytes]:
        async for part in parts:
            yield bytes(part)

    response.body_iterator = counted()


async def passes_it_to_a_helper(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    total_of(response)
    return response


async def reads_it_by_another_name(
    request: Request, call_next: RequestResponseEndpoint
) -> Response:
    received = response = await call_next(request)
    parts = getattr(received, "body_" + "iterator")
    headers = {**response.headers}
    return StreamingResponse((bytes(part) async for part in parts), response.status_code, headers)


class Counting:
    """Pure ASGI middleware that reads the body of every message."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.total = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counting(message: Message) -> None:
            if message["type"] != "http.response.start":
                self.total += len(message["body"])
            await send(message)

        await self.app(scope, receive, counting)


class Dropping(Counting):
    """Pass on only the messages that this middleware knows."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def some(message: Message) -> None:
            if message["type"] in ("http.response.start", "http.response.body"):
                await send(message)

        await self.app(scope, receive, some)


class Deflating(Counting):
    """Compress bodies that are sent as bytes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        coder = zlib.compressobj()

        async def deflated(message: Message) -> None:
            if message["type"] == "http.response.start":
                remaining = [each for each in message["headers"] if each[0] != b"content-length"]
                await send({**message, "headers": [*remaining, (b"x-deflated", b"1")]})
            elif message["type"] == "http.response.body":
                body = coder.compress(message.get("body", b""))
                more = message.get("more_body", False)
                if not more:
                    body += coder.flush()
                await send({"type": message["type"], "body": body, "more_body": more})
            else:
                await send(message)

        await self.app(scope, receive, deflated)


class ReadingDispatch(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await reads_the_body(request, call_next)


class HeaderDispatch(BaseHTTPMiddleware):
    def __init__(self, app: ASGIApp, name: str = "X-Name") -> None:
        super().__init__(app)
        self.name = name

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers[self.name] = "1"
        return response


class OwnGZip(GZipMiddleware):
    pass


class OwnCORS(CORSMiddleware):
    async def send(self, message: Any, send: Any, request_headers: Any) -> None:
        if message["type"] != "http.response.start":
            assert isinstance(message["body"], bytes)
        await super().send(message, send, request_headers)


def wrapping_function(app: ASGIApp) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def looking(message: Message) -> None:
            if message["type"] != "http.response.start":
                assert message["body"] is not None
            await send(message)

        await app(scope, receive, looking)

    return wrapped


def _base(dispatch: Callable[..., Any]) -> Middleware:
    return Middleware(BaseHTTPMiddleware, dispatch=dispatch)


# The protocols offer the extension to an app in these layers.
BEARING: dict[str, Middleware] = {
    "adds_a_header": _base(adds_a_header),
    "refuses_some": _base(refuses_some),
    "HeaderDispatch": Middleware(HeaderDispatch),
    "CORS": Middleware(CORSMiddleware, allow_origins=["*"]),
    "Session": Middleware(SessionMiddleware, secret_key="not a secret"),
    "TrustedHost": Middleware(TrustedHostMiddleware, allowed_hosts=["*"]),
}
# The protocols do not offer the extension to an app in these layers.
NOT_BEARING: dict[str, Middleware] = {
    "reads_the_body": _base(reads_the_body),
    "wraps_the_body": _base(wraps_the_body),
    "passes_it_to_a_helper": _base(passes_it_to_a_helper),
    "reads_it_by_another_name": _base(reads_it_by_another_name),
    "ReadingDispatch": Middleware(ReadingDispatch),
    "Counting": Middleware(Counting),
    "Dropping": Middleware(Dropping),
    "Deflating": Middleware(Deflating),
    "GZip": Middleware(GZipMiddleware),
    "OwnGZip": Middleware(OwnGZip),
    "OwnCORS": Middleware(OwnCORS),
    "wrapping_function": Middleware(wrapping_function),
}
MIDDLEWARE: dict[str, Middleware] = {**BEARING, **NOT_BEARING, "ASGIFast": Middleware(ASGIFast)}


TEXT = b"".join(b"line %d of a text that can be compressed\n" % n for n in range(9000))


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


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotImplementedError

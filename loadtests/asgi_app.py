"""Provide the ASGI apps of the load tests.

`app` is a usual Starlette app. `fast` is `app` in ASGIFast. `limit` is `app` in the smallest
middleware that reads messages. `nothing` is `app` in a middleware that does nothing. `bare` is an
app without a framework.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator

import asgifast
from asgifast.messages import PATHSEND, ASGIApp, Message, Receive, Scope, Send
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from .payloads import FIELD, FILE_BYTES, PAYLOADS, chunks, payload

# 100,000 messages of 100 bytes.
CRUMBS_BYTES, CRUMB_BYTES = 10_000_000, 100
STREAM_BLOCK_BYTES = 64 * 1024
# The work of the WSGI app (WORK_S), divided by its four threads.
BLOCKED_S = 0.0125
# About 10 kB of JSON.
_ITEMS = [{"id": number, "name": f"item {number}", "price": number / 10} for number in range(200)]


async def plain(request: Request) -> Response:
    return Response(payload(1024))


async def file(request: Request) -> Response:
    return FileResponse(PAYLOADS / request.path_params["name"])


async def our_file(request: Request) -> Response:
    return asgifast.FileResponse(PAYLOADS / request.path_params["name"])


async def stream(request: Request) -> Response:
    """Stream a body of a given size in messages of 100 bytes, by Starlette."""

    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks(request.path_params["size"], CRUMB_BYTES):
            yield chunk

    return StreamingResponse(body())


async def as_json(request: Request) -> Response:
    return JSONResponse(_ITEMS)


async def messages(request: Request) -> Response:
    """Stream 20 messages of 1 kB."""

    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks(20_000, 1000):
            yield chunk

    return StreamingResponse(body())


async def upload(request: Request) -> Response:
    """Return the size of the body, or of the file in a form, and the number of messages."""
    size = messages = 0

    async def counted() -> Message:
        nonlocal messages
        message = await request.receive()
        messages += bool(message.get("body"))
        return message

    body = Request(request.scope, counted)
    if body.headers.get("Content-Type", "").startswith("multipart/form-data"):
        async with body.form() as form:
            if isinstance(file := form.get(FIELD), UploadFile):
                size = file.size or 0
    else:
        async for chunk in body.stream():
            size += len(chunk)
    return PlainTextResponse(f"{size} {messages}")


async def unread(request: Request) -> Response:
    """Do not read the body, and never return."""
    await asyncio.Event().wait()
    raise AssertionError


class Crumbs:
    """An app without Starlette that sends 100,000 body messages of 100 bytes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        message = {"type": "http.response.body", "body": b"c" * CRUMB_BYTES, "more_body": True}
        for _ in range(CRUMBS_BYTES // CRUMB_BYTES):
            await send(message)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


PAYLOADS.mkdir(parents=True, exist_ok=True)
app = Starlette(
    routes=[
        Route("/plain", plain),
        Route("/json", as_json),
        Route("/messages", messages),
        Route("/file/{name}", file),
        Route("/our-file/{name}", our_file),
        Route("/stream/{size:int}", stream),
        Route("/upload", upload, methods=["GET", "POST"]),
        Route("/unread", unread, methods=["POST"]),
        Mount("/static", StaticFiles(directory=PAYLOADS)),
        Mount("/our-static", asgifast.StaticFiles(directory=PAYLOADS)),
        Mount("/crumbs", Crumbs()),
    ]
)


async def limit(scope: Scope, receive: Receive, send: Send) -> None:
    """Do the minimum of a middleware that reads messages: copy the scope, and wrap send()."""

    async def forward(message: Message) -> None:
        await send(message)

    await app({**scope}, receive, forward)


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Do the minimum of any middleware: call the app in another coroutine."""
    await app(scope, receive, send)


fast = asgifast.ASGIFast(app)
buffered = asgifast.ASGIFast(app, buffer_bodies=True)


def __getattr__(name: str) -> ASGIApp:
    """Return an app with metrics.

    The library for the metrics is imported only if a test uses this app.
    """
    if name == "metered":
        return asgifast.ASGIFast(app, metrics="prometheus")
    raise AttributeError(name)


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the payload files, and some paths of the WSGI app.

    /work blocks the event loop.
    """
    if scope["type"] != "http":
        return  # lifespan is not supported
    name = scope["path"].rpartition("/")[2]
    headers: list[tuple[bytes, bytes]] = []
    if name == "server-wrapper" or name.endswith(".bin"):
        path = PAYLOADS / (name if name.endswith(".bin") else f"{FILE_BYTES}.bin")
        headers = [(b"content-length", b"%d" % path.stat().st_size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": PATHSEND, "path": str(path)})
        return
    body = b"ok"
    if name == "upload":
        while (message := await receive())["type"] == "http.request" and message.get("more_body"):
            pass
    elif name == "work":
        time.sleep(BLOCKED_S)
    elif name == "blocks":
        gc.collect()
        body = b"%d" % sys.getallocatedblocks()
    if name != "stream":
        headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if name == "stream":
        message = {
            "type": "http.response.body",
            "body": bytes(STREAM_BLOCK_BYTES),
            "more_body": True,
        }
        for _ in range(CRUMBS_BYTES // STREAM_BLOCK_BYTES):
            await send(message)
        body = b""
    await send({"type": "http.response.body", "body": body})

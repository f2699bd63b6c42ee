"""An ASGI app that limits request bodies to LIMIT bytes."""

from __future__ import annotations

from typing import Any

from asgifast import ASGIFast
from asgifast.messages import Receive, Scope, Send
from asgifast.request_bodies import IN_MEMORY, ON_DISK
from fastapi import FastAPI, Request

from tests.support.limited_app import LIMIT

app = FastAPI()
limited = ASGIFast(app, body_limit_bytes=LIMIT)


@app.post("/whole")
async def whole(request: Request) -> int:
    return len(await request.body())


@app.post("/raw")
async def raw(request: Request) -> int:
    size = 0
    async for block in request.stream():
        size += len(block)
    return size


@app.post("/json")
async def json(data: dict[str, Any]) -> int:
    return len(data)


@app.post("/unread")
async def unread() -> str:
    return "unread"


BUFFERED = 4 * 1024 * 1024
counted = {"started": 0, "running": 0}


async def counting(scope: Scope, receive: Receive, send: Send) -> None:
    """Count the requests to /whole that reach the app, and those that are running."""
    if scope["type"] != "http" or scope["path"] != "/whole":
        return await app(scope, receive, send)
    counted["started"] += 1
    counted["running"] += 1
    try:
        await app(scope, receive, send)
    finally:
        counted["running"] -= 1


@app.get("/started")
async def started() -> int:
    return counted["started"]


@app.get("/running")
async def running() -> int:
    return counted["running"]


@app.get("/open")
async def bytes_buffered() -> int:
    return IN_MEMORY.used_bytes + ON_DISK.used_bytes


buffered = ASGIFast(counting, buffer_bodies=BUFFERED)

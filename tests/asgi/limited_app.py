"""An ASGI app whose request bodies are limited to LIMIT bytes."""

from __future__ import annotations

from typing import Any

from asgifast import ASGIFast
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

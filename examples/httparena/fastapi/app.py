"""FastAPI, with static files in front of it."""

from __future__ import annotations

import json
import os
from typing import Any

from asgifast import ASGIFast, StaticFiles
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse

with open(os.environ.get("DATASET_PATH", "/data/dataset.json"), encoding="utf-8") as file:
    DATASET = json.load(file)
STATIC = os.environ.get("STATIC_PATH", "/data/static")

api = FastAPI(openapi_url=None)


@api.get("/baseline11", response_class=PlainTextResponse)
async def baseline(a: int, b: int) -> str:
    return str(a + b)


@api.post("/baseline11", response_class=PlainTextResponse)
async def baseline_with_body(a: int, b: int, request: Request) -> str:
    return str(a + b + int(await request.body() or b"0"))


@api.get("/pipeline", response_class=PlainTextResponse)
async def pipeline() -> str:
    return "ok"


@api.get("/json/{count}")
async def items(count: int, m: int = 1) -> dict[str, Any]:
    chosen = [{**item, "total": item["price"] * item["quantity"] * m} for item in DATASET[:count]]
    return {"items": chosen, "count": len(chosen)}


@api.post("/upload", response_class=PlainTextResponse)
async def upload(request: Request) -> str:
    size = 0
    async for block in request.stream():
        size += len(block)
    return str(size)


app = StaticFiles(ASGIFast(api, compress=True), directory=STATIC, prefix="/static/", cache_bytes=0)

"""Plain WSGI: each path is a function of the environ."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import parse_qsl

from wsgifast import StaticFiles, WSGIFast

with open(os.environ.get("DATASET_PATH", "/data/dataset.json"), encoding="utf-8") as file:
    DATASET = json.load(file)
STATIC = os.environ.get("STATIC_PATH", "/data/static")
BLOCK_BYTES = 1 << 18
TEXT = "text/plain"


def baseline(environ: dict[str, Any], _: str) -> tuple[str, bytes]:
    total = sum(int(value) for _, value in parse_qsl(environ["QUERY_STRING"]))
    if environ["REQUEST_METHOD"] == "POST":
        total += int(environ["wsgi.input"].read() or b"0")
    return TEXT, b"%d" % total


def pipeline(environ: dict[str, Any], _: str) -> tuple[str, bytes]:
    return TEXT, b"ok"


def items(environ: dict[str, Any], count: str) -> tuple[str, bytes]:
    factor = int(dict(parse_qsl(environ["QUERY_STRING"])).get("m", "1"))
    chosen = [
        {**item, "total": item["price"] * item["quantity"] * factor}
        for item in DATASET[: int(count)]
    ]
    return "application/json", json.dumps({"items": chosen, "count": len(chosen)}).encode()


def upload(environ: dict[str, Any], _: str) -> tuple[str, bytes]:
    size = 0
    while block := environ["wsgi.input"].read(BLOCK_BYTES):
        size += len(block)
    return TEXT, b"%d" % size


PATHS = {"baseline11": baseline, "pipeline": pipeline, "json": items, "upload": upload}


def shop(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    name, _, rest = environ["PATH_INFO"][1:].partition("/")
    if name not in PATHS:
        start_response("404 Not Found", [("Content-Type", TEXT), ("Content-Length", "0")])
        return []
    content_type, body = PATHS[name](environ, rest)
    start_response("200 OK", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]


app = StaticFiles(WSGIFast(shop, compress=True), directory=STATIC, prefix="/static/", cache_bytes=0)

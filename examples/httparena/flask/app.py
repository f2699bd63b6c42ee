"""Flask, with nothing that its documentation does not show."""

from __future__ import annotations

import json
import os
from typing import Any

from flask import Flask, Response, jsonify, request

from wsgifast import StaticFiles, WSGIFast

with open(os.environ.get("DATASET_PATH", "/data/dataset.json"), encoding="utf-8") as file:
    DATASET = json.load(file)
STATIC = os.environ.get("STATIC_PATH", "/data/static")
BLOCK_BYTES = 1 << 18

app = Flask(__name__, static_folder=None)


@app.route("/baseline11", methods=["GET", "POST"])
def baseline() -> Response:
    total = sum(int(value) for value in request.args.values())
    if request.method == "POST":
        total += int(request.get_data() or b"0")
    return Response(str(total), mimetype="text/plain")


@app.get("/pipeline")
def pipeline() -> Response:
    return Response("ok", mimetype="text/plain")


@app.get("/json/<int:count>")
def items(count: int) -> Response:
    factor = request.args.get("m", 1, type=int)
    chosen: list[Any] = [
        {**item, "total": item["price"] * item["quantity"] * factor} for item in DATASET[:count]
    ]
    return jsonify(items=chosen, count=len(chosen))


@app.post("/upload")
def upload() -> Response:
    size = 0
    while block := request.stream.read(BLOCK_BYTES):
        size += len(block)
    return Response(str(size), mimetype="text/plain")


app.wsgi_app = StaticFiles(  # type: ignore[method-assign]
    WSGIFast(app.wsgi_app, compress=True), directory=STATIC, prefix="/static/", cache_bytes=0
)

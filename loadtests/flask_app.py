"""Provide a Flask app with an open file, an export, send_file() and small pages."""

from __future__ import annotations

from flask import Flask, Response, send_file

from .payloads import FILE_BYTES, payload, payload_file, table_lines

app = Flask(__name__)


@app.get("/open")
def _open() -> Response:
    return Response(payload_file(FILE_BYTES).open("rb"))


@app.get("/lines")
def _lines() -> Response:
    return Response(table_lines(), mimetype="text/csv")


@app.get("/file")
def _file() -> Response:
    return send_file(payload_file(FILE_BYTES), conditional=True)


@app.get("/long")
def _long() -> Response:
    return Response(payload(20_000))


@app.get("/image")
def _image() -> Response:
    return Response(payload(20_000), mimetype="image/png")


@app.get("/page")
def _page() -> Response:
    return Response(payload(512))

"""Provide apps of four frameworks that receive an upload: a body, or a file in a form.

The response contains the size, and the number of messages or reads. `starlette`, `fastapi`, `flask`
and `django` return usual apps. `fast_starlette`, `fast_fastapi` and `fast_flask` return wrapped
apps with a limit.
"""

from __future__ import annotations

from typing import Annotated, Any

from asgifast import ASGIFast
from asgifast.messages import ASGIApp
from fastapi import FastAPI, File, Request, UploadFile
from fastapi.responses import PlainTextResponse

from wsgifast import WSGIFast

from .payloads import FIELD

LIMIT_BYTES = 8 * 1024 * 1024 * 1024
_READ_BYTES = 64 * 1024


def starlette() -> ASGIApp:
    """Return an app with Starlette's form parser, or with request.stream()."""
    from .asgi_app import app

    return app


def fast_starlette() -> ASGIApp:
    return ASGIFast(starlette(), body_limit_bytes=LIMIT_BYTES, buffer_bodies=True)


def fastapi() -> ASGIApp:
    """Return an app with UploadFile, which FastAPI parses before it calls the endpoint."""
    app = FastAPI()

    async def upload(file: Annotated[UploadFile, File()]) -> PlainTextResponse:
        return PlainTextResponse(f"{file.size} 0")

    async def stream(request: Request) -> PlainTextResponse:
        size = messages = 0
        async for block in request.stream():
            size += len(block)
            messages += bool(block)
        return PlainTextResponse(f"{size} {messages}")

    async def plain() -> PlainTextResponse:
        return PlainTextResponse("0 0")

    app.post("/upload")(upload)
    app.post("/stream")(stream)
    for path in ("/upload", "/stream", "/plain"):
        app.get(path)(plain)
    return app


def fast_fastapi() -> ASGIApp:
    return ASGIFast(fastapi(), body_limit_bytes=LIMIT_BYTES, buffer_bodies=True)


def flask() -> Any:
    """Return an app with Werkzeug's form parser, or with the stream of the body."""
    from flask import Flask, request

    app = Flask(__name__)

    @app.route("/upload", methods=["GET", "POST"])
    def upload() -> str:
        size = reads = 0
        file = request.files.get(FIELD)
        if file is not None:
            file.stream.seek(0, 2)
            return f"{file.stream.tell()} 0"
        while block := request.stream.read(_READ_BYTES):
            size += len(block)
            reads += 1
        return f"{size} {reads}"

    @app.route("/stream", methods=["GET", "POST"])
    def stream() -> str:
        return upload()

    @app.get("/plain")
    def plain() -> str:
        return "0 0"

    return app


def fast_flask() -> Any:
    return WSGIFast(flask(), body_limit_bytes=LIMIT_BYTES)


def django() -> Any:
    """Return an app with Django's form parser and its default upload handlers."""
    from .django_app import uploads

    return uploads("wsgi")


def django_asgi() -> Any:
    from .django_app import uploads

    return uploads("asgi")

"""The Starlette app of loadtests.asgi: `app` as it is, `fast` wrapped in ASGIFast."""

from __future__ import annotations

import os
from pathlib import Path

import asgifast
from asgifast.messages import Receive, Scope, Send
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

FILES = Path(os.environ.get("ASGI_LOAD_FILES", "."))
CRUMBS = 100_000
CRUMB = b"c" * 100


async def plain(request: Request) -> Response:
    return Response(b"x" * 1024)


async def file(request: Request) -> Response:
    return FileResponse(FILES / request.path_params["name"])


async def our_file(request: Request) -> Response:
    return asgifast.FileResponse(FILES / request.path_params["name"])


class Crumbs:
    """100,000 body messages of 100 bytes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        message = {"type": "http.response.body", "body": CRUMB, "more_body": True}
        for _ in range(CRUMBS):
            await send(message)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


app = Starlette(
    routes=[
        Route("/plain", plain),
        Route("/file/{name}", file),
        Route("/our-file/{name}", our_file),
        Mount("/static", StaticFiles(directory=FILES)),
        Mount("/our-static", asgifast.StaticFiles(directory=FILES)),
        Mount("/crumbs", Crumbs()),
    ]
)
fast = asgifast.ASGIFast(app)

"""The apps of loadtests.asgi.

`app` is Starlette's as it is, `fast` the same in ASGIFast, `limit` the same in the least that a
middleware can be; `bare` sends files without a framework.
"""

from __future__ import annotations

import os
from pathlib import Path

import asgifast
from asgifast.messages import PATHSEND, ASGIApp, Message, Receive, Scope, Send
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


def in_the_least_middleware(app: ASGIApp) -> ASGIApp:
    """What any middleware costs that looks at the messages: a copied scope, a send() more."""

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        async def forward(message: Message) -> None:
            await send(message)

        await app({**scope}, receive, forward)

    return middleware


limit = in_the_least_middleware(app)


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """The file named by the path's last part; no lifespan."""
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    path = FILES / scope["path"].rpartition("/")[2]
    headers = [(b"content-length", b"%d" % path.stat().st_size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": PATHSEND, "path": str(path)})

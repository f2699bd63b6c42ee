"""What ASGI apps send: a file, crumbs, and a small answer, for the demo and for Locust by hand.

`app` is a Starlette app as anybody writes it, `wrapped` the same in ASGIFast; `ROWS` are its paths
in the demo's table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from asgifast import ASGIFast
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from .comparison import Row
from .serving import Serving
from .shapes import FILE_BYTES, SMALL_BYTES, chunks, payload, payload_file

__all__ = ["ROWS", "app", "wrapped"]

CRUMBS_BYTES = 1024 * 1024
CRUMB_BYTES = 100


async def file(request: Request) -> Response:
    return FileResponse(payload_file(FILE_BYTES))


async def crumbs(request: Request) -> Response:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks(CRUMBS_BYTES, CRUMB_BYTES):
            yield chunk

    return StreamingResponse(body())


async def small(request: Request) -> Response:
    return Response(payload(SMALL_BYTES))


app = Starlette(routes=[Route("/file", file), Route("/crumbs", crumbs), Route("/small", small)])
wrapped = ASGIFast(app)

_UVICORN = Serving("loadtests.asgi_shapes:app", "uvicorn")
ROWS = (
    Row("/file", "ASGI: Starlette's FileResponse", expected=FILE_BYTES, serving=_UVICORN),
    Row("/crumbs", "ASGI: messages of 100 bytes", expected=CRUMBS_BYTES, serving=_UVICORN),
    Row("/small", "ASGI: a small Response", users=8, expected=SMALL_BYTES, serving=_UVICORN),
)

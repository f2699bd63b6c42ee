"""Starlette apps with middleware that delays bodies. ASGIFast is inside, outside or between.

Each app serves the folder in ASGIFAST_TEST_FILES in three ways: /file/NAME by Starlette's
FileResponse, /ours/NAME by asgifast's, /static/NAME by asgifast's StaticFiles.
"""

from __future__ import annotations

import os

import asgifast
from asgifast import ASGIFast
from asgifast.messages import ASGIApp, Receive, Scope, Send
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route

__all__ = ["serve"]

_FOLDER = os.environ["ASGIFAST_TEST_FILES"]


async def _file(request: Request) -> Response:
    return FileResponse(os.path.join(_FOLDER, request.path_params["name"]))


async def _relative(request: Request) -> Response:
    return FileResponse(os.path.relpath(os.path.join(_FOLDER, request.path_params["name"])))


async def _ours(request: Request) -> Response:
    return asgifast.FileResponse(os.path.join(_FOLDER, request.path_params["name"]))


async def _pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


_MIDDLEWARE = {
    "base": Middleware(BaseHTTPMiddleware, dispatch=_pass_on),
    "gzip": Middleware(GZipMiddleware),
    "fast": Middleware(ASGIFast),
}


def _app(names: str) -> ASGIApp:
    """Return an app behind the middleware of these names, the outermost first."""
    routes = [
        Route("/file/{name}", _file),
        Route("/relative/{name}", _relative),
        Route("/ours/{name}", _ours),
        Mount("/static", asgifast.StaticFiles(directory=_FOLDER)),
    ]
    return Starlette(routes=routes, middleware=[_MIDDLEWARE[name] for name in names.split("-")])


_apps: dict[str, ASGIApp] = {}


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve /stack/NAMES/... by stacks. NAMES are keys of _MIDDLEWARE, such as fast-base."""
    _, _, names, path = scope["path"].split("/", 3)
    if names not in _apps:
        _apps[names] = _app(names)
    path = f"/{path}"
    await _apps[names]({**scope, "path": path, "raw_path": path.encode()}, receive, send)

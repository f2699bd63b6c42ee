"""StaticFiles: a directory as an ASGI app, or as middleware in front of one."""

from __future__ import annotations

import os

from wsgifast.files.site import NOT_ALLOWED, Response, StaticFilesBase

from .file_blocks import Received
from .files import FileSender, request_conditions
from .loops import in_thread
from .messages import (
    ASGIApp,
    Receive,
    Scope,
    Send,
    response_body,
    response_start,
    with_listed_headers,
)


class StaticFiles(StaticFilesBase[ASGIApp]):
    """Serve files: `StaticFiles(directory="site")`, or `StaticFiles(app, directory=...)` in front.

    It has the options and responses of wsgifast.StaticFiles. It can be mounted in Starlette and
    FastAPI: `app.mount("/static", StaticFiles(directory="static"))`. A file that was served lately
    is checked on the event loop, since stat() and open() find it in memory. A new path, and a
    changed file, are looked up in a thread.

    Starlette's StaticFiles has other options and hooks. Here, `html` is `index` and `fallback`, and
    `follow_symlink` is `follow_symlinks`. Name the directories of `packages`. `check_dir=False` has
    no counterpart, and there are no methods to override. A missing file gets a 404 or 405 response
    and raises no HTTPException, so the handlers of the outer app are not called. To handle missing
    files, pass the app: `StaticFiles(app, directory=...)`.
    """

    interface = "ASGI"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._pass_on(scope, receive, send)
            return
        method = scope["method"]
        if method == "GET" or method == "HEAD":
            path = _path_below_mount(scope)
            if type(scope["headers"]) is not list:
                scope = with_listed_headers(scope)
            conditions = request_conditions(scope)
            response = self.answer_from_cache(conditions, path)
            if response is None:
                query = scope["query_string"].decode("latin-1")
                mount = scope.get("root_path") or ""
                response = await in_thread(self.look_up_or_miss, conditions, path, query, mount)
            if response is not None:
                await _send(response, scope, receive, send)
                return
        if self.app is not None:
            await self.app(scope, receive, send)
            return
        await _send((NOT_ALLOWED, None), scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass lifespan and websockets to the app. Without one, decline them."""
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})


def _path_below_mount(scope: Scope) -> str:
    """The path as the app is mounted: ASGI's path includes root_path, WSGI's PATH_INFO does not.

    "" is the mount point itself, without a slash.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path") or ""
    if root and path.startswith(root) and path[len(root) :][:1] in ("/", ""):
        path = path[len(root) :]
        if not path and not root.endswith("/"):
            return ""
    return path or "/"


async def _send(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    plan, fd = response
    try:
        await send(response_start(plan.status, plan.raw_headers))
        segments = plan.segments
        if not segments:
            await send(response_body())
        elif len(segments) == 1 and isinstance(segments[0], bytes):
            await send(response_body(segments[0]))
        else:
            await FileSender(scope, Received(receive), send).send_segments(segments, fd)
    finally:
        if fd is not None:
            os.close(fd)

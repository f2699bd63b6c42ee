"""StaticFiles: an ASGI app, or a middleware, that serves the files of a directory."""

from __future__ import annotations

import os

from wsgifast.files.site import NOT_ALLOWED, Response, StaticFilesBase

from .file_blocks import SharedReceive
from .files import FileSender, file_request_from
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
    """Serves the files of a directory.

    As an app: `StaticFiles(directory="site")`. As middleware: `StaticFiles(app, directory=...)`.

    It has the options and responses of wsgifast.StaticFiles. It can be mounted in Starlette and
    FastAPI: `app.mount("/static", StaticFiles(directory="static"))`. A file that was served
    recently is checked on the event loop, because stat() and open() do not read a disk for it. New
    paths and changed files are looked up in a thread.

    Starlette's StaticFiles has other options and hooks. In place of `html`, use `index` and
    `fallback`. In place of `follow_symlink`, use `follow_symlinks`. In place of `packages`, name
    the directories of the packages. `check_dir=False` has no equivalent, and there are no methods
    to override. For a missing file, the response is 404, and no HTTPException is raised. So
    exception handlers of the outer app are not called. To handle missing files in an app, use
    `StaticFiles(app, directory=...)`.
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
            file_request = file_request_from(scope)
            response = self.answer_from_cache(file_request, path)
            if response is None:
                query = scope["query_string"].decode("latin-1")
                mount = scope.get("root_path") or ""
                response = await in_thread(self.look_up_or_miss, file_request, path, query, mount)
            if response is not None:
                await _send(response, scope, receive, send)
                return
        if self.app is not None:
            await self.app(scope, receive, send)
            return
        await _send((NOT_ALLOWED, None), scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass lifespan and websocket scopes to the app. Without an app, close websockets."""
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})


def _path_below_mount(scope: Scope) -> str:
    """Return the path without the mount point. ASGI's path includes root_path.

    The result is "" for the mount point itself, without a slash.
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
            await FileSender(scope, SharedReceive(receive), send).send_segments(segments, fd)
    finally:
        if fd is not None:
            os.close(fd)

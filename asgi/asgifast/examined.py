"""An app of which now and then a response's shape is looked at, as the app sends it."""

from __future__ import annotations

import time
from collections.abc import Awaitable

from wsgifast.bodies.slow_shapes import EXAMINED_CHUNKS, BodySeen, Chunks, Reports
from wsgifast.bodies.streams import is_event_stream
from wsgifast.metrics.patterns import asgi_pattern

from .messages import ASGIApp, Message, Receive, Scope, Send, text_headers


class Examined:
    """Stands between ASGIFast and its app; every message goes on as it is."""

    def __init__(self, app: ASGIApp, reports: Reports) -> None:
        self._app = app
        self._reports = reports

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if not self._reports.picks():
            return self._app(scope, receive, send)
        return self._watch(scope, receive, send)

    async def _watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks = Chunks()
        count = 0
        headers: list[tuple[str, str]] = []
        root_path = scope.get("root_path", "")
        before = time.perf_counter()

        async def watched(message: Message) -> None:
            nonlocal before, count
            body = message.get("body")
            if body:
                if count < EXAMINED_CHUNKS:
                    chunks.add(len(body), time.perf_counter() - before)
                count += 1
            elif message["type"] == "http.response.start":
                headers[:] = text_headers(message.get("headers", ()))
            await send(message)
            before = time.perf_counter()  # what the server took is not the app's time

        try:
            return await self._app(scope, receive, watched)
        finally:
            seen = BodySeen(chunks, "messages", is_event_stream(headers))
            pattern = asgi_pattern(scope, root_path)
            self._reports.report(scope["method"], pattern, scope["path"], seen, count)

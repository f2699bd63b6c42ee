"""Server-Timing for an ASGI app: how long a request has waited, and its response has taken."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any, Final

from wsgifast.bodies.access_log import queue_seconds
from wsgifast.bodies.server_timing import NAME, Times
from wsgifast.sockets.options import last_received

from .messages import ASGIApp, Message, Receive, Scope, Send

#: The key of a scope for the Times of a request.
TIMES: Final = "wsgifast.times"


class ServerTiming:
    """An ASGI app that adds the times of each request of another one to its response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if TIMES in scope:  # from an ASGIFast around this one
            return await self._app(scope, receive, send)
        times = Times(_queue_s(scope, send))

        def send_with_times(message: Message) -> Awaitable[None]:
            """Send a message. One of the app's own headers stays."""
            if message["type"] == "http.response.start":
                header = (NAME.lower().encode(), times.value().encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            return send(message)

        # The server reports the returned value, if it is not None.
        return await self._app({**scope, TIMES: times}, receive, send_with_times)


def _queue_s(scope: Scope, send: Send) -> float | None:
    """Return how long a request has waited for its app, or None if that is not known.

    uvicorn's transports know when the last bytes arrived. A proxy may say when it had the request.
    """
    waits = []
    server: Any = getattr(send, "__self__", None)
    server = getattr(server, "wire", server)  # of our protocols
    transport = getattr(getattr(server, "cycle", server), "transport", None)
    sock = None if transport is None else transport.get_extra_info("socket")
    received = None if sock is None else last_received(sock)
    if received is not None:
        waits.append(received[0])
    for name, value in scope["headers"]:
        if name == b"x-request-start":
            sent_s = queue_seconds(value.decode("latin-1"), time.time())
            if sent_s is not None:
                waits.append(sent_s)
    return max(waits, default=None)

"""Server-Timing for an ASGI app: how long a request waited, and how long its response took."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any, Final

from wsgifast.bodies.access_log import queue_seconds
from wsgifast.bodies.server_timing import NAME, Times
from wsgifast.sockets.options import last_received

from .instrumented import Request
from .messages import ASGIApp, Message, Receive, Scope, Send

# : The key in the scope for the Times of a request.
TIMES: Final = "wsgifast.times"


class ServerTiming:
    """Wraps an ASGI app. Adds a Server-Timing header to each response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if TIMES in scope:  # an outer ASGIFast adds the header
            return await self._app(scope, receive, send)
        times = Times(_queue_s(scope, send))

        def send_with_times(message: Message) -> Awaitable[None]:
            """Send a message. A Server-Timing header of the app is not removed."""
            if message["type"] == "http.response.start":
                header = (NAME.lower().encode(), times.value().encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            return send(message)

        # Returned because servers report apps that return another value than None.
        return await self._app({**scope, TIMES: times}, receive, send_with_times)


def _queue_s(scope: Scope, send: Send) -> float | None:
    """Return the seconds that a request has waited for its app, or None if they are unknown.

    The socket of uvicorn's transport shows when the last bytes arrived. A proxy may report in
    X-Request-Start when it received the request.
    """
    waits = []
    server: Any = getattr(send, "__self__", None)
    if isinstance(server, Request):  # asgifast's server records or logs the request
        server = getattr(server.server_send, "__self__", None)
    server = getattr(server, "wire", server)  # asgifast's protocols have a wire
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

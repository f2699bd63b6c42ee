"""Instrumented: what happens to a request under an ASGI app, told to a recorder at its end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wsgifast.http import has_body
from wsgifast.metrics.patterns import PATTERN, asgi_pattern
from wsgifast.metrics.periodic import Failures
from wsgifast.metrics.recorder import LengthError, Recorder, Spans
from wsgifast.metrics.requests import RequestMetrics

from .extensions import PLANNED
from .messages import (
    PATHSEND,
    ZEROCOPYSEND,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    declared_length,
)

if TYPE_CHECKING:
    from .extensions import PlannedBody

__all__ = ["INSTRUMENTED", "Instrumented"]

logger = logging.getLogger("wsgifast")

# Where the scope has the request that is observed.
INSTRUMENTED = "asgifast.instrumented"


class Instrumented:
    """An ASGI app whose requests are recorded, and which is not changed by it.

    :param recorder: what it raises is logged, once.
    :param spans: also told of each request, with the span that is current when it comes.
    """

    def __init__(self, app: ASGIApp, recorder: Recorder | None, spans: Spans | None) -> None:
        self._app = app
        self._recorder = recorder
        self._spans = spans
        # Where requests are noted without a call.
        self._metrics = recorder if isinstance(recorder, RequestMetrics) else None
        self._failures = Failures(logger)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        span = None if self._spans is None else self._spans.current()
        recorder = self._recorder
        if INSTRUMENTED in scope and scope[INSTRUMENTED].recorder is recorder:
            recorder = None  # a server of ours, or an ASGIFast around this one, does it already
        if recorder is None and span is None:
            await self._app(scope, receive, send)
            return
        request = InstrumentedRequest(scope, receive, send, recorder)
        if recorder is None:
            pass
        elif self._metrics is not None:
            self._metrics.started.append((scope["method"], scope.get("scheme", "http")))
        else:
            self._begin(recorder, scope)
        request.app_scope = {**scope, INSTRUMENTED: request}
        try:
            await self._app(request.app_scope, request.receive, request.send)
        except OSError:
            request.left = not request.is_complete
            raise
        except Exception:
            if not request.is_complete:
                request.status = 500
            raise
        finally:
            self._tell(request, span)
            request.app_scope = scope  # the app's has the request in it

    def _begin(self, recorder: Recorder, scope: Scope) -> None:
        try:
            recorder.begin(scope["method"], scope.get("scheme", "http"))
        except Exception:  # noqa: BLE001 - whatever a back end does, the response goes out
            self._failures.log()

    def _tell(self, request: InstrumentedRequest, span: object | None) -> None:
        try:
            pattern = request.pattern()
            length_error = request.length_error()
            if span is not None and self._spans is not None:
                self._spans.describe(
                    span,
                    pattern=pattern,
                    route=request.route,
                    chunks=request.chunks,
                    size=request.size,
                    length_error=length_error,
                    left=request.left,
                )
            recorder = request.recorder
            if recorder is None:
                return
            scope = request.scope
            method, scheme = scope["method"], scope.get("scheme", "http")
            status, route, size = request.status, request.route, request.size
            seconds = perf_counter() - request.began
            recorder.record(method, scheme, status, pattern, route, seconds, size)
            if length_error is not None:
                recorder.count_length_error(length_error)
            if request.left:
                recorder.count_client_left()
        except Exception:  # noqa: BLE001 - the same
            self._failures.log()


class InstrumentedRequest:
    """One request, from the call of the app on, as the server sees its messages.

    :ivar recorder: that is told of it; None if another one is told already.
    :ivar app_scope: the scope that the app was given, in which its framework notes the route.
    :ivar route: which way the body went; ASGIFast says what the server cannot see of it.
    """

    # Class attributes, which cost a request nothing until they change.
    status = 500
    headers: Any = ()
    size = chunks = 0
    route = ""
    is_complete = left = False

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, recorder: Recorder | None
    ) -> None:
        self.recorder = recorder
        self.began = perf_counter()
        self.scope = self.app_scope = scope
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.is_complete:
            self.left = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Not a coroutine function: one more coroutine for each message costs more than this."""
        kind = message["type"]
        if kind == "http.response.body":
            self.chunks += 1
            self.size += len(message.get("body", b""))
            more = message.get("more_body", False)
            if not self.route:
                self.route = "stream" if more else "as-is"
            self.is_complete = not more
        elif kind == "http.response.start":
            self.status = message["status"]
            self.headers = message.get("headers", ())
        elif kind in (PATHSEND, ZEROCOPYSEND):
            self.route = "file"
            self._count_file(message)
        return self._send(message)

    def _count_file(self, message: Message) -> None:
        planned: PlannedBody | None = message.get(PLANNED)
        if planned is not None:
            self.route = "file" if len(planned.segments) == 1 else "segments"
            self.size += sum(len(s) if isinstance(s, bytes) else s.size for s in planned.segments)
        elif message.get("count") is not None:
            self.size += message["count"]
        else:
            self.size = declared_length(self.headers) or self.size
        self.is_complete = not message.get("more_body", False)

    def pattern(self) -> str | None:
        if PATTERN not in self.app_scope and "route" not in self.app_scope:
            return None  # no framework that tells it
        # A Mount changes it in the app's scope alone.
        return asgi_pattern(self.app_scope, str(self.scope.get("root_path", "")))

    def length_error(self) -> LengthError | None:
        """Whether the body was another than its Content-Length; not where the client has left."""
        for name, value in self.headers:
            if name == b"content-length":
                if value == b"%d" % self.size:
                    return None  # as nearly always: nothing else has to be asked
                break
        if self.left or not self.is_complete or not has_body(self.scope["method"], self.status):
            return None
        declared = declared_length(self.headers)
        if declared is None or declared == self.size:
            return None
        return "short" if self.size < declared else "long"

"""Instrumentation of ASGI apps: records each request when the app has returned."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wsgifast.http.framing import has_body
from wsgifast.metrics.patterns import PATTERN, asgi_pattern
from wsgifast.metrics.periodic import Failures
from wsgifast.metrics.requests import (
    Answered,
    LengthError,
    Recorder,
    RequestMetrics,
    asked_of_scope,
)

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
    from wsgifast.metrics.opentelemetry import CurrentSpans

    from .extensions import PlannedBody

logger = logging.getLogger("wsgifast")

# The scope's key for the request that is recorded.
INSTRUMENTED = "asgifast.instrumented"


class Instrumented:
    """An ASGI app whose requests are recorded when the app has returned.

    :param recorder: its errors are logged, once.
    :param spans: sets attributes on the span that is current when a request comes.
    """

    def __init__(self, app: ASGIApp, recorder: Recorder | None, spans: CurrentSpans | None) -> None:
        self._app = app
        self._recorder = recorder
        self._spans = spans
        # Not a subclass, whose record() may do more.
        self._metrics = recorder if type(recorder) is RequestMetrics else None
        self._failures = Failures(logger)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        span = None if self._spans is None else self._spans.current()
        recorder = self._recorder
        if INSTRUMENTED in scope and scope[INSTRUMENTED].recorder is recorder:
            recorder = None  # recorded by a server of ours, or by an ASGIFast around this one
        if recorder is None and span is None:
            await self._app(scope, receive, send)
            return
        active = None
        if recorder is None:
            pass
        elif self._metrics is not None:
            scheme = scope["scheme"] if "scheme" in scope else "http"  # noqa: SIM401
            active = self._metrics.active[scope["method"], scheme]
            active.append(None)
        else:
            self._begin(recorder, scope)
        # Attribute by attribute: a constructor would be one more call for every request.
        request = _Request()
        request.recorder = recorder
        request.began = perf_counter()
        request.app_scope = inner = {**scope, INSTRUMENTED: request}
        request.server_receive = receive
        request.server_send = send
        request.status = 500
        request.headers = ()
        request.size = request.chunks = 0
        request.route = ""
        request.is_complete = request.left = False
        try:
            await self._app(inner, request.receive, request.send)
        except OSError:
            request.left = not request.is_complete
            raise
        except Exception:
            if not request.is_complete:
                request.status = 500
            raise
        finally:
            try:
                self._record(scope, request, span)
            except Exception:  # noqa: BLE001 - whatever a back end does, the response goes out
                self._failures.log()
            if active:
                active.pop()
            del request.app_scope  # which has the request

    def _begin(self, recorder: Recorder, scope: Scope) -> None:
        try:
            recorder.begin(scope["method"], scope.get("scheme", "http"))
        except Exception:  # noqa: BLE001 - the same
            self._failures.log()

    def _record(self, scope: Scope, request: _Request, span: object | None) -> None:
        inner, size, pattern = request.app_scope, request.size, None
        if PATTERN in inner or "route" in inner:
            # A Mount changes it in the app's scope alone.
            pattern = asgi_pattern(inner, str(scope.get("root_path", "")))
        length_error = None
        for name, value in request.headers:
            if name == b"content-length":
                if value != b"%d" % size:  # rarely
                    length_error = _length_error(scope, request)
                break
        now = perf_counter()
        record = (
            *asked_of_scope(scope), request.status, pattern, request.route,
            now - request.began, size,
        )  # fmt: skip
        if span is not None and self._spans is not None:
            self._spans.describe(
                span,
                Answered(*record),
                request.chunks,
                length_error=length_error,
                left=request.left,
            )
        recorder = request.recorder
        if recorder is None:
            return
        metrics = self._metrics
        if metrics is None:
            recorder.record(Answered(*record))
        else:  # as RequestMetrics.record() does, without a call
            metrics.records.extend(record)
            if now > metrics.look_at:
                metrics.look(now)
        if length_error is not None:
            recorder.count_length_error(length_error)
        if request.left:
            recorder.count_client_left()


class _Request:
    """A request whose messages are watched between the app and the server.

    :ivar recorder: None if the request is recorded elsewhere.
    :ivar app_scope: the scope in which the app's framework notes its route.
    :ivar status: 500 until the response starts.
    :ivar route: the route of the body; ASGIFast sets it where the messages do not tell it.
    """

    __slots__ = (
        "app_scope", "began", "chunks", "headers", "is_complete", "left", "recorder", "route",
        "server_receive", "server_send", "size", "status",
    )  # fmt: skip

    recorder: Recorder | None
    began: float
    app_scope: Scope
    server_receive: Receive
    server_send: Send
    status: int
    headers: Any
    size: int
    chunks: int
    route: str
    is_complete: bool
    left: bool

    async def receive(self) -> Message:
        message = await self.server_receive()
        if message["type"] == "http.disconnect" and not self.is_complete:
            self.left = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Not a coroutine function, which would cost one more coroutine for each message."""
        kind = message["type"]
        if kind == "http.response.body":
            self.chunks += 1
            if "body" in message:
                self.size += len(message["body"])
            is_last = "more_body" not in message or not message["more_body"]
            if not self.route:
                self.route = "as-is" if is_last else "stream"
            self.is_complete = is_last
        elif kind == "http.response.start":
            self.status = message["status"]
            if "headers" in message:
                self.headers = message["headers"]
        elif kind in (PATHSEND, ZEROCOPYSEND):
            self.route = "file"
            self._count_file(message)
        return self.server_send(message)

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


def _length_error(scope: Scope, request: _Request) -> LengthError | None:
    """Whether the body broke its Content-Length; not if the client has left."""
    if not request.is_complete or request.left or not has_body(scope["method"], request.status):
        return None
    declared = declared_length(request.headers)
    if declared is None or declared == request.size:
        return None
    return "short" if request.size < declared else "long"

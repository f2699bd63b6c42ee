"""Instrumentation of ASGI apps: records each request when its response is over."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
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

from .extensions import COALESCING, PLANNED, RECORDING
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
    """An ASGI app whose requests are recorded when the app has returned, and its file is sent.

    asgifast's protocols send large files when the app has returned, and say when that is over.

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
            return await self._app(scope, receive, send)
        span = None if self._spans is None else self._spans.current()
        recorder = self._recorder
        if INSTRUMENTED in scope and scope[INSTRUMENTED].recorder is recorder:
            recorder = None  # recorded by a server of ours, or by an ASGIFast around this one
        if recorder is None and span is None:
            return await self._app(scope, receive, send)
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
        request.is_complete = request.left = request.is_handed_over = False
        request.on_end = None
        try:
            # The server reports what is returned, if it is not None.
            return await self._app(inner, request.receive, request.send)
        except OSError:
            request.left = not request.is_complete
            raise
        except Exception:
            if not request.is_complete:
                request.status = 500
            raise
        finally:
            if request.is_handed_over:
                request.on_end = self._at_the_end(scope, request, span, active)
            else:
                self._end(scope, request, span, active, _pattern(scope, request))
            del request.app_scope  # which has the request

    def _at_the_end(
        self, scope: Scope, request: _Request, span: object | None, active: list[None] | None
    ) -> Callable[[], None]:
        """What records a request when its file is sent; little is kept for that long."""
        kept = {"method": scope["method"], "scheme": scope.get("scheme", "http")}
        declared = declared_length(request.headers)
        request.headers = () if declared is None else [(b"content-length", b"%d" % declared)]
        del request.server_receive, request.server_send
        return partial(self._end, kept, request, span, active, _pattern(scope, request))

    def _end(
        self,
        scope: Scope,
        request: _Request,
        span: object | None,
        active: list[None] | None,
        pattern: str | None,
    ) -> None:
        try:
            self._record(scope, request, span, pattern)
        except Exception:  # noqa: BLE001 - whatever a back end does, the response goes out
            self._failures.log()
        if active:
            active.pop()

    def _begin(self, recorder: Recorder, scope: Scope) -> None:
        try:
            recorder.begin(scope["method"], scope.get("scheme", "http"))
        except Exception:  # noqa: BLE001 - the same
            self._failures.log()

    def _record(
        self, scope: Scope, request: _Request, span: object | None, pattern: str | None
    ) -> None:
        size = request.size
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


def _pattern(scope: Scope, request: _Request) -> str | None:
    inner = request.app_scope
    if PATTERN in inner or "route" in inner:
        # A Mount changes it in the app's scope alone.
        return asgi_pattern(inner, str(scope.get("root_path", "")))
    return None


class _Request:
    """A request whose messages are watched between the app and the server.

    :ivar recorder: None if the request is recorded elsewhere.
    :ivar app_scope: the scope in which the app's framework notes its route.
    :ivar status: 500 until the response starts.
    :ivar is_handed_over: the server has yet to send the file, or the rest of it.
    :ivar on_end: called when it has.
    :ivar route: the route of the body; ASGIFast sets it where the messages do not tell it.
    """

    __slots__ = (
        "app_scope", "began", "chunks", "headers", "is_complete", "is_handed_over", "left",
        "on_end", "recorder", "route", "server_receive", "server_send", "size", "status",
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
    is_handed_over: bool
    left: bool
    on_end: Callable[[], None] | None

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
            if kind == PATHSEND and COALESCING in (self.app_scope.get("extensions") or ()):
                message = {**message, RECORDING: self}  # a server of ours
        return self.server_send(message)

    # Recording

    def handed_over(self) -> None:
        self.is_handed_over = True

    def ended(self, unsent: int | None) -> None:
        if unsent != 0:
            self.left = True
            self.is_complete = False
            self.size = 0 if unsent is None else max(0, self.size - unsent)
        self.is_handed_over = False
        if self.on_end is not None:
            self.on_end()

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

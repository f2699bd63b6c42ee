"""Wrap an ASGI app to record its requests, or to examine the shapes of its responses."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wsgifast.bodies.access_log import PATTERN
from wsgifast.bodies.chunks import is_event_stream
from wsgifast.bodies.slow_shapes import EXAMINED_CHUNKS, BodySeen, Chunks, Reports
from wsgifast.http.framing import has_body
from wsgifast.metrics.requests import (
    LengthError,
    Recorder,
    Recording,
    RequestLabels,
    labels_of_scope,
)

from .messages import (
    PATHSEND,
    ZEROCOPYSEND,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    declared_length,
    text_headers,
)

if TYPE_CHECKING:
    from wsgifast.metrics.opentelemetry import CurrentSpans

    from .access_line import RequestLine

logger = logging.getLogger("wsgifast")

# The key in the scope for the recorded Request.
INSTRUMENTED = "asgifast.instrumented"


def note_sent_as(scope: Scope, sent_as: str) -> None:
    """Store how a body was sent, if its request is recorded."""
    if INSTRUMENTED in scope:
        scope[INSTRUMENTED].sent_as = sent_as


class Instrumented:
    """Wraps an ASGI app. Records a request when its response has ended.

    A response ends when the last message is sent. Background tasks of the app may then still run.
    asgifast's protocols may send a file after the app has returned, and report when it is sent.

    :param recorder: records the requests. The first error that it raises is logged.
    :param spans: sets attributes on the span that is current when a request arrives.
    :param begin_line: returns the access log line of a request, or None. Only the server has this.
    :param is_server: whether asgifast's server has made this wrapper. Then the scope is changed in
        place, so that uvicorn's middleware for proxies changes the scope that uvicorn's access log
        uses.
    """

    def __init__(
        self,
        app: ASGIApp,
        recorder: Recorder | None,
        spans: CurrentSpans | None,
        begin_line: Callable[[Scope, Send], RequestLine | None] | None = None,
        *,
        is_server: bool = False,
    ) -> None:
        self._app = app
        self._begin_line = begin_line
        self._is_server = is_server
        self._spans = spans
        self._recording = Recording(recorder, spans, logger)
        # For a request that is recorded elsewhere: only the attributes of the span are set.
        self._tracing = Recording(None, spans, logger)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        span = None if self._spans is None else self._spans.current()
        recording = self._recording
        if INSTRUMENTED in scope:
            outer: Request = scope[INSTRUMENTED]
            if outer.recording.recorder is recording.recorder:
                recording = self._tracing  # recorded by asgifast's server or by an outer ASGIFast
            elif outer.recording.recorder is None and outer.line is not None:
                # The server only logs the request. Its object records the request here, too.
                outer.recording, outer.span = recording, span
                outer.active = recording.begin(outer.labels)
                return await self._app(scope, receive, send)
        line = None if self._begin_line is None else self._begin_line(scope, send)
        if recording.recorder is None and span is None and line is None:
            return await self._app(scope, receive, send)
        labels = labels_of_scope(scope)
        active = recording.begin(labels)
        # The attributes are set here. A constructor would cost one more call for every request. A
        # class with default values cannot have slots, which are faster.
        request = Request()
        request.recording = recording
        request.labels = labels
        request.active = active
        request.span = span
        request.began = perf_counter()
        request.line = line
        request.root_path = str(scope.get("root_path", ""))
        if self._is_server:
            inner = scope
            inner[INSTRUMENTED] = request
        else:
            inner = {**scope, INSTRUMENTED: request}
        request.app_scope = inner
        request.server_receive = receive
        request.server_send = send
        request.status = 500
        request.headers = ()
        request.size = request.chunks = 0
        request.sent_as = ""
        request.is_complete = request.client_left = request.file_is_cut = False
        request.is_sent_later = request.is_sent = request.has_ended = False
        try:
            # Returned because servers report apps that return another value than None.
            return await self._app(inner, request.receive, request.send)
        except OSError:
            request.client_left = not request.is_complete
            raise
        except Exception:
            if not request.is_complete:
                request.status = 500
            raise
        finally:
            if self._is_server:
                scope.pop(INSTRUMENTED, None)  # it refers to the scope
            request.app_returned()


class Request:
    """The record of a request. Observes its messages between the app and the server.

    :ivar app_scope: the scope in which the app's framework stores the route.
    :ivar status: the status of the response, or 500 until it starts.
    :ivar is_sent_later: whether bytes of a file are sent after send() returns. asgifast's protocols
        set this, and call :meth:`file_ended` later.
    :ivar is_sent: whether the server has accepted the last message.
    :ivar has_ended: whether no further message can be sent: the last message is sent, or the app
        has returned.
    :ivar client_left: whether the client left before the response was complete.
    :ivar sent_as: how the body is sent. ASGIFast sets this if the messages do not show it.
    """

    __slots__ = (
        "active", "app_scope", "began", "chunks", "client_left", "file_is_cut", "has_ended",
        "headers", "is_complete", "is_sent", "is_sent_later", "labels", "line", "pattern",
        "recording", "root_path", "sent_as", "server_receive", "server_send", "size", "span",
        "status",
    )  # fmt: skip

    recording: Recording
    labels: RequestLabels
    active: list[None] | None
    span: object | None
    line: RequestLine | None
    root_path: str
    pattern: str | None
    began: float
    app_scope: Scope
    server_receive: Receive
    server_send: Send
    status: int
    headers: Any
    size: int
    chunks: int
    sent_as: str
    is_complete: bool
    is_sent_later: bool
    is_sent: bool
    has_ended: bool
    client_left: bool
    file_is_cut: bool

    async def receive(self) -> Message:
        message = await self.server_receive()
        if message["type"] == "http.disconnect" and not self.is_complete:
            self.client_left = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message. This is not a coroutine function, which saves coroutines."""
        kind = message["type"]
        if kind == "http.response.body":
            self.chunks += 1
            if "body" in message and (body := message["body"]):
                self.size += len(body)
            is_last = "more_body" not in message or not message["more_body"]
            if not self.sent_as:
                self.sent_as = "as-is" if is_last else "stream"
            self.is_complete = is_last
            if is_last:
                return self._send_last(message)
        elif kind == "http.response.start":
            self.status = message["status"]
            if "headers" in message:
                self.headers = message["headers"]
        elif kind in (PATHSEND, ZEROCOPYSEND):
            self._count_file(message)
            wire: Any = getattr(getattr(self.server_send, "__self__", None), "wire", None)
            if self.is_complete and hasattr(wire, "recording"):
                wire.recording = self  # asgifast's protocols send files after the app has returned
            if self.is_complete:
                return self._send_last(message)
        return self.server_send(message)

    async def _send_last(self, message: Message) -> None:
        try:
            await self.server_send(message)
        except Exception:
            # The server refuses the message, for instance because of a wrong Content-Length.
            if self.line is not None:
                self.line.is_cut_off = True
            raise
        self.is_sent = True
        self._end_messages()

    def app_returned(self) -> None:
        """Record the request, if its response has not ended before. Release objects."""
        self._end_messages()
        del self.app_scope  # it refers to this object
        if self.is_sent_later:
            # While the file is sent, release objects that are no longer needed.
            declared = declared_length(self.headers)
            self.headers = () if declared is None else [(b"content-length", b"%d" % declared)]
            del self.server_receive, self.server_send

    def _end_messages(self) -> None:
        """Record the request, unless it is recorded or a file is still being sent."""
        if self.has_ended:
            return
        self.has_ended = True
        scope = self.app_scope
        self.pattern = None
        if PATTERN in scope or "route" in scope:
            self.pattern = asgi_pattern(scope, self.root_path)  # a Mount changes root_path
        if self.line is not None:
            self.line.note_request(scope, self.pattern)
        if not self.is_sent_later:
            self._end()

    def file_ended(self, unsent: int) -> None:
        """Note the end of a file, and the number of unsent bytes."""
        if unsent:
            self.client_left = self.file_is_cut = True
            self.is_complete = False
            self.size = max(0, self.size - unsent)
        self.is_sent_later = False
        if self.has_ended:
            self._end()

    def _end(self) -> None:
        """Record the request."""
        length_error: LengthError | None = None
        try:
            for name, value in self.headers:
                if name == b"content-length":
                    if value != b"%d" % self.size:  # rare
                        length_error = self._length_error()
                    break
        except (TypeError, ValueError):
            pass  # the server has refused headers that are not pairs
        now = perf_counter()
        if self.line is not None:
            method, status = self.labels[0], self.status
            self.line.end(
                self.size if has_body(method, status) else 0,
                self.chunks,
                self.sent_as,
                now - self.began,
                is_complete=self.is_sent,
                file_is_cut=self.file_is_cut,
            )
        self.recording.end(
            self.labels,
            self.active,
            self.status,
            self.pattern,
            self.sent_as,
            self.began,
            now,
            self.size,
            length_error,
            self.client_left,
            self.span,
            self.chunks,
        )

    def _length_error(self) -> LengthError | None:
        """Return how the length of the body differs from its Content-Length.

        Return None if the length does not differ, or if the client left before the end.
        """
        if not self.is_complete or self.client_left or not has_body(self.labels[0], self.status):
            return None
        declared = declared_length(self.headers)
        if declared is None or declared == self.size:
            return None
        return "short" if self.size < declared else "long"

    def _count_file(self, message: Message) -> None:
        self.is_complete = not message.get("more_body", False)
        self.sent_as = "file" if self.is_complete and not self.size else "segments"
        if "parts" in message:
            self.sent_as = "file" if len(message["parts"]) == 1 else "segments"
            self.size += sum(len(s) if isinstance(s, bytes) else s.size for s in message["parts"])
        elif message.get("count") is not None:
            self.size += message["count"]
        else:
            self.size = declared_length(self.headers) or self.size


class Examined:
    """Wraps an ASGI app. Examines the messages of some of its responses."""

    def __init__(self, app: ASGIApp, reports: Reports) -> None:
        self._app = app
        self._reports = reports

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if not self._reports.picks():
            return self._app(scope, receive, send)
        return self._watch(scope, receive, send)

    async def _watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks = Chunks(most=EXAMINED_CHUNKS)
        headers: list[tuple[str, str]] = []
        root_path = scope.get("root_path", "")
        before = perf_counter()

        async def watched(message: Message) -> None:
            nonlocal before
            body = message.get("body")
            if body:
                chunks.add(len(body), perf_counter() - before)
            elif message["type"] == "http.response.start":
                headers[:] = text_headers(message.get("headers", ()))
            await send(message)
            before = perf_counter()  # the time in which the server's send() runs is not the app's

        try:
            return await self._app(scope, receive, watched)
        finally:
            seen = BodySeen(chunks, "messages", is_event_stream(headers))
            pattern = asgi_pattern(scope, root_path)
            self._reports.report(scope["method"], pattern, scope["path"], seen)


def asgi_pattern(scope: Mapping[str, Any], root_path: str) -> str | None:
    """Return the URL pattern of the route that Starlette or FastAPI has chosen.

    :param scope: the scope of the app, after routing.
    :param root_path: the root_path of the server's scope. If a Mount has added a part to it, that
        part belongs to the pattern.
    """
    pattern = scope.get(PATTERN)
    if pattern is not None:
        return str(pattern)
    route = scope.get("route")
    if route is None:
        return None
    fastapi_data = scope.get("fastapi")
    # `is not None` is faster than isinstance().
    if fastapi_data is not None and isinstance(fastapi_data, Mapping):
        # In newer versions of FastAPI, scope["route"] lacks the prefixes of include_router(). The
        # effective route context has them.
        included = fastapi_data.get("effective_route_context")
        if getattr(included, "original_route", None) is route:
            route = included
    path = getattr(route, "path_format", None)
    if not isinstance(path, str):
        return None
    mounted = str(scope.get("root_path", ""))
    # If the route is the Mount itself, root_path already contains its path.
    if getattr(route, "routes", None) is not None:
        path = ""
    prefix = "" if mounted == root_path else mounted.removeprefix(root_path).rstrip("/")
    if prefix:
        convertors = getattr(route, "param_convertors", {})
        for name, value in scope.get("path_params", {}).items():
            if name not in convertors or not path:
                prefix = f"{prefix}/".replace(f"/{value}/", f"/{{{name}}}/")[:-1]
    return prefix + path or "/"

"""ASGIFast: look at what the app sends, repair it, and send it the server's fastest way."""

from __future__ import annotations

import copy
import os
from functools import partial
from typing import Any, NamedTuple

from wsgifast.apps import check_app
from wsgifast.bodies.chunks import charset_of, to_bytes
from wsgifast.file_answers import plan_file_body
from wsgifast.metrics.backends import recorder_for, spans_for
from wsgifast.metrics.recorder import Recorder
from wsgifast.options import check_switches
from wsgifast.shapes.reports import Reports, check_rate
from wsgifast.sockets import FileSegment

from .coalescing import SMALL_MESSAGE_BYTES, Coalescer
from .examined import Examined
from .loops import BackgroundTask, Loop, running_loop
from .messages import (
    PATHSEND,
    ZEROCOPYSEND,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    response_body,
)
from .observed import OBSERVED, Observed
from .requests import UNCONDITIONAL, request_facts
from .sending import (
    COALESCING,
    PLANNED,
    Delivery,
    declared_length,
    file_to_send,
    open_for_pathsend,
    path_to_send,
    send_unsized,
)

__all__ = ["ASGIFast"]

_VALIDATORS = frozenset({b"etag", b"last-modified"})
# The extensions that the app is offered; none has options.
_OFFERED: dict[str, dict[str, Any]] = {PATHSEND: {}, ZEROCOPYSEND: {}, PLANNED: {}}
_NO_HEADERS: list[tuple[bytes, bytes]] = []


class ASGIFast:
    """ASGI middleware that repairs what an app sends and lets files go out the fastest way.

    - http.response.body with str, bytearray or memoryview becomes bytes.
    - Small body messages that an app sends in one turn of the event loop become one. Nothing waits:
      the turn's end sends them.
    - The app is offered http.response.pathsend and http.response.zerocopysend, which Starlette's
      FileResponse and others then use. A server that has them is handed the file; for any other
      it is read from the page cache, in a thread only where the disk must be waited for.
    - A 200 whose body is a file (pathsend) answers Range, If-Range and the preconditions of RFC
      9110, sections 13 and 14, although the app knows nothing of them.

    Lifespan and websockets pass through untouched.

    :param app: any ASGI 3 application.
    :param coalesce: coalesce small body messages, as above. On by default, unlike WSGIFast's:
        here nothing has to wait for the message behind it.
    :param ranges: answer Range and If-Range where the app answers a GET with 200 and a file; see
        :func:`wsgifast.file_answers.plan_file_body` for which files, and for their ETag. What an
        app answers by itself stands: Starlette's FileResponse reads the range that it is asked
        for; asgifast's has it sent by sendfile.
    :param conditional: answer If-None-Match, If-Modified-Since, If-Match and If-Unmodified-Since
        for the same files.
    :param metrics: "prometheus" or "opentelemetry": who is told of requests, their durations and
        their bodies (docs/reference/metrics.md), or a :class:`wsgifast.metrics.Recorder` of your
        own.
    :param traces: set what is known of a body as attributes of OpenTelemetry's current span: the
        one of the instrumentation around this app.
    :param report_slow_shapes: the share of the responses whose shape is looked at, such as 0.01; of
        a slow one the id of the doctor's finding is logged, at most once an hour for each URL
        pattern of the framework. 0: none, at no cost.
    :raises ConfigurationError: if `app` is no ASGI app, or an option has no such value.
    :raises MissingExtra: if a package for `metrics` or `traces` is not installed.
    :raises BodyError: (to the app, from its send()) for what cannot be a body.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        coalesce: bool = True,
        ranges: bool = True,
        conditional: bool = True,
        metrics: str | Recorder | None = None,
        traces: bool = False,
        report_slow_shapes: float = 0.0,
    ) -> None:
        check_app(app, "ASGI")
        check_switches(coalesce=coalesce, ranges=ranges, conditional=conditional, traces=traces)
        self.app = app
        self.coalesce = coalesce
        self.ranges = ranges
        self.conditional = conditional
        self._call = app
        check_rate(report_slow_shapes)
        if report_slow_shapes:
            mended = frozenset({"WF030"} if coalesce else ())
            self._call = Examined(app, Reports(report_slow_shapes, mended=mended))
        self._observed: Observed | None = None
        recorder, spans = recorder_for(metrics), spans_for(traces)
        if recorder is not None or spans is not None:
            self._observed = Observed(copy.copy(self), recorder, spans)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self._observed is not None:
            await self._observed(scope, receive, send)
            return
        response = _Response(self, scope, receive, send)
        inner = scope
        offered = scope.get("extensions")
        if not offered or PLANNED not in offered:  # asgifast's own receivers have all three
            inner = {**scope, "extensions": {**_OFFERED, **offered} if offered else _OFFERED.copy()}
        if OBSERVED in scope:
            scope[OBSERVED].app_scope = inner
        try:
            await self._call(inner, response.receive, response.send)
        except Exception:
            await response.abandon()
            raise
        except BaseException:
            response.drop()
            raise
        # Asked here: most requests are spared the call.
        if (
            response._start is not None
            or response._coalescer is not None
            or response._head is not None
        ):
            await response.finish()


class _NamedFile(NamedTuple):
    """What plan_file_body asks of a file."""

    name: str


class _Response(Delivery):
    """One response's messages, on their way from the app to the server.

    `_start` is the head, held until the first message behind it, as servers hold it (ASGI,
    "Response Start"): a file's head may still change. Without a Content-Length it is a stream's,
    whose first message may take its time: it waits for no more than this turn of the event loop,
    then `_head` sends it. `_coalescer` is made by the first small message that has others behind
    it: most responses are one message, and never pay for it.
    """

    __slots__ = ("_coalescer", "_head", "_headers", "_may_coalesce", "_middleware", "_start")

    def __init__(self, middleware: ASGIFast, scope: Scope, receive: Receive, send: Send) -> None:
        # Delivery's own, without the call: this much every request pays.
        self._scope = scope
        self._server_receive = receive
        self._server_send = send
        self._kept = ()
        self._receiving = False
        self._middleware = middleware
        self._start: Message | None = None
        self._head: BackgroundTask | None = None
        self._headers: list[tuple[bytes, bytes]] = _NO_HEADERS
        self._coalescer: Coalescer | None = None
        self._may_coalesce = True

    async def send(self, message: Message) -> None:
        """The send() that the app is given."""
        if self._head is not None:
            await self._settle_head()
        kind = message["type"]
        start = self._start
        if kind == "http.response.body":
            body = message.get("body", b"")
            if start is not None and type(body) is bytes and not message.get("more_body"):
                # The whole response in two messages, as most are: nothing can wait or be coalesced.
                self._start = None
                send = self._server_send
                await send(start)
                await send(message)
                return
            if type(body) is not bytes:
                self._note_route("rescued")
                body = to_bytes(body, self._charset, self._middleware.app)
                message = {**message, "body": body}
            if start is not None:
                self._start = None
                await self._server_send(start)
            if message.get("more_body"):
                if len(body) <= SMALL_MESSAGE_BYTES and (coalescer := self._may_hold()):
                    await coalescer.add(body)
                    return
                await self._flush()
            elif self._coalescer is not None:
                message = {**message, "body": await self._coalescer.end(body)}
            await self._server_send(message)
        elif kind == "http.response.start":
            if start is not None:
                await self._forward_start()  # the server says what is wrong with a second one
            headers = message.get("headers", ())
            if type(headers) is not list:
                headers = list(headers)
                message = {**message, "headers": headers}
            self._headers = headers
            self._start = message
            for name, _ in headers:
                if name == b"content-length":
                    break
            else:
                loop = running_loop()
                loop.call_soon(partial(self._turn_over, loop))
        elif kind == PATHSEND:
            await self._flush()
            if PLANNED in message:
                await self._send_planned(message)
            else:
                await self._send_path(message)
        elif kind == ZEROCOPYSEND:
            await self._flush()
            await self._send_zero_copy(message)
        else:
            await self._flush()
            if start is not None:
                await self._forward_start()
            await self._server_send(message)

    async def finish(self) -> None:
        """The app has returned: nothing may be left behind."""
        await self._settle_head()
        if self._start is not None:
            await self._forward_start()
        await self._flush()

    async def abandon(self) -> None:
        """The app has failed: what it sent before goes out, and its own error is the one told."""
        self._start = None
        try:
            await self._settle_head()
            await self._flush()
        except Exception:  # noqa: BLE001 - the app's error says more
            pass

    def drop(self) -> None:
        """The app was cancelled: nothing more is sent."""
        self._start = None
        if self._head is not None:
            self._head.cancel()
        if self._coalescer is not None:
            self._coalescer.drop()

    async def _forward_start(self) -> None:
        message, self._start = self._start, None
        if message is not None:
            await self._server_send(message)

    def _turn_over(self, loop: Loop) -> None:
        if self._start is not None:
            self._head = loop.create_task(self._forward_start())

    async def _settle_head(self) -> None:
        if self._head is not None:
            try:
                await self._head
            finally:
                self._head = None

    def _charset(self) -> str:
        return charset_of(self._text_headers())

    def _text_headers(self) -> list[tuple[str, str]]:
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers]

    def _may_hold(self) -> Coalescer | None:
        if self._coalescer is None and self._may_coalesce:
            self._may_coalesce = False
            if self._middleware.coalesce and not self.offers(COALESCING):
                self._coalescer = Coalescer(self._server_send)
                self._note_route("coalesced")
        return self._coalescer

    async def _flush(self) -> None:
        if self._coalescer is not None:
            await self._coalescer.flush()

    def _note_route(self, route: str) -> None:
        if OBSERVED in self._scope:
            self._scope[OBSERVED].route = route

    # Files

    async def _send_path(self, message: Message) -> None:
        middleware = self._middleware
        start = self._start
        path = path_to_send(message)
        if start is None or start.get("status") != 200 or not self._filters():
            await self._send_whole(path)
            return
        facts = request_facts(self._scope)
        names = {name.lower() for name, _ in self._headers}
        if facts[2:] == UNCONDITIONAL and b"accept-ranges" in names and names & _VALIDATORS:
            await self._send_whole(path)  # nothing to add, nothing to answer
            return
        fd, size = open_for_pathsend(path)
        try:
            declared = declared_length(self._headers)
            plan = plan_file_body(
                facts,
                self._text_headers(),
                _NamedFile(path),
                FileSegment(fd, 0, size if declared is None else declared),
                ranges=middleware.ranges,
                conditional=middleware.conditional,
            )
            if plan is None:
                await self._send_whole(path)
                return
            self._start = None
            await self._server_send(
                {**start, "status": plan.status, "headers": list(plan.raw_headers)}
            )
            if plan.status == 200 and plan.segments and self.offers(PATHSEND):
                await self._server_send({"type": PATHSEND, "path": path})
            else:
                await self.send_segments(plan.segments, fd)
        finally:
            os.close(fd)

    def _filters(self) -> bool:
        middleware = self._middleware
        wanted = middleware.ranges or middleware.conditional
        return wanted and self._scope["method"] in ("GET", "HEAD")

    async def _send_whole(self, path: str) -> None:
        """The file as it is, behind the head as it is."""
        if self.offers(PATHSEND):
            await self._forward_start()
            await self._server_send({"type": PATHSEND, "path": path})
            return
        if self._scope["method"] == "HEAD":
            await self._forward_start()
            await self._server_send(response_body())
            return
        self._note_route("blocks")
        fd, size = open_for_pathsend(path)
        try:
            await self._forward_start()
            declared = declared_length(self._headers)
            await self.send_file(fd, 0, size if declared is None else declared)
        finally:
            os.close(fd)

    async def _send_planned(self, message: Message) -> None:
        file, segments = message[PLANNED]
        try:
            await self._forward_start()
            if self.offers(PLANNED):
                await self._server_send(message)
                file = None  # theirs to close
            else:
                await self.send_segments(segments, file.fileno())
        finally:
            if file is not None:
                file.close()

    async def _send_zero_copy(self, message: Message) -> None:
        await self._forward_start()
        if self.offers(ZEROCOPYSEND):
            await self._server_send(message)
            return
        self._note_route("blocks")
        file = file_to_send(message)
        more = bool(message.get("more_body", False))
        if file.segment is None:
            await send_unsized(self._server_send, file.fd, message.get("count"))
            if not more:
                await self._server_send(response_body())
            return
        await self.send_file(*file.segment, more_body=more)
        file.advance()

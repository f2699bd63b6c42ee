"""ASGIFast: look at what the app sends, repair it, and send it the server's fastest way."""

from __future__ import annotations

import copy
from functools import partial

from wsgifast.apps import check_app
from wsgifast.bodies.chunks import charset_of, to_bytes
from wsgifast.metrics.backends import recorder_for, spans_for
from wsgifast.metrics.recorder import Recorder
from wsgifast.option_checks import check_switches
from wsgifast.shapes.reports import Reports, check_rate

from .coalescing import SMALL_MESSAGE_BYTES, Coalescer
from .examined import Examined
from .file_messages import FileMessages
from .inbox import Inbox
from .loops import BackgroundTask, Loop, running_loop
from .messages import PATHSEND, ZEROCOPYSEND, ASGIApp, Message, Receive, Scope, Send
from .observed import OBSERVED, Observed
from .sending import COALESCING, FILE_EXTENSIONS, PLANNED

__all__ = ["ASGIFast"]


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
    :param pathsend: False for an app with a middleware that changes bodies and does not know
        http.response.pathsend, as brotli-asgi's: no extension for files is offered to the app, not
        the server's either, so that it sends files as bytes.
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
        pathsend: bool = True,
        metrics: str | Recorder | None = None,
        traces: bool = False,
        report_slow_shapes: float = 0.0,
    ) -> None:
        check_app(app, "ASGI")
        check_switches(
            coalesce=coalesce,
            ranges=ranges,
            conditional=conditional,
            pathsend=pathsend,
            traces=traces,
        )
        self.app = app
        self.coalesce = coalesce
        self.ranges = ranges
        self.conditional = conditional
        self.pathsend = pathsend
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
        inner = scope
        offered = scope.get("extensions")
        if not self.pathsend:
            kept = {name: of for name, of in (offered or {}).items() if name not in FILE_EXTENSIONS}
            inner = {**scope, "extensions": kept}
        elif not offered or PLANNED not in offered:  # asgifast's own receivers have all three
            inner = {**scope}
            inner["extensions"] = {**offered, **FILE_EXTENSIONS} if offered else {**FILE_EXTENSIONS}
        if OBSERVED in scope:
            scope[OBSERVED].app_scope = inner
        # Attribute by attribute: a constructor is a call more, for every request.
        exchange = _Exchange()
        exchange._middleware = self
        exchange._scope = scope
        exchange._server_receive = receive
        exchange._server_send = send
        exchange._kept = ()
        exchange._head = exchange.response = None
        exchange.is_awaited = False
        if scope["method"] == "HEAD":
            exchange.look()
        try:
            await self._call(inner, exchange.receive, exchange.send)
        except BaseException as error:
            if exchange.response is not None:
                await exchange.end(error)
            raise
        if exchange.response is not None:
            await exchange.end()
        elif exchange._head is not None:
            await send(exchange._head)


class _Exchange(Inbox):
    """What an app receives and sends, as long as there is nothing to do about it.

    Most responses are a head with a Content-Length and one message of bytes behind it. The head is
    held until the second message, which lets both go on. Any other message makes a
    :class:`_Response`, which has it and all that follow.

    ASGIFast sets the attributes.
    """

    __slots__ = ("_head", "_middleware", "_scope", "_server_send", "response")

    _middleware: ASGIFast
    _scope: Scope
    _server_send: Send
    _head: Message | None
    response: _Response | None

    # Not Inbox's.
    __init__ = object.__init__

    async def send(self, message: Message) -> None:
        """The send() that the app is given."""
        head = self._head
        if head is not None:
            if (
                "body" in message
                and type(message["body"]) is bytes
                and ("more_body" not in message or not message["more_body"])
            ):
                self._head = None
                send = self._server_send
                await send(head)
                await send(message)
                return
        elif self.response is None and message["type"] == "http.response.start":
            headers = message.get("headers")
            if type(headers) is list:
                for name, _ in headers:
                    if name == b"content-length":
                        self._head = message
                        return
        await (self.response or self.look()).send(message)

    def look(self) -> _Response:
        """From here on look at each message."""
        head, self._head = self._head, None
        self.response = _Response(self._middleware, self._scope, self, self._server_send, head)
        return self.response

    async def end(self, error: BaseException | None = None) -> None:
        """The app has returned or raised; there was something to be looked at."""
        response, self.response = self.response, None  # they know each other
        if response is None:
            return
        if error is None:
            await response.finish()
        elif isinstance(error, Exception):
            await response.abandon()
        else:
            response.drop()


class _Response(FileMessages):
    """One response's messages, each of which is looked at, on their way to the server.

    `_start` is the head, held until the first message behind it, as servers hold it (ASGI,
    "Response Start"): a file's head may still change. Without a Content-Length it is a stream's,
    whose first message may take its time: it waits for no more than this turn of the event loop,
    then `_head` sends it. `_coalescer` is made by the first small message that has others behind
    it.
    """

    __slots__ = ("_coalescer", "_head", "_may_coalesce", "_middleware")

    def __init__(
        self,
        middleware: ASGIFast,
        scope: Scope,
        inbox: Inbox,
        send: Send,
        start: Message | None,
    ) -> None:
        super().__init__(scope, inbox, send)
        self._middleware = self._filter = middleware
        self._start = start
        self._headers = start["headers"] if start is not None else []
        self._head: BackgroundTask | None = None
        self._coalescer: Coalescer | None = None
        self._may_coalesce = True

    async def send(self, message: Message) -> None:
        kind = message["type"]
        start = self._start
        if self._head is not None:
            await self._settle_head()
            start = self._start
        if kind == "http.response.body":
            body = message.get("body", b"")
            if type(body) is not bytes:
                self._note_route("rescued")
                body = to_bytes(body, self._charset, self._middleware.app)
                message = {**message, "body": body}
            if body and self._scope["method"] == "HEAD":
                body = b""  # daphne would send it, in front of the next response
                message = {**message, "body": body}
            if start is not None:
                self._start = None
                await self._server_send(start)
            if message.get("more_body"):
                if len(body) <= SMALL_MESSAGE_BYTES:
                    if self._may_coalesce:
                        self._begin_to_coalesce()
                    if self._coalescer is not None:
                        await self._coalescer.add(body)
                        return
                elif self._coalescer is not None:
                    await self._coalescer.flush()
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
            if all(name != b"content-length" for name, _ in headers):
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

    def _begin_to_coalesce(self) -> None:
        """Make the coalescer, unless the server coalesces itself."""
        self._may_coalesce = False
        if self._middleware.coalesce and not self.offers(COALESCING):
            self._coalescer = Coalescer(self._server_send)
            self._note_route("coalesced")

    async def _flush(self) -> None:
        if self._coalescer is not None:
            await self._coalescer.flush()

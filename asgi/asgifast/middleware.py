"""ASGIFast: repair the messages of an app, and send them the server's fastest way."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from time import perf_counter

from wsgifast.bodies.chunks import charset_of, to_bytes
from wsgifast.bodies.slow_shapes import Reports, check_rate
from wsgifast.checks import check_app, check_switches
from wsgifast.compression.decoding import BodyLimits, checked_limits
from wsgifast.compression.policy import WISH, Compression, compression_for
from wsgifast.metrics import recorder_for, spans_for
from wsgifast.metrics.requests import Recorder

from .coalescing import SMALL_MESSAGE_BYTES, Coalescer
from .content_coding import ContentCoding, with_dictionary
from .entity_tags import tagged
from .files import FileSender, Received
from .instrumented import INSTRUMENTED, Examined, Instrumented, note_sent_as
from .loops import running_loop
from .messages import (
    COALESCING,
    FILE_EXTENSIONS,
    PATHSEND,
    PLANNED,
    STATUSES_WITHOUT_BODY,
    ZEROCOPYSEND,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    SendOrder,
    copied_start,
    declared_length,
    drops_body,
    forward_start,
    text_headers,
    whole_body,
    with_listed_headers,
    without_framing,
)
from .pathsend import Offer, PathsendDecision, without_files
from .request_bodies import buffer_bytes, call_limited
from .request_ids import RequestIds
from .server_timing import TIMES, ServerTiming
from .whole_responses import whole_sender_for


class ASGIFast:
    """ASGI middleware that repairs response bodies, and sends files in the server's fastest way.

    - A body of type str, bytearray or memoryview becomes bytes.
    - Small body messages that an app sends in one turn of the event loop become one message, which
      is sent at the end of that turn. A single message may be delayed for up to a millisecond.
    - http.response.pathsend and http.response.zerocopysend are offered to an app that supports
      them, as Starlette's FileResponse does. A server with these extensions gets the file. For
      others it is read from the page cache, in a thread only if a disk is read.
    - For a 200 with a file as its body (pathsend), Range, If-Range and the preconditions of RFC
      9110, sections 13 and 14, are answered.

    Lifespan and websocket scopes are passed through.

    :param app: any ASGI 3 application.
    :param coalesce: coalesce small body messages, as above. On by default, unlike WSGIFast's, since
        none waits for longer than some milliseconds.
    :param ranges: answer Range and If-Range where the app answers a GET with 200 and a file. See
        :func:`wsgifast.files.app_files.plan_file_body` for which files, and for their ETag. An app
        that answers them itself is left alone: Starlette's FileResponse reads the range in Python,
        asgifast's sends it by sendfile.
    :param conditional: answer If-None-Match, If-Modified-Since, If-Match and If-Unmodified-Since
        for the same files.
    :param pathsend: whether the app is offered http.response.pathsend. By default it is if all
        of its layers are known to support it: the middleware and routes of Starlette and FastAPI,
        and Django. A middleware that changes, counts or compresses bodies, as an unknown class may,
        would fail on it, or would not compress. The decision is logged. True: it is offered to any
        app. False: the app is offered no extension for files, not even the server's, and sends
        files as bytes.
    :param metrics: "prometheus" or "opentelemetry", to record requests, their durations and bodies
        there (docs/reference/metrics.md), or a :class:`wsgifast.metrics.Recorder` of your own.
    :param traces: describe each body in attributes of OpenTelemetry's current span.
    :param compress: compress responses of the app where the client accepts it: True, or a
        :class:`wsgifast.Compression` with options. See docs/how-to/compress.md.
    :param body_limit_bytes: longer request bodies get 413, before the app is called if their
        Content-Length exceeds it. Otherwise receive() raises BodyTooLarge, an OSError.
    :param buffer_bodies: receive bodies with a Content-Length before the app is called: True for up
        to 16 MiB, or a number of bytes. Others reach the app while they arrive. Buffered bodies are
        in memory, up to 64 MiB in a process, and beyond it in temporary files.
    :param decompress: decode request bodies with a Content-Encoding of gzip, br or zstd before the
        app is called. `body_limit_bytes` limits the bytes that were sent and the decoded bytes.
        Without it, the limit is 32 MiB of decoded bytes. For statuses see WSGIFast's.
    :param etag: as WSGIFast's, for a body that is sent in one message.
    :param request_id: as WSGIFast's, in the scope and its headers.
    :param server_timing: as WSGIFast's.
    :param report_slow_shapes: as WSGIFast's: the share of responses whose shape is examined, for
        the log. 0: none, at no cost.
    :raises ConfigurationError: if `app` is not an ASGI app, or an option has no such value.
    :raises MissingExtra: if a package for `metrics` or `traces` is not installed.
    :raises BodyError: (to the app, from its send()) for a value that cannot be a body.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        coalesce: bool = True,
        ranges: bool = True,
        conditional: bool = True,
        pathsend: bool | None = None,
        metrics: str | Recorder | None = None,
        traces: bool = False,
        report_slow_shapes: float = 0.0,
        compress: bool | Compression = False,
        body_limit_bytes: int | None = None,
        buffer_bodies: bool | int = False,
        decompress: bool = False,
        etag: bool = False,
        request_id: bool = False,
        server_timing: bool = False,
    ) -> None:
        check_app(app, "ASGI")
        check_switches(coalesce=coalesce, ranges=ranges, conditional=conditional, traces=traces)
        check_switches(etag=etag, request_id=request_id, server_timing=server_timing)
        if pathsend is not None:
            check_switches(pathsend=pathsend)
        self.app = app
        self.coalesce = coalesce
        self.ranges = ranges
        self.conditional = conditional
        self.etag = etag
        self.compression = compression_for(compress)
        self.body_limits = checked_limits(body_limit_bytes, decompress)
        self._buffer_bytes = buffer_bytes(buffer_bodies)
        if self._buffer_bytes and self.body_limits is None:
            self.body_limits = BodyLimits(None, decodes=False)
        self.offer = Offer(app, pathsend)
        self._is_hidden = pathsend is False
        self._call = app
        check_rate(report_slow_shapes)
        if report_slow_shapes:
            fixed = frozenset({"WF030"} if coalesce else ())
            self._call = Examined(app, Reports(report_slow_shapes, fixed=fixed))
        if self.compression is not None and self.compression.dictionary is not None:
            self._call = with_dictionary(self._call, self.compression.dictionary)
        # Around this middleware: times and ids of requests, and metrics.
        self._around: ASGIApp | None = None
        if self.body_limits is not None:
            self._unlimited = copy.copy(self)
            self._unlimited.body_limits = None
        recorder, spans = recorder_for(metrics), spans_for(traces)
        if recorder is not None or spans is not None:
            self._around = Instrumented(copy.copy(self), recorder, spans)
        if request_id:
            self._around = RequestIds(self._around or copy.copy(self))
        if server_timing:
            self._around = ServerTiming(self._around or copy.copy(self))

    @property
    def pathsend_decision(self) -> PathsendDecision:
        """Whether the app is offered http.response.pathsend, and why."""
        return self.offer.decision

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if type(scope["headers"]) is not list:
            scope = with_listed_headers(scope)
        if self._around is not None:
            return await self._around(scope, receive, send)
        if self.body_limits is not None:
            return await call_limited(
                self._unlimited, scope, receive, send, self.body_limits, self._buffer_bytes
            )
        inner = scope
        offered = scope["extensions"] if "extensions" in scope else None  # noqa: SIM401
        extensions = self.offer.extensions_for(scope["path"])
        if not offered:
            if extensions:
                inner = {**scope, "extensions": {**extensions}}
        elif PLANNED in offered:  # asgifast's, which offers them to this ASGIFast
            if len(extensions) != len(FILE_EXTENSIONS):
                inner = {**scope, "extensions": {**without_files(offered), **extensions}}
        elif extensions or self._is_hidden:  # else the app has the server's, as without ASGIFast
            remaining = without_files(offered) if self._is_hidden else offered
            inner = {**scope, "extensions": {**remaining, **extensions}}
        coding = None
        if self.compression is not None:
            coding = ContentCoding(self.compression, scope)
            inner = {**inner, WISH: coding.wish}
            if coding.app_headers is not None:
                inner["headers"] = coding.app_headers
            coding.app_scope = inner
        if INSTRUMENTED in scope:
            scope[INSTRUMENTED].app_scope = inner
        # Attribute by attribute: a constructor would be one more call for every request.
        exchange = _Exchange()
        exchange._options = self
        exchange._scope = scope
        exchange._server_receive = receive
        exchange._server_send = send
        exchange._is_examined = False
        exchange.start = exchange._order = exchange._received = None
        exchange._coding = coding
        app = self._call  # two steps, which cost CPython less than one
        try:
            # The server reports the returned value, if it is not None.
            result = await app(inner, exchange.receive, exchange.send)  # type: ignore[func-returns-value]
        except BaseException as error:
            if exchange.start is not None or exchange._is_examined:
                await exchange.failed(error)
            raise
        if exchange.start is not None or exchange._is_examined:
            await exchange.finish()
        return result


class _Exchange:
    """The receive() and send() of one request.

    Most responses are a start message and one message of bytes, and need no change. The start is
    delayed until that message, and both are passed on. After any other message each one is
    examined, except those of a stream that should be passed on at once.

    `start` is the start message, delayed until the next message, as servers delay it (ASGI,
    "Response Start"), because that of a file may still change. Without a Content-Length it may
    begin a stream, and the first message may take a while. Then it is delayed until the end of the
    loop's turn.

    Messages that may have to wait for the server are sent in `_order`.

    ASGIFast sets the attributes. :meth:`_examine` sets those that only examined responses have.
    """

    __slots__ = (
        "_coalescer", "_coding", "_drops_body", "_files", "_has_text", "_headers", "_is_examined",
        "_offer", "_options", "_order", "_received", "_scope", "_server_receive", "_server_send",
        "start",
    )  # fmt: skip

    _options: ASGIFast
    _scope: Scope
    _server_receive: Receive
    _server_send: Send
    _coding: ContentCoding | None
    _is_examined: bool
    # None until the app receives, or sends a file.
    _received: Received | None
    start: Message | None
    _headers: list[tuple[bytes, bytes]]
    # None until the app sends a file.
    _files: FileSender | None
    _coalescer: Coalescer
    # The response may have no body.
    _drops_body: bool
    _has_text: bool
    # The coalescer's, for the messages of a stream. None where each one is examined.
    _offer: Callable[[bytes], bool | None] | None
    # None until something may have to wait.
    _order: SendOrder | None

    def receive(self) -> Awaitable[Message]:
        """The receive() that the app is given."""
        return self._all_received().receive()

    async def send(self, message: Message) -> None:
        """The send() that the app is given."""
        start = self.start
        if start is not None:
            coding = self._coding
            if self._options.etag and not self._is_examined:
                scope = self._scope if coding is None else coding.app_scope
                start, message = tagged(scope, start, message)
                self.start = start
            if coding is not None and not self._is_examined:
                uncompressed = coding.uncompressed_start(start, message)
                if uncompressed is None:
                    await self._in_order(self._send_compressed, message)
                    return
                self.start = start = uncompressed
            send = self._server_send
            send_whole = whole_sender_for(send)
            if send_whole is not None and not self._is_examined:
                self.start = None  # whatever the server raises
                if send_whole(getattr(send, "__self__", None), start, message):
                    return
                self.start = start
        elif not self._is_examined:
            if message["type"] == "http.response.start":
                self._hold(message)
                return
        elif (
            (offer := self._offer) is not None
            and "more_body" in message
            and message["more_body"]
            and "body" in message
            and type(body := message["body"]) is bytes
            and message["type"] == "http.response.body"
        ):
            is_delayed = offer(body)
            if is_delayed:
                return
            if is_delayed is not None:
                await self._in_order(self._server_send, message)
                return
        await self._in_order(self._send_next, message)

    async def _in_order(self, send: Callable[..., Awaitable[None]], *message: Message) -> None:
        """Call and await `send`, after the earlier messages."""
        order = self._order or self._begin_order()
        if order.is_taken:
            await order.wait()
        order.is_taken = True
        try:
            await send(*message)
        finally:
            order.release()

    def _begin_order(self) -> SendOrder:
        self._order = order = SendOrder()
        return order

    async def _send_next(self, message: Message) -> None:
        """Send a message, after the start if that is delayed."""
        if not self._is_examined:
            body = whole_body(message)
            if self.start is None:
                if body == b"":  # such as the end of a body that was sent whole
                    await self._server_send(message)
                    return
            elif body is not None and not drops_body(self._scope["method"], self.start):
                await forward_start(self, self._server_send)
                await self._server_send(message)
                return
            self._examine()
        await self._send_examined(message)

    async def _send_compressed(self, message: Message) -> None:
        """Send a start and the message after it, compressed if they are a whole response."""
        start = self.start
        if start is None or self._is_examined or whole_body(message) is None:
            await self._send_next(message)
            return
        assert self._coding is not None
        self.start = None  # it does not leave while a thread compresses
        began = perf_counter() if TIMES in self._scope else 0.0
        start, message = await self._coding.whole(start, message)
        if began and any(name.lower() == b"content-encoding" for name, _ in start["headers"]):
            self._scope[TIMES].compressed(began)
        send_whole = whole_sender_for(self._server_send)
        server = getattr(self._server_send, "__self__", None)
        if send_whole is None or not send_whole(server, start, message):
            self.start = start
            await forward_start(self, self._server_send)
            if drops_body(self._scope["method"], start):
                message = {**message, "body": b""}
            await self._server_send(message)

    def _examine(self) -> None:
        """From now on examine each message."""
        self._is_examined = True
        if self._coding is not None:
            self._server_send = self._coding.stream(self._server_send)
        self._headers = self.start["headers"] if self.start is not None else []
        self._drops_body = drops_body(self._scope["method"], self.start)
        self._has_text = False
        self._files = self._offer = None
        # asgifast's protocols do it themselves, but behind the compressor.
        extensions = self._scope.get("extensions") or ()
        holds = (
            self._options.coalesce
            and not self._drops_body
            and (self._coding is not None or COALESCING not in extensions)
        )
        order = self._order or self._begin_order()
        self._coalescer = Coalescer(self._server_send, order, holds=holds)
        self._coalescer.set_length(declared_length(self._headers))

    def _converted(self, body: object) -> bytes:
        data = to_bytes(
            body,
            lambda: charset_of(text_headers(self._headers)),
            self._options.app,
            after_text=self._has_text,
        )
        if data and isinstance(body, str):
            self._has_text = True
        return data

    async def _send_examined(self, message: Message) -> None:
        kind = message["type"]
        coalescer = self._coalescer
        is_body = kind == "http.response.body"
        await (coalescer.sent() if is_body else coalescer.flush())
        start = self.start
        if is_body:
            body = message.get("body", b"")
            if body is None:  # servers take it for b""
                message = {**message, "body": (body := b"")}
            elif type(body) is not bytes:
                note_sent_as(self._scope, "rescued")
                message = {**message, "body": (body := self._converted(body))}
            if body and self._drops_body:
                body = b""  # some servers would send it
                message = {**message, "body": body}
            if start is not None:
                await forward_start(self, self._server_send)
            if not message.get("more_body"):
                # The server handles messages after the end.
                coalescer.holds = False
                self._offer = None
                await coalescer.end(message, body)
            elif coalescer.holds and len(body) <= SMALL_MESSAGE_BYTES:
                if self._offer is None:
                    self._offer = coalescer.offer
                    note_sent_as(self._scope, "coalesced")
                await coalescer.add(body)
            else:
                if not coalescer.holds and not self._drops_body:
                    self._offer = coalescer.offer
                await coalescer.flush()
                coalescer.room -= len(body)
                await self._server_send(message)
        elif kind == "http.response.start":
            await forward_start(self, self._server_send)  # the server raises for the second one
            self._headers = self._hold(message)
            self._drops_body = drops_body(self._scope["method"], message)
            coalescer.set_length(declared_length(self._headers))
        elif kind in (PATHSEND, ZEROCOPYSEND):
            await self._send_file(message)
        else:
            await forward_start(self, self._server_send)
            await self._server_send(message)

    async def _send_file(self, message: Message) -> None:
        files = self._files
        if files is None:
            files = self._files = FileSender(
                self._scope, self._all_received(), self._server_send, self._coding,
                ranges=self._options.ranges, conditional=self._options.conditional,
            )  # fmt: skip
        start, self.start = self.start, None
        try:
            await files.send_message(message, start, self._headers)
        finally:
            self.start, files.start = files.start, None

    def _all_received(self) -> Received:
        if self._received is None:
            self._received = Received(self._server_receive)
        return self._received

    async def finish(self) -> None:
        """The app has returned: send the delayed messages."""
        if self._order is None or not self._order.is_taken:  # else nothing is
            await self._in_order(self._send_delayed)

    async def failed(self, error: BaseException) -> None:
        """The app has raised: send its delayed messages, unless it was cancelled."""
        self.start = None
        if not self._is_examined:
            return
        if isinstance(error, Exception):
            try:
                await self.finish()
            except Exception:  # noqa: BLE001 - the app's own is raised
                pass
            return
        self._coalescer.cancel()

    async def _send_delayed(self) -> None:
        if self._is_examined:
            await self._coalescer.flush()
            if self._coding is not None:
                await self._coding.end()
        await forward_start(self, self._server_send)

    def _hold(self, message: Message) -> list[tuple[bytes, bytes]]:
        """Delay a start message, and return its headers.

        Without a Content-Length it is delayed until the turn's end.
        """
        start, headers, is_declared = copied_start(message)
        if "status" in start and start["status"] in STATUSES_WITHOUT_BODY:
            start["headers"] = headers = without_framing(headers)
        self.start = start
        if not is_declared:
            running_loop().call_soon(self._on_turn_end)
        return headers

    def _on_turn_end(self) -> None:
        if self.start is not None and not self._is_examined:
            self._examine()
        start, self.start = self.start, None
        if start is not None:
            self._coalescer.send_apart(start)

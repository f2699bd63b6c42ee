"""ASGIFast: middleware that repairs the messages of an app and sends files efficiently."""

from __future__ import annotations

import copy

from wsgifast.bodies.slow_shapes import Reports, check_rate
from wsgifast.checks import check_app, check_switches
from wsgifast.compression.decoding import BodyLimits, checked_limits
from wsgifast.compression.policy import WISH, Compression, compression_for
from wsgifast.metrics import recorder_for, spans_for
from wsgifast.metrics.requests import Recorder

from .content_coding import ContentCoding, with_dictionary
from .exchange import Repairs, exchange_for
from .instrumented import INSTRUMENTED, Examined, Instrumented
from .messages import FILE_EXTENSIONS, PATHSEND, ASGIApp, Receive, Scope, Send, with_listed_headers
from .pathsend import Offer, PathsendDecision, without_files
from .request_bodies import buffer_bytes, call_limited
from .request_ids import RequestIds
from .server_timing import ServerTiming


class ASGIFast:
    """ASGI middleware that repairs response bodies and sends files as fast as the server can.

    - A body of type str, bytearray or memoryview becomes bytes.
    - Small body messages that an app sends in one event loop iteration become one message, which is
      sent when that iteration ends. A single message may be delayed for up to a millisecond.
    - http.response.pathsend and http.response.zerocopysend are offered to an app that supports
      them, such as one with Starlette's FileResponse. If the server has these extensions, it sends
      the file. Otherwise ASGIFast reads it, in a thread if its bytes are not in the page cache.
    - For a 200 whose body is a file (pathsend), ASGIFast handles Range, If-Range and the
      preconditions (RFC 9110, sections 13 and 14).

    Lifespan and websocket scopes are passed through.

    :param app: any ASGI 3 application.
    :param coalesce: coalesce small body messages, as above. This is the default, unlike in
        WSGIFast, because the delay is short.
    :param ranges: handle Range and If-Range if the app responds to a GET with 200 and a file. For
        the conditions and the ETag see :func:`wsgifast.files.app_files.plan_file_body`. If an app
        handles Range itself, its responses are not changed. Starlette's FileResponse handles Range,
        and reads the range in Python. asgifast's FileResponse sends the range by sendfile.
    :param conditional: handle If-None-Match, If-Modified-Since, If-Match and If-Unmodified-Since
        for the same files.
    :param pathsend: whether the app is offered http.response.pathsend. By default it is offered if
        all layers of the app are known to support it. Known layers are the middleware and routes of
        Starlette and FastAPI, and Django. An unknown layer may change, count or compress bodies. It
        could fail on a pathsend message, or not compress the file. The decision is logged. True:
        offer it without a check of the layers. False: offer no extension for files, even if the
        server has one. The app then sends files as bytes.
    :param metrics: "prometheus" or "opentelemetry", to record requests, their durations and bodies
        (docs/reference/metrics.md), or your own :class:`wsgifast.metrics.Recorder`.
    :param traces: set attributes about each body on OpenTelemetry's current span.
    :param compress: compress responses if the client accepts it: True, or a
        :class:`wsgifast.Compression` with options. See docs/how-to/compress.md.
    :param body_limit_bytes: the longest request body. If a Content-Length is longer, the response
        is 413 and the app is not called. If a body without Content-Length is longer, receive()
        raises BodyTooLarge, an OSError.
    :param buffer_bodies: receive a body with a Content-Length before the app is called: True for up
        to 16 MiB, or a number of bytes. The app receives other bodies as they arrive. Buffered
        bodies are in memory, up to 64 MiB for each process. More bytes are in temporary files.
    :param decompress: decode request bodies with a Content-Encoding of gzip, br or zstd before the
        app is called. `body_limit_bytes` limits both the sent and the decoded bytes. By default the
        limit is 32 MiB of decoded bytes. The statuses of errors are those of WSGIFast.
    :param etag: like WSGIFast's option, for a body that is sent in one message.
    :param request_id: like WSGIFast's option. The id is in the scope and in its headers.
    :param server_timing: like WSGIFast's option.
    :param report_slow_shapes: like WSGIFast's option: the share of responses to examine for slow
        shapes, such as many small messages. They are logged. 0 disables this, and costs nothing.
    :raises ConfigurationError: if `app` is not an ASGI app, or if the value of an option is
        invalid.
    :raises MissingExtra: if a package for `metrics` or `traces` is not installed.
    :raises BodyError: send() raises this in the app, for a value that cannot be a body.
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
        self._repairs = Repairs(app, coalesce, ranges, conditional, etag)
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
        # The outer wrappers of this middleware: Server-Timing, request ids and metrics.
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
        """The decision whether the app is offered http.response.pathsend, with the reason.

        This builds the middleware of a Starlette app. No middleware can be added later.
        """
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
        elif offered.get(PATHSEND) == FILE_EXTENSIONS[PATHSEND]:
            # An asgifast server or an outer ASGIFast has made the extensions.
            if len(extensions) != len(FILE_EXTENSIONS):
                inner = {**scope, "extensions": {**without_files(offered), **extensions}}
        elif extensions or self._is_hidden:  # if not, the server's extensions are not changed
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
        exchange = exchange_for(scope, receive, send, self._repairs, coding)
        app = self._call  # this is faster than self._call(...)
        try:
            # uvicorn logs an error if an app returns a value other than None. So its value is
            # passed.
            result = await app(inner, exchange.receive, exchange.send)  # type: ignore[func-returns-value]
        except BaseException as error:
            if exchange.start is not None or exchange.is_examined:
                await exchange.handle_error(error)
            raise
        if exchange.start is not None or exchange.is_examined:
            await exchange.finish()
        return result

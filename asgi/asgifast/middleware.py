"""ASGIFast: repair the messages of an app, and send them the server's fastest way."""

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
from .messages import (
    FILE_EXTENSIONS,
    PLANNED,
    ASGIApp,
    Receive,
    Scope,
    Send,
    with_listed_headers,
)
from .pathsend import Offer, PathsendDecision, without_files
from .request_bodies import buffer_bytes, call_limited
from .request_ids import RequestIds
from .server_timing import ServerTiming


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
        exchange = exchange_for(scope, receive, send, self._repairs, coding)
        app = self._call  # two steps, which cost CPython less than one
        try:
            # The server reports the returned value, if it is not None.
            result = await app(inner, exchange.receive, exchange.send)  # type: ignore[func-returns-value]
        except BaseException as error:
            if exchange.start is not None or exchange.is_examined:
                await exchange.failed(error)
            raise
        if exchange.start is not None or exchange.is_examined:
            await exchange.finish()
        return result

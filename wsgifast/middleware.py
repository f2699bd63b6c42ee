"""WSGIFast: call the app, repair its body, and return the body in the server's fastest form."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .bodies.access_log import CHUNKS, SENT_AS
from .bodies.body import Bare, Body, ClosedWith, File, Refusal, ServerFile, Stream, Whole
from .bodies.chunks import excerpt, few_chunks
from .bodies.classify import classify
from .bodies.entity_tags import respond_by_tag
from .bodies.file_responses import FileResponses, send_nothing
from .bodies.files import close_body
from .bodies.request_ids import request_ids_stage
from .bodies.requests import within_limits
from .bodies.server_timing import server_timing_stage
from .bodies.slow_shapes import ExaminedApp, Reports, check_rate
from .bodies.start_response import AppResponse, Respond, Stage
from .bodies.stream import ConvertedStream
from .checks import check_app, check_switches
from .compression.decoding import checked_limits
from .compression.dictionaries import PagesDictionary
from .compression.policy import Compression, compress_response, compression_for
from .errors import BodyError, RequestError
from .files.app_files import front_server_of
from .metrics import recorder_for, spans_for
from .metrics.instrumented import Instrumented, call_noting_pattern
from .metrics.requests import RECORDER, Recorder
from .sockets.options import owned_socket, set_nodelay

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


# A function that may replace a body in memory before compression. Its arguments are the response,
# the blocks of the body and their total size. It returns the new blocks, or None to keep the body.
WholeStep = Callable[[AppResponse, Iterable[bytes], int], Iterable[bytes] | None]


class WSGIFast:
    """WSGI middleware that repairs response bodies, and passes them to the server in a fast form.

    ======================================  =====================================  =================
    the app returns                         the server gets                        sent_as
    ======================================  =====================================  =================
    a list or tuple of few large bytes      the same object                        ``as-is``
    str, bytes, bytearray, memoryview       one chunk of bytes                     ``rescued``
    a list or tuple of small chunks         few large chunks                       ``joined``
    a file, or a known wrapper of a file    in the server's ``wsgi.file_wrapper``  ``file``
    a file, if the server has no wrapper    blocks of 256 KiB                      ``blocks``
    a body above in a framework's wrapper   as above; the wrapper is closed, too   as above
    a file, requested in several ranges     a ``SegmentedBody`` of the ranges      ``segments``
    a file that the front server may send   no body                                ``accel``
    a file that `compress` applies to       its compressed copy, from memory       ``copy``
    any other iterable                      its chunks, one by one                 ``stream``
    an iterable of small chunks             its chunks, one by one                 ``stream-small``
    an iterable of chunks of a round size   its chunks, one by one                 ``stream-blocks``
    an iterable, with `coalesce`            its chunks, joined if they are         ``coalesced``
                                            yielded quickly
    any body to HEAD, or with 204/205/304   no body                                ``no-body``
    ======================================  =====================================  =================

    ``environ["wsgifast.sent_as"]`` has the value of the last column, and
    ``environ["wsgifast.chunks"]`` has the number of chunks in the app's body. For a stream, both
    are final when its iterator has ended.

    - If the length of the body is known, a Content-Length is added. A wrong one is corrected if the
      whole body is in memory.
    - If a stream ends before its Content-Length, an error is raised. So the server closes the
      connection, and the client does not wait for missing bytes.
    - If the response must not have a body, an iterator still runs up to its first byte. So the app
      can fail or replace its headers, as for a GET.

    :param app: any WSGI application (PEP 3333).
    :param coalesce: join small chunks that an iterator yields quickly. Chunks of event streams are
        not joined. :func:`wsgifast.bodies.chunks.coalesced` describes the delays.
    :param nodelay: set TCP_NODELAY on each connection whose socket is in the environ.
    :param ranges: apply Range and If-Range if the app responds to a GET with 200 and a file. See
        :func:`wsgifast.files.app_files.plan_file_body` for the conditions, and for the ETag. A 206
        of the app is not changed. If it contains a file range of Werkzeug, WhiteNoise, ServeStatic
        or Falcon, this range is sent as a file.
    :param conditional: evaluate If-None-Match, If-Modified-Since, If-Match and If-Unmodified-Since
        for the same files.
    :param accel_redirect: maps folders to internal locations of nginx, such as
        ``{"/srv/files": "/protected/"}``. nginx sends the files in these folders. See
        :func:`wsgifast.files.app_files.front_server_of`, also for the headers that nginx drops.
    :param x_sendfile: folders whose files Apache or lighttpd sends.
    :param metrics: record requests, their durations and their bodies (docs/reference/metrics.md).
        The value is "prometheus", "opentelemetry" or a :class:`wsgifast.metrics.Recorder`.
    :param traces: add attributes to the current span of OpenTelemetry: how the body was sent, its
        chunks and its size. The instrumentation around this app must have started the span.
    :param compress: compress responses if the client accepts a content coding. The value is True,
        or a :class:`wsgifast.Compression` with options. See docs/how-to/compress.md.
    :param body_limit_bytes: respond with 413 to longer request bodies. If the Content-Length is too
        large, the app is not called. Otherwise a read beyond the limit raises BodyTooLarge, an
        OSError. The app's response is then replaced, unless it has begun.
    :param decompress: decode request bodies with a Content-Encoding of gzip, br or zstd.
        `body_limit_bytes` limits the received bytes and the decoded bytes. Without this option, the
        limit is 32 MiB of decoded bytes. A larger body, or a body that grows more than 200 times,
        gets 413. A malformed body gets 400, and a body in another content coding gets 415.
    :param etag: add a weak ETag to a 200 for GET or HEAD, if its whole body is in memory and has up
        to 1 MiB. Respond to If-None-Match with 304. See :mod:`wsgifast.bodies.entity_rules`.
    :param request_id: store an id of the request in the environ, and add it to the headers of the
        response. It is a valid X-Request-ID of the client, or a new id. FastWorker accepts an
        X-Request-ID only from a trusted proxy. The environ also gets the trace id of traceparent.
        See :mod:`wsgifast.bodies.request_ids`.
    :param server_timing: add a Server-Timing header. It contains the times of the queue, the app,
        compression and the first byte. See :mod:`wsgifast.bodies.server_timing`.
    :param report_slow_shapes: the share of responses to examine, such as 0.01. If a body has a slow
        shape, the id of the doctor's finding is logged, at most once an hour for each URL pattern
        of the framework. 0 disables this, and costs nothing.
    :raises ConfigurationError: if `app` cannot be called as a WSGI app, or an option has an invalid
        value.
    :raises MissingExtra: if a package for `metrics` or `traces` is not installed.
    :raises BodyError: (to the server, for a request) if the app returns an object that cannot be a
        body.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        coalesce: bool = False,
        nodelay: bool = True,
        ranges: bool = True,
        conditional: bool = True,
        accel_redirect: Mapping[str, str] | None = None,
        x_sendfile: Iterable[str] | None = None,
        metrics: str | Recorder | None = None,
        traces: bool = False,
        report_slow_shapes: float = 0.0,
        compress: bool | Compression = False,
        body_limit_bytes: int | None = None,
        decompress: bool = False,
        etag: bool = False,
        request_id: bool = False,
        server_timing: bool = False,
    ) -> None:
        check_app(app, "WSGI")
        check_switches(
            coalesce=coalesce,
            nodelay=nodelay,
            ranges=ranges,
            conditional=conditional,
            traces=traces,
            etag=etag,
            request_id=request_id,
            server_timing=server_timing,
        )
        self.app = app
        self.coalesce = coalesce
        self.nodelay = nodelay
        self.compression = compression_for(compress)
        self.body_limits = checked_limits(body_limit_bytes, decompress)
        self._files = FileResponses(
            ranges=ranges,
            conditional=conditional,
            front_server=front_server_of(accel_redirect, x_sendfile),
        )
        # The open sockets on which TCP_NODELAY was set, by their id().
        self._nodelay_set: dict[int, weakref.ref[Any]] = {}
        self._call = app
        check_rate(report_slow_shapes)
        if report_slow_shapes:
            fixed = {"WF001", "WF003"} if coalesce else {"WF001"}
            self._call = ExaminedApp(
                app, Reports(report_slow_shapes, fixed=frozenset(fixed)), call_noting_pattern
            )
        if self.compression is not None and self.compression.dictionary is not None:
            self._call = _with_dictionary(self._call, self.compression.dictionary)
        # The stages that wrap each call of the app. The first one is the outermost.
        stages: list[Stage] = [server_timing_stage] if server_timing else []
        stages += [request_ids_stage] if request_id else []
        recorder, spans = recorder_for(metrics), spans_for(traces)
        if recorder is not None or spans is not None:
            stages.append(Instrumented(recorder, spans).stage)
        if self.body_limits is not None:
            stages.append(partial(within_limits, self.body_limits, _refuse))
        # These functions are called in order if the whole body is in memory, before compression.
        # The first iterable that one of them returns is sent as the body.
        self._whole_steps: list[WholeStep] = [respond_by_tag] if etag else []
        self._respond: Respond = self._call_app
        for stage in reversed(stages):
            self._respond = stage(self._respond)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if self.nodelay:
            self._set_nodelay(environ)
        return self._respond(AppResponse(self.app, environ, start_response, self.compression))

    def _call_app(self, response: AppResponse) -> Iterable[bytes]:
        """Call the app, and return the object that the server iterates."""
        body: Any = None
        try:
            if RECORDER in response.environ:
                body = call_noting_pattern(self._call, response.environ, response.start)
            else:
                body = self._call(response.environ, response.start)
            response.holds = False
            kind = type(body)
            if (
                (kind is list or kind is tuple)
                and response.status is not None
                and not response.forwarded
            ):
                return self._send_whole(response, body)
            return self._send(response, classify(body, response.environ.get("wsgi.file_wrapper")))
        except BaseException as error:
            response.exc_info = None
            close_body(body)
            if not isinstance(error, Exception) or not response.is_over():
                raise
            return ConvertedStream(response, (), coalesce=False)

    def _send(self, response: AppResponse, body: Body) -> Iterable[bytes]:
        """Send a body that has been classified."""
        if type(body) is Whole and response.status is not None and not response.forwarded:
            return self._send_wrapped(response, body)
        if type(body) is Stream:
            return self._send_stream(response, body.owner)
        if isinstance(body, Refusal):
            shown = f"{type(body.owner).__name__} as its body: {excerpt(body.owner)}"
            raise BodyError(f"{response.app_name} returned {shown}; {body.advice}")
        if response.status is None:
            raise response.not_started()
        if isinstance(body, File):
            return self._files.send(response, body)
        if isinstance(body, Bare):
            # A list, because the server would iterate text or bytes element by element.
            chunks = [response.convert(body.content)]
            if response.forwarded:  # the app called write(), which may have sent bytes
                return self._send_stream(response, chunks)
            return self._send_whole(response, chunks, "rescued")
        return self._send_kind(response, body)

    def _send_whole(
        self,
        response: AppResponse,
        chunks: list[Any] | tuple[Any, ...],
        sent_as: str = "as-is",
    ) -> Iterable[bytes]:
        """Send a list or tuple as few large chunks, with a Content-Length."""
        count = len(chunks)
        if count == 1 and type(chunks[0]) is bytes:
            few: Iterable[bytes] = chunks
            size = len(chunks[0])
        else:
            few, size = few_chunks(chunks, response.convert)
            if few is not chunks:
                sent_as = "joined" if count > 1 else "rescued"
        if response.length != size and (size or not response.no_body):
            if response.length is not None:
                response.correct_length(size)
            else:
                response.set_length(size)
        if self._whole_steps:
            for step in self._whole_steps:
                blocks = step(response, few, size)
                if blocks is not None:
                    return blocks
        if response.compression is not None:
            decision = response.decide_whole(size)
            if decision is not None:
                few = response.compress_whole(decision, few, size)
        if response.no_body:
            return send_nothing(response, chunks)
        environ = response.environ
        environ[SENT_AS] = sent_as
        environ[CHUNKS] = count
        response.forward()
        return few

    def _send_wrapped(self, response: AppResponse, body: Whole) -> Iterable[bytes]:
        """Send a list or tuple inside wrappers. The close() of the outer wrapper ends the body."""
        wrapped = body.owner
        chunks = body.content
        is_one_block = (
            (type(chunks) is list or type(chunks) is tuple)
            and len(chunks) == 1
            and type(chunks[0]) is bytes
            and len(chunks[0]) == response.length
        )
        if response.no_body or not is_one_block:
            # Iterate over the wrappers, because they may encode or count each chunk.
            chunks = list(wrapped)
        sent = self._send_whole(response, chunks)
        return wrapped if sent is body.content else ClosedWith(sent, wrapped)

    def _send_kind(self, response: AppResponse, body: Body) -> Iterable[bytes]:
        """Send a body by the methods of its kind. A compressed body is sent as a stream."""
        coding = response.coding
        if response.forwarded:  # the app has called write(), which may have sent bytes
            if coding is not None or not isinstance(body, ServerFile):
                return self._send_stream(response, body)
        else:
            size = body.length
            if size is not None and response.length != size and (size or not response.no_body):
                response.correct_length(size)
            decision = None
            if coding is not None:
                decision = coding.decide_page(response.code, response.headers)
            if decision is not None:
                if decision.coding is not None:
                    response.decision = decision
                    return self._send_stream(response, body)
                response.headers = decision.apply(response.headers)
        if response.no_body:
            return send_nothing(response, body)
        response.environ[SENT_AS] = body.sent_as
        if not response.forwarded:
            response.forward()
        return body.for_server()

    def _send_stream(self, response: AppResponse, body: Iterable[Any]) -> Iterable[bytes]:
        """Pass each chunk to the server when the app yields it."""
        stream = ConvertedStream(response, body, coalesce=self.coalesce)
        if not response.forwarded:
            response.codes_stream = response.compression is not None
            if response.status is not None and not response.delays_headers():
                response.forward()
        return stream

    def _set_nodelay(self, environ: WSGIEnvironment) -> None:
        """Set TCP_NODELAY once for each connection."""
        sock = environ.get("gunicorn.socket") or environ.get("werkzeug.socket")
        if sock is None:
            # wsgiref, gevent's pywsgi and cheroot do not put their socket into the environ. Their
            # `wsgi.input` reads from the socket.
            sock = owned_socket(environ.get("wsgi.input"))
            if sock is None:
                return
        done, key = self._nodelay_set, id(sock)
        if key in done:
            return  # a later request of the same connection
        try:
            set_nodelay(sock)
        except OSError:
            return  # the client has disconnected: the server's next write fails
        done[key] = weakref.ref(sock, lambda ref: done.pop(key, None))


def _refuse(
    response: AppResponse, error: RequestError, exc_info: OptExcInfo | None = None
) -> Iterable[bytes]:
    """Send an error response in place of the app's response."""
    status, headers, page = error.response(response.headers)
    response.status = response.exc_info = None
    response.forwarded = response.codes_stream = False
    response.holds = True
    response.start(status, headers, exc_info)
    exc_info = None  # it refers to this frame
    if response.no_body:
        return send_nothing(response, None)
    response.environ[SENT_AS] = "as-is"
    response.environ[CHUNKS] = 1
    response.forward()
    return [page]


def _with_dictionary(app: WSGIApplication, dictionary: PagesDictionary) -> WSGIApplication:
    """Return an app that serves the dictionary at its URL and calls `app` for other requests."""

    def call(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        is_requested = environ.get("PATH_INFO") == dictionary.url
        if not is_requested or environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return app(environ, start_response)
        compress_response(environ, True)
        start_response("200 OK", dictionary.headers(environ.get("SCRIPT_NAME", "")))
        return [dictionary.content]

    return call

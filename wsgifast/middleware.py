"""WSGIFast: call the app, repair the body it returns, and hand it to the server the fastest way."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .bodies.access_log import CHUNKS, SENT_AS
from .bodies.chunks import excerpt, few_chunks
from .bodies.classify import (
    BARE,
    FILE,
    PASS,
    REFUSED,
    STREAM,
    WHOLE,
    WRAPPED_FILE,
    WRAPPED_WHOLE,
    Shape,
    classify,
)
from .bodies.file_responses import FileResponses, pass_on, send_nothing
from .bodies.files import FileSlice, SegmentedBody, close_body
from .bodies.held_head import HeldHead
from .bodies.request_bodies import call_limited, limit_request
from .bodies.slow_shapes import Examined, Reports, check_rate
from .bodies.streams import ClosedWith, Stream
from .checks import check_app, check_switches
from .compression.decoding import BodyLimits, checked_limits
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


class WSGIFast:
    """WSGI middleware that repairs response bodies, and sends them in the server's fastest way.

    ======================================  =====================================  =================
    the app returns                         the server gets                        sent_as
    ======================================  =====================================  =================
    a list or tuple of few large bytes      the same object                        ``as-is``
    str, bytes, bytearray, memoryview       one chunk of bytes                     ``rescued``
    a list or tuple of small chunks         few large chunks                       ``joined``
    a file, or a known wrapper around one   in the server's ``wsgi.file_wrapper``  ``file``
    the same where the server has none      blocks of 256 KiB                      ``blocks``
    any of these in a framework's wrapper   the same, and the wrapper is closed    the same
    a file, requested in several ranges     its runs, as a :class:`SegmentedBody`  ``segments``
    a file for the front server to send     no body                                ``accel``
    a file that `compress` applies to       its compressed copy, from memory       ``copy``
    any other iterable                      its chunks, one by one                 ``stream``
    the same, of small chunks               the same                               ``stream-small``
    the same, of chunks of one round size   the same                               ``stream-blocks``
    any of them with `coalesce`             its chunks, joined if they are         ``coalesced``
                                            yielded quickly
    anything to HEAD, or with 204/205/304   no body                                ``no-body``
    ======================================  =====================================  =================

    Afterwards ``environ["wsgifast.sent_as"]`` has the value of the last column, and
    ``environ["wsgifast.chunks"]`` has the number of chunks in the app's body. A Content-Length is
    added if the length is known, and corrected if the whole body is in memory. A stream that ends
    before its Content-Length raises an error. So the server closes the connection, and the client
    does not wait for missing bytes. If no body may be sent, an iterator still runs up to its first
    byte, so that the app can fail or replace its headers as for a GET.

    :param app: any WSGI application (PEP 3333).
    :param coalesce: also join the small chunks of iterators; for apps that yield them quickly, not
        for event streams. See :func:`wsgifast.bodies.chunks.coalesced` for what may wait, and for
        how long.
    :param nodelay: set TCP_NODELAY on each connection whose socket can be reached from the environ.
    :param ranges: answer Range and If-Range where the app answers a GET with 200 and a file; see
        :func:`wsgifast.files.app_files.plan_file_body` for which files, and for their ETag. The
        app's own 206 is left as it is; the file ranges that Werkzeug, WhiteNoise, ServeStatic and
        Falcon return with one are sent as files.
    :param conditional: answer If-None-Match, If-Modified-Since, If-Match and If-Unmodified-Since
        for the same files.
    :param accel_redirect: maps folders to nginx's internal locations, such as
        ``{"/srv/files": "/protected/"}``: nginx sends the files in them. See
        :func:`wsgifast.files.app_files.front_server_of`, also for the headers that nginx drops.
    :param x_sendfile: folders whose files Apache or lighttpd sends.
    :param metrics: "prometheus" or "opentelemetry", to record requests, their durations and their
        bodies (docs/reference/metrics.md), or a :class:`wsgifast.metrics.Recorder` of your own.
    :param traces: set how the body was sent, its chunks and its size as attributes of
        OpenTelemetry's current span, which the instrumentation around this app has started.
    :param compress: compress what the app makes where the client accepts it: True, or a
        :class:`wsgifast.Compression` with options. See docs/how-to/compress.md.
    :param body_limit_bytes: request bodies that are longer get 413: before the app is called if
        their Content-Length says so, and else once the app has read too much, whatever it answers
        to that, unless its response has begun. What it reads then raises BodyTooLarge, an OSError.
    :param decompress: decode request bodies with a Content-Encoding of gzip, br or zstd before the
        app is called. `body_limit_bytes` limits the bytes that were sent and the decoded bytes.
        Without it, the limit is 32 MiB of decoded bytes. A larger body, or one that grows more than
        200 times, gets 413. A malformed body gets 400, another content coding 415.
    :param report_slow_shapes: the share of responses whose shape is examined, such as 0.01. For a
        slow shape the id of the doctor's finding is logged, at most once an hour for each URL
        pattern of the framework. 0 examines none, at no cost.
    :raises ConfigurationError: if `app` cannot be called as a WSGI app, or an option has an invalid
        value.
    :raises MissingExtra: if a package for `metrics` or `traces` is not installed.
    :raises BodyError: (to the server, for a request) if the app returns what cannot be a body.
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
    ) -> None:
        check_app(app, "WSGI")
        check_switches(
            coalesce=coalesce,
            nodelay=nodelay,
            ranges=ranges,
            conditional=conditional,
            traces=traces,
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
        # The open connections that have it, by the id() of their socket.
        self._nodelay_set: dict[int, weakref.ref[Any]] = {}
        self._call = app
        check_rate(report_slow_shapes)
        if report_slow_shapes:
            mended = {"WF001", "WF003"} if coalesce else {"WF001"}
            self._call = Examined(
                app, Reports(report_slow_shapes, mended=frozenset(mended)), call_noting_pattern
            )
        if self.compression is not None and self.compression.dictionary is not None:
            self._call = _with_dictionary(self._call, self.compression.dictionary)
        self._instrumented: WSGIApplication | None = None
        self._recorded_by: object = None
        if self.body_limits is not None:
            self._unlimited = copy.copy(self)
            self._unlimited.body_limits = None
            self._unlimited.nodelay = False  # set before wsgi.input is replaced
        recorder, spans = recorder_for(metrics), spans_for(traces)
        if recorder is not None or spans is not None:
            # Bound methods: a call of one costs less than that of an object.
            instrumented = Instrumented(copy.copy(self).__call__, app, recorder, spans)
            self._instrumented = instrumented.answer
            self._recorded_by = instrumented.recorded_by

    def __call__(
        self,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        _head: HeldHead | None = None,  # from Instrumented, which has made it
    ) -> Iterable[bytes]:
        if self._instrumented is not None and (
            RECORDER not in environ or environ[RECORDER] is not self._recorded_by
        ):
            return self._instrumented(environ, start_response)
        if self.nodelay:
            self._set_nodelay(environ)
        head = _head
        if head is None:
            head = HeldHead(self.app, environ, start_response)
        if self.body_limits is not None:
            return self._call_limited(head, self.body_limits)
        if self.compression is not None:
            head.may_compress(self.compression)
        body: Any = None
        try:
            if RECORDER in environ:
                body = call_noting_pattern(self._call, environ, head.start)
            else:
                body = self._call(environ, head.start)
            head.holds = False
            shape, content = classify(body, environ.get("wsgi.file_wrapper"))
            if shape is WHOLE and head.status is not None and not head.forwarded:
                return _send_whole(head, content)
            return self._send(head, body, shape, content)
        except BaseException as error:
            head.exc_info = None
            close_body(body)
            if not isinstance(error, Exception) or not head.is_over():
                raise
            return Stream(head, (), coalesce=False)

    def _call_limited(self, head: HeldHead, limits: BodyLimits) -> Iterable[bytes]:
        """Call the app with a request body that is within the limits, or refuse the request."""
        refuse = partial(_refuse, head)
        try:
            limited = limit_request(head.environ, limits)
        except RequestError as error:
            return refuse(error)
        if limited is None:
            return self._unlimited(head.environ, head.server_start, head)
        return call_limited(self._unlimited, head, limited, refuse)

    def _send(self, head: HeldHead, body: object, shape: Shape, content: Any) -> Iterable[bytes]:
        """Return what the server is to iterate; see :func:`classify`."""
        if shape is STREAM:
            return self._send_stream(head, content)
        if shape is REFUSED:
            kind = type(body).__name__
            shown = f"{head.app_name} returned {kind} as its body: {excerpt(body)}"
            raise BodyError(f"{shown}; {content}")
        if head.status is None:
            raise head.not_started()
        if shape is FILE or shape is WRAPPED_FILE:
            # A Werkzeug range has no close() for its file.
            is_range = shape is FILE and type(content) is FileSlice
            owner = content if is_range or not hasattr(body, "close") else body
            return self._files.send(head, content, owner)
        if shape is PASS:
            if head.coding is not None and (head.forwarded or type(content) is not SegmentedBody):
                decision = head.coding.decide(head.code, head.headers)
                if head.forwarded or (decision is not None and decision.coding is not None):
                    return self._send_stream(head, content)
                if decision is not None:
                    head.headers = decision.headers
            return pass_on(head, content)
        if shape is BARE:
            content = [head.convert(content)]  # alone it would be an iterable of its elements
        if head.forwarded:  # write() was used, and may have sent a part
            return self._send_stream(head, content)
        if shape is WRAPPED_WHOLE:
            if not head.no_body and _is_one_block(content, head.length):
                size = len(content[0])
                decision = None if head.compression is None else head.decide_whole(size)
                sent: Iterable[bytes] = head.compress_whole(decision, content, size)
                if sent is content:
                    sent = body  # type: ignore[assignment]
                elif decision is not None:
                    sent = ClosedWith(sent, body)
                head.forward()
                head.environ[SENT_AS] = "as-is"
                head.environ[CHUNKS] = 1
                return sent
            # By the wrappers' own iteration, which may encode or count each chunk.
            return ClosedWith(_send_whole(head, list(body)), body)  # type: ignore[call-overload]
        return _send_whole(head, content, "rescued")

    def _send_stream(self, head: HeldHead, body: Iterable[Any]) -> Iterable[bytes]:
        """Pass chunks on as they come."""
        if not head.forwarded:
            head.codes_stream = head.compression is not None
            if head.status is not None:
                head.forward()
        return Stream(head, body, coalesce=self.coalesce)

    def _set_nodelay(self, environ: WSGIEnvironment) -> None:
        """Set TCP_NODELAY once for each connection."""
        sock = environ.get("gunicorn.socket") or environ.get("werkzeug.socket")
        if sock is None:
            # In wsgiref, gevent's pywsgi and cheroot the stream reads from the socket.
            sock = owned_socket(environ.get("wsgi.input"))
            if sock is None:
                return
        done, key = self._nodelay_set, id(sock)
        if key in done:
            return  # a later request of the same connection
        try:
            set_nodelay(sock)
        except OSError:
            return  # the client has gone; the server will notice when it writes
        done[key] = weakref.ref(sock, lambda ref: done.pop(key, None))


def _is_one_block(chunks: Any, length: int | None) -> bool:
    """Whether a body is one block of bytes, as long as its Content-Length."""
    return (
        (type(chunks) is list or type(chunks) is tuple)
        and len(chunks) == 1
        and type(chunks[0]) is bytes
        and len(chunks[0]) == length
    )


def _send_whole(
    head: HeldHead, chunks: list[Any] | tuple[Any, ...], sent_as: str = "as-is"
) -> Iterable[bytes]:
    """Send a list or tuple in few large chunks, with their length."""
    count = len(chunks)
    if count == 1 and type(chunks[0]) is bytes:
        few: Iterable[bytes] = chunks
        size = len(chunks[0])
    else:
        few, size = few_chunks(chunks, head.convert)
        if few is not chunks:
            sent_as = "joined" if count > 1 else "rescued"
    if head.length != size and (size or not head.no_body):
        if head.length is not None:
            head.correct_length(size)
        else:
            head.set_length(size)
    if head.compression is not None:
        few = head.compress_whole(head.decide_whole(size), few, size)
    if head.no_body:
        return send_nothing(head, chunks)
    head.forward()
    environ = head.environ
    environ[SENT_AS] = sent_as
    environ[CHUNKS] = count
    return few


def _refuse(
    head: HeldHead, error: RequestError, exc_info: OptExcInfo | None = None
) -> Iterable[bytes]:
    """Answer a request that is refused, in place of the app."""
    status, headers, answer = error.answer(head.headers)
    head.status = head.exc_info = None
    head.forwarded = head.codes_stream = False
    head.holds = True
    head.start(status, headers, exc_info)
    exc_info = None  # it refers to this frame
    return _send_whole(head, [answer])


def _with_dictionary(app: WSGIApplication, dictionary: PagesDictionary) -> WSGIApplication:
    """Have the dictionary of pages answered in front of an app."""

    def call(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        is_asked = environ.get("PATH_INFO") == dictionary.url
        if not is_asked or environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return app(environ, start_response)
        compress_response(environ, True)
        start_response("200 OK", dictionary.headers(environ.get("SCRIPT_NAME", "")))
        return [dictionary.content]

    return call

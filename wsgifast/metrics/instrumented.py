"""Record each request of WSGIFast at the end of its response, with a URL pattern.

If the app returns a list or tuple, the request is recorded at once, and the server sends the body
later. For any other body, the request is recorded when the body is closed. The server gets a body
with the same class, len() and file as without metrics.

The URL pattern of a request is the pattern that the framework has matched, such as `/users/<id>`.
The path is not used, because clients can invent any number of paths. An app has few patterns, and
each names a part of the app.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from sys import modules
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..bodies.access_log import CHUNKS, LENGTH_ERROR, PATTERN, SENT_AS
from ..bodies.body import ClosedWith, Segments, Sendable
from ..bodies.classify import classify
from ..bodies.files import CloseAndCall, FileReader, FileSlice, SegmentedBody, close_body
from ..bodies.start_response import AppResponse, Respond
from ..bodies.wrappers import known_file
from ..bodies.writer import ResponseWriter
from ..errors import ClientGone
from .requests import RECORDER, Recorder, Recording, RequestLabels, labels_of_environ

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from .opentelemetry import CurrentSpans

logger = logging.getLogger("wsgifast")
_FLASK, _BOTTLE, _DJANGO = "flask", "bottle", "django.core.handlers.base"
# The modules of the frameworks whose patterns are recorded.
FRAMEWORKS = frozenset({_FLASK, _BOTTLE, _DJANGO})


class Instrumented:
    """Records the requests of a WSGIFast.

    :param recorder: records the requests. The first error that it raises is logged.
    :param spans: sets attributes on the span that is current when a request arrives.
    """

    def __init__(
        self,
        recorder: Recorder | None,
        spans: CurrentSpans | None,
    ) -> None:
        self._spans = spans
        self._recording = Recording(recorder, spans, logger)
        # For requests that have a span, and that the server or another WSGIFast records.
        self._tracing = Recording(None, spans, logger)
        # If the environ's RECORDER is this recorder, the request is already recorded, and is passed
        # on unchanged. None if attributes are set on spans.
        self._recorded_by = recorder if spans is None else None

    def stage(self, respond: Respond) -> Respond:
        """Return a stage that records requests around another stage."""
        return lambda response: self._recorded(respond, response)

    def _recorded(self, respond: Respond, response: AppResponse) -> Iterable[bytes]:
        environ = response.environ
        if RECORDER in environ and environ[RECORDER] is self._recorded_by:
            return respond(response)
        began = perf_counter()
        recording, span = self._recording, None
        recorder = recording.recorder
        if self._spans is not None:
            span = self._spans.current()
            if RECORDER in environ and environ[RECORDER] is recorder:
                recording, recorder = self._tracing, None
            if recorder is None and span is None:
                environ.setdefault(RECORDER, self._spans)
                return respond(response)
        if RECORDER not in environ:
            environ[RECORDER] = recorder or self._spans
        labels = labels_of_environ(environ)
        active = recording.begin(labels)
        try:
            body = respond(response)
        except BaseException:
            _record(recording, labels, active, environ, span, began, 500, 0)
            raise
        kind = type(body)
        if kind is not list and kind is not tuple:
            record = partial(_record, recording, labels, active, environ, span, began)
            return _followed(record, response, body, environ.get("wsgi.file_wrapper"))
        # A copy of _record(), which saves a call.
        recording.end(
            labels,
            active,
            response.code,
            environ[PATTERN] if PATTERN in environ else None,  # noqa: SIM401 - get() is a call
            environ[SENT_AS],
            began,
            perf_counter(),
            response.length or 0,  # always known for lists and tuples
            environ[LENGTH_ERROR] if LENGTH_ERROR in environ else None,  # noqa: SIM401
            False,
            span,
            None if span is None else environ.get(CHUNKS),
        )
        return body


def _record(
    recording: Recording,
    labels: RequestLabels,
    active: list[None] | None,
    environ: WSGIEnvironment,
    span: object | None,
    began: float,
    status: int,
    size: int,
    left: bool = False,
) -> None:
    """Record a request at the end of its response.

    :param size: the bytes of the body.
    :param left: whether the client left before the end.
    """
    recording.end(
        labels,
        active,
        status,
        environ.get(PATTERN),
        environ.get(SENT_AS, ""),
        began,
        perf_counter(),
        size,
        environ.get(LENGTH_ERROR),
        left,
        span,
        environ.get(CHUNKS),
    )


def _followed(
    record: Callable[[int, int, bool], None], response: AppResponse, body: Any, wrapper: Any
) -> Iterable[bytes]:
    """Return the body with a close() that records the request.

    :param wrapper: the server's wsgi.file_wrapper.
    """
    is_recorded = False

    def end(size: int, *, left: bool = False) -> None:
        """Record the request, but only once, although a body may be closed more than once."""
        nonlocal is_recorded
        if not is_recorded:
            is_recorded = True
            # A lazy app that was never iterated has no status.
            record(response.code or 500, size, left)

    kind = type(body)
    if kind is ClosedWith and type(body.blocks) in (list, tuple):
        size = sum(map(len, body.blocks))
        return ClosedWith(body.blocks, CloseAndCall(body, partial(end, size)))
    if kind is SegmentedBody:
        size = Segments(body, body).length or 0
        return SegmentedBody(body.segments, CloseAndCall(body, partial(end, size)).close)
    file = body if kind is FileReader else known_file(body)
    passed: Iterable[bytes] = body
    if isinstance(file, FileSlice):
        file.after_close(partial(end, file.rest().size))
        return passed
    if isinstance(file, FileReader):
        # The server reads the file while it sends it.
        file.after_close(lambda: end(file.sent))
        return passed
    if isinstance(wrapper, type) and isinstance(body, wrapper):
        end(0)  # a file of the app, which the server sends
        return passed
    return _Body(end, body)


class _Body(Sendable):
    """A body whose bytes are counted while it is sent."""

    def __init__(self, end: Callable[..., None], body: Iterable[bytes]) -> None:
        self._end = end
        self._body = body
        self._size = 0
        self._left = False  # whether the body was not sent completely, without an error of the app

    def __iter__(self) -> Iterator[bytes]:
        self._left = True
        try:
            for chunk in self._body:
                self._size += len(chunk)
                yield chunk
        except BaseException as error:
            self._left = isinstance(error, GeneratorExit)
            raise
        self._left = False

    def send_to(self, writer: ResponseWriter) -> None:
        self._left = True
        try:
            classify(self._body).send_to(writer)
        except BaseException as error:
            self._left = isinstance(error, ClientGone)
            raise
        finally:
            self._size = writer.sent
        self._left = False

    def close(self) -> None:
        try:
            close_body(self._body)
        finally:
            self._end(self._size, left=self._left)


def call_noting_pattern(
    app: Callable[..., Any], environ: WSGIEnvironment, start_response: StartResponse
) -> Any:
    """Call a WSGI app, and store the URL pattern of its framework in the environ.

    The framework is looked up at each call, because an app may import it at its first request.
    """
    if _FLASK in modules:
        start_response = partial(_start_noting, environ, start_response)
    body = app(environ, start_response)
    if PATTERN not in environ:
        if _BOTTLE in modules and "bottle.route" in environ:
            environ[PATTERN] = getattr(environ["bottle.route"], "rule", None)
        note_django_pattern(environ, body)
    return body


def _start_noting(
    environ: dict[str, Any],
    start_response: StartResponse,
    status: str,
    headers: list[tuple[str, str]],
    exc_info: OptExcInfo | None = None,
) -> Callable[[bytes], object]:
    """Store Flask's pattern, which is lost when the app returns, and call start_response."""
    request = environ.get("werkzeug.request")
    if request is not None:
        try:
            environ.setdefault(PATTERN, request.url_rule.rule)
        except AttributeError:  # a request of another framework, or without a match
            pass
    if exc_info is None:
        return start_response(status, headers)
    try:
        return start_response(status, headers, exc_info)
    finally:
        exc_info = None  # it refers to this frame


def note_django_pattern(environ: MutableMapping[str, Any], body: Any) -> None:
    """Store the URL pattern that Django has matched, in the environ or the scope.

    Django's response refers to its request, for close(), and the request contains the match.

    :param body: a response of Django, or the file of a FileResponse.
    """
    if PATTERN in environ or _DJANGO not in modules:
        return
    response = body
    if not hasattr(response, "_resource_closers"):
        # A file in the server's wrapper. Django has set the file's close() to that of the response.
        close = getattr(known_file(body), "close", None)
        response = getattr(close, "__self__", None)
    for closer in getattr(response, "_resource_closers", ()):
        match = getattr(getattr(closer, "__self__", None), "resolver_match", None)
        if match is not None:
            environ[PATTERN] = match.route
            return

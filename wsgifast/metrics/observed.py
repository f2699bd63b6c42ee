"""Observed: what happens to a request under WSGIFast, told to a recorder at its end.

A body that is there as a whole ends when the app returns it: what the server sends afterwards is
the server's to tell. Any other body ends when it is closed. Whatever the server knows a body by,
its class, its len() and its file, is left as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..bodies.files import FileReader, FileSlice, SegmentedBody
from ..bodies.held_head import HeldHead
from ..bodies.streams import ClosedWith, close_body
from ..bodies.wrappers import known_file
from ..routes import CHUNKS, LENGTH_ERROR, ROUTE
from .patterns import wsgi_pattern
from .recorder import RECORDER, Recorder, Spans

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

__all__ = ["HEAD", "Observed"]

logger = logging.getLogger("wsgifast")

# Where WSGIFast leaves the head of the response, if whoever observes it has made room there. It is
# not left there: a head has the server's start_response, which may have the environ.
HEAD = "wsgifast.head"


class Observed:
    """A WSGIFast whose requests are recorded, and which is not changed by it.

    :param app: leaves its :class:`HeldHead` in the environ.
    :param recorder: what it raises is logged, once.
    :param spans: also told of each request, with the span that is current when it comes.
    """

    def __init__(
        self,
        app: Callable[[WSGIEnvironment, StartResponse], Any],
        recorder: Recorder | None,
        spans: Spans | None,
    ) -> None:
        self._app = app
        self._recorder = recorder
        self._spans = spans
        self._has_failed = False

    def answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """As the app's own `__call__`."""
        began = perf_counter()
        recorder, span = self._recorder, None
        if self._spans is not None:
            span = self._spans.current()
        outer = environ.get(RECORDER)
        if outer is None:
            environ[RECORDER] = recorder or self._spans
        elif outer is recorder:
            # A server of ours, or a WSGIFast around this one, does it already.
            recorder = None
        if recorder is None and span is None:
            return self._app(environ, start_response)  # type: ignore[no-any-return]
        environ[HEAD] = None
        try:
            body = self._app(environ, start_response)
        except BaseException:
            self._tell(environ, 500, recorder, span, began, 0)
            raise
        head: HeldHead = environ[HEAD]
        environ[HEAD] = None
        kind = type(body)
        if kind is list or kind is tuple:
            size = len(body[0]) if len(body) == 1 else sum(map(len, body))
            if recorder is None or span is not None or LENGTH_ERROR in environ:
                self._tell(environ, head.code, recorder, span, began, size)
                return body  # type: ignore[no-any-return]
            try:  # most responses: without the call
                recorder.record(
                    environ["REQUEST_METHOD"],
                    environ["wsgi.url_scheme"],
                    head.code,
                    wsgi_pattern(environ),
                    environ.get(ROUTE, ""),
                    perf_counter() - began,
                    size,
                )
            except Exception:  # noqa: BLE001 - whatever a back end does, the response goes out
                self._log_failure()
            return body  # type: ignore[no-any-return]

        def end(size: int, left: bool = False) -> None:
            # Of a lazy app that has never begun there is no status.
            self._tell(environ, head.code or 500, recorder, span, began, size, left=left)

        return _followed(_Request(end), body, environ.get("wsgi.file_wrapper"))

    def _tell(
        self,
        environ: WSGIEnvironment,
        status: int,
        recorder: Recorder | None,
        span: object | None,
        began: float,
        size: int,
        *,
        left: bool = False,
    ) -> None:
        """Tell of a request that has ended."""
        try:
            if span is not None and self._spans is not None:
                self._spans.describe(
                    span,
                    pattern=wsgi_pattern(environ),
                    route=environ.get(ROUTE),
                    chunks=environ.get(CHUNKS),
                    size=size,
                    length_error=environ.get(LENGTH_ERROR),
                    left=left,
                )
            if recorder is None:
                return
            recorder.record(
                environ["REQUEST_METHOD"],
                environ["wsgi.url_scheme"],
                status,
                wsgi_pattern(environ),
                environ.get(ROUTE, ""),
                perf_counter() - began,
                size,
            )
            if LENGTH_ERROR in environ:
                recorder.count_length_error(environ[LENGTH_ERROR])
            if left:
                recorder.count_client_left()
        except Exception:  # noqa: BLE001 - the same
            self._log_failure()

    def _log_failure(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.exception("Metrics have failed, and are told of no more than this once")


class _Request:
    """Ends once, whatever closes its body, and how often."""

    def __init__(self, end: Callable[[int, bool], object]) -> None:
        self._end: Callable[[int, bool], object] | None = end

    def end(self, size: int, *, left: bool = False) -> None:
        """The response has ended.

        :param size: bytes of its body.
        :param left: the client has left before.
        """
        end, self._end = self._end, None
        if end is not None:
            end(size, left)


def _followed(request: _Request, body: Any, wrapper: Any) -> Iterable[bytes]:
    """A body that ends its request when it is closed.

    :param wrapper: the server's, for files.
    """
    kind = type(body)
    if kind is ClosedWith and type(body.blocks) in (list, tuple):
        size = sum(map(len, body.blocks))
        return ClosedWith(body.blocks, _End(request, body, size))
    if kind is SegmentedBody:
        size = sum(len(s) if isinstance(s, bytes) else s.size for s in body.segments)
        return SegmentedBody(body.segments, _End(request, body, size).close)
    file = body if kind is FileReader else known_file(body)
    passed: Iterable[bytes] = body
    if isinstance(file, FileSlice):
        file.also_close(_End(request, None, file.rest().size))
        return passed
    if isinstance(file, FileReader):
        file.also_close(_EndOfReader(request, file))
        return passed
    if isinstance(wrapper, type) and isinstance(body, wrapper):
        request.end(0)  # a file of the app's own, which the server sends
        return passed
    if hasattr(body, "__len__"):
        return _SizedBody(request, body)
    return _Body(request, body)


class _End:
    """Ends a request of a body whose size is known when it is closed."""

    def __init__(self, request: _Request, body: Any, size: int) -> None:
        self._request = request
        self._body = body
        self._size = size

    def close(self) -> None:
        try:
            close_body(self._body)
        finally:
            self._request.end(self._size)


class _EndOfReader:
    """The same for what is read as it is sent."""

    def __init__(self, request: _Request, reader: FileReader) -> None:
        self._request = request
        self._reader = reader

    def close(self) -> None:
        self._request.end(self._reader.sent)


class _Body:
    """A body of which each chunk is counted; not to the end, if the client leaves before."""

    def __init__(self, request: _Request, body: Iterable[bytes]) -> None:
        self._request = request
        self._body = body
        self._size = 0
        self._begun = self._over = False

    def __iter__(self) -> Iterator[bytes]:
        self._begun = True
        try:
            for chunk in self._body:
                self._size += len(chunk)
                yield chunk
        except GeneratorExit:
            raise
        except BaseException:
            self._over = True
            raise
        self._over = True

    def close(self) -> None:
        try:
            close_body(self._body)
        finally:
            self._request.end(self._size, left=self._begun and not self._over)


class _SizedBody(_Body):
    """The same, where the server may ask for the number of chunks."""

    def __len__(self) -> int:
        return len(self._body)  # type: ignore[arg-type]

"""Observed: what happens to a request under WSGIFast, told to a recorder at its end.

A body that is there as a whole ends when the app returns it: what the server sends afterwards is
the server's to tell. Any other body ends when it is closed. Whatever the server knows a body by,
its class, its len() and its file, is left as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from sys import modules
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..bodies.files import FileReader, FileSlice
from ..bodies.held_head import HeldHead
from ..bodies.segments import SegmentedBody
from ..bodies.streams import ClosedWith, close_body
from ..bodies.wrappers import known_file
from ..routes import CHUNKS, LENGTH_ERROR, ROUTE
from .failures import Failures
from .patterns import BOTTLE, PATTERN, wsgi_pattern
from .recorder import RECORDER, Recorder, Spans
from .tally import NOTED_TOGETHER, Tally

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

__all__ = ["Observed"]

logger = logging.getLogger("wsgifast")


class Observed:
    """A WSGIFast whose requests are recorded, and which is not changed by it.

    :param call: WSGIFast's own, which takes the head of the response.
    :param app: the one in it.
    :param recorder: what it raises is logged, once.
    :param spans: also told of each request, with the span that is current when it comes.
    :ivar told_by: the recorder that is told of a request without our help where the environ's
        RECORDER says that it is; None if there is something left to do then.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        app: object,
        recorder: Recorder | None,
        spans: Spans | None,
    ) -> None:
        self._call = call
        self._app = app
        self._recorder = recorder
        self._spans = spans
        self.told_by = recorder if spans is None else None
        # Where most requests are noted without a call.
        self._tally = recorder if isinstance(recorder, Tally) else None
        self._failures = Failures(logger)

    def answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """As the app's own `__call__`."""
        began = monotonic()
        recorder, tally, span = self._recorder, self._tally, None
        if self._spans is not None:
            span = self._spans.current()
            if RECORDER in environ and environ[RECORDER] is recorder:
                recorder = tally = None
            if recorder is None and span is None:
                environ.setdefault(RECORDER, self._spans)
                return self._call(environ, start_response)  # type: ignore[no-any-return]
        if RECORDER not in environ:
            environ[RECORDER] = recorder or self._spans
        method, scheme = environ["REQUEST_METHOD"], environ["wsgi.url_scheme"]
        if tally is not None:
            tally.begun.append((method, scheme))
        elif recorder is not None:
            self._begin(recorder, method, scheme)
        head = HeldHead(self._app, method, start_response)
        try:
            body = self._call(environ, start_response, _head=head)
        except BaseException:
            self._tell(environ, 500, recorder, span, began, 0)
            raise
        kind = type(body)
        if kind is list or kind is tuple:
            size = head.length or 0  # it is always known of these
            if tally is None or span is not None or LENGTH_ERROR in environ:
                self._tell(environ, head.code, recorder, span, began, size)
                return body  # type: ignore[no-any-return]
            pattern = environ.get(PATTERN)
            if pattern is None and BOTTLE in modules:
                pattern = wsgi_pattern(environ)
            try:
                noted = tally.notes[method, scheme, head.code, pattern, environ[ROUTE]]
                noted += (monotonic() - began, size)
                if len(noted) >= NOTED_TOGETHER or len(tally.begun) >= NOTED_TOGETHER:
                    tally.count()
            except Exception:  # noqa: BLE001 - whatever a back end does, the response goes out
                self._failures.tell()
            return body  # type: ignore[no-any-return]

        return self._follow(environ, head, body, recorder, span, began)

    def _follow(
        self,
        environ: WSGIEnvironment,
        head: HeldHead,
        body: Any,
        recorder: Recorder | None,
        span: object | None,
        began: float,
    ) -> Iterable[bytes]:
        """A body that tells when it has ended."""

        def end(size: int, left: bool = False) -> None:
            # Of a lazy app that has never begun there is no status.
            self._tell(environ, head.code or 500, recorder, span, began, size, left=left)

        return _followed(_Request(end), body, environ.get("wsgi.file_wrapper"))

    def _begin(self, recorder: Recorder, method: str, scheme: str) -> None:
        try:
            recorder.begin(method, scheme)
        except Exception:  # noqa: BLE001 - whatever a back end does, the response goes out
            self._failures.tell()

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
                monotonic() - began,
                size,
            )
            if LENGTH_ERROR in environ:
                recorder.count_length_error(environ[LENGTH_ERROR])
            if left:
                recorder.count_client_left()
        except Exception:  # noqa: BLE001 - the same
            self._failures.tell()


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

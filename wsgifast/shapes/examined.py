"""Examine the shapes of a share of an app's responses."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..bodies.classify import HELD_WHOLE, STREAM, WHOLE, classify
from ..bodies.files import close_body
from ..bodies.streams import is_event_stream
from ..metrics.patterns import PATTERN, call_noting_pattern
from .reports import EXAMINED_CHUNKS, Reports
from .rule import BodySeen, Chunks

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class Examined:
    """Stands between WSGIFast and its app.

    Bodies are passed on as they are, except for the iterators that are examined: they are wrapped
    in another iterator, which yields the same chunks at the same time.
    """

    def __init__(self, app: WSGIApplication, reports: Reports) -> None:
        self._app = app
        self._reports = reports

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not self._reports.picks():
            return self._app(environ, start_response)
        headers: list[tuple[str, str]] = []

        def start(
            status: str, fields: list[tuple[str, str]], exc_info: OptExcInfo | None = None
        ) -> Any:
            fields = list(fields)
            headers[:] = fields
            try:
                return start_response(status, fields, exc_info)
            finally:
                exc_info = None  # it holds this frame

        def report(kind: Any, chunks: Chunks, count: int) -> None:
            self._reports.report(
                environ.get("REQUEST_METHOD", "GET"),
                environ.get(PATTERN),
                environ.get("PATH_INFO", ""),
                BodySeen(chunks, kind, is_event_stream(headers)),
                count,
            )

        body: Any = call_noting_pattern(self._app, environ, start)
        shape, held = classify(body, environ.get("wsgi.file_wrapper"))
        if shape is WHOLE or shape is HELD_WHOLE:
            # If it is an iterator over a list, a copy is consumed.
            listed = held if isinstance(held, (list, tuple)) else list(copy.copy(held))
            sizes = [_size(chunk) for chunk in listed[:EXAMINED_CHUNKS]]
            report("list", Chunks(sizes), len(listed))
        elif shape is STREAM and not hasattr(body, "__len__"):
            return _Watched(body, report)
        return body  # type: ignore[no-any-return]


class _Watched:
    """An app's iterator, whose chunks are measured as they pass."""

    def __init__(self, body: Iterable[Any], report: Callable[[str, Chunks, int], None]) -> None:
        self._body = body
        self._report = report
        self._chunks = Chunks()
        self._count = 0

    def __iter__(self) -> Iterator[Any]:
        seen = self._chunks
        before = time.perf_counter()
        for chunk in self._body:
            if chunk:  # not an empty one
                if self._count < EXAMINED_CHUNKS:
                    seen.add(_size(chunk), time.perf_counter() - before)
                self._count += 1
            yield chunk
            before = time.perf_counter()  # without the time that the server took to send the chunk

    def close(self) -> None:
        try:
            close_body(self._body)
        finally:
            self._report("iterator", self._chunks, self._count)


def _size(chunk: Any) -> int:
    return len(chunk) if hasattr(chunk, "__len__") else 0

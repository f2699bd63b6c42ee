"""Recognizes bodies with a slow shape, such as many small chunks, for the doctor and the log.

:func:`slow_shape` is a pure function of the observations of a body. It returns ids of the doctor's
findings, which wsgifast/commands/doctor/findings.md describes. With `report_slow_shapes`,
:class:`Examined` measures a share of an app's responses, and :class:`Reports` logs the findings.
"""

from __future__ import annotations

import copy
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ..checks import is_number, size_text
from ..errors import ConfigurationError
from .access_log import PATTERN, stream_kind
from .body import ClosedWith, Stream, Whole
from .chunks import is_event_stream
from .classify import classify
from .files import ClosedThen

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# An app that takes longer than this for its next chunk has paused: its stream is deliberate.
PAUSE_S = 0.005
# If a body has fewer or larger chunks, the server needs less time to send them than the app to make
# them.
_MANY_CHUNKS = 16
_SMALL_CHUNK_BYTES = 4096
# A file in blocks of this size or less costs more per block than per byte.
_SMALL_BLOCK_BYTES = 128 * 1024
# A file of this size or more that an app reads into memory is a finding.
_LARGE_BYTES = 16 * 1024 * 1024
logger = logging.getLogger("wsgifast")

# How many chunks of a response are measured in production, and by the doctor. The others are only
# counted.
EXAMINED_CHUNKS: Final = 200
MEASURED_CHUNKS: Final = 1_000_000
# At most one finding of an endpoint is logged in this time.
_EVERY_S = 3600.0
# Endpoints that are remembered. Beyond them no finding is logged until one is forgotten.
_MOST_ENDPOINTS = 1000


@dataclass
class Chunks:
    """The chunks of a body, or the body messages of an ASGI response.

    :ivar sizes: the number of bytes of each chunk.
    :ivar waits_s: the seconds that the app needed for each chunk.
    :ivar most: further ones are only counted, in `passed`.
    """

    sizes: list[int] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    most: int = MEASURED_CHUNKS
    passed: int = 0

    def add(self, size: int, wait_s: float = 0.0) -> None:
        self.passed += 1
        if len(self.sizes) < self.most:
            self.sizes.append(size)
            self.waits_s.append(wait_s)

    @property
    def count(self) -> int:
        return len(self.sizes)

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def median(self) -> float:
        return median(self.sizes) if self.sizes else 0.0

    @property
    def pauses(self) -> int:
        """The number of chunks before which the app paused."""
        return sum(wait > PAUSE_S for wait in self.waits_s[1:])


BodyKind = Literal["list", "iterator", "file", "wrapped-file", "messages"]


class BodySeen(NamedTuple):
    """An app's body, as it was before any repair.

    :ivar kind: a list or tuple, an iterator, a file that the server reads, a file in a wrapper that
        no server recognises, or ASGI messages.
    :ivar is_events: whether its Content-Type is that of an event stream.
    :ivar file_bytes: the size of the file that the body comes from. None if there is none.
    """

    chunks: Chunks
    kind: BodyKind
    is_events: bool = False
    file_bytes: int | None = None


_OF_SMALL_CHUNKS = {"list": "WF001", "messages": "WF030"}


def slow_shape(seen: BodySeen) -> str | None:
    """Return the id of the finding about a body's shape, or None."""
    chunks = seen.chunks
    # A file's pauses come from the disk, or a busy machine.
    has_pauses = chunks.pauses * 4 > chunks.count and seen.file_bytes is None
    if has_pauses or seen.is_events:
        return "WF023" if chunks.count > 1 else None
    if seen.kind == "wrapped-file" or (seen.kind == "file" and chunks.count > 1):
        return "WF007"
    if seen.file_bytes is not None:
        if chunks.count > 1 and seen.kind == "messages":
            return "WF031"
        if chunks.count > 1 and chunks.median <= _SMALL_BLOCK_BYTES:
            return "WF008"
        if chunks.count <= 1:
            return "WF009" if seen.file_bytes >= _LARGE_BYTES else None
    if is_many_and_small(chunks):
        return _OF_SMALL_CHUNKS.get(seen.kind, "WF003")
    return None


def is_many_and_small(chunks: Chunks) -> bool:
    """Return whether there are many chunks, and their median is small."""
    return chunks.count >= _MANY_CHUNKS and chunks.median < _SMALL_CHUNK_BYTES


def check_rate(rate: object) -> None:
    """:raises ConfigurationError: if `rate` is not a share of the responses."""
    if not is_number(rate, least=0, most=1):
        raise ConfigurationError(
            f"report_slow_shapes={rate!r}: expected a share of the responses, from 0 (none) to 1, "
            "such as 0.01 for one in a hundred"
        )


class Reports:
    """Chooses the responses to examine, and logs findings, rarely.

    :param rate: the share of the responses, from 0 to 1.
    :param fixed: the findings that the middleware corrects: they are logged as INFO, the others as
        WARNING.
    """

    def __init__(self, rate: float, *, fixed: frozenset[str]) -> None:
        self._rate = rate
        self._fixed = fixed
        self._lock = threading.Lock()
        # When each endpoint had its last finding, oldest first.
        self._reported: dict[str, float] = {}

    def picks(self) -> bool:
        """Return whether to examine the current response, at random."""
        return random.random() < self._rate

    def report(self, method: str, pattern: str | None, path: str, seen: BodySeen) -> None:
        """Log why a body is slow, unless its endpoint has had a finding lately.

        :param pattern: the framework's URL pattern. None if there is none.
        :param path: as the client sent it.
        :param seen: the body's first chunks. It is not known here whether they come from a file. A
            body of blocks of one round size counts as a file.
        """
        if seen.kind != "list" and _looks_like_a_file(seen.chunks):
            seen = seen._replace(file_bytes=seen.chunks.total)
        id_ = slow_shape(seen)
        if id_ is None or id_ == "WF023":  # event streams need no change
            return
        endpoint = pattern or "a URL without a pattern"
        if not self._is_due(endpoint):
            return
        logger.log(
            logging.INFO if id_ in self._fixed else logging.WARNING,
            # The client's texts have no control characters, and 80 characters at most.
            "%s: %s (%.80a %.80a) returns %d chunks (%s), median %s; wsgifast doctor --explain %s "
            "says more",
            id_,
            endpoint,
            method,
            path,
            seen.chunks.passed,
            seen.kind,
            size_text(seen.chunks.median),
            id_,
        )

    def _is_due(self, endpoint: str) -> bool:
        now = time.monotonic()
        reported = self._reported
        with self._lock:
            while reported and now - next(iter(reported.values())) >= _EVERY_S:
                del reported[next(iter(reported))]
            if endpoint in reported or len(reported) >= _MOST_ENDPOINTS:
                return False
            reported[endpoint] = now
        return True


def _looks_like_a_file(chunks: Chunks) -> bool:
    sizes = chunks.sizes
    return len(sizes) > 1 and stream_kind(len(sizes), sizes[0], chunks.total) == "stream-blocks"


class Examined:
    """Stands between WSGIFast and its app.

    Bodies are passed on as they are, except for the iterators that are examined: they are wrapped
    in another iterator, which yields the same chunks at the same time.

    :param call: calls the app, and puts its URL pattern into the environ if that is known.
    """

    def __init__(self, app: WSGIApplication, reports: Reports, call: Callable[..., Any]) -> None:
        self._app = app
        self._reports = reports
        self._call = call

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
                exc_info = None  # it refers to this frame

        chunks = Chunks(most=EXAMINED_CHUNKS)

        def report(kind: BodyKind) -> None:
            self._reports.report(
                environ.get("REQUEST_METHOD", "GET"),
                environ.get(PATTERN),
                environ.get("PATH_INFO", ""),
                BodySeen(chunks, kind, is_event_stream(headers)),
            )

        body: Any = self._call(self._app, environ, start)
        found = classify(body, environ.get("wsgi.file_wrapper"))
        if isinstance(found, Whole):
            inner = found.content
            # If it is an iterator over a list, a copy is consumed.
            listed = inner if isinstance(inner, (list, tuple)) else list(copy.copy(inner))
            for chunk in listed[:EXAMINED_CHUNKS]:
                chunks.add(_size(chunk))
            chunks.passed = len(listed)
            report("list")
        elif isinstance(found, Stream) and not hasattr(body, "__len__"):
            closed = ClosedThen(body, lambda: report("iterator"))
            return ClosedWith(_watched(body, chunks), closed)
        return body  # type: ignore[no-any-return]


def _watched(body: Iterable[Any], chunks: Chunks) -> Iterator[Any]:
    """An app's iterator. Its chunks are measured as they pass."""
    before = time.perf_counter()
    for chunk in body:
        if chunk:  # not an empty one
            chunks.add(_size(chunk), time.perf_counter() - before)
        yield chunk
        before = time.perf_counter()  # without the time that the server took to send the chunk


def _size(chunk: Any) -> int:
    return len(chunk) if hasattr(chunk, "__len__") else 0

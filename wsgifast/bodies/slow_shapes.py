"""Recognizes bodies with a slow shape, such as many small chunks, for the doctor and the log.

:func:`slow_shape` is a pure function of the measured chunks of a body. It returns the id of a
finding of the doctor. wsgifast/commands/doctor/findings.md describes the findings. With the option
`report_slow_shapes`, :class:`ExaminedApp` measures a share of an app's responses, and
:class:`Reports` logs the findings.
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
from .files import CloseAndCall

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# If an app takes longer than this for its next chunk, it has paused. It sends chunks on purpose.
PAUSE_S = 0.005
# If a body has fewer or larger chunks, sending them takes less time than making them.
_MANY_CHUNKS = 16
_SMALL_CHUNK_BYTES = 4096
# If an app sends a file in blocks of this size or less, each block costs more than its bytes.
_SMALL_BLOCK_BYTES = 128 * 1024
# If an app reads a file of this size or more into memory, this is a finding.
_LARGE_BYTES = 16 * 1024 * 1024
logger = logging.getLogger("wsgifast")

# How many chunks of a response are measured in production, and by the doctor. Further chunks are
# only counted.
EXAMINED_CHUNKS: Final = 200
MEASURED_CHUNKS: Final = 1_000_000
# After a finding, no further finding of the same endpoint is logged for this time.
_EVERY_S = 3600.0
# The most endpoints whose last finding is stored. At this number, findings of further endpoints are
# not logged until an old entry is removed.
_MOST_ENDPOINTS = 1000


@dataclass
class Chunks:
    """The chunks of a body, or the body messages of an ASGI response.

    :ivar sizes: the number of bytes of each measured chunk.
    :ivar waits_s: the seconds that the app needed for each measured chunk.
    :ivar most: the most chunks to measure.
    :ivar all_count: the number of all chunks, with those that were not measured.
    """

    sizes: list[int] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    most: int = MEASURED_CHUNKS
    all_count: int = 0

    def add(self, size: int, wait_s: float = 0.0) -> None:
        self.all_count += 1
        if len(self.sizes) < self.most:
            self.sizes.append(size)
            self.waits_s.append(wait_s)

    @property
    def count(self) -> int:
        """The number of measured chunks."""
        return len(self.sizes)

    @property
    def total(self) -> int:
        """The number of bytes of the measured chunks."""
        return sum(self.sizes)

    @property
    def median(self) -> float:
        """The median size of the measured chunks, in bytes."""
        return median(self.sizes) if self.sizes else 0.0

    @property
    def pauses(self) -> int:
        """The number of pauses of the app between two chunks."""
        return sum(wait > PAUSE_S for wait in self.waits_s[1:])


BodyKind = Literal["list", "iterator", "file", "wrapped-file", "messages"]


class BodySeen(NamedTuple):
    """The measured body of an app, before wsgifast changes it.

    :ivar kind: "list" for a list or tuple, "iterator", "file" for a file that the server reads,
        "wrapped-file" for a file in a wrapper that servers do not know, or "messages" of ASGI.
    :ivar is_events: whether the headers are those of an event stream.
    :ivar file_bytes: the size of the file from which the app made the body. None if the body does
        not come from a file.
    """

    chunks: Chunks
    kind: BodyKind
    is_events: bool = False
    file_bytes: int | None = None


_SMALL_CHUNKS_FINDINGS = {"list": "WF001", "messages": "WF030"}


def slow_shape(seen: BodySeen) -> str | None:
    """Return the id of the finding about the shape of a body. None if there is no finding."""
    chunks = seen.chunks
    # Pauses between the chunks of a file come from the disk or from a busy machine.
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
        return _SMALL_CHUNKS_FINDINGS.get(seen.kind, "WF003")
    return None


def is_many_and_small(chunks: Chunks) -> bool:
    """Return whether there are many chunks, and their median size is small."""
    return chunks.count >= _MANY_CHUNKS and chunks.median < _SMALL_CHUNK_BYTES


def check_rate(rate: object) -> None:
    """:raises ConfigurationError: if `rate` is not a share of the responses."""
    if not is_number(rate, least=0, most=1):
        raise ConfigurationError(
            f"report_slow_shapes={rate!r}: expected a share of the responses, from 0 (none) to 1, "
            "such as 0.01 for one in a hundred"
        )


class Reports:
    """Chooses the responses to examine, and logs findings.

    :param rate: the share of the responses, from 0 to 1.
    :param fixed: the ids of findings that the middleware corrects. They are logged as INFO, and
        other findings as WARNING.
    """

    def __init__(self, rate: float, *, fixed: frozenset[str]) -> None:
        self._rate = rate
        self._fixed = fixed
        self._lock = threading.Lock()
        # The time of the last finding of each endpoint, oldest first.
        self._reported: dict[str, float] = {}

    def picks(self) -> bool:
        """Return whether to examine the current response. The choice is random."""
        return random.random() < self._rate

    def report(self, method: str, pattern: str | None, path: str, seen: BodySeen) -> None:
        """Log why a body is slow, at most once an hour for each endpoint.

        :param pattern: the URL pattern of the framework. None if it is not known.
        :param path: the path of the request, as the client sent it.
        :param seen: the measured body, without `file_bytes`. If the chunks have one round size, the
            body counts as a file.
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
            # %.80a escapes control characters of the client, and shortens its text.
            "%s: %s (%.80a %.80a) returns %d chunks (%s), median %s; wsgifast doctor --explain %s "
            "says more",
            id_,
            endpoint,
            method,
            path,
            seen.chunks.all_count,
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


class ExaminedApp:
    """A WSGI app that calls another app, and measures a share of its bodies.

    If an examined body is an iterator, it is replaced by an iterator that yields the same chunks
    immediately. Other bodies are returned unchanged.

    :param app: the app to call.
    :param call: a function that calls the app, and stores the URL pattern in the environ.
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
            # The iterator of a list is copied, because the server has to iterate over it, too.
            listed = inner if isinstance(inner, (list, tuple)) else list(copy.copy(inner))
            for chunk in listed[:EXAMINED_CHUNKS]:
                chunks.add(_size(chunk))
            chunks.all_count = len(listed)
            report("list")
        elif isinstance(found, Stream) and not hasattr(body, "__len__"):
            owner = CloseAndCall(body, lambda: report("iterator"))
            return ClosedWith(_measured(body, chunks), owner)
        return body  # type: ignore[no-any-return]


def _measured(body: Iterable[Any], chunks: Chunks) -> Iterator[Any]:
    """Yield the chunks of a body, and measure those that are not empty."""
    before = time.perf_counter()
    for chunk in body:
        if chunk:
            chunks.add(_size(chunk), time.perf_counter() - before)
        yield chunk
        before = time.perf_counter()  # exclude the time in which the server sent the chunk


def _size(chunk: Any) -> int:
    return len(chunk) if hasattr(chunk, "__len__") else 0

"""The tally of requests: noted as they end, and counted when many are, or somebody asks."""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from .catalogue import CATALOGUE, OTHER, UNKNOWN
from .points import Distribution, Point, point, points_of
from .recorder import LengthError

__all__ = ["NOTED_TOGETHER", "Labels", "Tally", "known_method", "known_scheme"]

# RFC 9110 section 9, and PATCH (RFC 5789): those that OpenTelemetry's conventions know.
_METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
_SCHEMES = frozenset({"http", "https"})
# Distinct URL patterns, and series (patterns by method, status and route): a framework that makes
# its patterns of requests must not fill the memory, nor the scraper's.
_MOST_PATTERNS = 500
_MOST_SERIES = 5000
# Distinct labels as they come, before what is beyond those limits is put together.
_MOST_LABELS = 1000
# So many numbers of requests with the same labels, two of each, are counted together. More would
# fall out of the processor's caches meanwhile.
NOTED_TOGETHER = 1000

_DURATION = CATALOGUE["http_server_request_duration_seconds"]
_SIZE = CATALOGUE["http_server_response_body_size_bytes"]
_ACTIVE = CATALOGUE["http_server_active_requests"]
# Routes on which a slow or wrong shape was mended.
_REPAIRED = frozenset({"rescued", "joined", "coalesced"})

# A request's method, scheme, status, pattern and route.
Labels = tuple[str, str, int, str | None, str]
# A method and a scheme.
_Kind = tuple[str, str]
_T = TypeVar("_T")


class Tally:
    """Counts requests; any thread may record.

    Theory of operation. Among a request's own code, which the processor has not seen for a while,
    each step of ours costs several times what it does in a loop. So of a request only two numbers
    are noted, with those of others that have the same labels, and many are counted together: when
    there are :data:`NOTED_TOGETHER`, and when somebody asks. Nothing is told before it is counted.

    Whoever observes many requests may note them by itself, which spares two calls for each. It
    takes no lock: CPython hands the interpreter to nobody while a list is extended by a tuple.

    :param on_new: called where requests have labels that no request had before.
    :ivar begun: of each request that has begun, since the last count, its method and scheme.
    :ivar notes: by the labels of requests, of each that has ended the seconds and, behind them, the
        bytes of its body. Whoever adds to a list calls :meth:`count` where it, or `begun`, has
        :data:`NOTED_TOGETHER` or more.
    :ivar active: where it is set, the requests that are under way are asked for by it, and nobody
        notes that they begin.
    """

    def __init__(self, on_new: Callable[[], object] | None = None) -> None:
        self._on_new = on_new
        self._lock = threading.Lock()
        self.begun: list[_Kind] = []
        self.notes = _Notes(self)
        # Lists that are not in `notes` any more. Whoever had one then may still add to it.
        self._retired: dict[Labels, list[float]] = {}
        self.active: Callable[[], Iterable[_Kind]] | None = None
        self._series: dict[Labels, _Series] = {}
        # By method and scheme, those that have begun and will be recorded.
        self._expected = Counter[_Kind]()
        self._patterns: set[str] = set()
        self._length_errors = Counter[LengthError]()
        self._clients_left = 0
        _tallies.add(self)

    def begin(self, method: str, scheme: str) -> None:
        self.begun.append((method, scheme))

    def abandon(self, method: str, scheme: str) -> None:
        with self._lock:
            self._expected[known_method(method), known_scheme(scheme)] -= 1

    def record(
        self,
        method: str,
        scheme: str,
        status: int,
        pattern: str | None,
        route: str,
        seconds: float,
        size: int,
    ) -> None:
        noted = self.notes[method, scheme, status, pattern, route]
        noted += (seconds, size)
        if len(noted) >= NOTED_TOGETHER or len(self.begun) >= NOTED_TOGETHER:
            self.count()

    def count_length_error(self, kind: LengthError) -> None:
        with self._lock:
            self._length_errors[kind] += 1

    def count_client_left(self) -> None:
        with self._lock:
            self._clients_left += 1

    def count(self) -> None:
        """Count what was noted."""
        with self._lock:
            self._count_notes()
            self._count_begun()

    def points(self) -> Iterator[Point]:
        """All that was counted; a :data:`~.points.Source`."""
        with self._lock:
            self._count_notes()
            kept = [(key, each.durations(), each.sizes()) for key, each in self._series.items()]
            length_errors: dict[str, int] = dict(self._length_errors.items())
            # Behind those that have ended: never fewer.
            self._count_begun()
            expected = self._expected.copy()
        durations: dict[tuple[str, ...], Distribution] = {}
        sizes: dict[tuple[str, ...], Distribution] = {}
        responses = Counter[tuple[str, str]]()
        repaired = Counter[str]()
        body_bytes = Counter[str]()
        ended = Counter[_Kind]()
        for (method, scheme, status, pattern, route), duration, size in kept:
            labels = (method, scheme, str(status), pattern or UNKNOWN)
            durations[labels] = _sum(durations.get(labels), duration)
            sizes[labels] = _sum(sizes.get(labels), size)
            count = sum(duration.counts)
            ended[method, scheme] += count
            if route:
                responses[route, pattern or UNKNOWN] += count
                body_bytes[route] += int(size.total)
            if route in _REPAIRED:
                repaired[pattern or UNKNOWN] += count
        for metric, distributions in ((_DURATION, durations), (_SIZE, sizes)):
            for request, value in distributions.items():
                yield Point(metric, request, value)
        if self.active is not None:
            active = Counter((known_method(m), known_scheme(s)) for m, s in self.active())
        else:
            active = expected
            active.subtract(ended)
        for kind in {**active, **ended}:
            # More may have ended in a child: of requests that its parent has begun.
            yield Point(_ACTIVE, kind, max(0, active[kind]))
        for (route, pattern), count in responses.items():
            yield point("wsgifast_responses_total", count, route, pattern)
        for route, count in body_bytes.items():
            yield point("wsgifast_response_body_bytes_total", count, route)
        for pattern, count in repaired.items():
            yield point("wsgifast_responses_repaired_total", count, pattern)
        yield from points_of("wsgifast_content_length_errors_total", length_errors)
        yield point("wsgifast_clients_left_total", self._clients_left)

    def _begin_labels(self) -> None:
        """Requests have labels that `notes` does not have."""
        if len(self.notes) >= _MOST_LABELS:
            with self._lock:
                self._count_notes()
                self._retired = {labels: self.notes.pop(labels) for labels in list(self.notes)}
        if self._on_new is not None:
            self._on_new()

    # With the lock.

    def _count_notes(self) -> None:
        for noted_by in (self._retired, dict.copy(self.notes)):  # to which others add meanwhile
            for labels, noted in noted_by.items():
                if taken := _taken(noted):
                    self._series_of(*labels, len(taken) // 2).add(taken[::2], taken[1::2])

    def _count_begun(self) -> None:
        for (method, scheme), count in Counter(_taken(self.begun)).items():
            self._expected[known_method(method), known_scheme(scheme)] += count

    def _series_of(
        self, method: str, scheme: str, status: int, pattern: str | None, route: str, count: int
    ) -> _Series:
        """The series of so many requests, within the limits."""
        method = known_method(method)
        scheme = known_scheme(scheme)
        if pattern is not None and pattern not in self._patterns:
            if len(self._patterns) < _MOST_PATTERNS:
                self._patterns.add(pattern)
            else:
                pattern = OTHER
        key = (method, scheme, status, pattern, route)
        series = self._series.get(key)
        if series is None and len(self._series) >= _MOST_SERIES:
            # They have begun as what they are.
            self._expected[method, scheme] -= count
            self._expected[OTHER, scheme] += count
            key = (OTHER, scheme, status // 100 * 100, OTHER, route)
            series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series()
        return series

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.active = None
        self.begun.clear()
        self.notes.clear()
        self._retired.clear()
        self._series.clear()
        self._expected.clear()
        self._length_errors.clear()
        self._clients_left = 0


class _Notes(dict[Labels, list[float]]):
    """A tally's; no defaultdict, which would put the list of one thread in the place of that of
    another that has come at the same time."""

    def __init__(self, tally: Tally) -> None:
        self._begin = weakref.WeakMethod(tally._begin_labels)

    def __missing__(self, labels: Labels) -> list[float]:
        begin = self._begin()
        if begin is not None:
            begin()
        return self.setdefault(labels, [])


class _Series:
    """What was counted of requests with the same labels."""

    __slots__ = ("_bytes", "_of_durations", "_of_sizes", "_seconds")

    def __init__(self) -> None:
        # By bucket.
        self._of_durations = [0] * (len(_DURATION.bounds) + 1)
        self._of_sizes = [0] * (len(_SIZE.bounds) + 1)
        self._seconds = 0.0
        self._bytes: float = 0

    def add(self, seconds: list[float], sizes: list[float]) -> None:
        """Count requests, by the seconds and the bytes of each."""
        _count_in(self._of_durations, _DURATION.bounds, seconds)
        _count_in(self._of_sizes, _SIZE.bounds, sizes)
        self._seconds += sum(seconds)
        self._bytes += sum(sizes)

    def durations(self) -> Distribution:
        return Distribution(tuple(self._of_durations), self._seconds)

    def sizes(self) -> Distribution:
        return Distribution(tuple(self._of_sizes), self._bytes)


def _count_in(counts: list[int], bounds: Sequence[float], values: list[float]) -> None:
    """Count values in the buckets of a histogram."""
    values.sort()
    begin = 0
    for bucket, bound in enumerate(bounds):
        end = bisect_right(values, bound, begin)
        counts[bucket] += end - begin
        begin = end
        if end == len(values):
            return
    counts[-1] += len(values) - begin


def _taken(noted: list[_T]) -> list[_T]:
    """What was noted, and is no more; others may note meanwhile: behind these."""
    taken = noted[:]
    del noted[: len(taken)]
    return taken


def known_method(method: str) -> str:
    """The method, if it is one of the known ones: clients may send any."""
    return method if method in _METHODS else OTHER


def known_scheme(scheme: str) -> str:
    """The scheme, if it is one of the known ones: a proxy may hand on what a client says."""
    return scheme if scheme in _SCHEMES else OTHER


def _sum(one: Distribution | None, other: Distribution) -> Distribution:
    if one is None:
        return other
    counts = tuple(map(sum, zip(one.counts, other.counts, strict=True)))
    return Distribution(counts, one.total + other.total)


# A worker counts by itself: what its parent has counted is the parent's to tell.
_tallies: weakref.WeakSet[Tally] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for tally in _tallies:
        tally._reset()


os.register_at_fork(after_in_child=_reset_after_fork)

"""The tally of requests: counted until somebody asks."""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator

from .catalogue import CATALOGUE, OTHER, UNKNOWN
from .points import Distribution, Point, point
from .recorder import LengthError

__all__ = ["NOTED_TOGETHER", "Lane", "Tally", "known_method", "known_scheme"]

# RFC 9110 section 9, and PATCH (RFC 5789): those that OpenTelemetry's conventions know.
_METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
_SCHEMES = frozenset({"http", "https"})
# Distinct URL patterns, and series (patterns by method, status and route): a framework that makes
# its patterns of requests must not fill the memory, nor the scraper's.
_MOST_PATTERNS = 500
_MOST_SERIES = 5000
# So many requests of one series are put into their buckets together.
NOTED_TOGETHER = 1024

_DURATION = CATALOGUE["http_server_request_duration_seconds"]
_SIZE = CATALOGUE["http_server_response_body_size_bytes"]
_ACTIVE = CATALOGUE["http_server_active_requests"]
_DURATION_BOUNDS = _DURATION.bounds
_SIZE_BOUNDS = _SIZE.bounds
# Routes on which a slow or wrong shape was mended.
_REPAIRED = frozenset({"rescued", "joined", "coalesced"})


class Tally:
    """Counts requests; any thread may record.

    A request costs a look-up and an addition when it begins, and a look-up and two appends when it
    is recorded. Whoever observes many of them may do that by itself, which spares two calls for
    each: see :class:`Lane`.

    :param on_new: called where requests have labels that no request had before.
    :ivar lanes: by method and scheme.
    """

    def __init__(self, on_new: Callable[[], object] | None = None) -> None:
        self._on_new = on_new
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str, int, str | None, str], _Series] = {}
        self.lanes: dict[tuple[str, str], Lane] = {}
        # Requests that will end in another lane than they began in, or in none.
        self._moved = Counter[tuple[str, str]]()
        self._patterns: set[str] = set()
        self._length_errors = Counter[LengthError]()
        self._clients_left = 0
        _tallies.add(self)

    def begin(self, method: str, scheme: str) -> None:
        lane = self.lanes.get((method, scheme))
        if lane is None:
            lane = self._new_lane(method, scheme)
        lane.begun += 1

    def abandon(self, method: str, scheme: str) -> None:
        with self._lock:
            self._moved[known_method(method), known_scheme(scheme)] -= 1

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
        lane = self.lanes.get((method, scheme))
        noted = None if lane is None else lane.noted.get((status, pattern, route))
        if noted is None or len(noted[0]) >= NOTED_TOGETHER:
            series = self._series_of(method, scheme, status, pattern, route)
            with self._lock:
                series.fold()
            noted = series.noted
        noted[0].append(seconds)
        noted[1].append(size)

    def count_length_error(self, kind: LengthError) -> None:
        with self._lock:
            self._length_errors[kind] += 1

    def count_client_left(self) -> None:
        with self._lock:
            self._clients_left += 1

    def points(self) -> Iterator[Point]:
        """All that was counted; a :data:`~.points.Source`."""
        with self._lock:
            for series in self._series.values():
                series.fold()
            kept = [(key, each.durations, each.size_counts) for key, each in self._series.items()]
            length_errors = dict(self._length_errors)
            moved = self._moved.copy()
            # Behind those that have ended: never fewer.
            begun = {request: lane.begun for request, lane in self.lanes.items()}
        durations: dict[tuple[str, ...], Distribution] = {}
        sizes: dict[tuple[str, ...], Distribution] = {}
        responses = Counter[tuple[str, str]]()
        repaired = Counter[str]()
        body_bytes = Counter[str]()
        ended = Counter[tuple[str, str]]()
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
        for request, count in begun.items():
            # More may have ended in a child: of requests that its parent has begun.
            yield Point(_ACTIVE, request, max(0, count + moved[request] - ended[request]))
        for (route, pattern), count in responses.items():
            yield point("wsgifast_responses_total", count, route, pattern)
        for route, count in body_bytes.items():
            yield point("wsgifast_response_body_bytes_total", count, route)
        for pattern, count in repaired.items():
            yield point("wsgifast_responses_repaired_total", count, pattern)
        for kind, count in length_errors.items():
            yield point("wsgifast_content_length_errors_total", count, kind)
        yield point("wsgifast_clients_left_total", self._clients_left)

    def _new_lane(self, method: str, scheme: str) -> Lane:
        with self._lock:
            key = (known_method(method), known_scheme(scheme))
            return self.lanes.setdefault(key, Lane())

    def _series_of(
        self, method: str, scheme: str, status: int, pattern: str | None, route: str
    ) -> _Series:
        """The series of a request that is not known yet, within the limits."""
        asked = (method, scheme, status, pattern, route)
        with self._lock:
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
                key = (OTHER, scheme, status // 100 * 100, OTHER, route)
                series = self._series.get(key)
                if method != OTHER:
                    self._moved[method, scheme] -= 1
                    self._moved[OTHER, scheme] += 1
                    self.lanes.setdefault((OTHER, scheme), Lane())
            is_new = series is None
            if series is None:
                series = self._series[key] = _Series()
            # A client's own inventions are looked up here each time: they would fill the memory.
            if key == asked:
                lane = self.lanes.setdefault((method, scheme), Lane())
                lane.noted[status, pattern, route] = series.noted
        if is_new and self._on_new is not None:
            self._on_new()
        return series

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._series.clear()
        self.lanes.clear()
        self._moved.clear()
        self._length_errors.clear()
        self._clients_left = 0


class Lane:
    """The requests of one method and scheme.

    What is done here at a request takes no lock: CPython hands the interpreter to another thread
    neither within an addition nor within an append.

    :ivar begun: how many there have been.
    :ivar noted: by status, pattern and route, the seconds and the bytes of those that have ended
        and are in no bucket yet. Where the key is missing, or there are :data:`NOTED_TOGETHER`
        already, :meth:`Tally.record` is to be called.
    """

    __slots__ = ("begun", "noted")

    def __init__(self) -> None:
        self.begun = 0
        self.noted: dict[tuple[int, str | None, str], tuple[list[float], list[int]]] = {}


class _Series:
    """What was counted of requests with the same labels.

    A list's append() is much cheaper than to find a bucket: that is done for many together, under
    the tally's lock.

    :ivar noted: as that of a :class:`Lane`.
    """

    __slots__ = ("durations", "noted", "size_counts")

    def __init__(self) -> None:
        self.noted: tuple[list[float], list[int]] = ([], [])
        self.durations = Distribution((0,) * (len(_DURATION_BOUNDS) + 1), 0.0)
        self.size_counts = Distribution((0,) * (len(_SIZE_BOUNDS) + 1), 0)

    def fold(self) -> None:
        """Put what was appended into its buckets."""
        seconds, sizes = self.noted
        self.durations = _fold(self.durations, _DURATION_BOUNDS, seconds)
        self.size_counts = _fold(self.size_counts, _SIZE_BOUNDS, sizes)


def _fold(
    before: Distribution, bounds: tuple[float, ...], observed: list[float] | list[int]
) -> Distribution:
    # Others may append meanwhile: behind these.
    taken = observed[:]
    if not taken:
        return before
    del observed[: len(taken)]
    taken.sort()
    counts = []
    begin = 0
    for bound in bounds:
        end = bisect_right(taken, bound, begin)
        counts.append(end - begin)
        begin = end
    counts.append(len(taken) - begin)
    return _sum(before, Distribution(tuple(counts), sum(taken)))


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

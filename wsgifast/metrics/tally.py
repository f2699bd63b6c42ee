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

__all__ = ["Tally", "known_method", "known_scheme"]

# RFC 9110 section 9, and PATCH (RFC 5789): those that OpenTelemetry's conventions know.
_METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
_SCHEMES = frozenset({"http", "https"})
# Distinct URL patterns, and series (patterns by method, status and route): a framework that makes
# its patterns of requests must not fill the memory, nor the scraper's.
_MOST_PATTERNS = 500
_MOST_SERIES = 5000
# So many observations of one series are put into their buckets together.
_FOLDED_TOGETHER = 1024

_DURATION = CATALOGUE["http_server_request_duration_seconds"]
_SIZE = CATALOGUE["http_server_response_body_size_bytes"]
_DURATION_BOUNDS = _DURATION.bounds
_SIZE_BOUNDS = _SIZE.bounds
# Routes on which a slow or wrong shape was mended.
_REPAIRED = frozenset({"rescued", "joined", "coalesced"})


class Tally:
    """Counts requests; any thread may record.

    A recorded request costs a look-up and two appends.

    :param on_new: called where requests have labels that no request had before.
    """

    def __init__(self, on_new: Callable[[], object] | None = None) -> None:
        self._on_new = on_new
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str, int, str | None, str], _Series] = {}
        # What a request is looked up by; of one series there may be several.
        self._known: dict[tuple[str, str, int, str | None, str], _Series] = {}
        self._patterns: set[str] = set()
        self._length_errors = Counter[LengthError]()
        self._clients_left = 0
        _tallies.add(self)

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
        series = self._known.get((method, scheme, status, pattern, route))
        if series is None:
            series = self._series_of(method, scheme, status, pattern, route)
        series.add_seconds(seconds)
        series.add_size(size)
        if len(series.sizes) >= _FOLDED_TOGETHER:
            with self._lock:
                series.fold()

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
        durations: dict[tuple[str, ...], Distribution] = {}
        sizes: dict[tuple[str, ...], Distribution] = {}
        responses = Counter[tuple[str, str]]()
        repaired = Counter[str]()
        body_bytes = Counter[str]()
        for (method, scheme, status, pattern, route), duration, size in kept:
            labels = (method, scheme, str(status), pattern or UNKNOWN)
            durations[labels] = _sum(durations.get(labels), duration)
            sizes[labels] = _sum(sizes.get(labels), size)
            count = sum(duration.counts)
            if route:
                responses[route, pattern or UNKNOWN] += count
                body_bytes[route] += int(size.total)
            if route in _REPAIRED:
                repaired[pattern or UNKNOWN] += count
        for metric, distributions in ((_DURATION, durations), (_SIZE, sizes)):
            for request, value in distributions.items():
                yield Point(metric, request, value)
        for (route, pattern), count in responses.items():
            yield point("wsgifast_responses_total", count, route, pattern)
        for route, count in body_bytes.items():
            yield point("wsgifast_response_body_bytes_total", count, route)
        for pattern, count in repaired.items():
            yield point("wsgifast_responses_repaired_total", count, pattern)
        for kind, count in length_errors.items():
            yield point("wsgifast_content_length_errors_total", count, kind)
        yield point("wsgifast_clients_left_total", self._clients_left)

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
            if series is None:
                series = self._series[key] = _Series()
            # A client's own inventions are looked up here each time: they would fill the memory.
            if key == asked:
                self._known[key] = series
        if self._on_new is not None:
            self._on_new()
        return series

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._series.clear()
        self._known.clear()
        self._length_errors.clear()
        self._clients_left = 0


class _Series:
    """What was counted of requests with the same labels.

    A list's append() is atomic, and much cheaper than to find a bucket: that is done for many
    together, under the tally's lock.
    """

    __slots__ = ("add_seconds", "add_size", "durations", "seconds", "size_counts", "sizes")

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.sizes: list[int] = []
        self.add_seconds = self.seconds.append
        self.add_size = self.sizes.append
        self.durations = Distribution((0,) * (len(_DURATION_BOUNDS) + 1), 0.0)
        self.size_counts = Distribution((0,) * (len(_SIZE_BOUNDS) + 1), 0)

    def fold(self) -> None:
        """Put what was appended into its buckets."""
        self.durations = _fold(self.durations, _DURATION_BOUNDS, self.seconds)
        self.size_counts = _fold(self.size_counts, _SIZE_BOUNDS, self.sizes)


def _fold(
    before: Distribution, bounds: tuple[float, ...], observed: list[float] | list[int]
) -> Distribution:
    # Others may append meanwhile: behind these.
    taken = observed[:]
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

"""Metrics of requests: recorded as they end, aggregated in batches."""

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

__all__ = ["BATCH_SIZE", "Labels", "Record", "RequestMetrics", "known_method", "known_scheme"]

# RFC 9110 section 9, and PATCH (RFC 5789): those that OpenTelemetry's conventions know.
_METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
_SCHEMES = frozenset({"http", "https"})
# Distinct URL patterns, and series (patterns by method, status and route): an app that makes its
# patterns from requests must fill neither this memory nor the scraper's.
_MAX_PATTERNS = 500
_MAX_SERIES = 5000
# Records are aggregated in batches of this size. A larger batch would leave the processor's caches.
BATCH_SIZE = 500

_DURATION = CATALOGUE["http_server_request_duration_seconds"]
_SIZE = CATALOGUE["http_server_response_body_size_bytes"]
_ACTIVE = CATALOGUE["http_server_active_requests"]
# Routes on which a slow or wrong body was repaired.
_REPAIRED = frozenset({"rescued", "joined", "coalesced"})

# Method, scheme, status, URL pattern and route.
Labels = tuple[str, str, int, str | None, str]
# Labels, duration in seconds, bytes of the body.
Record = tuple[Labels, float, int]
# Method and scheme.
_Kind = tuple[str, str]
_T = TypeVar("_T")


class RequestMetrics:
    """The metrics of requests; a :class:`~.recorder.Recorder`. Any thread may record and collect.

    Theory of operation. Between a request's own instructions, each of ours misses the processor's
    caches, and costs several times what it does in a loop. So a request only appends one record to
    a list. The records are aggregated in batches: when there are :data:`BATCH_SIZE` of them, and
    before metrics are collected.

    :meth:`record` costs a call. Callers on a hot path append to `records` and `started` themselves
    instead, and call :meth:`aggregate` once a list has `batch_size` items or more. That needs no
    lock: list.append() is atomic.

    :param on_first: called once, by the first request that this process records.
    :ivar records: of requests that have ended, not aggregated yet.
    :ivar started: method and scheme of requests that have started, not aggregated yet.
    :ivar batch_size: how many may wait in a list; 1 until the first request.
    :ivar active: if set, returns the method and scheme of each active request; `started` is not
        used then.
    """

    def __init__(self, on_first: Callable[[], object] | None = None) -> None:
        self._on_first = on_first
        self.records: list[Record] = []
        self.started: list[_Kind] = []
        self._reset()
        _instances.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.batch_size = BATCH_SIZE if self._on_first is None else 1
        self.records.clear()
        self.started.clear()
        self.active: Callable[[], Iterable[_Kind]] | None = None
        self._series: dict[Labels, _Series] = {}
        self._patterns: set[str] = set()
        self._started = Counter[_Kind]()
        self._ended = Counter[_Kind]()
        self._length_errors = Counter[LengthError]()
        self._clients_left = 0

    def begin(self, method: str, scheme: str) -> None:
        self.started.append((method, scheme))

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
        self.records.append(((method, scheme, status, pattern, route), seconds, size))
        if len(self.records) >= self.batch_size or len(self.started) >= self.batch_size:
            self.aggregate()

    def count_length_error(self, kind: LengthError) -> None:
        with self._lock:
            self._length_errors[kind] += 1

    def count_client_left(self) -> None:
        with self._lock:
            self._clients_left += 1

    def aggregate(self) -> None:
        """Aggregate the records that wait."""
        if self.batch_size < BATCH_SIZE:
            self.batch_size = BATCH_SIZE
            if self._on_first is not None:
                self._on_first()
        with self._lock:
            self._aggregate()

    def collect(self) -> Iterator[Point]:
        """The metrics of all requests so far; a :data:`~.points.Collector`."""
        with self._lock:
            self._aggregate()
            series = [(key, each.durations(), each.sizes()) for key, each in self._series.items()]
            length_errors: dict[str, int] = dict(self._length_errors.items())
            started, ended = self._started.copy(), self._ended.copy()
        durations: dict[tuple[str, ...], Distribution] = {}
        sizes: dict[tuple[str, ...], Distribution] = {}
        responses = Counter[tuple[str, str]]()
        repaired = Counter[str]()
        body_bytes = Counter[str]()
        for (method, scheme, status, pattern, route), duration, size in series:
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
        if self.active is not None:
            active = Counter((known_method(m), known_scheme(s)) for m, s in self.active())
        else:
            active = started - ended  # negative in a child, of requests that its parent has started
        for kind in {**active, **started, **ended}:
            yield Point(_ACTIVE, kind, active[kind])
        for (route, pattern), count in responses.items():
            yield point("wsgifast_responses_total", count, route, pattern)
        for route, count in body_bytes.items():
            yield point("wsgifast_response_body_bytes_total", count, route)
        for pattern, count in repaired.items():
            yield point("wsgifast_responses_repaired_total", count, pattern)
        yield from points_of("wsgifast_content_length_errors_total", length_errors)
        yield point("wsgifast_clients_left_total", self._clients_left)

    # With the lock.

    def _aggregate(self) -> None:
        if records := _taken(self.records):
            for labels, (seconds, sizes) in _by_labels(records).items():
                self._ended[known_method(labels[0]), known_scheme(labels[1])] += len(sizes)
                self._series_of(*labels).add(seconds, sizes)
        # After those that have ended, so that none of them is missing here.
        for (method, scheme), count in Counter(_taken(self.started)).items():
            self._started[known_method(method), known_scheme(scheme)] += count

    def _series_of(
        self, method: str, scheme: str, status: int, pattern: str | None, route: str
    ) -> _Series:
        method, scheme = known_method(method), known_scheme(scheme)
        if pattern is not None and pattern not in self._patterns:
            if len(self._patterns) < _MAX_PATTERNS:
                self._patterns.add(pattern)
            else:
                pattern = OTHER
        key = (method, scheme, status, pattern, route)
        if key not in self._series and len(self._series) >= _MAX_SERIES:
            key = (OTHER, scheme, status // 100 * 100, OTHER, route)
        return self._series.setdefault(key, _Series())


class _Series:
    """The durations and sizes of requests with the same labels."""

    __slots__ = ("_bytes", "_duration_counts", "_seconds", "_size_counts")

    def __init__(self) -> None:
        self._duration_counts = [0] * (len(_DURATION.bounds) + 1)
        self._size_counts = [0] * (len(_SIZE.bounds) + 1)
        self._seconds = 0.0
        self._bytes = 0

    def add(self, seconds: Sequence[float], sizes: Sequence[int]) -> None:
        """Add requests, by the seconds and the bytes of each."""
        _count_into(self._duration_counts, _DURATION.bounds, seconds)
        _count_into(self._size_counts, _SIZE.bounds, sizes)
        self._seconds += sum(seconds)
        self._bytes += sum(sizes)

    def durations(self) -> Distribution:
        return Distribution(tuple(self._duration_counts), self._seconds)

    def sizes(self) -> Distribution:
        return Distribution(tuple(self._size_counts), self._bytes)


def _by_labels(records: list[Record]) -> dict[Labels, tuple[Sequence[float], Sequence[int]]]:
    """The seconds and the sizes of records with the same labels."""
    if records[0][0] == records[-1][0]:
        labels, seconds, sizes = zip(*records, strict=True)
        if labels.count(labels[0]) == len(labels):
            return {labels[0]: (seconds, sizes)}
    grouped: dict[Labels, tuple[list[float], list[int]]] = {}
    for key, duration, size in records:
        of_key = grouped.get(key)
        if of_key is None:
            of_key = grouped[key] = ([], [])
        of_key[0].append(duration)
        of_key[1].append(size)
    return grouped  # type: ignore[return-value]


def _count_into(counts: list[int], bounds: Sequence[float], values: Sequence[float]) -> None:
    """Count values into the buckets of a histogram; a bound belongs to its bucket."""
    ordered = sorted(values)
    begin = 0
    for bucket, bound in enumerate(bounds):
        end = bisect_right(ordered, bound, begin)
        counts[bucket] += end - begin
        begin = end
        if end == len(ordered):
            return
    counts[-1] += len(ordered) - begin


def _taken(items: list[_T]) -> list[_T]:
    """Empty a list to which other threads append meanwhile; returns what was in it."""
    taken = items[:]
    del items[: len(taken)]
    return taken


def known_method(method: str) -> str:
    """The method, or OTHER: clients may send any."""
    return method if method in _METHODS else OTHER


def known_scheme(scheme: str) -> str:
    """The scheme, or OTHER: a proxy may pass on what a client says."""
    return scheme if scheme in _SCHEMES else OTHER


def _sum(one: Distribution | None, other: Distribution) -> Distribution:
    if one is None:
        return other
    counts = tuple(map(sum, zip(one.counts, other.counts, strict=True)))
    return Distribution(counts, one.total + other.total)


# A forked worker counts from zero: its parent reports what it has counted by itself.
_instances: weakref.WeakSet[RequestMetrics] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for instance in _instances:
        instance._reset()


os.register_at_fork(after_in_child=_reset_after_fork)

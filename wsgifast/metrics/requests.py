"""Metrics of requests: recorded as they end, aggregated in batches."""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

from .catalogue import CATALOGUE, OTHER, UNKNOWN
from .points import Distribution, Point, point, points_of
from .recorder import LengthError

# RFC 9110 section 9, and PATCH (RFC 5789): those that OpenTelemetry's conventions know.
_METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
_SCHEMES = frozenset({"http", "https"})
# Distinct URL patterns, and series (patterns by method, status and route): an app that makes its
# patterns from requests must fill neither this memory nor the scraper's.
_MAX_PATTERNS = 500
_MAX_SERIES = 5000
# Labels as they were sent that are remembered; others are looked up each time.
_MAX_LABELS = 5000
# Records are aggregated in batches of this size or more: a much larger one would leave the
# processor's caches. The number is looked at this often; at each request would cost more.
_BATCH_SIZE = 250
_LOOK_EVERY_S = 0.01
# This many durations and sizes may wait to be put into buckets. The more there are with the same
# labels, the less it costs for each.
_MAX_UNSORTED = 2000

_DURATION = CATALOGUE["http_server_request_duration_seconds"]
_SIZE = CATALOGUE["http_server_response_body_size_bytes"]
_ACTIVE = CATALOGUE["http_server_active_requests"]
# Routes on which a slow or wrong body was repaired.
_REPAIRED = frozenset({"rescued", "joined", "coalesced"})

# Method, scheme, status, URL pattern and route.
_Labels = tuple[str, str, int, str | None, str]
# Of a record: its labels, duration in seconds, bytes of the body.
_FIELDS = 7
# Method and scheme.
_Kind = tuple[str, str]


class RequestMetrics:
    """The metrics of requests; a :class:`~.recorder.Recorder`. Any thread may record and collect.

    Theory of operation. Between a request's own instructions, each of ours misses the processor's
    caches, and costs several times what it does in a loop. So a request only extends a list by the
    fields of its record; a tuple for each record would have to be made, and looked at by the
    garbage collector. Records are aggregated in batches, and before metrics are collected.

    :meth:`begin` and :meth:`record` cost a call each. Callers on a hot path do themselves what is
    in them. That needs no lock: list.append(), extend() and pop() are atomic.

    :param on_first: called once, by the first request that this process records.
    :ivar records: the fields of requests that have ended, not aggregated yet.
    :ivar look_at: from then on (perf_counter()'s clock) a request has to call :meth:`look`.
    :ivar active: by method and scheme, a list with an item for each active request.
    :ivar under_way: if set, returns the method and scheme of each active request; `active` is not
        used then.
    """

    def __init__(self, on_first: Callable[[], object] | None = None) -> None:
        self._on_first = on_first
        self.records: list[Any] = []
        self._reset()
        _instances.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.look_at = 0.0
        self.records.clear()
        self.active = _Active()
        self.under_way: Callable[[], Iterable[_Kind]] | None = None
        self._series = _SeriesByLabels()
        self._unsorted = 0
        self._length_errors = Counter[LengthError]()
        self._clients_left = 0

    def begin(self, method: str, scheme: str) -> None:
        self.active[method, scheme].append(None)

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
        self.records.extend((method, scheme, status, pattern, route, seconds, size))
        active = self.active[method, scheme]
        if active:  # else its parent process has begun this request
            active.pop()
        now = perf_counter()
        if now > self.look_at:
            self.look(now)

    def look(self, now: float) -> None:
        """Aggregate the records if there are enough of them."""
        is_first = not self.look_at
        self.look_at = now + _LOOK_EVERY_S
        if is_first and self._on_first is not None:
            self._on_first()
        if len(self.records) >= _BATCH_SIZE * _FIELDS:
            with self._lock:
                self._aggregate()

    def count_length_error(self, kind: LengthError) -> None:
        with self._lock:
            self._length_errors[kind] += 1

    def count_client_left(self) -> None:
        with self._lock:
            self._clients_left += 1

    def collect(self) -> Iterator[Point]:
        """The metrics of all requests so far; a :data:`~.points.Collector`."""
        with self._lock:
            self._aggregate()
            self._sort()
            series = [
                (labels, each.durations(), each.sizes())
                for labels, each in self._series.known.items()
            ]
            length_errors: dict[str, int] = dict(self._length_errors.items())
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
        for kind, count in self._active(labels[:2] for labels, _, _ in series):
            yield Point(_ACTIVE, kind, count)
        for (route, pattern), count in responses.items():
            yield point("wsgifast_responses_total", count, route, pattern)
        for route, count in body_bytes.items():
            yield point("wsgifast_response_body_bytes_total", count, route)
        for pattern, count in repaired.items():
            yield point("wsgifast_responses_repaired_total", count, pattern)
        yield from points_of("wsgifast_content_length_errors_total", length_errors)
        yield point("wsgifast_clients_left_total", self._clients_left)

    def _active(self, ended: Iterable[_Kind]) -> Iterable[tuple[_Kind, int]]:
        """How many requests are active of each method and scheme, 0 for others that have ended."""
        if self.under_way is None:
            return [(kind, len(requests)) for kind, requests in self.active.known.items()]
        found = Counter((known_method(m), known_scheme(s)) for m, s in self.under_way())
        return {**dict.fromkeys(ended, 0), **found}.items()

    # With the lock.

    def _aggregate(self) -> None:
        """Give the durations and sizes in the records to the series of their labels."""
        records = self.records
        end = len(records)  # other threads add more meanwhile
        if not end:
            return
        *labels, seconds, sizes = [records[n:end:_FIELDS] for n in range(_FIELDS)]
        del records[:end]
        count = len(sizes)
        if all(values.count(values[0]) == count for values in labels):
            series = self._series[tuple(values[0] for values in labels)]
            series.new_seconds += seconds
            series.new_sizes += sizes
        else:
            found = map(self._series.__getitem__, zip(*labels))  # noqa: B905 - of one length
            for series, duration, size in zip(found, seconds, sizes):  # noqa: B905
                series.new_seconds.append(duration)
                series.new_sizes.append(size)
        self._unsorted += count
        if self._unsorted >= _MAX_UNSORTED:
            self._sort()

    def _sort(self) -> None:
        self._unsorted = 0
        for series in self._series.known.values():
            if series.new_sizes:
                series.sort()


class _Series:
    """The durations and sizes of requests with the same labels.

    :ivar new_seconds: those that are not in their buckets yet.
    :ivar new_sizes: the same of bytes.
    """

    __slots__ = (
        "_bytes", "_duration_counts", "_seconds", "_size_counts", "new_seconds", "new_sizes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.new_seconds: list[float] = []
        self.new_sizes: list[int] = []
        self._duration_counts = [0] * (len(_DURATION.bounds) + 1)
        self._size_counts = [0] * (len(_SIZE.bounds) + 1)
        self._seconds = 0.0
        self._bytes = 0

    def sort(self) -> None:
        """Put what is new into its buckets."""
        self._seconds += sum(self.new_seconds)
        self._bytes += sum(self.new_sizes)
        _count_into(self._duration_counts, _DURATION.bounds, self.new_seconds)
        _count_into(self._size_counts, _SIZE.bounds, self.new_sizes)

    def durations(self) -> Distribution:
        return Distribution(tuple(self._duration_counts), self._seconds)

    def sizes(self) -> Distribution:
        return Distribution(tuple(self._size_counts), self._bytes)


class _SeriesByLabels(dict[Any, _Series]):
    """Series by the labels of records, which may be anything that a client or an app invents.

    :ivar known: by the labels that are shown.
    """

    def __init__(self) -> None:
        self.known: dict[_Labels, _Series] = {}
        self._patterns: set[str] = set()

    def __missing__(self, labels: _Labels) -> _Series:
        method, scheme, status, pattern, route = labels
        method, scheme = known_method(method), known_scheme(scheme)
        if pattern is not None and pattern not in self._patterns:
            if len(self._patterns) < _MAX_PATTERNS:
                self._patterns.add(pattern)
            else:
                pattern = OTHER
        key = (method, scheme, status, pattern, route)
        if key not in self.known and len(self.known) >= _MAX_SERIES:
            key = (OTHER, scheme, status // 100 * 100, OTHER, route)
        series = self.known.setdefault(key, _Series())
        if len(self) < _MAX_LABELS:
            self[labels] = series
        return series


class _Active(dict[_Kind, list[None]]):
    """The active requests by the method and scheme that clients and proxies have sent.

    :ivar known: by those that are shown.
    """

    def __init__(self) -> None:
        self.known: dict[_Kind, list[None]] = {}

    def __missing__(self, kind: _Kind) -> list[None]:
        requests = self.known.setdefault((known_method(kind[0]), known_scheme(kind[1])), [])
        if len(self) < _MAX_LABELS:
            self[kind] = requests
        return requests


def _count_into(counts: list[int], bounds: Sequence[float], values: list[Any]) -> None:
    """Move values into the buckets of a histogram; a bound belongs to its bucket."""
    values.sort()
    begin = 0
    for bucket, bound in enumerate(bounds):
        end = bisect_right(values, bound, begin)
        counts[bucket] += end - begin
        begin = end
        if end == len(values):
            break
    counts[-1] += len(values) - begin
    values.clear()


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

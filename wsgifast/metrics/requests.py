"""Requests: the record of one, its author, and how the records become metrics.

All servers and middleware record by a :class:`Recording`. A new label of a request's metrics has
its name in the catalogue. Its value is made here, in the three functions for the request and in
:class:`Answered`.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol

from ..compression.codings import TOTALS
from .catalogue import CATALOGUE, OTHER, REQUEST_LABELS, UNKNOWN, Metric
from .collecting import Distribution, Failures, Histogram, Point, point, points_of

# The environ's key for the recorder of a request. An inner app does not record the request again,
# and stores the URL pattern.
RECORDER = "wsgifast.recorder"

# RFC 9110 section 9, and PATCH (RFC 5789): those that OpenTelemetry's conventions know.
_METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
_SCHEMES = frozenset({"http", "https"})
# How a slow or wrong body is sent once it is repaired.
_REPAIRING = frozenset({"rescued", "joined", "coalesced"})
# Distinct URL patterns, and series (patterns by method, status and sent_as): an app that makes its
# patterns from requests must fill neither this memory nor the scraper's.
_MAX_PATTERNS = 500
_MAX_SERIES = 5000
# The most labels as clients send them that are cached. Others are looked up each time.
_MAX_LABELS = 5000
# Records are aggregated in batches of this size or more. A much larger batch would leave the
# processor's caches. The number is checked this often, because a check at each request costs more.
_BATCH_SIZE = 250
_LOOK_EVERY_S = 0.01
# This many durations and sizes may wait to be put into buckets. The more there are with the same
# labels, the less it costs for each.
_MAX_UNSORTED = 2000

_DURATION = CATALOGUE["http_server_request_duration_seconds"]
_SIZE = CATALOGUE["http_server_response_body_size_bytes"]
_ACTIVE = CATALOGUE["http_server_active_requests"]
_RESPONSES = CATALOGUE["wsgifast_responses_total"]
_BODY_BYTES = CATALOGUE["wsgifast_response_body_bytes_total"]
_REPAIRED = CATALOGUE["wsgifast_responses_repaired_total"]

LengthError = Literal["short", "long", "corrected"]

# The first fields of a record: those of the request as it came.
RequestLabels = tuple[str, str]


def labels_of_environ(environ: Mapping[str, Any]) -> RequestLabels:
    """Of a WSGI request, before its app may change the environ."""
    return environ.get("REQUEST_METHOD", "GET"), environ.get("wsgi.url_scheme", "http")


def labels_of_scope(scope: Mapping[str, Any]) -> RequestLabels:
    """Of an ASGI request."""
    return scope["method"], scope["scheme"] if "scheme" in scope else "http"  # noqa: SIM401


def labels_of_parsed(req: Any) -> RequestLabels:
    """Of a request of FastWorker's parsers."""
    return req.method, req.scheme


class Answered(NamedTuple):
    """The record of a request whose response has ended.

    :ivar method: as the client sent it.
    :ivar scheme: "http" or "https".
    :ivar status: 500 if the app raised before it started its response.
    :ivar pattern: the framework's URL pattern, or None.
    :ivar sent_as: how the body was sent, or "" if unknown.
    :ivar seconds: from its headers to the end of its response.
    :ivar size: bytes of the body.
    """

    method: str
    scheme: str
    status: int
    pattern: str | None
    sent_as: str
    seconds: float
    size: int

    def known(self) -> Answered:
        """Return labels with OTHER in place of values that clients invent."""
        method = self.method if self.method in _METHODS else OTHER
        scheme = self.scheme if self.scheme in _SCHEMES else OTHER
        return self._replace(method=method, scheme=scheme)


# The same before it is an Answered.
Record = tuple[str, str, int, str | None, str, float, int]


class Recorder(Protocol):
    """An object that records requests, for WSGIFast's option `metrics`.

    Each request is begun once, and then recorded once, perhaps by another thread. If a method
    raises, the error is logged once, and the response is not affected.
    """

    def begin(self, method: str, scheme: str) -> object:
        """A request has reached the app.

        :param method: as the client sent it.
        :param scheme: "http" or "https".
        """

    def record(self, request: Answered, /) -> object:
        """A request has been answered."""

    def count_length_error(self, kind: LengthError) -> object:
        """A body broke its Content-Length."""

    def count_client_left(self) -> object:
        """A client left before it had all of its response."""


class Spans(Protocol):
    """Describes spans. See :class:`~.opentelemetry.CurrentSpans`, which needs a package."""

    def describe(
        self,
        span: Any,
        request: Answered,
        chunks: int | None,
        *,
        length_error: LengthError | None,
        left: bool,
    ) -> None:
        """Set attributes on the span of a request that has been answered."""


class Recording:
    """How servers and middleware have their requests recorded. Any thread may call.

    An error of the recorder is logged once. The response goes out in any case.

    :param recorder: None if requests are recorded elsewhere.
    :param spans: sets attributes on the spans that :meth:`end` is given.
    :param log: a logger.
    """

    def __init__(self, recorder: Recorder | None, spans: Spans | None, log: Any) -> None:
        self.recorder = recorder
        self._spans = spans
        self._failures = Failures(log)
        # Not a subclass: its record() may do more.
        self._metrics = recorder if type(recorder) is RequestMetrics else None

    def begin(self, labels: RequestLabels) -> list[None] | None:
        """Begin a request that has reached the app. Return the argument of :meth:`end`."""
        if self._metrics is not None:  # as its begin(), without a call
            active = self._metrics.active[labels]
            active.append(None)
            return active
        if self.recorder is not None:
            try:
                self.recorder.begin(*labels[:2])
            except Exception:  # noqa: BLE001 - it is logged
                self._failures.log()
        return None

    def add(self, record: Record, now: float) -> None:
        """Record a request without :meth:`begin`, after the usual end of its response."""
        metrics = self._metrics
        try:
            if metrics is not None:  # as its record(), without a call
                metrics.records.extend(record)
                if now > metrics.look_at:
                    metrics.look(now)
            elif self.recorder is not None:
                self.recorder.record(Answered._make(record))
        except Exception:  # noqa: BLE001 - it is logged
            self._failures.log()

    def end(
        self,
        labels: RequestLabels,
        active: list[None] | None,
        status: int,
        pattern: str | None,
        sent_as: str,
        began: float,
        now: float,
        size: int,
        length_error: LengthError | None = None,
        left: bool = False,
        span: object | None = None,
        chunks: int | None = None,
    ) -> None:
        """End a request. :class:`Answered` has the fields of its record.

        :param active: the result of :meth:`begin`, or None if it was not called.
        :param began: by the clock of `now`: perf_counter() or monotonic().
        :param left: whether the client left before it had all of its response.
        :param span: the span to describe, one of `spans`.
        :param chunks: the number of blocks of the body, if they are counted.
        """
        metrics = self._metrics
        try:
            record = labels + (status, pattern, sent_as, now - began, size)  # noqa: RUF005 - it costs less
            if metrics is not None:  # as its record(), without a call
                metrics.records.extend(record)
                if active:
                    active.pop()
                if now > metrics.look_at:
                    metrics.look(now)
            elif self.recorder is not None:
                self.recorder.record(Answered._make(record))
            if length_error is not None and self.recorder is not None:
                self.recorder.count_length_error(length_error)
            if left and self.recorder is not None:
                self.recorder.count_client_left()
            if span is not None and self._spans is not None:
                self._spans.describe(
                    span, Answered._make(record), chunks, length_error=length_error, left=left
                )
        except Exception:  # noqa: BLE001 - it is logged
            self._failures.log()


class RequestMetrics:
    """A :class:`Recorder` for the metrics of requests. Any thread may record and collect.

    Theory of operation. Between a request's own instructions, each of our instructions misses the
    processor's caches, and costs several times as much as in a loop. So a request only extends a
    list by the fields of its record. A tuple per record would cost its creation, and work of the
    garbage collector. Records are aggregated in batches, and before metrics are collected.

    This needs no lock, because list.append(), extend() and pop() are atomic.

    :param on_first: called once, by the first request that this process records.
    :ivar records: the fields of requests that have ended, not aggregated yet.
    :ivar look_at: from this time on (perf_counter()) a request has to call :meth:`look`.
    :ivar active: by method and scheme, a list with an item for each active request.
    :ivar under_way: if set, returns method and scheme of each active request. `active` is then
        unused.
    """

    def __init__(self, on_first: Callable[[], object] | None = None) -> None:
        self._on_first = on_first
        self.records: list[Any] = []
        self._reset()
        # A forked worker counts from zero, because its parent reports its own counts.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.look_at = 0.0
        self.records.clear()
        self.active = _Active()
        self.under_way: Callable[[], Iterable[RequestLabels]] | None = None
        self._series = _SeriesByLabels()
        self._unsorted = 0
        self._length_errors = Counter[LengthError]()
        self._clients_left = 0

    def begin(self, method: str, scheme: str) -> None:
        self.active[method, scheme].append(None)

    def record(self, request: Answered) -> None:
        self.records.extend(request)
        active = self.active[request.method, request.scheme]
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
        """Return the metrics of all requests so far. This is a :data:`~.points.Collector`."""
        with self._lock:
            self._aggregate()
            self._unsorted = 0
            series = [
                (shown, each.durations.distribution(), each.sizes.distribution())
                for shown, each in self._series.known.items()
            ]
            length_errors: dict[str, int] = dict(self._length_errors.items())
        yield from _added_up(_DURATION, ((shown, duration) for shown, duration, _ in series))
        yield from _added_up(_SIZE, ((shown, size) for shown, _, size in series))
        yield from self._active(shown for shown, _, _ in series)
        sent = [
            (shown, sum(duration.counts), int(size.total))
            for shown, duration, size in series
            if shown[_SENT_AS]
        ]
        yield from _added_up(_RESPONSES, ((shown, count) for shown, count, _ in sent))
        yield from _added_up(_BODY_BYTES, ((shown, total) for shown, _, total in sent))
        repaired = ((shown, count) for shown, count, _ in sent if shown[_SENT_AS] in _REPAIRING)
        yield from _added_up(_REPAIRED, repaired)
        yield from points_of("wsgifast_content_length_errors_total", length_errors)
        yield point("wsgifast_clients_left_total", self._clients_left)
        yield from points_of("wsgifast_uncoded_bytes_total", TOTALS.uncompressed_bytes)
        yield from points_of("wsgifast_coded_bytes_total", TOTALS.compressed_bytes)
        yield from points_of("wsgifast_compression_cpu_seconds_total", TOTALS.cpu_seconds)

    def _active(self, ended: Iterable[_Shown]) -> Iterator[Point]:
        """How many requests are active by their labels, 0 for others that have ended."""
        if self.under_way is None:
            active = [(labels, len(each)) for labels, each in self.active.known.items()]
        else:
            found = Counter(_active_labels(request) for request in self.under_way())
            none = dict.fromkeys((_labels_of(_ACTIVE, shown) for shown in ended), 0)
            active = list({**none, **found}.items())
        for labels, count in active:
            yield Point(_ACTIVE, labels, count)

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
            series.durations.new += seconds
            series.sizes.new += sizes
        else:
            found = map(self._series.__getitem__, zip(*labels))  # noqa: B905 - of one length
            for series, duration, size in zip(found, seconds, sizes):  # noqa: B905
                series.durations.new.append(duration)
                series.sizes.new.append(size)
        self._unsorted += count
        if self._unsorted >= _MAX_UNSORTED:
            self._unsorted = 0
            for series in self._series.known.values():
                if series.sizes.new:
                    series.durations.sort()
                    series.sizes.sort()


class _Series(NamedTuple):
    """The requests with the same labels."""

    durations: Histogram
    sizes: Histogram


class _SeriesByLabels(dict[Any, _Series]):
    """Series by the labels of records, which may be anything that a client or an app invents.

    :ivar known: by the labels that are shown.
    """

    def __init__(self) -> None:
        self.known: dict[_Shown, _Series] = {}
        self._patterns: set[str] = set()

    def __missing__(self, labels: tuple[Any, ...]) -> _Series:
        record = Answered._make((*labels, 0.0, 0)).known()
        if record.pattern is not None and record.pattern not in self._patterns:
            if len(self._patterns) < _MAX_PATTERNS:
                self._patterns.add(record.pattern)
            else:
                record = record._replace(pattern=OTHER)
        shown = _shown(record)
        if shown not in self.known and len(self.known) >= _MAX_SERIES:
            status = record.status // 100 * 100
            shown = _shown(record._replace(method=OTHER, status=status, pattern=OTHER))
        series = self.known.setdefault(shown, _Series(Histogram(_DURATION), Histogram(_SIZE)))
        if len(self) < _MAX_LABELS:
            self[labels] = series
        return series


class _Active(dict[Any, list[None]]):
    """The active requests by the values that clients and proxies have sent.

    :ivar known: by the labels of the metric.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, ...], list[None]] = {}

    def __missing__(self, labels: RequestLabels) -> list[None]:
        requests = self.known.setdefault(_active_labels(labels), [])
        if len(self) < _MAX_LABELS:
            self[labels] = requests
        return requests


# The labels of a record as they are shown: all of its fields but the duration and the size.
_Shown = tuple[str, ...]
_FIELDS = len(Answered._fields)
_PLACES = {label: Answered._fields.index(field) for label, field in REQUEST_LABELS.items()}
_SENT_AS = _PLACES["wsgifast_sent_as"]


def _shown(record: Answered) -> _Shown:
    return tuple([UNKNOWN if value is None else str(value) for value in record[:-2]])


def _labels_of(metric: Metric, shown: _Shown) -> tuple[str, ...]:
    """Those that one metric has."""
    return tuple([shown[_PLACES[label]] for label in metric.labels])


def _active_labels(labels: RequestLabels) -> tuple[str, ...]:
    record = Answered._make((*labels, *[None] * (_FIELDS - len(labels))))
    return _labels_of(_ACTIVE, _shown(record.known()))


def _added_up(
    metric: Metric, values: Iterable[tuple[_Shown, float | Distribution]]
) -> Iterator[Point]:
    """The points of a metric: values with the same labels, added up."""
    found: dict[tuple[str, ...], float | Distribution] = {}
    for shown, value in values:
        labels = _labels_of(metric, shown)
        before = found.get(labels)
        if isinstance(before, Distribution) and isinstance(value, Distribution):
            counts = tuple(map(sum, zip(before.counts, value.counts, strict=True)))
            value = Distribution(counts, before.total + value.total)
        elif isinstance(before, (int, float)) and isinstance(value, (int, float)):
            value += before
        found[labels] = value
    for labels, value in found.items():
        yield Point(metric, labels, value)

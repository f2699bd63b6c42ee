"""Record requests, and make metrics from the records.

All servers and middleware record requests with a :class:`Recording`. To add a label to the request
metrics, add its name to the catalogue. Add its value here, to :class:`Answered` or to the three
functions that return RequestLabels.
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

# The environ's key for the recorder of a request. If it is set, an inner app stores the URL
# pattern, and does not record the request again.
RECORDER = "wsgifast.recorder"

# The methods in OpenTelemetry's conventions: those of RFC 9110 section 9, and PATCH (RFC 5789).
_METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
_SCHEMES = frozenset({"http", "https"})
# The values of sent_as for bodies that were slow or wrong and have been repaired.
_REPAIRING = frozenset({"rescued", "joined", "coalesced"})
# The most URL patterns, and the most series (combinations of pattern, method, status and sent_as).
# Without a limit, an app that makes patterns from requests would fill the memory of this process
# and of Prometheus.
_MAX_PATTERNS = 500
_MAX_SERIES = 5000
# The most combinations of labels in a cache. Its keys contain the values that clients have sent.
# Other combinations are looked up for each request.
_MAX_LABELS = 5000
# Records are aggregated in batches of at least this size. A much larger batch would not fit into
# the processor's caches. The number of records is checked at most once in _CHECK_INTERVAL_S,
# because a check at each request would cost more.
_BATCH_SIZE = 250
_CHECK_INTERVAL_S = 0.01
# The most durations and sizes that wait to be counted in buckets. Counting many values at once
# costs less for each value.
_MAX_UNSORTED = 2000

_DURATION = CATALOGUE["http_server_request_duration_seconds"]
_SIZE = CATALOGUE["http_server_response_body_size_bytes"]
_ACTIVE = CATALOGUE["http_server_active_requests"]
_RESPONSES = CATALOGUE["wsgifast_responses_total"]
_BODY_BYTES = CATALOGUE["wsgifast_response_body_bytes_total"]
_REPAIRED = CATALOGUE["wsgifast_responses_repaired_total"]

LengthError = Literal["short", "long", "corrected"]

# The first fields of a record: the method and the scheme of the request.
RequestLabels = tuple[str, str]


def labels_of_environ(environ: Mapping[str, Any]) -> RequestLabels:
    """Return the labels of a WSGI request. Call it before the app may change the environ."""
    return environ.get("REQUEST_METHOD", "GET"), environ.get("wsgi.url_scheme", "http")


def labels_of_scope(scope: Mapping[str, Any]) -> RequestLabels:
    """Return the labels of an ASGI request."""
    return scope["method"], scope["scheme"] if "scheme" in scope else "http"  # noqa: SIM401


def labels_of_parsed(req: Any) -> RequestLabels:
    """Return the labels of a request from FastWorker's parsers."""
    return req.method, req.scheme


class Answered(NamedTuple):
    """The record of a request whose response has ended.

    :ivar method: the method as the client sent it.
    :ivar scheme: "http" or "https".
    :ivar status: the status code. 500 if the app raised an error before it started its response.
    :ivar pattern: the framework's URL pattern, or None.
    :ivar sent_as: how the body was sent. "" if this is unknown.
    :ivar seconds: the time from the request's headers to the end of its response.
    :ivar size: the bytes of the body.
    """

    method: str
    scheme: str
    status: int
    pattern: str | None
    sent_as: str
    seconds: float
    size: int

    def known(self) -> Answered:
        """Return a copy with OTHER in place of an unknown method or scheme."""
        method = self.method if self.method in _METHODS else OTHER
        scheme = self.scheme if self.scheme in _SCHEMES else OTHER
        return self._replace(method=method, scheme=scheme)


# The fields of an Answered, as a plain tuple.
Record = tuple[str, str, int, str | None, str, float, int]


class Recorder(Protocol):
    """An object that records requests, for WSGIFast's option `metrics`.

    For each request, begin() is called once, and then record() once, perhaps in another thread. The
    first error that a method raises is logged. The response is sent in any case.
    """

    def begin(self, method: str, scheme: str) -> object:
        """Note that a request has reached the app.

        :param method: the method as the client sent it.
        :param scheme: "http" or "https".
        """

    def record(self, request: Answered, /) -> object:
        """Record a request whose response has ended."""

    def count_length_error(self, kind: LengthError) -> object:
        """Count a body that did not match its Content-Length."""

    def count_client_left(self) -> object:
        """Count a client that left before it had received its whole response."""


class Spans(Protocol):
    """Sets attributes on spans. See :class:`~.opentelemetry.CurrentSpans`."""

    def describe(
        self,
        span: Any,
        request: Answered,
        chunks: int | None,
        *,
        length_error: LengthError | None,
        left: bool,
    ) -> None:
        """Set attributes on the span of a request whose response has ended."""


class Recording:
    """Passes the requests of servers and middleware to a recorder. Thread-safe.

    The first error of the recorder is logged. The response is sent in any case.

    :param recorder: None if another object records the requests.
    :param spans: sets attributes on the spans that are passed to :meth:`end`.
    :param log: a logger.
    """

    def __init__(self, recorder: Recorder | None, spans: Spans | None, log: Any) -> None:
        self.recorder = recorder
        self._spans = spans
        self._failures = Failures(log)
        # The recorder, if its methods can be replaced by faster code here. A subclass may override
        # them.
        self._metrics = recorder if type(recorder) is RequestMetrics else None

    def begin(self, labels: RequestLabels) -> list[None] | None:
        """Note that a request has reached the app. Return the argument `active` of :meth:`end`."""
        if self._metrics is not None:  # the code of its begin(), to save a call
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
        """Record a complete response, for which :meth:`begin` was not called."""
        metrics = self._metrics
        try:
            if metrics is not None:  # the code of its record(), to save a call
                metrics.records.extend(record)
                if now > metrics.check_after:
                    metrics.aggregate_if_due(now)
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
        """Record a request whose response has ended. :class:`Answered` describes the fields.

        :param active: the result of :meth:`begin`, or None if it was not called.
        :param began: the time of the request's headers, by the same clock as `now`.
        :param left: whether the client left before it had received its whole response.
        :param span: the span to set attributes on.
        :param chunks: the number of blocks of the body, if they are counted.
        """
        metrics = self._metrics
        try:
            record = labels + (status, pattern, sent_as, now - began, size)  # noqa: RUF005 - it costs less
            if metrics is not None:  # the code of its record(), to save a call
                metrics.records.extend(record)
                if active:
                    active.pop()
                if now > metrics.check_after:
                    metrics.aggregate_if_due(now)
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
    """A :class:`Recorder` that counts requests in metrics. Any thread may record and collect.

    Theory of operation. In the middle of a request, our instructions are not in the processor's
    caches, and cost several times as much as in a loop. So a request only extends a list by the
    fields of its record. A tuple for each record would cost more: it must be created, and the
    garbage collector must examine it. Records are aggregated in batches, and before each
    collection.

    The list needs no lock, because list.append(), extend() and pop() are atomic.

    :param on_first: called once, at the first recorded request of this process.
    :ivar records: the fields of all records that are not aggregated yet.
    :ivar check_after: after this time (perf_counter()), call :meth:`aggregate_if_due`.
    :ivar active: by method and scheme, a list with an item for each active request.
    :ivar running_requests: if set, a function that returns the method and the scheme of each active
        request. `active` is then unused.
    """

    def __init__(self, on_first: Callable[[], object] | None = None) -> None:
        self._on_first = on_first
        self.records: list[Any] = []
        self._reset()
        # A forked worker counts from zero, because its parent reports its own counts.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.check_after = 0.0
        self.records.clear()
        self.active = _Active()
        self.running_requests: Callable[[], Iterable[RequestLabels]] | None = None
        self._series = _SeriesByLabels()
        self._unsorted = 0
        self._length_errors = Counter[LengthError]()
        self._clients_left = 0

    def begin(self, method: str, scheme: str) -> None:
        self.active[method, scheme].append(None)

    def record(self, request: Answered) -> None:
        self.records.extend(request)
        active = self.active[request.method, request.scheme]
        if active:  # it is empty if the request began before a fork
            active.pop()
        now = perf_counter()
        if now > self.check_after:
            self.aggregate_if_due(now)

    def aggregate_if_due(self, now: float) -> None:
        """Aggregate the records if there are enough of them."""
        is_first = not self.check_after
        self.check_after = now + _CHECK_INTERVAL_S
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
        """Return the points of all requests so far. See :data:`~.collecting.Collector`."""
        with self._lock:
            self._aggregate()
            self._unsorted = 0
            series = [
                (exported, each.durations.distribution(), each.sizes.distribution())
                for exported, each in self._series.known.items()
            ]
            length_errors: dict[str, int] = dict(self._length_errors.items())
        yield from _sum_by_labels(
            _DURATION, ((exported, duration) for exported, duration, _ in series)
        )
        yield from _sum_by_labels(_SIZE, ((exported, size) for exported, _, size in series))
        yield from self._active(exported for exported, _, _ in series)
        sent = [
            (exported, sum(duration.counts), int(size.total))
            for exported, duration, size in series
            if exported[_SENT_AS]
        ]
        yield from _sum_by_labels(_RESPONSES, ((exported, count) for exported, count, _ in sent))
        yield from _sum_by_labels(_BODY_BYTES, ((exported, total) for exported, _, total in sent))
        repaired = (
            (exported, count) for exported, count, _ in sent if exported[_SENT_AS] in _REPAIRING
        )
        yield from _sum_by_labels(_REPAIRED, repaired)
        yield from points_of("wsgifast_content_length_errors_total", length_errors)
        yield point("wsgifast_clients_left_total", self._clients_left)
        yield from points_of("wsgifast_uncoded_bytes_total", TOTALS.uncompressed_bytes)
        yield from points_of("wsgifast_coded_bytes_total", TOTALS.compressed_bytes)
        yield from points_of("wsgifast_compression_cpu_seconds_total", TOTALS.cpu_seconds)

    def _active(self, ended: Iterable[_Exported]) -> Iterator[Point]:
        """Return the number of active requests by labels.

        Labels of ended requests get the number 0.
        """
        if self.running_requests is None:
            active = [(labels, len(each)) for labels, each in self.active.known.items()]
        else:
            found = Counter(_active_labels(request) for request in self.running_requests())
            none = dict.fromkeys((_labels_of(_ACTIVE, exported) for exported in ended), 0)
            active = list({**none, **found}.items())
        for labels, count in active:
            yield Point(_ACTIVE, labels, count)

    # These methods need the lock.

    def _aggregate(self) -> None:
        """Add the durations and sizes in the records to the series with their labels."""
        records = self.records
        end = len(records)  # other threads may append records meanwhile
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
    """The durations and sizes of requests with the same labels."""

    durations: Histogram
    sizes: Histogram


class _SeriesByLabels(dict[Any, _Series]):
    """Maps the labels of a record to their series. Clients and apps may invent labels.

    :ivar known: the series by exported labels, which are limited in number.
    """

    def __init__(self) -> None:
        self.known: dict[_Exported, _Series] = {}
        self._patterns: set[str] = set()

    def __missing__(self, labels: tuple[Any, ...]) -> _Series:
        record = Answered._make((*labels, 0.0, 0)).known()
        if record.pattern is not None and record.pattern not in self._patterns:
            if len(self._patterns) < _MAX_PATTERNS:
                self._patterns.add(record.pattern)
            else:
                record = record._replace(pattern=OTHER)
        exported = _exported_labels(record)
        if exported not in self.known and len(self.known) >= _MAX_SERIES:
            status = record.status // 100 * 100
            exported = _exported_labels(record._replace(method=OTHER, status=status, pattern=OTHER))
        series = self.known.setdefault(exported, _Series(Histogram(_DURATION), Histogram(_SIZE)))
        if len(self) < _MAX_LABELS:
            self[labels] = series
        return series


class _Active(dict[Any, list[None]]):
    """Maps labels to lists with an item for each active request.

    Clients and proxies send the labels.

    :ivar known: the active requests by exported labels.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, ...], list[None]] = {}

    def __missing__(self, labels: RequestLabels) -> list[None]:
        requests = self.known.setdefault(_active_labels(labels), [])
        if len(self) < _MAX_LABELS:
            self[labels] = requests
        return requests


# The exported labels of a record: all fields except the duration and the size.
_Exported = tuple[str, ...]
_FIELDS = len(Answered._fields)
_PLACES = {label: Answered._fields.index(field) for label, field in REQUEST_LABELS.items()}
_SENT_AS = _PLACES["wsgifast_sent_as"]


def _exported_labels(record: Answered) -> _Exported:
    return tuple([UNKNOWN if value is None else str(value) for value in record[:-2]])


def _labels_of(metric: Metric, exported: _Exported) -> tuple[str, ...]:
    """Return the exported labels that one metric has."""
    return tuple([exported[_PLACES[label]] for label in metric.labels])


def _active_labels(labels: RequestLabels) -> tuple[str, ...]:
    record = Answered._make((*labels, *[None] * (_FIELDS - len(labels))))
    return _labels_of(_ACTIVE, _exported_labels(record.known()))


def _sum_by_labels(
    metric: Metric, values: Iterable[tuple[_Exported, float | Distribution]]
) -> Iterator[Point]:
    """Return the points of a metric. Values with the same labels are added up."""
    found: dict[tuple[str, ...], float | Distribution] = {}
    for exported, value in values:
        labels = _labels_of(metric, exported)
        before = found.get(labels)
        if isinstance(before, Distribution) and isinstance(value, Distribution):
            counts = tuple(map(sum, zip(before.counts, value.counts, strict=True)))
            value = Distribution(counts, before.total + value.total)
        elif isinstance(before, (int, float)) and isinstance(value, (int, float)):
            value += before
        found[labels] = value
    for labels, value in found.items():
        yield Point(metric, labels, value)

"""Export metrics by OpenTelemetry, and set the properties of a body as attributes of a span.

This module uses only the API of OpenTelemetry. The app configures the exports. If OpenTelemetry's
semantic conventions for HTTP define a metric, its name is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import version
from itertools import chain
from typing import Any

from ..checks import needs
from .catalogue import ATTRIBUTES, CATALOGUE, REQUEST_LABELS, Metric
from .collecting import Point, collect_process, observers
from .requests import Answered, LengthError, RequestMetrics

with needs("wsgifast.metrics.opentelemetry", "opentelemetry", "opentelemetry"):
    from opentelemetry import metrics, trace


@cache
def instruments() -> Instruments:
    """Return the instruments of this process."""
    return Instruments()


class Instruments(RequestMetrics):
    """A recorder that also records requests with OpenTelemetry's instruments.

    The histograms of requests are synchronous instruments: they record each request. The counters
    and gauges are asynchronous instruments. At each collection, they get their values from the
    records of this class and from the collectors of the process, such as FastWorker's. The
    histograms of the process record each new value that a collector finds.

    :param provider: the provider of meters. None for the global one.
    """

    def __init__(self, provider: metrics.MeterProvider | None = None) -> None:
        super().__init__()
        meter = metrics.get_meter("wsgifast", version("wsgifast"), provider)
        self._duration = _histogram(meter, CATALOGUE["http_server_request_duration_seconds"])
        self._size = _histogram(meter, CATALOGUE["http_server_response_body_size_bytes"])
        self._found_lock = threading.Lock()
        # The points of one collection, by the name of the metric. The callback of a metric removes
        # the points of that metric.
        self._found: dict[str, list[Point]] = {}
        for metric in CATALOGUE.values():
            make = _observable(meter, metric)
            if make is None:
                if "middleware" not in metric.reported_by:
                    functions = observers.setdefault(metric.name, [])
                    functions.append(_histogram(meter, metric).record)
            else:
                observe = partial(self._observe, metric)
                make(metric.opentelemetry_name, [observe], metric.unit, metric.help)

    def record(self, request: Answered) -> None:
        super().record(request)
        known = request.known()
        attributes: dict[str, str | int] = {
            ATTRIBUTES[label]: value
            for label in CATALOGUE["http_server_request_duration_seconds"].labels
            if (value := getattr(known, REQUEST_LABELS[label])) is not None
        }
        if request.status >= 500:
            attributes["error.type"] = str(request.status)
        self._duration.record(request.seconds, attributes)
        self._size.record(request.size, attributes)

    def _observe(
        self, metric: Metric, options: metrics.CallbackOptions
    ) -> Iterator[metrics.Observation]:
        names = [ATTRIBUTES[label] for label in metric.labels]
        for point in self._points(metric):
            if isinstance(point.value, (int, float)):
                attributes = dict(zip(names, point.labels, strict=True))
                yield metrics.Observation(point.value, attributes)

    def _points(self, metric: Metric) -> list[Point]:
        """Return the points of one metric.

        The SDK calls the callback of each instrument, one after another. All of them read points of
        one collection.
        """
        with self._found_lock:
            if metric.name not in self._found:
                self._found = {name: [] for name in CATALOGUE}
                for point in chain(self.collect(), collect_process()):
                    self._found[point.metric.name].append(point)
            return self._found.pop(metric.name)


def _observable(meter: metrics.Meter, metric: Metric) -> Callable[..., object] | None:
    """Return the factory of an asynchronous instrument. None for a histogram."""
    if metric.kind == "counter":
        return meter.create_observable_counter
    if metric.kind == "histogram":
        return None
    if metric.across == "sum":
        return meter.create_observable_up_down_counter
    return meter.create_observable_gauge


def _histogram(meter: metrics.Meter, metric: Metric) -> metrics.Histogram:
    return meter.create_histogram(
        metric.opentelemetry_name,
        metric.unit,
        metric.help,
        explicit_bucket_boundaries_advisory=metric.bounds,
    )


_SENT_AS = ATTRIBUTES["wsgifast_sent_as"]


class CurrentSpans:
    """Sets attributes on the span that is current when a request arrives.

    This is the span of OpenTelemetry's WSGI or ASGI middleware around the app. OpenTelemetry's
    instrumentations of Flask and Django end their spans within the app, before the body is known.
    On such a span no attribute is set.
    """

    def current(self) -> object | None:
        """Return the current span, or None if it is not recording."""
        span = trace.get_current_span()
        return span if span.is_recording() else None

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
        if not span.is_recording():
            return
        known: Mapping[str, str | int | bool | None] = {
            "http.route": request.pattern,
            "http.response.body.size": request.size,
            _SENT_AS: request.sent_as or None,
            "wsgifast.chunks": chunks,
            "wsgifast.length_error": length_error,
            "wsgifast.client_left": left or None,
        }
        span.set_attributes({name: value for name, value in known.items() if value is not None})

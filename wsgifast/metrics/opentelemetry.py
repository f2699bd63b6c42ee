"""OpenTelemetry: requests as its metrics, and what is known of a body on the current span.

Only the API is used: what becomes of it is the configuration's of whoever instruments the app. Its
semantic conventions for HTTP name what they have a name for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

from ..imports import needs
from .catalogue import ATTRIBUTES, CATALOGUE, Metric
from .recorder import LengthError
from .tally import REPAIRED, known_method

with needs("wsgifast.metrics.opentelemetry", "opentelemetry", "opentelemetry"):
    from opentelemetry import metrics, trace

__all__ = ["CurrentSpans", "Instruments", "instruments"]


@cache
def instruments() -> Instruments:
    """This process's instruments."""
    return Instruments()


class Instruments:
    """Records requests with OpenTelemetry's instruments; a :class:`~.recorder.Recorder`.

    :param provider: of meters; None for the global one.
    """

    def __init__(self, provider: metrics.MeterProvider | None = None) -> None:
        meter = metrics.get_meter("wsgifast", version("wsgifast"), provider)

        def make(name: str) -> Any:
            metric: Metric = CATALOGUE[name]
            create = getattr(meter, f"create_{metric.kind}")
            advice = {"explicit_bucket_boundaries_advisory": metric.bounds} if metric.bounds else {}
            return create(metric.opentelemetry_name, metric.unit, metric.help, **advice)

        self._duration = make("http_server_request_duration_seconds")
        self._size = make("http_server_response_body_size_bytes")
        self._responses = make("wsgifast_responses_total")
        self._body_bytes = make("wsgifast_response_body_bytes_total")
        self._repaired = make("wsgifast_responses_repaired_total")
        self._length_errors = make("wsgifast_content_length_errors_total")
        self._clients_left = make("wsgifast_clients_left_total")

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
        request: dict[str, str | int] = {
            "http.request.method": known_method(method),
            "url.scheme": scheme,
            "http.response.status_code": status,
        }
        answered_by: dict[str, str] = {}
        if pattern is not None:
            request["http.route"] = answered_by["http.route"] = pattern
        if status >= 500:
            request["error.type"] = str(status)
        self._duration.record(seconds, request)
        self._size.record(size, request)
        if not route:
            return
        self._responses.add(1, {_ROUTE: route, **answered_by})
        self._body_bytes.add(size, {_ROUTE: route})
        if route in REPAIRED:
            self._repaired.add(1, answered_by)

    def count_length_error(self, kind: LengthError) -> None:
        self._length_errors.add(1, {ATTRIBUTES["kind"]: kind})

    def count_client_left(self) -> None:
        self._clients_left.add(1)


_ROUTE = ATTRIBUTES["wsgifast_route"]


class CurrentSpans:
    """Sets attributes on the span that is current when a request comes.

    It is the instrumentation's around the app: OpenTelemetry's WSGI and ASGI middleware. What ends
    its span within the app, as its instrumentation of Flask and Django does, ends it before the
    body is known; nothing is set then.
    """

    def current(self) -> object | None:
        span = trace.get_current_span()
        return span if span.is_recording() else None

    def describe(
        self,
        span: Any,
        *,
        pattern: str | None,
        route: str | None,
        chunks: int | None,
        size: int,
        length_error: LengthError | None,
        left: bool,
    ) -> None:
        if not span.is_recording():
            return
        known: Mapping[str, str | int | bool | None] = {
            "http.route": pattern,
            "http.response.body.size": size,
            _ROUTE: route,
            "wsgifast.chunks": chunks,
            "wsgifast.length_error": length_error,
            "wsgifast.client_left": left or None,
        }
        span.set_attributes({name: value for name, value in known.items() if value is not None})

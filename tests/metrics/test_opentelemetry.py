"""OpenTelemetry: the measurements that its SDK receives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgifast import ASGIFast
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.asgi.support import call, scope_of
from tests.support.wsgi import Server, new_environ, returning
from wsgifast import WSGIFast
from wsgifast.metrics import CATALOGUE, Point, collecting
from wsgifast.metrics.collecting import point
from wsgifast.metrics.opentelemetry import Instruments

# Instruments, and their readers.
Telemetry = tuple[Instruments, InMemoryMetricReader]


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    yield Instruments(provider), reader
    provider.shutdown()


def exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    assert data is not None
    (resource,) = data.resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "wsgifast"
    return {metric.name: metric for metric in scope.metrics}


def test_requests_are_recorded_by_instruments(telemetry: Telemetry) -> None:
    instruments, reader = telemetry
    environ = new_environ("BREW", **{"wsgifast.pattern": "/items/<id>"})
    app = returning([b"x"] * 1000, ("Content-Length", "7"), status="503 Service Unavailable")
    Server(WSGIFast(app, metrics=instruments), environ).finish()
    app = returning(iter([b"a", b"b"]))
    body: Any = Server(WSGIFast(app, metrics=instruments)).result
    next(iter(body))
    body.close()

    metrics = exported(reader)
    duration = metrics["http.server.request.duration"]
    assert (duration.unit, type(duration.data).__name__) == ("s", "Histogram")
    failed, left = duration.data.data_points
    assert dict(failed.attributes) == {
        "http.request.method": "_OTHER",
        "url.scheme": "http",
        "http.response.status_code": 503,
        "http.route": "/items/<id>",
        "error.type": "503",
    }
    assert "http.route" not in left.attributes
    assert failed.explicit_bounds == CATALOGUE["http_server_request_duration_seconds"].bounds
    size = metrics["http.server.response.body.size"]
    assert [each.sum for each in size.data.data_points] == [1000, 1]
    responses = metrics["wsgifast.responses"].data.data_points
    assert {each.attributes["http.route"] for each in responses} == {"/items/<id>", "unknown"}
    (repaired,) = metrics["wsgifast.responses_repaired"].data.data_points
    assert (repaired.value, dict(repaired.attributes)) == (1, {"http.route": "/items/<id>"})
    length_errors = metrics["wsgifast.content_length_errors"].data.data_points
    assert [(each.value, dict(each.attributes)) for each in length_errors] == [
        (0, {"wsgifast.kind": "short"}), (0, {"wsgifast.kind": "long"}),
        (1, {"wsgifast.kind": "corrected"}),
    ]  # fmt: skip
    (clients,) = metrics["wsgifast.clients_left"].data.data_points
    assert clients.value == 1


def test_request_is_active_until_it_ends(telemetry: Telemetry) -> None:
    instruments, reader = telemetry
    app = WSGIFast(returning(iter([b"a", b"b"])), metrics=instruments)
    body: Any = Server(app).result
    for active in (1, 0):
        metric = exported(reader)["http.server.active_requests"]
        assert not metric.data.is_monotonic
        (point,) = metric.data.data_points
        assert point.value == active
        assert dict(point.attributes) == {"http.request.method": "GET", "url.scheme": "http"}
        body.close()


def test_metrics_of_the_process_are_observed(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = []

    def source() -> Iterator[Point]:
        requested.append(True)
        yield point("wsgifast_threads", 4)
        yield point("wsgifast_connections", 3, "idle")
        yield point("wsgifast_accept_backlog", 7)
        yield point("wsgifast_timeouts_total", len(requested), "head")

    monkeypatch.setattr(collecting, "process_collectors", [source])
    for collections in (1, 2):
        metrics = exported(telemetry[1])
        assert len(requested) == collections
        observed = {
            name: (type(m.data).__name__, m.data.data_points) for name, m in metrics.items()
        }
        for name in ("content_length_errors", "uncoded", "coded", "compression_cpu"):
            assert observed.pop(f"wsgifast.{name}")[0] == "Sum"
        assert [(kind, each.value) for kind, (each,) in observed.values()] == [
            ("Sum", 0), ("Sum", 3), ("Sum", collections), ("Sum", 4), ("Gauge", 7)
        ]  # fmt: skip
        assert dict(observed["wsgifast.connections"][1][0].attributes) == {"wsgifast.state": "idle"}
        assert metrics["wsgifast.timeouts"].data.is_monotonic
        assert not metrics["wsgifast.threads"].data.is_monotonic


def spans() -> tuple[Any, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("tests"), exporter


def test_span_around_a_wsgi_app_gets_attributes() -> None:
    tracer, exporter = spans()
    app = WSGIFast(returning(iter([b"x"] * 100)), traces=True)
    with tracer.start_as_current_span("GET"):
        Server(app).finish()
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {}) == {
        "http.response.body.size": 100,
        "wsgifast.sent_as": "stream-small",
        "wsgifast.chunks": 100,
    }


def test_span_that_ended_within_the_app_is_left_alone() -> None:
    tracer, exporter = spans()
    app = WSGIFast(returning(iter([b"x"])), traces=True)
    span = tracer.start_span("GET")
    with trace.use_span(span):
        server = Server(app)
    span.end()
    assert server.finish() == b"x"
    assert not exporter.get_finished_spans()[0].attributes


def test_span_around_an_asgi_app_gets_attributes() -> None:
    async def item(request: Any) -> PlainTextResponse:
        return PlainTextResponse("item")

    tracer, exporter = spans()
    app = ASGIFast(Starlette(routes=[Route("/items/{number}", item)]), traces=True)
    with tracer.start_as_current_span("GET"):
        call(app, scope_of("/items/7"))
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {}) == {
        "http.route": "/items/{number}",
        "http.response.body.size": 4,
        "wsgifast.sent_as": "as-is",
        "wsgifast.chunks": 1,
    }

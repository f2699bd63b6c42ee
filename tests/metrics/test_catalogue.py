"""The catalogue: names as Prometheus and OpenTelemetry spell them."""

from __future__ import annotations

import re

from wsgifast.metrics.catalogue import ATTRIBUTES, CATALOGUE

METRICS = list(CATALOGUE.values())


def test_metric_name_ends_with_its_unit_and_kind() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"(http_server|wsgifast)_[a-z_]+", metric.name), metric
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        stem = metric.name.removesuffix("_total")
        assert stem.endswith("_seconds") == (metric.unit == "s"), metric
        assert stem.endswith("_bytes") == (metric.unit == "By"), metric
        assert bool(metric.bounds) == (metric.kind == "histogram"), metric
        assert list(metric.bounds) == sorted(set(metric.bounds)), metric
        assert metric.help.endswith("."), metric
        assert set(metric.labels) <= set(ATTRIBUTES), metric
        assert metric.across == "sum" or metric.kind == "gauge", metric


def test_names_are_those_of_the_semantic_conventions() -> None:
    names = {metric.opentelemetry_name: metric.unit for metric in METRICS}
    assert names["http.server.request.duration"] == "s"
    assert names["http.server.response.body.size"] == "By"
    assert names["http.server.active_requests"] == "{request}"
    assert names["wsgifast.response_body"] == "By"

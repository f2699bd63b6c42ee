"""The catalogue: names as Prometheus and OpenTelemetry spell them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wsgifast.metrics.catalogue import ATTRIBUTES, CATALOGUE, Metric, as_markdown

METRICS = list(CATALOGUE.values())


@pytest.mark.parametrize("metric", METRICS, ids=CATALOGUE)
def test_a_name_says_its_unit_and_kind(metric: Metric) -> None:
    assert re.fullmatch(r"(http_server|wsgifast)_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    stem = metric.name.removesuffix("_total")
    assert stem.endswith("_seconds") == (metric.unit == "s")
    assert stem.endswith("_bytes") == (metric.unit == "By")
    assert bool(metric.bounds) == (metric.kind == "histogram")
    assert list(metric.bounds) == sorted(set(metric.bounds))
    assert metric.help.endswith(".")
    assert metric.labels == tuple(label for label in metric.labels if label in ATTRIBUTES)
    assert metric.across == "sum" or metric.kind == "gauge"


def test_names_of_the_semantic_conventions() -> None:
    names = {metric.opentelemetry_name: metric.unit for metric in METRICS}
    assert names["http.server.request.duration"] == "s"
    assert names["http.server.response.body.size"] == "By"
    assert names["http.server.active_requests"] == "{request}"
    assert names["wsgifast.response_body"] == "By"


def test_the_page_of_metrics_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    assert page.read_text() == as_markdown(), "make docs writes it anew"

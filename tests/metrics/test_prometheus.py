"""The names of the catalogue, and metrics of prometheus_client that are scraped and parsed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from tests.support.process import in_a_child
from wsgifast.metrics import (
    CATALOGUE,
    Answered,
    Distribution,
    Point,
    RequestMetrics,
    prometheus,
    setup,
)
from wsgifast.metrics.catalogue import ATTRIBUTES
from wsgifast.metrics.collecting import Periodic, point
from wsgifast.metrics.prometheus import FileReporter, PointCollector

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def scraped(source: Any) -> Samples:
    registry = CollectorRegistry()
    registry.register(PointCollector([source]))
    return parsed(generate_latest(registry))


def read_files(directory: Path) -> Samples:
    registry = CollectorRegistry()
    collector: Any = MultiProcessCollector  # has no types
    collector(registry, str(directory))
    return parsed(generate_latest(registry))


def some_requests() -> RequestMetrics:
    metrics = RequestMetrics()
    for size in (10, 2000):
        metrics.record(Answered("GET", "http", 200, "/items/<id>", "joined", 0.003, size))
    metrics.count_client_left()
    return metrics


LABELS = (
    ("http_request_method", "GET"),
    ("http_response_status_code", "200"),
    ("http_route", "/items/<id>"),
    ("url_scheme", "http"),
)


def check_requests(samples: Samples) -> None:
    duration = "http_server_request_duration_seconds"
    assert samples[f"{duration}_count", LABELS] == 2
    assert samples[f"{duration}_sum", LABELS] == 0.006

    def bucket(name: str, bound: str) -> float:
        return samples[f"{name}_bucket", tuple(sorted((*LABELS, ("le", bound))))]

    assert [bucket(duration, bound) for bound in ("0.0025", "0.005", "+Inf")] == [0, 2, 2]
    size = "http_server_response_body_size_bytes"
    assert [bucket(size, bound) for bound in ("1024.0", "4096.0", "+Inf")] == [1, 2, 2]
    assert samples["wsgifast_responses_repaired_total", (("http_route", "/items/<id>"),)] == 2
    assert samples["wsgifast_clients_left_total", ()] == 1


def test_single_process_is_scraped() -> None:
    check_requests(scraped(some_requests().collect))


def test_threads_that_begin_at_once_share_a_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> RequestMetrics:
        sleep(0.05)  # the others arrive meanwhile
        return RequestMetrics()

    monkeypatch.delenv(setup.DIRECTORY, raising=False)
    monkeypatch.setattr(prometheus, "_recorder", None)
    monkeypatch.setattr(prometheus, "REGISTRY", CollectorRegistry())
    monkeypatch.setattr(prometheus, "RequestMetrics", make)
    with ThreadPoolExecutor(4) as pool:
        recorders = {each.result() for each in [pool.submit(prometheus.recorder) for _ in "1234"]}
    assert len(recorders) == 1


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(setup.DIRECTORY, str(tmp_path))
    return tmp_path


def test_reporter_writes_files_of_its_process(directory: Path) -> None:
    metrics = some_requests()
    reporter = FileReporter()
    reporter.add(metrics.collect)
    reporter.report()
    check_requests(read_files(directory))
    metrics.count_client_left()
    reporter.report()
    assert read_files(directory)["wsgifast_clients_left_total", ()] == 2


def test_idle_process_writes_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_IDLE_PERIOD_S", float("inf"))
    metrics = some_requests()
    reporter = FileReporter()
    reporter.add(metrics.collect)
    activity: list[object] = [1]
    reporter.activity = lambda: activity[-1]

    def clients_left() -> float:
        metrics.count_client_left()
        reporter.report_if_active()
        return read_files(directory)["wsgifast_clients_left_total", ()]

    assert [clients_left(), clients_left()] == [2, 2]
    activity.append(2)
    assert [clients_left(), clients_left()] == [4, 4]
    activity.append(None)  # something happens all the time
    assert [clients_left(), clients_left()] == [6, 7]
    activity.append(2)
    assert [clients_left(), clients_left()] == [8, 8]
    monkeypatch.setattr(prometheus, "_IDLE_PERIOD_S", 0.0)
    assert clients_left() == 10


def every_metric() -> Iterator[Point]:
    for metric in CATALOGUE.values():
        labels = tuple(f"a {label}" for label in metric.labels)
        value: float | Distribution = 3
        if metric.kind == "histogram":
            value = Distribution(tuple(range(len(metric.bounds) + 1)), 4.5)
        yield Point(metric, labels, value)


def test_metrics_of_process_and_files_are_the_same(directory: Path) -> None:
    reporter = FileReporter()
    reporter.add(every_metric)
    reporter.report()
    found = {
        (name, tuple(label for label in labels if label[0] != "pid")): value
        for (name, labels), value in read_files(directory).items()
    }
    assert found == scraped(every_metric)
    assert {name for name, _ in found if name in CATALOGUE} == {
        name for name, metric in CATALOGUE.items() if metric.kind != "histogram"
    }


def report(points: list[Point]) -> None:
    reporter = FileReporter()
    reporter.add(lambda: points)
    reporter.report()


def test_gauges_of_processes_are_added_up_by_kind(directory: Path) -> None:
    values = {
        "wsgifast_threads": [4, 8],
        "wsgifast_accept_backlog": [4, 8],
        "wsgifast_worker_memory_bytes": [4, 8],
        "wsgifast_worker_starts_total": [4, 8],
    }
    for number in range(2):
        points = [point(name, each[number]) for name, each in values.items()]
        in_a_child(lambda: report(points))  # noqa: B023
    samples = read_files(directory)
    assert samples["wsgifast_threads", ()] == 12
    assert samples["wsgifast_accept_backlog", ()] == 8
    assert samples["wsgifast_worker_starts_total", ()] == 12
    each = [value for (name, _), value in samples.items() if name == "wsgifast_worker_memory_bytes"]
    assert sorted(each) == [4, 8]


def test_full_directory_is_logged_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = FileReporter()
    reporter.add(some_requests().collect)
    periodic = Periodic()
    periodic.add(reporter.report)
    with monkeypatch.context() as full:
        full.setattr(setup, "_MIN_FREE_BYTES", 1 << 60)
        for _ in range(3):
            periodic.call()
        periodic.call([reporter.report])  # like a worker at its end
    assert len(caplog.records) == 1
    assert "Traceback" not in caplog.text
    assert f"bytes are free for metrics: '{directory}'" in caplog.text
    periodic.call()
    check_requests(read_files(directory))


SCRIPT = """
import sys
from prometheus_client import REGISTRY, generate_latest
from wsgifast import WSGIFast

def app(environ, start_response):
    start_response("200 OK", [])
    return [b"x"]

for _ in range(2):  # two apps, one metrics
    wrapped = WSGIFast(app, metrics="prometheus")
    wrapped({"REQUEST_METHOD": "GET", "wsgi.url_scheme": "http"}, lambda *args: None)
sys.stdout.write(generate_latest(REGISTRY).decode())
"""


def test_default_registry_has_the_middlewares_metrics() -> None:
    environment = {k: v for k, v in os.environ.items() if k != setup.DIRECTORY}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment
    )
    samples = {
        (sample.name, sample.labels.get("wsgifast_sent_as")): sample.value
        for family in text_string_to_metric_families(run.stdout)
        for sample in family.samples
    }
    assert samples["wsgifast_responses_total", "as-is"] == 2


@pytest.mark.parametrize(
    ("metrics", "package"), [("prometheus", "prometheus_client"), ("opentelemetry",) * 2]
)
def test_missing_package_is_reported_at_wrapping(metrics: str, package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from wsgifast import WSGIFast\n"
        f"WSGIFast(lambda environ, start_response: [], metrics={metrics!r})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.rstrip().endswith(
        f"needs {package}, which is not installed: pip install 'wsgifast[{metrics}]'"
    )


def test_metric_name_ends_with_its_unit_and_kind() -> None:
    for metric in CATALOGUE.values():
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
    names = {metric.opentelemetry_name: metric.unit for metric in CATALOGUE.values()}
    assert names["http.server.request.duration"] == "s"
    assert names["http.server.response.body.size"] == "By"
    assert names["http.server.active_requests"] == "{request}"
    assert names["wsgifast.response_body"] == "By"

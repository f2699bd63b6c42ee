"""The metrics of requests: exact, bounded, and per process."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.notes import values_of
from tests.support.process import in_a_child
from wsgifast.metrics import Answered, RequestMetrics
from wsgifast.metrics import requests as request_metrics

_DURATION = "http_server_request_duration_seconds"


def _record(
    metrics: RequestMetrics,
    *,
    method: str = "GET",
    scheme: str = "http",
    status: int = 200,
    pattern: str | None = "/items/<id>",
    sent_as: str = "as-is",
    seconds: float = 0.003,
    size: int = 2000,
) -> None:
    metrics.record(Answered(method, scheme, status, pattern, sent_as, seconds, size))


def _value(metrics: RequestMetrics, name: str, *labels: str) -> Any:
    return values_of(metrics, name)[labels]


def _only_duration(metrics: RequestMetrics) -> Any:
    (duration,) = values_of(metrics, _DURATION).values()
    return duration


def _active(metrics: RequestMetrics) -> dict[tuple[str, ...], Any]:
    return values_of(metrics, "http_server_active_requests")


def test_request_is_counted_once_in_each_metric() -> None:
    metrics = RequestMetrics()
    _record(metrics, seconds=0.003, size=2000)
    labels = ("GET", "http", "200", "/items/<id>")
    duration = _value(metrics, _DURATION, *labels)
    assert duration.total == 0.003
    assert [n for n, count in enumerate(duration.counts) if count] == [3]  # up to 5 ms
    size = _value(metrics, "http_server_response_body_size_bytes", *labels)
    assert (sum(size.counts), size.total) == (1, 2000)
    assert _value(metrics, "wsgifast_responses_total", "as-is", "/items/<id>") == 1
    assert _value(metrics, "wsgifast_response_body_bytes_total", "as-is") == 2000


def test_bound_belongs_to_its_bucket() -> None:
    metrics = RequestMetrics()
    for seconds in (0.0005, 0.00051, 10.0, 10.1):
        _record(metrics, seconds=seconds)
    counts = _only_duration(metrics).counts
    assert [n for n, count in enumerate(counts) if count] == [0, 1, 16, 17]


def test_responses_of_one_pattern_share_its_duration() -> None:
    metrics = RequestMetrics()
    for sent_as in ("as-is", "joined", "joined", "rescued"):
        _record(metrics, sent_as=sent_as)
    assert sum(_only_duration(metrics).counts) == 4
    assert _value(metrics, "wsgifast_responses_repaired_total", "/items/<id>") == 3


def test_response_without_sent_as_records_its_request() -> None:
    metrics = RequestMetrics()
    _record(metrics, sent_as="", pattern=None)
    assert list(values_of(metrics, _DURATION)) == [("GET", "http", "200", "unknown")]
    assert not values_of(metrics, "wsgifast_responses_total")


def test_invented_methods_and_schemes_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_metrics, "_MAX_LABELS", 100)
    metrics = RequestMetrics()
    for number in range(3 * request_metrics._BATCH_SIZE):
        metrics.begin(f"M{number}", f"s{number}")
        _record(metrics, method=f"M{number}", scheme=f"s{number}")
    assert list(values_of(metrics, _DURATION)) == [("_OTHER", "_OTHER", "200", "/items/<id>")]
    assert _active(metrics) == {("_OTHER", "_OTHER"): 0}
    assert len(metrics._series.known) == 1
    assert len(metrics._series) <= 100
    assert len(metrics.active) <= 100


def test_distinct_patterns_are_limited() -> None:
    metrics = RequestMetrics()
    for number in range(request_metrics._MAX_PATTERNS + 50):
        _record(metrics, pattern=f"/made/{number}")
    durations = values_of(metrics, _DURATION)
    assert len(durations) == request_metrics._MAX_PATTERNS + 1
    assert sum(_value(metrics, _DURATION, "GET", "http", "200", "_OTHER").counts) == 50


def test_active_requests_have_method_and_scheme() -> None:
    metrics = RequestMetrics()
    for method in ("GET", "GET", "POST", "BREW", "BREW"):
        metrics.begin(method, "http")
    _record(metrics)
    _record(metrics, method="BREW")
    assert _active(metrics) == {("GET", "http"): 1, ("POST", "http"): 1, ("_OTHER", "http"): 1}
    _record(metrics, method="POST")
    _record(metrics, method="BREW")
    assert _active(metrics) == {("GET", "http"): 1, ("POST", "http"): 0, ("_OTHER", "http"): 0}


def test_active_requests_beyond_label_limit_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_metrics, "_MAX_SERIES", 1)
    metrics = RequestMetrics()
    for status in (200, 404, 404):
        metrics.begin("GET", "http")
        _record(metrics, status=status)
    metrics.begin("GET", "http")
    assert _active(metrics) == {("GET", "http"): 1}


def test_request_that_ends_in_a_child_is_not_negative() -> None:
    metrics = RequestMetrics()
    _record(metrics)
    assert _active(metrics) == {("GET", "http"): 0}


def test_series_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_metrics, "_MAX_SERIES", 3)
    metrics = RequestMetrics()
    for status in (200, 201, 202, 203, 404, 404):
        _record(metrics, status=status)
    labels = {labels[2:] for labels in values_of(metrics, _DURATION)}
    pattern = "/items/<id>"
    assert labels == {
        *((str(status), pattern) for status in (200, 201, 202)), ("200", "_OTHER"),
        ("400", "_OTHER"),
    }  # fmt: skip


def test_records_of_several_threads_are_all_counted() -> None:
    metrics = RequestMetrics()
    each = 5 * request_metrics._BATCH_SIZE

    def work() -> None:
        for _ in range(each):
            metrics.begin("GET", "http")
            _record(metrics)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        list(metrics.collect())
    for thread in threads:
        thread.join()
    assert sum(_only_duration(metrics).counts) == 4 * each
    assert _value(metrics, "wsgifast_response_body_bytes_total", "as-is") == 4 * each * 2000
    assert _active(metrics) == {("GET", "http"): 0}


def test_forked_child_counts_from_zero() -> None:
    metrics = RequestMetrics()
    _record(metrics)
    metrics.begin("GET", "http")
    metrics.count_client_left()
    metrics.count_length_error("short")

    def counts_nothing() -> None:
        assert {each.value for each in metrics.collect()} == {0}

    in_a_child(counts_nothing)
    assert _value(metrics, "wsgifast_clients_left_total") == 1
    assert _value(metrics, "wsgifast_content_length_errors_total", "short") == 1


def test_batch_of_several_labels_is_aggregated() -> None:
    metrics = RequestMetrics()
    for number in range(10):
        _record(metrics, status=200 + number % 2, seconds=float(number), size=number)
    for status, total in (("200", 20), ("201", 25)):
        labels = ("GET", "http", status, "/items/<id>")
        duration = _value(metrics, _DURATION, *labels)
        assert (sum(duration.counts), duration.total) == (5, total)
        size = _value(metrics, "http_server_response_body_size_bytes", *labels)
        assert (sum(size.counts), size.total) == (5, total)


def test_records_are_bounded_and_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_metrics, "_CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(request_metrics, "_MAX_UNSORTED", 300)
    metrics = RequestMetrics()
    for number in range(3 * request_metrics._BATCH_SIZE):
        metrics.begin("GET", "http")
        _record(metrics)
        assert len(metrics.records) < (request_metrics._BATCH_SIZE + 1) * request_metrics._FIELDS
        assert metrics._unsorted < 300
        if number % 100 == 99:
            count = _value(metrics, "wsgifast_responses_total", "as-is", "/items/<id>")
            assert count == number + 1
            assert not metrics.records


def test_first_request_starts_the_reports() -> None:
    called: list[bool] = []
    metrics = RequestMetrics(on_first=lambda: called.append(True))
    for _ in range(2):
        _record(metrics)
    assert called == [True]

    def begins() -> None:
        called.clear()
        for _ in range(2):
            _record(metrics)
        assert called == [True]

    in_a_child(begins)


def test_running_requests_come_from_the_server() -> None:
    metrics = RequestMetrics()
    metrics.running_requests = lambda: [("GET", "http"), ("GET", "http"), ("BREW", "http")]
    _record(metrics, method="POST")
    assert _active(metrics) == {("GET", "http"): 2, ("_OTHER", "http"): 1, ("POST", "http"): 0}

    def knows_of_none() -> None:
        assert not _active(metrics)

    in_a_child(knows_of_none)

"""The tally of requests: exact, bounded, and each process's own."""

from __future__ import annotations

import threading

import pytest

from tests.support.child import in_a_child
from wsgifast.metrics import Distribution, Point, Tally
from wsgifast.metrics import tally as tallies

_DURATION = "http_server_request_duration_seconds"


def _record(
    tally: Tally,
    *,
    method: str = "GET",
    scheme: str = "http",
    status: int = 200,
    pattern: str | None = "/items/<id>",
    route: str = "as-is",
    seconds: float = 0.003,
    size: int = 2000,
) -> None:
    tally.record(method, scheme, status, pattern, route, seconds, size)


def _points(tally: Tally, name: str) -> dict[tuple[str, ...], Point]:
    return {each.labels: each for each in tally.points() if each.metric.name == name}


def _value(tally: Tally, name: str, *labels: str) -> float:
    value = _points(tally, name)[labels].value
    assert isinstance(value, (int, float))
    return value


def _distribution(tally: Tally, name: str, *labels: str) -> Distribution:
    value = _points(tally, name)[labels].value
    assert isinstance(value, Distribution)
    return value


def test_a_request_is_counted_once_in_each_metric() -> None:
    tally = Tally()
    _record(tally, seconds=0.003, size=2000)
    labels = ("GET", "http", "200", "/items/<id>")
    duration = _distribution(tally, _DURATION, *labels)
    assert duration.total == 0.003
    assert [n for n, count in enumerate(duration.counts) if count] == [3]  # up to 5 ms
    size = _distribution(tally, "http_server_response_body_size_bytes", *labels)
    assert (sum(size.counts), size.total) == (1, 2000)
    assert _value(tally, "wsgifast_responses_total", "as-is", "/items/<id>") == 1
    assert _value(tally, "wsgifast_response_body_bytes_total", "as-is") == 2000


def test_a_bound_belongs_to_its_bucket() -> None:
    tally = Tally()
    for seconds in (0.0005, 0.00051, 10.0, 10.1):
        _record(tally, seconds=seconds)
    (point,) = _points(tally, _DURATION).values()
    assert isinstance(point.value, Distribution)
    assert [n for n, count in enumerate(point.value.counts) if count] == [0, 1, 16, 17]


def test_routes_of_one_pattern_share_its_duration() -> None:
    tally = Tally()
    for route in ("as-is", "joined", "joined", "rescued"):
        _record(tally, route=route)
    (point,) = _points(tally, _DURATION).values()
    assert isinstance(point.value, Distribution)
    assert sum(point.value.counts) == 4
    assert _value(tally, "wsgifast_responses_repaired_total", "/items/<id>") == 3


def test_without_a_route_only_the_request_is_told() -> None:
    tally = Tally()
    _record(tally, route="", pattern=None)
    assert list(_points(tally, _DURATION)) == [("GET", "http", "200", "unknown")]
    assert not _points(tally, "wsgifast_responses_total")


def test_what_clients_invent_takes_no_memory() -> None:
    tally = Tally()
    for number in range(3 * tallies._MOST_LABELS):
        tally.begin(f"M{number}", f"s{number}")
        _record(tally, method=f"M{number}", scheme=f"s{number}")
    assert list(_points(tally, _DURATION)) == [("_OTHER", "_OTHER", "200", "/items/<id>")]
    assert _active(tally) == {("_OTHER", "_OTHER"): 0}
    assert len(tally._series) == 1
    assert len(tally.notes) <= tallies._MOST_LABELS
    assert len(tally._retired) <= tallies._MOST_LABELS


def test_what_is_noted_under_labels_that_are_put_away_is_counted() -> None:
    """By whoever had found their place before."""
    tally = Tally()
    _record(tally, size=1)
    found = tally.notes["GET", "http", 200, "/items/<id>", "as-is"]
    for number in range(tallies._MOST_LABELS):
        _record(tally, status=1000 + number)
    assert ("GET", "http", 200, "/items/<id>", "as-is") not in tally.notes
    found += (0.1, 2)
    _record(tally, size=3)
    labels = ("GET", "http", "200", "/items/<id>")
    sizes = _distribution(tally, "http_server_response_body_size_bytes", *labels)
    assert (sum(sizes.counts), sizes.total) == (3, 6)


def test_distinct_patterns_are_limited() -> None:
    tally = Tally()
    for number in range(tallies._MOST_PATTERNS + 50):
        _record(tally, pattern=f"/made/{number}")
    durations = _points(tally, _DURATION)
    assert len(durations) == tallies._MOST_PATTERNS + 1
    other = durations["GET", "http", "200", "_OTHER"].value
    assert isinstance(other, Distribution)
    assert sum(other.counts) == 50


def _active(tally: Tally) -> dict[tuple[str, ...], float]:
    points = _points(tally, "http_server_active_requests")
    return {labels: point.value for labels, point in points.items()}  # type: ignore[misc]


def test_active_requests() -> None:
    tally = Tally()
    for method in ("GET", "GET", "POST", "BREW", "BREW"):
        tally.begin(method, "http")
    _record(tally)
    _record(tally, method="BREW")
    assert _active(tally) == {("GET", "http"): 1, ("POST", "http"): 1, ("_OTHER", "http"): 1}
    tally.abandon("POST", "http")
    tally.abandon("BREW", "http")
    assert _active(tally) == {("GET", "http"): 1, ("POST", "http"): 0, ("_OTHER", "http"): 0}


def test_active_requests_beyond_the_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "_MOST_SERIES", 1)
    tally = Tally()
    for status in (200, 404, 404):
        tally.begin("GET", "http")
        _record(tally, status=status)
    tally.begin("GET", "http")
    assert _active(tally) == {("GET", "http"): 1, ("_OTHER", "http"): 0}


def test_what_ends_in_a_child_is_not_below_nothing() -> None:
    tally = Tally()
    _record(tally)
    assert _active(tally) == {("GET", "http"): 0}


def test_series_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "_MOST_SERIES", 3)
    tally = Tally()
    for status in (200, 201, 202, 203, 404, 404):
        _record(tally, status=status)
    labels = {labels[2:] for labels in _points(tally, _DURATION)}
    pattern = "/items/<id>"
    assert labels == {
        *((str(status), pattern) for status in (200, 201, 202)), ("200", "_OTHER"),
        ("400", "_OTHER"),
    }  # fmt: skip


def test_nothing_is_lost_between_threads() -> None:
    tally = Tally()
    each = 5 * tallies.NOTED_TOGETHER

    def work() -> None:
        for _ in range(each):
            tally.begin("GET", "http")
            _record(tally)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        list(tally.points())
    for thread in threads:
        thread.join()
    (point,) = _points(tally, _DURATION).values()
    assert isinstance(point.value, Distribution)
    assert sum(point.value.counts) == 4 * each
    assert _value(tally, "wsgifast_response_body_bytes_total", "as-is") == 4 * each * 2000
    assert _active(tally) == {("GET", "http"): 0}


def test_a_child_counts_from_nothing() -> None:
    tally = Tally()
    _record(tally)
    tally.begin("GET", "http")
    tally.count_client_left()
    tally.count_length_error("short")

    def counts_nothing() -> None:
        assert {each.value for each in tally.points()} == {0}

    in_a_child(counts_nothing)
    assert _value(tally, "wsgifast_clients_left_total") == 1
    assert _value(tally, "wsgifast_content_length_errors_total", "short") == 1


def test_two_threads_with_the_same_new_labels_are_both_counted() -> None:
    both = threading.Barrier(2)
    tally = Tally(lambda: both.wait(10))  # each has found no list by now
    threads = [threading.Thread(target=_record, args=[tally]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _value(tally, "wsgifast_responses_total", "as-is", "/items/<id>") == 2


def test_what_was_noted_is_bounded_and_seen_by_whoever_asks() -> None:
    tally = Tally()
    for number in range(3 * tallies.NOTED_TOGETHER):
        tally.begin("GET", "http")
        _record(tally)
        assert all(len(noted) < tallies.NOTED_TOGETHER for noted in tally.notes.values())
        assert len(tally.begun) < tallies.NOTED_TOGETHER
        if number % 100 == 99:
            count = _value(tally, "wsgifast_responses_total", "as-is", "/items/<id>")
            assert count == number + 1
            assert not any(tally.notes.values())


def test_the_first_request_of_a_process_is_counted_at_once() -> None:
    """Whoever is to tell of it begins then."""
    called: list[bool] = []
    tally = Tally(lambda: called.append(True))
    _record(tally)
    assert called == [True]

    def begins() -> None:
        called.clear()
        _record(tally)
        assert called == [True]

    in_a_child(begins)


def test_requests_under_way_are_asked_for_where_somebody_knows() -> None:
    tally = Tally()
    tally.active = lambda: [("GET", "http"), ("GET", "http"), ("BREW", "http")]
    _record(tally, method="POST")
    assert _active(tally) == {("GET", "http"): 2, ("_OTHER", "http"): 1, ("POST", "http"): 0}

    def knows_of_none() -> None:
        assert not _active(tally)

    in_a_child(knows_of_none)

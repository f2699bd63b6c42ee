"""The values that FastWorker records for each request, after the response."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import flask
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.metrics.test_instrumented import Failing
from tests.metrics.test_opentelemetry import exported
from tests.server.http2_peer import HTTP2, Peer
from tests.support.notes import Notes
from tests.workers.stepped_worker import (
    GET,
    MakeStepped,
    SteppedWorker,
    large,
    request_for,
    responses,
)
from wsgifast import WSGIFast
from wsgifast.metrics import (
    CATALOGUE,
    Collector,
    Distribution,
    collecting,
)
from wsgifast.metrics.opentelemetry import Instruments
from wsgifast.workers import FastWorker
from wsgifast.workers import metrics as worker_metrics
from wsgifast.workers.gauges import gauges
from wsgifast.workers.metrics import ResponseRecorder, WorkerCollector, start_reporting


class Recorded(Notes):
    """Return the values that FastWorker has recorded."""

    running_requests: Callable[[], Iterable[Any]]

    @property
    def active_requests(self) -> int:
        return len(list(self.running_requests()))


@pytest.fixture
def begin(make_stepped: MakeStepped) -> Callable[..., tuple[SteppedWorker, Recorded]]:
    def make(app: Any, recorded: Any = None, **options: Any) -> tuple[SteppedWorker, Recorded]:
        stepped = make_stepped(app, **options)
        recorded = recorded or Recorded()
        stepped.worker._responses = ResponseRecorder(recorded, stepped.log)
        stepped.begin_anew()
        return stepped, recorded

    return make


Begin = Callable[..., tuple[SteppedWorker, Recorded]]


def test_recorder_records_method_status_and_size(begin: Begin) -> None:
    stepped, recorded = begin(responses([b"abc"], status="201 Created"))
    stepped.begin(GET.replace(b"GET", b"POST"))
    (request,) = recorded.requests
    assert request[:5] == ("POST", "http", 201, None, "")
    assert request.size == 3


def test_worker_is_idle_without_connections(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(responses([b"abc"]))
    collector = WorkerCollector(stepped.server)
    before = collector.activity()
    assert collector.activity() == before is not None
    client = stepped.begin()
    assert collector.activity() is None
    client.close()
    stepped.run()
    assert collector.activity() not in (None, before)


def test_recorder_takes_pattern_from_wsgifast(begin: Begin) -> None:
    app = flask.Flask(__name__)
    app.add_url_rule("/<int:number>", view_func=lambda number: ["x"] * number)
    app.add_url_rule("/lines", "lines", lambda: flask.Response(["x"] * 1000))
    stepped, recorded = begin(WSGIFast(app))
    stepped.begin(request_for("/lines"))
    stepped.begin(request_for("/5"))
    assert [(r.sent_as, r.pattern, r.size > 3) for r in recorded.requests] == [
        ("joined", "/lines", True), ("as-is", "/<int:number>", True),
    ]  # fmt: skip


def test_recorder_finds_framework_loaded_late(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_metrics, "FRAMEWORKS", frozenset({"a_late_framework"}))
    app = flask.Flask(__name__)
    app.add_url_rule("/<int:number>", view_func=lambda number: str(number))
    stepped, recorded = begin(app)
    assert stepped.worker.application.app is app
    stepped.begin(request_for("/5"))
    monkeypatch.setitem(sys.modules, "a_late_framework", sys)
    stepped.worker._responses.note_patterns()
    stepped.begin(request_for("/5"))
    assert [request.pattern for request in recorded.requests] == [None, "/<int:number>"]


@pytest.mark.parametrize(
    ("body", "wrapped", "kinds"),
    [
        ([b"abc"], False, ["short"]),
        ([b"abcdefghi"], False, ["long"]),
        ([b"abcde"], False, []),
        ([b"abc"], True, ["corrected"]),
    ],
)
def test_recorder_counts_length_errors(
    begin: Begin, body: list[bytes], wrapped: bool, kinds: list[str]
) -> None:
    app = responses(body, ("Content-Length", "5"))
    stepped, recorded = begin(WSGIFast(app) if wrapped else app)
    stepped.begin()
    assert recorded.length_errors == kinds
    assert not recorded.clients_left


def test_recorder_counts_shrunk_file_as_short(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2_000_000))

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](path.open("rb"))
        return wrapped

    stepped, recorded = begin(app)
    client = stepped.begin()
    path.write_bytes(bytes(10))
    while client.receive_all_there_is():
        stepped.run()
    stepped.run()
    assert recorded.length_errors == ["short"]
    assert 0 < recorded.requests[0].size < 2_000_000


def test_recorder_counts_client_that_is_given_up(begin: Begin) -> None:
    stepped, recorded = begin(large)
    stepped.begin()
    assert not recorded.requests
    assert recorded.active_requests == 1
    stepped.pass_time(FastWorker.send_timeout_s + 1)
    (request,) = recorded.requests
    assert recorded.clients_left == 1
    assert recorded.active_requests == 0
    assert 0 < request.size < 1024 * 1024


def test_recorder_records_http2_streams(begin: Begin) -> None:
    stepped, recorded = begin(WSGIFast(responses([b"x"] * 100)), **HTTP2)
    peer = Peer(stepped)
    assert peer.get().status == 200
    assert peer.get().body == b"x" * 100
    assert [(r.status, r.sent_as, r.size) for r in recorded.requests] == [(200, "joined", 100)] * 2
    assert recorded.active_requests == 0
    assert [labels for _, labels, value in gauges(stepped.server) if labels and value] == [
        ("http2",)
    ]
    stepped.pass_time(1000)
    peer.run()
    assert stepped.server.shared.counters.timeouts == {"keepalive": 1}


def _raise() -> Any:
    raise ZeroDivisionError


def test_recorder_counts_app_error_as_500(begin: Begin) -> None:
    stepped, recorded = begin(responses(_raise))
    client = stepped.begin()
    assert client.read_response().status == 500
    assert [request.status for request in recorded.requests] == [500]
    assert recorded.active_requests == 0


def test_recorder_ignores_hijacked_connection(begin: Begin) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["gunicorn.socket"].sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        raise StopIteration

    stepped, recorded = begin(app)
    stepped.begin()
    assert not recorded.requests
    assert recorded.active_requests == 0


def test_recorder_ignores_refused_request(begin: Begin) -> None:
    stepped, recorded = begin(responses([b"abc"]))
    stepped.begin(b"nonsense\r\n\r\n")
    assert not recorded.requests


def test_failing_metrics_back_end_costs_no_response(begin: Begin) -> None:
    stepped, _ = begin(responses([b"abc"], ("Content-Length", "3")), Failing())
    client = stepped.begin()
    for _ in range(3):
        assert client.read_response().body == b"abc"
        client.run(GET)
    assert len(stepped.log.errors) == 1
    assert stepped.log.says("further failures are not logged")


def test_worker_metrics_are_collected_with_the_process(
    make_stepped: MakeStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WSGIFAST_METRICS", raising=False)
    collectors: list[Collector] = []
    monkeypatch.setattr(worker_metrics, "process_collectors", collectors)
    stepped = make_stepped(large)
    stepped.worker.application.requests = 5
    collector = WorkerCollector(stepped.server)
    start_reporting(collector, None, stepped.worker)
    assert collectors == [collector.collect]


def test_opentelemetry_gets_thread_waits_once(
    make_stepped: MakeStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(collecting.observers, "wsgifast_thread_wait_seconds", [])
    stepped = make_stepped(large)
    stepped.worker.application.requests = 5
    collector = WorkerCollector(stepped.server)
    monkeypatch.setattr(collecting, "process_collectors", [collector.collect])
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    Instruments(provider)
    for seconds in (0.2, 0.3):
        stepped.server.shared.counters.waits.append(seconds)
    for _ in range(2):  # no value is reported twice
        metric = exported(reader)["wsgifast.thread_wait"]
        (recorded,) = metric.data.data_points
        assert (metric.unit, recorded.count, recorded.sum) == ("s", 2, 0.5)
        assert recorded.explicit_bounds == CATALOGUE["wsgifast_thread_wait_seconds"].bounds
    provider.shutdown()


def test_ended_worker_reports_counters_only(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large)
    stepped.worker.application.requests = 5
    collector = WorkerCollector(stepped.server)

    def ends() -> dict[str, float | Distribution]:
        """Requests are counted by the reason of their refusal."""
        name = "wsgifast_worker_ends_total"
        found = collector.collect()
        return {each.labels[0]: each.value for each in found if each.metric.name == name}

    names = {point.metric.name for point in collector.collect()}
    assert "wsgifast_threads" in names
    none = dict.fromkeys(CATALOGUE["wsgifast_worker_ends_total"].known, 0)
    assert ends() == none
    collector.end("max_requests")
    assert ends() == {**none, "max_requests": 1}
    recorded = {point.metric.name: point for point in collector.collect()}
    assert "wsgifast_threads" not in recorded
    wait = recorded["wsgifast_thread_wait_seconds"].value
    assert not isinstance(wait, (int, float))
    assert (wait.counts[0], sum(wait.counts), wait.total) == (5, 5, 0.0)

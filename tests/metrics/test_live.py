"""Metrics of several workers, by the middleware on gthread, and by FastWorker itself."""

from __future__ import annotations

from pathlib import Path

from tests.metrics.test_prometheus import Samples, parsed
from tests.support.servers import LiveServer, free_port, live_server, wait_for
from tests.workers.serving import gunicorn_command
from tests.workers.test_metrics import scraped_until
from wsgifast.metrics.aggregation import Directory

PAGE = "/page/<int:number>"


def _ask(server: LiveServer) -> None:
    for number in (1, 2, 3, 4):
        assert server.get(f"/page/{number}").status == 200
    assert server.get("/crumbs").status == 200


def _count(samples: Samples, sent_as: str, pattern: str) -> float:
    name = "wsgifast_responses_total"
    return samples.get((name, (("http_route", pattern), ("wsgifast_sent_as", sent_as))), 0)


def test_gthread_with_preload_app_adds_its_workers_up(tmp_path: Path) -> None:
    options = ("-b", "127.0.0.1:{port}", "--workers=2", "--preload")
    argv = gunicorn_command("-k", "gthread", *options, "tests.support.monitored_app:app")
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def samples() -> Samples:
        return parsed(Directory(str(tmp_path), own=False).text()[1])

    with live_server(argv, env=env) as server:
        _ask(server)
        wait_for(
            lambda: (
                (_count(samples(), "as-is", PAGE), _count(samples(), "joined", "/crumbs")) == (4, 1)
                and samples()["orders_total", ()] == 4
            ),
            "the workers have reported it",
        )
    # A worker writes the requests of its last second when it ends.
    assert _count(samples(), "as-is", PAGE) == 4


def test_fast_worker_counts_each_request_once() -> None:
    metrics = free_port()
    options = ("-b", "127.0.0.1:{port}", "--workers=2", "--preload")
    argv = gunicorn_command(
        "-k", "wsgifast.workers.FastWorker", *options, "tests.support.monitored_app:app"
    )
    env = {"WSGIFAST_METRICS": f"127.0.0.1:{metrics}"}
    as_is = {"wsgifast_sent_as": "as-is", "http_route": PAGE}
    with live_server(argv, env=env) as server:
        _ask(server)
        for name, value, labels in (
            ("http_server_request_duration_seconds_count", 4, {"http_route": PAGE}),
            ("wsgifast_responses_total", 4, as_is),
            ("wsgifast_responses_repaired_total", 1, {"http_route": "/crumbs"}),
            ("orders_total", 4, {}),  # the app's own are served, too
        ):
            scraped_until(metrics, name, value, **labels)

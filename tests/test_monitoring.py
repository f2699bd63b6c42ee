"""The files in examples/monitoring/, checked by the tools of Prometheus and Grafana."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import Connection
from tests.support.programs import check, program
from tests.support.servers import ROOT, LiveServer, free_port, live_server, wait_for
from tests.workers.serving import gunicorn_command
from wsgifast.metrics import CATALOGUE

pytestmark = pytest.mark.long

FOLDER = ROOT / "examples" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
ALERTS = (FOLDER / "wsgifast-alerts.yml").read_text()
# Words of Prometheus itself among the names in its queries.
_NAME = re.compile(r"\b((?:http|wsgifast)_[a-z0-9_]+)\b")
_SELECTED = re.compile(r"\{([^}]*)\}")
_LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
_BY = re.compile(r"\bby \(([^)]*)\)")
# Labels that Prometheus and its multiprocess mode add.
_ADDED = {"job", "instance", "le", "pid"}


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def queries() -> list[str]:
    """Every query of the dashboard, and every expression of an alert."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    alerts = re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n        (?:for|labels):", ALERTS)
    assert len(alerts) == ALERTS.count("alert:")
    return found + [" ".join(text.split()) for text in alerts]


def metric_of(name: str) -> str:
    """Return the metric with a series of this name."""
    for suffix in ("_bucket", "_count", "_sum"):
        if name not in CATALOGUE and name.removesuffix(suffix) in CATALOGUE:
            return name.removesuffix(suffix)
    return name


def labels_in(query: str) -> set[str]:
    selected = {label for part in _SELECTED.findall(query) for label in _LABEL.findall(part)}
    grouped = {label.strip() for part in _BY.findall(query) for label in part.split(",")}
    return (selected | grouped) - {""}


def test_every_query_has_known_metrics_and_labels() -> None:
    for query in queries():
        labels = labels_in(query)
        names = set(_NAME.findall(query)) - labels
        assert names or query.startswith("up{"), query
        unknown = {name for name in names if metric_of(name) not in CATALOGUE}
        assert not unknown, query
        known = {label for name in names for label in CATALOGUE[metric_of(name)].labels}
        assert labels <= known | _ADDED, query


def test_dashboard_shows_every_group_of_metrics() -> None:
    requested = {metric_of(name) for query in queries() for name in _NAME.findall(query)}
    # Each omitted metric has a panel that shows the same.
    assert CATALOGUE.keys() - requested == set()


def test_prometheus_accepts_configuration_and_alerts() -> None:
    check("promtool", "check", "config", FOLDER / "prometheus.yml")
    check("promtool", "check", "rules", FOLDER / "wsgifast-alerts.yml")
    check("promtool", "test", "rules", FOLDER / "wsgifast-alerts-test.yml")


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    names = re.findall(r"alert: (\w+)", ALERTS)
    assert len(names) == len(set(names)) == 10
    tested = (FOLDER / "wsgifast-alerts-test.yml").read_text()
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts", tested)
    assert set(fired) == set(names)
    for part in ("summary:", "description:", "severity:"):
        assert ALERTS.count(part) == len(names)


def test_dashboard_is_of_grafanas_own_types() -> None:
    """They are made from the schema that Grafana publishes. They drop unknown fields."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    known = json.loads(JSONEncoder().encode(models.Dashboard.from_json(DASHBOARD)))
    assert not list(lost(DASHBOARD, known))


def lost(given: Any, known: Any, path: str = "") -> Iterator[str]:
    """Return the parts of one value that are missing or differ in a second one, which may have
    more.
    """
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            yield from lost(value, known.get(key), f"{path}/{key}")
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        for index, (value, other) in enumerate(zip(given, known, strict=True)):
            yield from lost(value, other, f"{path}/{index}")
    elif given != known:
        yield f"{path}: {given!r} is {known!r}"


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_readme_names_every_file() -> None:
    readme = (FOLDER / "README.md").read_text()
    files = {path.name for path in Path(FOLDER).iterdir()} - {"README.md"}
    assert all(f"`{name}`" in readme for name in files)


# A real Prometheus, and a server with some requests.

# Metrics that only faults produce.
_OF_TROUBLE = {"wsgifast_requests_refused_total"}


@contextlib.contextmanager
def server_and_prometheus(folder: Path) -> Iterator[tuple[LiveServer, LiveServer]]:
    """FastWorker with two workers, and a Prometheus with the example's configuration."""
    metrics_port = free_port()
    argv = gunicorn_command(
        "-kwsgifast.workers.FastWorker", "-b127.0.0.1:{port}", "--workers=2",
        "tests.support.monitored_app:app",
    )  # fmt: skip
    (folder / "wsgifast-alerts.yml").write_text(ALERTS)
    configuration = (FOLDER / "prometheus.yml").read_text()
    assert "127.0.0.1:9100" in configuration
    (folder / "prometheus.yml").write_text(
        configuration.replace("127.0.0.1:9100", f"127.0.0.1:{metrics_port}").replace("15s", "1s")
    )
    prometheus = [
        program("prometheus"),
        "--config.file=prometheus.yml",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    environment = {"WSGIFAST_METRICS": f"127.0.0.1:{metrics_port}"}
    with (
        live_server(argv, env=environment) as server,
        live_server(prometheus, cwd=folder, forked=False) as requested,
    ):
        yield server, requested


def ask_for_everything(server: LiveServer) -> None:
    for _ in range(5):
        with Connection(server.address) as connection:
            for path in ("/page/1", "/page/2", "/crumbs", "/file", "/nowhere", "/broken"):
                connection.request(path)
        with contextlib.suppress(Exception), Connection(server.address) as connection:
            connection.request("/short")


def api(prometheus: LiveServer, path: str, **query: str) -> Any:
    target = f"/api/v1/{path}?{urllib.parse.urlencode(query)}"
    response = json.loads(prometheus.get(target).body)
    assert response["status"] == "success", f"{query}: {response.get('error')}\n{prometheus.log()}"
    return response["data"]


def result(prometheus: LiveServer, query: str) -> list[Any]:
    # Grafana inserts the dashboard's variables like this.
    for name, value in (("$__rate_interval", "1m"), ("$job", ".*"), ("$instance", ".*")):
        query = query.replace(name, value)
    found: list[Any] = api(prometheus, "query", query=query)["result"]
    return found


def test_prometheus_answers_every_query_about_a_server(tmp_path: Path) -> None:
    program("prometheus")
    with server_and_prometheus(tmp_path) as (server, prometheus):
        ask_for_everything(server)

        def requests() -> float:
            counted = result(prometheus, "sum(http_server_request_duration_seconds_count)")
            return float(counted[0]["value"][1]) if counted else 0.0

        wait_for(lambda: requests() >= 35, "all requests are counted", interval=0.1)
        ask_for_everything(server)
        wait_for(lambda: requests() >= 70, "all requests are counted again", interval=0.1)
        dashboard = [target["expr"] for panel in panels() for target in panel["targets"]]

        def without_samples() -> set[str]:
            empty = {query for query in dashboard if not result(prometheus, query)}
            requested = {metric_of(name) for query in empty for name in _NAME.findall(query)}
            return requested & CATALOGUE.keys() - _OF_TROUBLE

        wait_for(lambda: not without_samples(), "each query has samples", interval=0.5)
        by_route = result(
            prometheus, "sum by (http_route) (http_server_request_duration_seconds_count)"
        )
        counts = {each["metric"]["http_route"]: float(each["value"][1]) for each in by_route}
        assert counts["/page/<int:number>"] == 20
        assert counts["/crumbs"] == counts["/broken"] == 10
        (group,) = api(prometheus, "rules")["groups"]
        wait_for(
            lambda: all(
                rule["health"] == "ok" for rule in api(prometheus, "rules")["groups"][0]["rules"]
            ),
            "every alert has been evaluated",
        )
        assert len(group["rules"]) == 10
        (target,) = api(prometheus, "targets")["activeTargets"]
        assert target["health"] == "up"

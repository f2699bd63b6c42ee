"""What is published of reports: the page of figures, and the chart."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from loadtests import publish
from loadtests.chart import BARS, THEMES, chart

REPORT: dict[str, Any] = {
    "measured": "2026-11-22T10:00:00Z",
    "machine": {"cores": 2, "processor": "P", "system": "Linux 6.1-x", "python": "CPython 3.13.0",
                "gunicorn": "27.0.1"},
    "title": "What an app returns",
    "profile": {"seconds": 1.0, "rounds": 7, "row_seconds": 120.0, "full": True},
    "rows": {
        "demo.file": {
            "title": "an open file",
            "ours": None,
            "contenders": {
                "gthread": {"requests/s": 10.123456, "CPU us/req": 1_000.0, "ratio": None,
                            "ms": {"50": 1.0, "99": 2.0}, "failures": 3, "runs": [1]},
                "WSGIFast on gthread": {
                    "requests/s": 400.0, "CPU us/req": 25.0, "failures": 0, "runs": [1],
                    "ratio": {"median": 39.51, "low": 30.0, "high": 45.0},
                    "ms": {"50": None, "99": None}},
            },
        }
    },
}  # fmt: skip


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, folder in (("REPORTS", "reports"), ("DATA", "docs/benchmarks"), ("DOCS", "docs")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(publish, name, tmp_path / folder)
    (tmp_path / "docs" / "assets").mkdir()
    (tmp_path / "docs" / "benchmarks" / "2026-11.json").write_text('{"ratios": {"demo.small": 1}}')
    (tmp_path / "reports" / "demo.json").write_text(json.dumps(REPORT))
    monkeypatch.setattr("sys.argv", ["publish"])
    publish.main()
    return tmp_path / "docs"


def test_the_page_names_command_machine_and_date(docs: Path) -> None:
    page = (docs / "benchmarks.md").read_text()
    assert "`python -m loadtests demo. --profile release` on 2026-11-22, 7 rounds of 1 s" in page
    assert "2 cores, P, Linux 6.1, CPython 3.13.0." in page
    assert "| an open file | gthread | 10.1 (3 failed) |  | 1,000 | 1 | 2 |" in page
    assert "|  | WSGIFast on gthread | 400 | **39.5x** (30 to 45) | 25 |  |  |" in page
    assert "On 2026-11-22: gunicorn 27.0.1." in page


def test_what_is_kept_has_no_single_runs(docs: Path) -> None:
    kept = json.loads((docs / "benchmarks" / "demo.json").read_text())
    gthread = kept["rows"]["demo.file"]["contenders"]["gthread"]
    assert gthread["requests/s"] == 10.12
    assert "runs" not in gthread


def test_the_chart_takes_reports_before_earlier_figures(docs: Path) -> None:
    for theme in THEMES:
        svg = (docs / "assets" / f"ratios-{theme}.svg").read_text()
        texts = "".join(xml.etree.ElementTree.fromstring(svg).itertext())
        assert "an open file" in texts
        assert "40x" in texts
        assert "1.0x" in texts


def test_every_bar_is_a_row_of_the_load_tests() -> None:
    from loadtests.__main__ import tables

    contenders = {row.key: {c.name for c in row.contenders} for t in tables() for row in t.rows}
    assert all(bar.contender in contenders[bar.key] for bar in BARS)


def test_a_chart_without_figures_is_a_picture_too() -> None:
    xml.etree.ElementTree.fromstring(chart({}, THEMES["dark"]))

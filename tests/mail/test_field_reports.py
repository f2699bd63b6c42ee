"""The mail field reports run, with amounts that say nothing about speed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from loadtests.field_reports import mail_append, mail_throughput
from loadtests.field_reports.page import Measured, page


@pytest.mark.parametrize("report", [mail_append, mail_throughput])
def test_a_report_gives_tables_and_charts(report: ModuleType, monkeypatch: Any) -> None:
    amounts = report.MESSAGES["quick"]
    few = dict.fromkeys(amounts, 2) if isinstance(amounts, dict) else 2
    monkeypatch.setattr(report, "MESSAGES", {"quick": few})
    monkeypatch.setattr(report, "ROUNDS", 1)
    monkeypatch.setattr(report, "LARGE_BYTES", 100_000, raising=False)
    result = report.run("quick")
    for figures in (report.OLD, *result.tables):
        assert {len(row) for row in figures.rows} == {len(figures.columns)}
    assert all(value > 0 for chart in result.charts for value in chart.values.values())
    assert report.TITLE in page([Measured(report.TITLE, report.OLD, result)], {})

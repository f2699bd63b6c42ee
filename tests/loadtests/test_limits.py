"""The limits of a request's instructions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests import limits
from loadtests.instructions import TABLE


def _report(folder: Path, counts: dict[str, float | None]) -> str:
    contenders = {name: {"instructions": count} for name, count in counts.items()}
    path = folder / "report.json"
    path.write_text(json.dumps({"rows": {"a.row": {"contenders": contenders}}}))
    return str(path)


@pytest.fixture
def of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "limits.json"
    path.write_text(json.dumps({"a.row: raw": 100, "a.row: ours": 200}))
    monkeypatch.setattr(limits, "LIMITS", path)


@pytest.mark.parametrize(("ours", "status"), [(200.0, 0), (219.0, 0), (221.0, 1), (None, 1)])
@pytest.mark.usefixtures("of_a_row")
def test_count_above_its_limit_fails(tmp_path: Path, ours: float | None, status: int) -> None:
    report = _report(tmp_path, {"raw": 100.0, "ours": ours})
    assert limits.main([report]) == status


@pytest.mark.usefixtures("of_a_row")
def test_row_without_a_limit_fails_until_it_is_written(tmp_path: Path) -> None:
    report = _report(tmp_path, {"raw": 100.0, "ours": 200.0, "another": 5.0})
    assert limits.main([report]) == 1
    assert limits.main([report, "--write"]) == 0
    assert limits.main([report]) == 0


def test_instruction_row_has_a_limit() -> None:
    named = {f"{row.key}: {c.name}" for row in TABLE.rows for c in row.contenders}
    assert set(json.loads(limits.LIMITS.read_text())) == named

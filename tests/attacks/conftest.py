"""The counter of cases: the closing lines of a run say how many each attack has tried."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

_KEY = "attack cases"
_totals: Counter[str] = Counter()


@pytest.fixture
def count_cases(request: pytest.FixtureRequest) -> Any:
    """A function that adds to the number of cases of the test's module."""

    def add(number: int) -> None:
        request.node.user_properties.append((_KEY, (request.path.stem, number)))

    return add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        for key, value in report.user_properties:
            if key == _KEY and isinstance(value, (list, tuple)):
                _totals[value[0]] += value[1]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _totals:
        parts = ", ".join(f"{name} {number:,}" for name, number in sorted(_totals.items()))
        terminalreporter.write_line(f"attack cases: {parts}")

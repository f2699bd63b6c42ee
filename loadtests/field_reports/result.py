"""What a field report gives: tables, charts, raw figures, and what has changed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Bars", "Figures", "Profile", "ReportResult"]

# quick: a quarter of a minute or so for each report. full: the amounts of the old reports.
Profile = Literal["quick", "full"]


@dataclass(frozen=True)
class Figures:
    """A table; cells as `loadtests.measuring.table` takes them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Bars:
    """A bar chart: label -> value; a longer bar is more of the unit, good or bad."""

    title: str
    unit: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class ReportResult:
    """Today's side of one report.

    :ivar changed: an honest sentence or two on what is different from then, and what is gone.
    :ivar raw: everything measured, for the JSON file.
    """

    tables: Sequence[Figures]
    charts: Sequence[Bars]
    changed: str
    raw: Mapping[str, object] = field(default_factory=dict)

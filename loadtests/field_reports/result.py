"""What a field report gives: tables, charts, raw figures, and what has changed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Bars", "Figures", "Profile", "ReportResult", "Summary"]

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
class Summary:
    """A report in one line: its chief figures, each a number with its unit.

    :ivar then: what the report saw, before and after.
    :ivar standard: the same today, with what Python or the usual library brings.
    :ivar wsgifast: the same today, with wsgifast.
    :ivar limit: what holds that last figure back.
    """

    then: str
    standard: str
    wsgifast: str
    limit: str


@dataclass(frozen=True)
class ReportResult:
    """Today's side of one report.

    :ivar summary: its line in the first table of the page.
    :ivar changed: an honest sentence or two on what is different from then, and what is gone.
    :ivar raw: everything measured, for the JSON file.
    """

    tables: Sequence[Figures]
    charts: Sequence[Bars]
    summary: Summary
    changed: str
    raw: Mapping[str, object] = field(default_factory=dict)

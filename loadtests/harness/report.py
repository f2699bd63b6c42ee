"""Format results as text, as JSON and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wsgifast.commands import page
from wsgifast.commands.bench import report
from wsgifast.commands.bench.report import Grid, html_table, shown

from .machine import machine
from .results import Difference, Result
from .tables import Profile, Table

_OURS = "ours / this"


def results_text(results: Sequence[Result], width: int | None = None) -> str:
    """Return tables of results with the keys of the rows, and the problems of the runs.

    :param width: the maximum width in characters. None for no limit.
    """
    return report.results_text(grids(_figures(results)), results, width)


def _figures(results: Sequence[Result]) -> dict[str, Mapping[str, Any]]:
    return {result.row.key: result.figures() for result in results}


def rows_figures(results: Sequence[Result], profile: Profile, when: str) -> dict[str, object]:
    """Return the figures of each row by its key, with the profile and the machine of the run.

    :param when: the start of the run, from `now()`.
    """
    run = {"measured": when, "profile": profile, "machine": machine()}
    return {key: {**run, **figures} for key, figures in _figures(results).items()}


def grids(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Grid]:
    """Yield a table of cells for each unit and cost.

    :param rows: maps the keys of rows to figures, from :meth:`.results.Result.figures` or JSON.
    """
    kinds: dict[tuple[str, str, bool], dict[str, Mapping[str, Any]]] = {}
    for key, row in rows.items():
        unit, cost = list(next(iter(row["contenders"].values())))[:2]
        kinds.setdefault((unit, cost, bool(row["ours"])), {})[key] = row
    for (_, _, ours), group in kinds.items():
        yield report.grid(group, _our_cells if ours else _cells)


def _cells(name: str, contenders: Mapping[str, Any]) -> dict[str, object]:
    """Return the cells of a contender. The keys are the titles of their columns."""
    found: dict[str, object] = {}
    compressed = any(each.get("body", {}).get("coding") for each in contenders.values())
    for title, cell in report.contender_cells(name, contenders).items():
        if title != "body bytes" or compressed:
            found[title] = cell
        if title == "ratio":
            found["difference"] = shown(Difference, contenders[name].get("difference"))
    return {**found, **contenders[name]["facts"]}


def _our_cells(name: str, contenders: Mapping[str, Any]) -> dict[str, object]:
    """Return the cells of a contender in a row with `ours`.

    Its ratios have `ours` as the numerator.
    """
    cells = _cells(name, contenders).items()
    return {
        title.replace("ratio", _OURS) if title.split()[-1] == "ratio" else title: cell
        for title, cell in cells
    }


def as_html(title: str, parts: Sequence[tuple[Table, Sequence[Result]]]) -> str:
    """Return an HTML page with the results of tables."""
    return report.as_html(title, (_section(*part) for part in parts), machine())


def _section(table: Table, results: Sequence[Result]) -> str:
    before = ""
    if table.old_table is not None:
        caption, columns, lines = table.old_table
        before = f"<h3>{page.escaped(caption)}</h3>{html_table(columns, lines)}"
    return report.section(table.title, grids(_figures(results)), results, table.notes, before)

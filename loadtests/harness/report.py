"""Tables of results as text, JSON and an HTML page."""

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
    """Return tables, with each row's key, and the problems of the run.

    :param width: in characters. None for any.
    """
    return report.results_text(grids(_figures(results)), results, width)


def _figures(results: Sequence[Result]) -> dict[str, Mapping[str, Any]]:
    return {result.row.key: result.figures() for result in results}


def rows_figures(results: Sequence[Result], profile: Profile, when: str) -> dict[str, object]:
    """Return each row's figures under its key, with the values that they depend on.

    :param when: the start of the run, as from `now()`.
    """
    run = {"measured": when, "profile": profile, "machine": machine()}
    return {key: {**run, **figures} for key, figures in _figures(results).items()}


def grids(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Grid]:
    """Yield a grid for each unit.

    :param rows: by their keys, as from :meth:`.results.Result.figures`, or as read from JSON.
    """
    kinds: dict[tuple[str, str, bool], dict[str, Mapping[str, Any]]] = {}
    for key, row in rows.items():
        unit, cost = list(next(iter(row["contenders"].values())))[:2]
        kinds.setdefault((unit, cost, bool(row["ours"])), {})[key] = row
    for (_, _, ours), group in kinds.items():
        yield report.grid(group, _our_cells if ours else _cells)


def _cells(name: str, contenders: Mapping[str, Any]) -> dict[str, object]:
    """A contender's cells by the titles of their columns."""
    found: dict[str, object] = {}
    compressed = any(each.get("body", {}).get("coding") for each in contenders.values())
    for title, cell in report.contender_cells(name, contenders).items():
        if title != "body bytes" or compressed:
            found[title] = cell
        if title == "ratio":
            found["difference"] = shown(Difference, contenders[name].get("difference"))
    return {**found, **contenders[name]["facts"]}


def _our_cells(name: str, contenders: Mapping[str, Any]) -> dict[str, object]:
    """The same, where ratios are of ours to each of the others."""
    cells = _cells(name, contenders).items()
    return {
        title.replace("ratio", _OURS) if title.split()[-1] == "ratio" else title: cell
        for title, cell in cells
    }


def as_html(title: str, parts: Sequence[tuple[Table, Sequence[Result]]]) -> str:
    """Return the whole page: tables, each with its results."""
    return report.as_html(title, (_section(*part) for part in parts), machine())


def _section(of: Table, results: Sequence[Result]) -> str:
    before = ""
    if of.then is not None:
        caption, columns, lines = of.then
        before = f"<h3>{page.escaped(caption)}</h3>{html_table(columns, lines)}"
    return report.section(of.title, grids(_figures(results)), results, of.notes, before)

"""Formats results as text, as JSON and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wsgifast.commands import page
from wsgifast.commands.bench import report
from wsgifast.commands.bench.report import Grid, shown
from wsgifast.commands.page import escaped
from wsgifast.commands.terminal import cell_text

from .chart import CHART_STYLE, Bar, ratio_chart
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
    """Yield a table of cells for each unit.

    :param rows: maps the keys of rows to figures, from :meth:`.results.Result.figures` or JSON.
    """
    kinds: dict[tuple[str, str, bool], dict[str, Mapping[str, Any]]] = {}
    for key, row in rows.items():
        unit, cost = list(next(iter(row["contenders"].values())))[:2]
        kinds.setdefault((unit, cost, bool(row["ours"])), {})[key] = row
    for (_, _, ours), group in kinds.items():
        yield report.grid(group, _our_cells if ours else _cells)


def _cells(name: str, contenders: Mapping[str, Any]) -> dict[str, object]:
    """Return the cells of a contender, by the titles of their columns."""
    found: dict[str, object] = {}
    compressed = any(each.get("body", {}).get("coding") for each in contenders.values())
    for title, cell in report.contender_cells(name, contenders).items():
        if title != "body bytes" or compressed:
            found[title] = cell
        if title == "ratio":
            found["difference"] = shown(Difference, contenders[name].get("difference"))
    return {**found, **contenders[name]["facts"]}


def _our_cells(name: str, contenders: Mapping[str, Any]) -> dict[str, object]:
    """Return the cells of a contender in a row with `ours`, where ratios have another base."""
    cells = _cells(name, contenders).items()
    return {
        title.replace("ratio", _OURS) if title.split()[-1] == "ratio" else title: cell
        for title, cell in cells
    }


READING = (
    "Figures are medians of rounds in which all contenders took turns. A ratio such as 3x "
    "(2.5..3.5) is the median of the ratios of the rounds, with its interval: the range of the "
    "rounds, widened by the noise of the machine. If 1 is in the interval, the ratio is unclear. "
    "MB are 10^6 bytes. Clients and servers share this machine, over loopback. Trust the ratios, "
    "not the absolute figures."
)


def as_html(title: str, parts: Sequence[tuple[Table, Sequence[Result]]]) -> str:
    """Return an HTML page with the results of tables."""
    measured_on = ", ".join(f"{name} {value}" for name, value in machine().items())
    sections = "".join(_section(*part) for part in parts)
    body = f'<p class="soft">{escaped(READING)}</p>{sections}'
    return page.page(title, body, by="wsgifast's load tests", note=f"{measured_on}.")


def _section(table: Table, results: Sequence[Result]) -> str:
    before = ""
    if table.then is not None:
        caption, columns, lines = table.then
        before = f"<h3>{escaped(caption)}</h3>{_html_table(columns, lines)}"
    bars = [_bar(result, name) for result in results for name in result.runs if name != result.base]
    items = "".join(f"<li>{escaped(line)}</li>" for line in report.problems(results))
    notes = "".join(f"<p>{escaped(note)}</p>" for note in table.notes)
    figures = "".join(_html_table(*wide(each)) for each in grids(_figures(results)))
    return (
        f"<article><h2>{escaped(table.title)}</h2>{before}{notes}<h3>Ratios</h3>"
        '<p class="soft">The thin line is the interval. Green is better, grey is unclear, amber is '
        f"worse.</p>{ratio_chart(bars, before=f'<style>{CHART_STYLE}</style>')}"
        f"<h3>All figures</h3>{figures}"
        f"<ul>{items or '<li>No failures, and identical bodies.</li>'}</ul></article>"
    )


def wide(grid: Grid) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Return columns and rows. Titles have their own column, with the key below."""
    rows = [
        [label, *line]
        for title, key, lines in grid.parts
        for label, line in zip([title, key, *[""] * len(lines)], lines, strict=False)
    ]
    return ["", *grid.columns], rows


def _bar(result: Result, name: str) -> Bar:
    ratio, less = result.ratio(name, result.rate), result.row.unit.less
    label = result.title + (f": {name}" if len(result.runs) > 2 else "")
    text = report.verdict(name, result.figures()["contenders"])
    if ratio is None:
        return Bar(label, None, text, text == report.RESPONDS, less)
    better = ratio.median <= 1 if less else ratio.median >= 1
    ends = (ratio.median, ratio.low, ratio.high)
    return Bar(label, ends, text, better if ratio.is_clear else None, less)


def _html_table(columns: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    rows = [[escaped(cell_text(cell)) for cell in line] for line in lines]
    return page.table(map(escaped, columns), rows)

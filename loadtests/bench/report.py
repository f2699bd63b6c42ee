"""What a run has found, as a text, as a JSON file and as a page."""

from __future__ import annotations

import html
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from .alternating import MIN_ROUNDS
from .charts import bar_chart
from .results import REPORTS, machine, save
from .runner import Result, Table
from .terminal import cell_text, table

__all__ = ["page", "problems", "results_text", "save_results", "write_page"]

READING = (
    "Figures are medians of rounds in which all contenders took turns. A ratio such as 3x "
    "(2.5..3.5) is the median and the range of the rounds. MB are 10^6 bytes. Clients and servers "
    "share this machine, over loopback: trust the ratios, not the absolute figures."
)


@dataclass(frozen=True)
class _Grid:
    """Results of one unit side by side: a line for each contender."""

    columns: Sequence[str]
    lines: Sequence[Sequence[object]]


def results_text(results: Sequence[Result]) -> str:
    """Tables, with each row's key below its title, and what else there is to know."""
    tables = [table(grid.columns, grid.lines) for grid in _grids(results)]
    return "\n\n".join([*tables, "\n".join(f"- {line}" for line in problems(results))]).rstrip()


def save_results(name: str, results: Sequence[Result], **more: object) -> Path:
    """Write reports/NAME.json: each row's figures under its key, and the machine they are of."""
    return save(name, {**more, "rows": {r.row.key: r.figures() for r in results}})


def write_page(name: str, title: str, parts: Sequence[tuple[Table, Sequence[Result]]]) -> Path:
    """Write reports/NAME.html: one page, nothing loaded from elsewhere."""
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / f"{name}.html"
    path.write_text(page(title, parts, machine()), encoding="utf-8")
    return path


def problems(results: Sequence[Result]) -> list[str]:
    """What to know beside the figures: failures as the client saw them, other bodies, limits."""
    lines = []
    for result in results:
        title = result.row.title
        for name in result.runs:
            for error, count in result.errors(name).items():
                lines.append(f"{title}, {name}: {count} x {error}")
        if result.differs:
            sizes = ", ".join(f"{n} {s.body_bytes:,} bytes" for n, s in result.bodies.items())
            lines.append(f"{title}: not the same body ({sizes}); is it different every time?")
    by_client = [
        f"{r.row.title}, {name}" for r in results for name in r.runs if r.busy(name) == "client"
    ]
    if by_client:
        lines.append("the client was the limit, the server can do more: " + "; ".join(by_client))
    few = [r.row.title for r in results if len(next(iter(r.runs.values()))) < MIN_ROUNDS]
    if few:
        lines.append(f"fewer than {MIN_ROUNDS} pairs, not for publication: " + "; ".join(few))
    return lines


def _grids(results: Sequence[Result]) -> Iterator[_Grid]:
    kinds = groupby(results, lambda r: (r.row.unit.name, r.row.unit.cost_name, bool(r.row.ours)))
    for (unit, cost, ours), group in kinds:
        members = list(group)
        ratio = "ours / this" if ours else "ratio"
        facts = list(dict.fromkeys(f for r in members for n in r.runs for f in r.facts(n)))
        columns = ["", "", unit, ratio, *([cost, f"{ratio} "] if cost else [])]
        columns += ["difference"] if members[0].row.unit.difference else []
        columns += ["p50 ms", "p99 ms", "failed", "busy", *facts]
        yield _Grid(columns, [line for r in members for line in _lines(r, facts)])


def _lines(result: Result, facts: Sequence[str]) -> Iterator[Sequence[object]]:
    unit = result.row.unit
    # The key stands below the title, where there is a second line for it.
    heads = [result.row.title, f"[{result.row.key}]", *[""] * len(result.runs)]
    for head, name in zip(heads, result.runs, strict=False):
        line: list[object] = [head, name, result.median(name, unit.rate), result.verdict(name)]
        if unit.cost is not None:
            line += [result.median(name, unit.cost), result.ratio(name, unit.cost) or ""]
        line += [result.difference(name)] if unit.difference else []
        line += [result.latency_ms(name, 50), result.latency_ms(name, 99)]
        found = result.facts(name)
        line += [result.failures(name) or "", result.busy(name)]
        yield [*line, *(found.get(fact) for fact in facts)]


_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf8; --card: #ffffff; --ink: #1d2126; --soft: #5d6670;
  --line: #e2e0db; --bar: #0b7a5c; --bad: #b3382c; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2024; --ink: #e9ebed;
  --soft: #a0a9b2; --line: #31373d; --bar: #3fc59b; --bad: #f08a7c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 64rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 0 0 .1rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .1rem; }
p { margin: .2rem 0 .8rem; } .soft { color: var(--soft); font-size: .9rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem; margin: 1rem 0; }
svg { display: block; width: 100%; overflow: visible; }
svg text { fill: var(--ink); font-size: 13px; } svg .value { fill: var(--soft); }
.bar { fill: var(--bar); } .failed { fill: var(--bad); }
.whisker { stroke: var(--ink); stroke-width: 1.5; opacity: .55; }
.rule { stroke: var(--line); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
li { margin: .2rem 0; overflow-wrap: anywhere; }
"""


def page(
    title: str, parts: Sequence[tuple[Table, Sequence[Result]]], facts: Mapping[str, object]
) -> str:
    """The whole page as HTML.

    :param parts: tables, each with its results.
    :param facts: what the figures depend on; see :func:`machine`.
    """
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    measured_on = ", ".join(f"{name} {value}" for name, value in facts.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p class="soft">{html.escape(READING)} {when}.</p>
{"".join(_section(*part) for part in parts)}
<p class="soft">{html.escape(measured_on)}</p>
</body>
</html>
"""


def _section(of: Table, results: Sequence[Result]) -> str:
    notes = "".join(f"<li>{html.escape(line)}</li>" for line in problems(results))
    parts = [f"<h2>{html.escape(of.title)}</h2>"]
    if of.then is not None:
        caption, columns, lines = of.then
        parts += [f"<h3>{html.escape(caption)}</h3>", _table(columns, lines)]
    parts += [f"<p>{html.escape(note)}</p>" for note in of.notes]
    parts += [_chart(results), "<h3>All figures</h3>"]
    parts += [_table(grid.columns, grid.lines) for grid in _grids(results)]
    parts.append(f"<ul>{notes or '<li>No failure, and the same bytes from all.</li>'}</ul>")
    return f"<section>{''.join(parts)}</section>"


def _chart(results: Sequence[Result]) -> str:
    bars = []
    for result in results:
        base = result.row.ours or result.row.contenders[0].name
        for name in result.runs:
            if name != base:
                ratio = result.ratio(name, result.row.unit.rate)
                label = result.row.title + (f": {name}" if len(result.runs) > 2 else "")
                bars.append((label, ratio, result.verdict(name)))
    return (
        "<h3>Ratios</h3>"
        '<p class="soft">The thin line is the spread of the rounds. Logarithmic; 1 is no change.'
        f"</p>{bar_chart(bars)}"
    )


def _table(columns: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell_text(cell))}</td>" for cell in line) + "</tr>"
        for line in lines
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )

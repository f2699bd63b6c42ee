"""One HTML page of reports, complete in itself: no script, font or picture from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from loadtests.measuring.tables import cell_text

from .result import Bars, Figures, ReportResult

__all__ = ["READING", "Measured", "page", "summary"]

# Pixels of a chart: room for labels, the longest bar, one bar's height with its gap.
LABEL_PX, BAR_PX, ROW_PX = 230, 420, 24

SUMMARY_COLUMNS = ["report", "then", "today, standard", "today, wsgifast", "what limits it today"]
READING = (
    "Today's figures are medians of several rounds in which all ways took turns. A gain such as "
    "3x (2.5..3.5) is the median and the range of the rounds. MB are 10^6 bytes. Client and "
    "server share this machine, over loopback where no link is named."
)

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1b1f24; background: #fff }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { padding: .2rem .8rem; border-bottom: 1px solid #d8dee4; text-align: right }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
.summary th, .summary td { text-align: left; vertical-align: top }
.scroll { overflow-x: auto }
svg text { font: 13px system-ui, sans-serif; fill: currentColor }
svg rect { fill: #2f6f9f }
.changed { border-left: 4px solid #2f6f9f; padding-left: 1rem }
footer { color: #57606a; font-size: .85rem }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117 } th, td { border-color: #30363d }
  svg rect { fill: #58a6d6 } footer { color: #9198a1 }
}
"""


@dataclass(frozen=True)
class Measured:
    """One report on the page."""

    title: str
    old: Figures
    result: ReportResult


def page(reports: Sequence[Measured], machine: Mapping[str, object]) -> str:
    """The page as HTML.

    :param machine: what the figures depend on; see `loadtests.measuring.machine`.
    """
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>Field reports</title><style>{STYLE}</style></head><body>",
            "<h1>Field reports, then and today</h1>",
            f'<div class="summary">{_table(summary(reports))}</div>',
            f"<p>{escape(READING)}</p>",
            *(_section(report) for report in reports),
            f"<footer>Measured on: {escape(facts)}</footer></body></html>",
        ]
    )


def summary(reports: Sequence[Measured]) -> Figures:
    """All reports in one table."""
    rows = []
    for report in reports:
        line = report.result.summary
        rows.append([report.title, line.then, line.standard, line.wsgifast, line.limit])
    return Figures("In short", SUMMARY_COLUMNS, rows)


def _section(report: Measured) -> str:
    return "\n".join(
        [
            f"<h2>{escape(report.title)}</h2>",
            _table(report.old),
            *map(_table, report.result.tables),
            *map(_chart, report.result.charts),
            f'<p class="changed">What has changed: {escape(report.result.changed)}</p>',
        ]
    )


def _table(figures: Figures) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in figures.columns)
    rows = (
        "<tr>" + "".join(f"<td>{escape(cell_text(cell))}</td>" for cell in row) + "</tr>"
        for row in figures.rows
    )
    return (
        f'<div class="scroll"><table><caption>{escape(figures.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _chart(bars: Bars) -> str:
    longest = max(bars.values.values(), default=0.0) or 1.0
    drawn = []
    for number, (label, value) in enumerate(bars.values.items()):
        y = number * ROW_PX
        drawn.append(
            f'<text x="{LABEL_PX - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LABEL_PX}" y="{y + 2}" width="{value / longest * BAR_PX:.1f}" height="17"/>'
            f'<text x="{LABEL_PX + value / longest * BAR_PX + 6:.1f}" y="{y + 15}">'
            f"{escape(cell_text(value))}</text>"
        )
    title = escape(f"{bars.title}, {bars.unit}")
    size = f'width="{LABEL_PX + BAR_PX + 90}" height="{max(1, len(bars.values)) * ROW_PX}"'
    return (
        f"<figure><figcaption>{title}</figcaption>"
        f'<svg {size} role="img" aria-label="{title}">{"".join(drawn)}</svg></figure>'
    )

"""Reports as one HTML page that one can pass on: nothing is loaded from elsewhere.

Text goes through :func:`escaped` before it comes here; the charts escape what they are given.
"""

from __future__ import annotations

import html
import math
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence

from .. import __version__
from .terminal import lines_of

_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf8; --card: #fff; --ink: #1d2126; --soft: #5d6670;
  --line: #e2e0db; --better: #0b7a5c; --wrong: #b3382c; --slow: #a86a00;
  --info: #2b6cb0; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2024; --ink: #e9ebed;
  --soft: #a0a9b2; --line: #31373d; --better: #3fc59b; --wrong: #f08a7c;
  --slow: #e0ae5a; --info: #8fbdf0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 64rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 1.2rem 0 .3rem; }
h3 { font-size: 1rem; margin: .6rem 0 0; overflow-wrap: anywhere; }
p { margin: .2rem 0 .6rem; } li { margin: .2rem 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: .9rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: .8rem 1rem; margin: .7rem 0; }
.wrong, .slow, .info { border-left-width: 5px; }
.wrong { border-left-color: var(--wrong); } .slow { border-left-color: var(--slow); }
.info { border-left-color: var(--info); }
.id { color: var(--soft); font-weight: 500; margin-right: .4rem; }
details { margin-top: .4rem; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
code { font-size: .9em; overflow-wrap: anywhere; }
"""
# Of charts, with the colours by name.
CHART_STYLE = """
svg { display: block; overflow: visible; }
svg text { fill: var(--ink); font-size: 13px; } svg .value { fill: var(--soft); }
svg .good { fill: var(--better); } svg .worse { fill: var(--slow); }
svg .unclear { fill: var(--soft); opacity: .5; }
svg .failed { fill: var(--wrong); }
svg .whisker { stroke: var(--ink); stroke-width: 1.5; opacity: .55; }
svg .rule { stroke: var(--line); }
"""


def escaped(text: str) -> str:
    """Text as HTML; with quotes, so that it may stand in an attribute too."""
    return html.escape(lines_of(text))


def page(title: str, body: str, *, by: str, note: str = "") -> str:
    """The whole page; light or dark as its reader's system is.

    :param title: text.
    :param body: HTML.
    :param by: the command that has made it.
    :param note: text at the end.
    """
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}: {escaped(by)}</title>
<style>{_STYLE}{CHART_STYLE}</style>
</head>
<body>
<h1>{escaped(title)}</h1>
{body}
<p class="soft">{escaped(by)} {__version__}, {when}. {escaped(note)}</p>
</body>
</html>
"""


def table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that is scrolled sideways where it is too wide; its cells are HTML."""
    head = "".join(f"<th>{column}</th>" for column in columns)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


# Pixels down, in a chart: the lines of a bar's label, its value, and the mark below them; and the
# line at the end. Positions across are percentages, so that the text keeps its size on a phone, for
# which labels are broken into lines, too.
_LINE_PX, _TEXT_Y_PX, _VALUE_Y_PX, _MARK_Y_PX, _BAR_PX, _END_PX = 16, 14, 14, 26, 10, 44
_TICKS_PX, _LABEL_CHARS = 22, 50
_LEFT_PERCENT, _WIDTH_PERCENT = 2, 96
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
# A bar's label, its ratio (the median, the lowest and the highest), a text, and whether it is good;
# None: that is not clear.
Bar = tuple[str, "tuple[float, float, float] | None", str, "bool | None"]


def ratio_chart(
    bars: Sequence[Bar], attributes: str = 'role="img" aria-label="ratios"', head: str = ""
) -> str:
    """Bars from 1 to each ratio, on a logarithmic scale; without a ratio there is a dot.

    :param attributes: of the <svg>.
    :param head: what is in it before the bars.
    """
    ends = [math.log(end) for _, ratio, _, _ in bars for end in (ratio or ())[1:] if end > 0]
    lowest, highest = min([0.0, *ends]), max([0.0, *ends])

    def x(ratio: float) -> float:
        place = (math.log(ratio) - lowest) / ((highest - lowest) or 1.0) if ratio > 0 else 0.0
        return round(_LEFT_PERCENT + _WIDTH_PERCENT * place, 2)

    marks, top = [], 0
    for label, ratio, text, good in bars:
        for line in textwrap.wrap(label, _LABEL_CHARS):
            marks.append(f'<text x="0" y="{top + _TEXT_Y_PX}">{escaped(line)}</text>')
            top += _LINE_PX
        value = f'<text class="value" x="0" y="{top + _VALUE_Y_PX}">{escaped(text)}</text>'
        marks += [value, _mark(ratio, good, top + _MARK_Y_PX, x)]
        top += _END_PX
    scale = [
        f'<line class="rule" x1="{x(tick)}%" x2="{x(tick)}%" y1="0" y2="{top}"/>'
        f'<text class="value" x="{x(tick)}%" y="{top + _TEXT_Y_PX}" text-anchor="middle">'
        f"{tick}x</text>"
        for tick in _TICKS
        if lowest <= math.log(tick) <= highest
    ]
    size = f'width="100%" height="{top + _TICKS_PX}"'
    return "\n".join([f"<svg {attributes} {size}>{head}", *scale, *marks, "</svg>"])


def _mark(
    ratio: tuple[float, float, float] | None, good: bool | None, y: int, x: Callable[[float], float]
) -> str:
    """A bar with its interval, or a dot."""
    if ratio is None:
        kind = "good" if good else "failed"
        return f'<circle class="{kind}" cx="{_LEFT_PERCENT}%" cy="{y}" r="5"/>'
    median, low, high = ratio
    kind = "unclear" if good is None else "good" if good else "worse"
    start, end = sorted((x(1), x(median)))
    return (
        f'<rect class="{kind}" x="{start}%" y="{y - _BAR_PX / 2}" '
        f'width="{max(0.4, end - start):.2f}%" height="{_BAR_PX}" rx="2"/>'
        f'<line class="whisker" x1="{x(low)}%" x2="{x(high)}%" y1="{y}" y2="{y}"/>'
    )

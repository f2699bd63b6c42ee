"""HTML pages for reports. A page is one file and loads no other files.

The functions for pages and tables expect HTML: callers escape texts with :func:`escaped`. The
functions for charts escape the texts of bars.
"""

from __future__ import annotations

import html
import math
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

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
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 1.2rem 0 .3rem; }
h3 { font-size: 1rem; margin: .6rem 0 0; overflow-wrap: anywhere; }
p { margin: .2rem 0 .6rem; } li { margin: .2rem 0; overflow-wrap: anywhere; }
p, li, svg { max-width: 52rem; }
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
@media (max-width: 40rem) { article { padding: .6rem; } th, td { padding: .3rem .25rem; }
  td:first-child, td:nth-child(2) { white-space: normal; } }
"""
# The style of charts.
CHART_STYLE = """
svg { display: block; overflow: visible; }
svg text { fill: var(--ink); font-size: 13px; } svg .value { fill: var(--soft); }
svg .good { fill: var(--better); } svg .worse { fill: var(--slow); }
svg .unclear { fill: var(--soft); opacity: .5; }
svg .failed { fill: var(--wrong); }
svg .whisker { stroke: var(--ink); stroke-width: 1.5; opacity: .55; }
svg .rule { stroke: var(--line); } svg .one { stroke: var(--soft); }
svg .title { font-weight: 600; }
"""


def escaped(text: str) -> str:
    """Return text as HTML. Quotes are escaped, so the result may also be used in an attribute."""
    return html.escape(lines_of(text))


def page(title: str, body: str, *, by: str, note: str = "") -> str:
    """Return a whole page. It is light or dark like the reader's system.

    :param title: the title as text.
    :param body: the body as HTML.
    :param by: the command that makes the page.
    :param note: a text for the end of the page.
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
    """Return a table that scrolls horizontally if it is too wide. The cells are HTML."""
    before = "".join(f"<th>{column}</th>" for column in columns)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{before}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


# Heights in pixels: of a line of a label, and the vertical positions of a label's text, of a value
# and of a bar. Then the height of a bar, and that of the value and the bar together. Horizontal
# positions are percentages, so that text has the same size on a phone.
_LINE_PX, _TEXT_Y_PX, _VALUE_Y_PX, _MARK_Y_PX, _BAR_PX, _END_PX = 16, 14, 14, 26, 10, 44
_AXIS_PX, _TICK_Y_PX, _BETWEEN_PX, _DOT_PX = 24, 6, 16, 5
# Longer labels are wrapped.
_LABEL_CHARS = 50
# An axis with more decades than this has only powers of ten as ticks.
_LONG_DECADES = 2
_BETTER = {
    False: "A longer bar is better (logarithmic axis)",
    True: "A longer bar is worse (logarithmic axis)",
}


class Bar(NamedTuple):
    """A bar of a chart.

    :ivar ratio: the median, the lowest and the highest ratio. None for a dot in place of a bar.
    :ivar text: the text for the value.
    :ivar good: whether the result is good. None if it is not clear.
    :ivar less: whether a lower ratio is better.
    """

    label: str
    ratio: tuple[float, float, float] | None
    text: str
    good: bool | None
    less: bool = False


def ratio_chart(
    bars: Sequence[Bar], attributes: str = 'role="img" aria-label="ratios"', before: str = ""
) -> str:
    """Return a chart as SVG, with one group of bars for each direction.

    Bars for which a higher ratio is better come first. Each group has an axis.

    :param attributes: the attributes of the <svg> element.
    :param before: the content of the element before the bars.
    """
    marks: list[str] = []
    top = 0
    for less in (False, True):
        if chosen := [bar for bar in bars if bar.less is less]:
            top = _draw(chosen, marks, top + (_BETWEEN_PX if top else 0))
    return "\n".join([f'<svg {attributes} width="100%" height="{top}">{before}', *marks, "</svg>"])


def _draw(bars: Sequence[Bar], marks: list[str], top: int) -> int:
    """Append a group of bars to the marks. Return the vertical position of its end."""
    ends = [end for bar in bars for end in bar.ratio or () if end > 0]
    ticks = _ticks(min([1.0, *ends]), max([1.0, *ends]))
    lowest, highest = math.log(ticks[0]), math.log(ticks[-1])

    def x(ratio: float) -> float:
        position = (math.log(ratio) - lowest) / (highest - lowest) if ratio > 0 else 0.0
        return round(100 * position, 2)

    title = _BETTER[bars[0].less]
    marks.append(f'<text class="title" x="0" y="{top + _TEXT_Y_PX}">{title}</text>')
    top += _LINE_PX + _AXIS_PX
    rules = len(marks)
    marks.append(_axis_labels(ticks, top - _TICK_Y_PX, x))
    begin = top
    for bar in bars:
        for line in textwrap.wrap(bar.label, _LABEL_CHARS):
            marks.append(f'<text x="0" y="{top + _TEXT_Y_PX}">{escaped(line)}</text>')
            top += _LINE_PX
        value = f'<text class="value" x="0" y="{top + _VALUE_Y_PX}">{escaped(bar.text)}</text>'
        marks += [value, _mark(bar, top + _MARK_Y_PX, x)]
        top += _END_PX
    marks[rules:rules] = [
        f'<line class="{"one" if tick == 1 else "rule"}" x1="{x(tick)}%" x2="{x(tick)}%" '
        f'y1="{begin}" y2="{top}"/>'
        for tick in ticks
    ] + [f'<line class="one" x1="{x(ticks[0])}%" x2="{x(ticks[-1])}%" y1="{begin}" y2="{begin}"/>']
    marks.append(_axis_labels(ticks, top + _TEXT_Y_PX, x))
    return top + _AXIS_PX


def _axis_labels(ticks: Sequence[float], y: int, x: Callable[[float], float]) -> str:
    # The first and last label are aligned so that they are inside the chart.
    anchors = ["start", *["middle"] * (len(ticks) - 2), "end"]
    return "".join(
        f'<text class="value" x="{x(tick)}%" y="{y}" text-anchor="{anchor}">{tick:g}x</text>'
        for tick, anchor in zip(ticks, anchors, strict=True)
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return the ticks of an axis from one ratio to another.

    The axis begins below 1, so that a bar for the ratio 1 has a length.
    """
    low = min(low, 0.99)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if last - first > _LONG_DECADES:
        return [float(f"1e{power}") for power in range(first, last + 1)]
    steps = [float(f"{step}e{power}") for power in range(first, last + 1) for step in (1, 2, 5)]
    begin = max(step for step in steps if step <= low)
    end = min(step for step in steps if step >= high and step > 1)
    return [step for step in steps if begin <= step <= end]


def _mark(bar: Bar, y: int, x: Callable[[float], float]) -> str:
    """Return the bar with its interval, or the dot, as SVG."""
    if bar.ratio is None:
        kind = "good" if bar.good else "failed"
        return f'<circle class="{kind}" cx="{_DOT_PX}" cy="{y}" r="{_DOT_PX}"/>'
    median, low, high = bar.ratio
    kind = "unclear" if bar.good is None else "good" if bar.good else "worse"
    return (
        f'<rect class="{kind}" x="0%" y="{y - _BAR_PX / 2}" '
        f'width="{max(0.4, x(median)):.2f}%" height="{_BAR_PX}" rx="2"/>'
        f'<line class="whisker" x1="{x(low)}%" x2="{x(high)}%" y1="{y}" y2="{y}"/>'
    )

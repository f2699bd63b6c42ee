"""Charts as inline SVG that keep their text size on a phone: positions across are percentages."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from .alternating import Ratio

__all__ = ["Span", "bar_chart", "span_chart"]

# Pixels down: a line of text and its bar below it.
ROW_PX = 46
TEXT_Y_PX = 14
MARK_Y_PX = 28
BAR_PX = 10


class Span(NamedTuple):
    """One row of a span chart; None for a side that never succeeded."""

    label: str
    first: float | None
    last: float | None


def bar_chart(rows: Sequence[tuple[str, Ratio | None, str]]) -> str:
    """A bar for each (label, ratio, text) from 1 to the ratio, on a logarithmic scale.

    A row without a ratio has its text alone.
    """
    known = [ratio for _, ratio, _ in rows if ratio is not None]
    scale = _Scale([1.0, *(r.low for r in known), *(r.high for r in known)])
    marks = []
    for number, (label, ratio, text) in enumerate(rows):
        top = number * ROW_PX
        marks.append(_texts(top, label, text))
        if ratio is None:
            kind = "bar" if text == "rescued" else "failed"
            marks.append(f'<circle class="{kind}" cx="1%" cy="{top + MARK_Y_PX}" r="5"/>')
            continue
        start, end = sorted((scale.percent(1.0), scale.percent(ratio.median)))
        kind = "bar" if ratio.median >= 1.05 else "even" if ratio.median >= 0.95 else "failed"
        y = top + MARK_Y_PX
        marks.append(
            f'<rect class="{kind}" x="{start:.2f}%" y="{y - BAR_PX / 2}" '
            f'width="{max(0.4, end - start):.2f}%" height="{BAR_PX}" rx="2"/>'
            f'<line class="whisker" x1="{scale.percent(ratio.low):.2f}%" '
            f'x2="{scale.percent(ratio.high):.2f}%" y1="{y}" y2="{y}"/>'
        )
    rule = (
        f'<line class="rule" x1="{scale.percent(1.0):.2f}%" x2="{scale.percent(1.0):.2f}%" '
        f'y1="0" y2="{len(rows) * ROW_PX}"/>'
    )
    return _svg(len(rows), rule + "".join(marks), "ratios")


def span_chart(rows: Sequence[Span], unit: str) -> str:
    """Two dots a row, joined by a line, on a logarithmic scale."""
    scale = _Scale([value for row in rows for value in row[1:] if value is not None])
    marks = []
    for number, row in enumerate(rows):
        top = number * ROW_PX
        y = top + MARK_Y_PX
        before, after = (("fails" if v is None else _short(v)) for v in row[1:])
        marks.append(_texts(top, row.label, f"{before} → {after} {unit}"))
        at = {"first": row.first, "last": row.last}
        x = {side: scale.percent(value) for side, value in at.items() if value is not None}
        if len(x) == 2:
            line = f'x1="{x["first"]:.2f}%" x2="{x["last"]:.2f}%" y1="{y}" y2="{y}"'
            marks.append(f'<line class="between" {line}/>')
        marks += [
            f'<circle class="{side}" cx="{percent:.2f}%" cy="{y}" r="6"/>'
            for side, percent in x.items()
        ]
    return _svg(len(rows), "".join(marks), f"two figures a row, in {unit}")


class _Scale:
    """Positive values -> 1 to 99 percent of the width, logarithmic."""

    def __init__(self, values: Sequence[float]) -> None:
        logs = [math.log(value) for value in values] or [0.0]
        self._low = min(logs)
        self._width = max(max(logs) - self._low, 1e-9)

    def percent(self, value: float) -> float:
        return 1 + 98 * (math.log(value) - self._low) / self._width


def _texts(top: int, label: str, value: str) -> str:
    y = top + TEXT_Y_PX
    return (
        f'<text x="0" y="{y}">{html.escape(label)}</text>'
        f'<text class="value" x="100%" y="{y}" text-anchor="end">{html.escape(value)}</text>'
    )


def _svg(rows: int, content: str, title: str) -> str:
    height = rows * ROW_PX
    return (
        f'<svg role="img" aria-label="{html.escape(title)}" height="{height}" '
        f'xmlns="http://www.w3.org/2000/svg">{content}</svg>'
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"

"""A chart as inline SVG that keeps its text size on a phone: positions across are percentages."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from .alternating import Ratio

__all__ = ["bar_chart"]

# Pixels down: a line of text and its bar below it.
ROW_PX, TEXT_Y_PX, MARK_Y_PX, BAR_PX = 46, 14, 28, 10


def bar_chart(rows: Sequence[tuple[str, Ratio | None, str]]) -> str:
    """A bar for each (label, ratio, text) from 1 to the ratio, on a logarithmic scale.

    A row without a ratio has its text alone.
    """
    known = [ratio for _, ratio, _ in rows if ratio is not None]
    ends = [math.log(end) for ratio in known for end in (ratio.low, ratio.high) if end > 0]
    lowest = min([0.0, *ends])
    width = max([0.0, *ends]) - lowest or 1.0

    def percent(ratio: float) -> float:
        return 1 + 98 * (math.log(ratio) - lowest) / width if ratio > 0 else 1.0

    marks = [
        f'<line class="rule" x1="{percent(1):.2f}%" x2="{percent(1):.2f}%" y1="0" '
        f'y2="{len(rows) * ROW_PX}"/>'
    ]
    for number, (label, ratio, text) in enumerate(rows):
        top = number * ROW_PX
        y = top + MARK_Y_PX
        marks.append(
            f'<text x="0" y="{top + TEXT_Y_PX}">{html.escape(label)}</text>'
            f'<text class="value" x="100%" y="{top + TEXT_Y_PX}" text-anchor="end">'
            f"{html.escape(text)}</text>"
        )
        if ratio is None:
            kind = "bar" if text == "rescued" else "failed"
            marks.append(f'<circle class="{kind}" cx="1%" cy="{y}" r="5"/>')
            continue
        start, end = sorted((percent(1), percent(ratio.median)))
        marks.append(
            f'<rect class="bar" x="{start:.2f}%" y="{y - BAR_PX / 2}" '
            f'width="{max(0.4, end - start):.2f}%" height="{BAR_PX}" rx="2"/>'
            f'<line class="whisker" x1="{percent(ratio.low):.2f}%" '
            f'x2="{percent(ratio.high):.2f}%" y1="{y}" y2="{y}"/>'
        )
    return (
        f'<svg role="img" aria-label="ratios" height="{len(rows) * ROW_PX}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>'
    )

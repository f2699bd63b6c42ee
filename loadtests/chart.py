"""The chart of the first pages: how many times as fast, as an SVG that needs nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import NamedTuple


class Bar(NamedTuple):
    """The ratio of a contender of a row."""

    key: str
    contender: str
    what: str
    beside: str


_WSGIFAST, _RAW = "WSGIFast on gthread", "WSGIFast / raw"
BARS = (
    Bar("demo.file", _WSGIFAST, "an open file, 10 MB", _RAW),
    Bar("demo.list-of-100", _WSGIFAST, "a list of 100-byte chunks", _RAW),
    Bar("flask.open", "WSGIFast", "Flask: Response(open(...)), 10 MB", _RAW),
    Bar("demo.rows", _WSGIFAST, "a generator of lines", "coalesce=True / raw"),
    Bar("asgi.file-large", "our protocol", "FastAPI: FileResponse, 10 MB",
        "our protocol / uvicorn's"),
    Bar("django.asgi.file", "ours", "Django under ASGI: FileResponse, 10 MB", "ours / Django's"),
    Bar("worker.rates.small-32", "gthread", "1 KB of a bare app", "FastWorker / gthread"),
    Bar("worker.rates.static", "WhiteNoise on gthread", "a static file, 1 KB",
        "StaticFiles on FastWorker / WhiteNoise on gthread"),
    Bar("demo.small", _WSGIFAST, "a small response in good shape", _RAW),
)  # fmt: skip


class Theme(NamedTuple):
    """Colours: of text, of less important text, of the scale, of bars."""

    ink: str
    soft: str
    line: str
    bar: str


THEMES = {
    "light": Theme("#1d2126", "#5d6670", "#d0d4d9", "#0b7a5c"),
    "dark": Theme("#e9ebed", "#a0a9b2", "#3a4149", "#3fc59b"),
}
# Pixels of the picture, which on a phone is a little smaller, and can be read there too.
_WIDTH, _ROW, _TOP, _BOTTOM = 480, 44, 34, 22
_LEFT, _RIGHT = 8, 52
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_TICKS = (1, 2, 5, 10, 20, 50, 100)


def chart(ratios: Mapping[str, float], theme: Theme) -> str:
    """Bars from 1 on a logarithmic scale, of those of BARS that were measured.

    :param ratios: by their rows' keys.
    """
    found = [(bar, ratios[bar.key]) for bar in BARS if bar.key in ratios]
    found.sort(key=lambda each: -each[1])
    most = max([10.0, *(ratio for _, ratio in found)]) * 1.05
    height = _TOP + len(found) * _ROW + _BOTTOM
    across = _WIDTH - _LEFT - _RIGHT

    def x(ratio: float) -> float:
        return _LEFT + across * max(0.0, math.log(ratio)) / math.log(most)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="{_FONT}" font-size="14" fill="{theme.ink}">',
        "<title>How many times as fast</title>",
        f'<text x="{_LEFT}" y="16" font-weight="600">Times as many requests per second</text>',
    ]
    for tick in _TICKS:
        if tick < most:
            parts.append(
                f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP - 6}" '
                f'y2="{height - _BOTTOM}" stroke="{theme.line}"/>'
                f'<text x="{x(tick):.1f}" y="{height - 6}" font-size="12" text-anchor="middle" '
                f'fill="{theme.soft}">{tick}x</text>'
            )
    for number, (bar, ratio) in enumerate(found):
        y = _TOP + number * _ROW
        parts.append(
            f'<text x="{_LEFT + 4}" y="{y + 14}">{html.escape(bar.what)} '
            f'<tspan font-size="12" fill="{theme.soft}">{html.escape(bar.beside)}</tspan></text>'
            f'<rect x="{_LEFT}" y="{y + 20}" width="{max(2.0, x(ratio) - _LEFT):.1f}" height="12" '
            f'rx="2" fill="{theme.bar}"/>'
            f'<text x="{max(2.0, x(ratio)) + 8:.1f}" y="{y + 31}" font-weight="600">'
            f"{_shown(ratio)}x</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _shown(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"

"""The charts of ratios: of the first pages, as SVG files; of each table of figures, in its page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wsgifast.commands.bench.report import verdict
from wsgifast.commands.bench.results import Ratio
from wsgifast.commands.page import (
    CHART_STYLE,
    ROW_PX,
    TEXT_Y_PX,
    TICKS_PX,
    chart_marks,
    escaped,
    ratio_chart,
)
from wsgifast.commands.page import Bar as Drawn


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
THEMES = {
    "light": {"ink": "#1d2126", "soft": "#5d6670", "line": "#d0d4d9", "better": "#0b7a5c",
              "slow": "#a86a00", "wrong": "#b3382c"},
    "dark": {"ink": "#e9ebed", "soft": "#a0a9b2", "line": "#3a4149", "better": "#3fc59b",
             "slow": "#e0ae5a", "wrong": "#f08a7c"},
}  # fmt: skip
_WIDTH_PX = 560


def chart(ratios: Mapping[str, Ratio], theme: Mapping[str, str]) -> str:
    """Those of BARS that were measured, the highest first.

    :param ratios: by their rows' keys.
    """
    found = [(ratios[bar.key], bar) for bar in BARS if bar.key in ratios]
    found.sort(key=lambda each: -each[0].median)
    bars = [
        (
            bar.what,
            (ratio.median, ratio.low, ratio.high),
            f"{bar.beside}: {_shown(ratio)}x",
            ratio.median >= 1,
        )
        for ratio, bar in found
    ]
    return _picture(bars, "Times as many requests per second", theme)


_FONT = 'font-family: system-ui, -apple-system, "Segoe UI", sans-serif'


def _picture(bars: Sequence[Drawn], title: str, colours: Mapping[str, str]) -> str:
    """Bars as an SVG file.

    :param colours: by the names in the style, such as "ink".
    """
    style = re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], CHART_STYLE)
    height = len(bars) * ROW_PX + 2 * TICKS_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{_WIDTH_PX}" height="{height}" '
        f'viewBox="0 0 {_WIDTH_PX} {height}"><title>{escaped(title)}</title>'
        f"<style>{style}text {{ {_FONT}; }}</style>\n"
        f'<text class="title" x="0" y="{TEXT_Y_PX}">{escaped(title)}</text>\n'
        f'<svg y="{TICKS_PX}">{chart_marks(bars)}</svg>\n</svg>\n'
    )


def _shown(ratio: Ratio) -> str:
    return f"{ratio.median:.0f}" if ratio.median >= 10 else f"{ratio.median:.1f}"


# A unit of which less is better.
_LESS = re.compile(r"\bms\b|\bCPU\b")


def chart_of_rows(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The ratios of a table's rows, as HTML; "" if there are none.

    :param rows: by their keys, as published.
    """
    bars = [bar for row in rows.values() for bar in _bars(row)]
    if not any(ratio for _, ratio, _, _ in bars):
        return ""
    return f'<div class="chart">\n{ratio_chart(bars)}\n</div>'


def _bars(row: Mapping[str, Any]) -> Iterator[Drawn]:
    contenders = row["contenders"]
    first, *others = contenders
    base = row["ours"] or first
    title = f"{row['title']}: "  # before the first bar alone
    for name in contenders:
        text = verdict(name, contenders)
        if name == base or not text:
            continue
        beside = f"{base} / {name}" if row["ours"] else f"{name} / {base}"
        label = title + (beside if len(others) > 1 else name if name != first else base)
        title = ""
        if (found := contenders[name]["ratio"]) is None:
            yield label, None, text, text == "rescued"
            continue
        ratio = Ratio(**found)
        less = _LESS.search(next(iter(contenders[name]))) is not None
        good = (ratio.median <= 1) if less else (ratio.median >= 1)
        yield label, (ratio.median, ratio.low, ratio.high), text, good if ratio.is_clear else None

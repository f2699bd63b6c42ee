"""The charts of ratios, as SVG files: one of the gains, and one for each table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wsgifast.commands.bench.report import RESPONDS, verdict
from wsgifast.commands.bench.results import Ratio
from wsgifast.commands.page import CHART_STYLE, escaped, ratio_chart
from wsgifast.commands.page import Bar as Drawn


class Bar(NamedTuple):
    """The ratio of a contender of a row."""

    key: str
    contender: str
    what: str
    beside: str


_WSGIFAST, _RAW = "WSGIFast on gthread", "WSGIFast / raw"
BARS = (
    Bar("bodies.file", _WSGIFAST, "an open file, 10 MB", _RAW),
    Bar("bodies.list-of-100", _WSGIFAST, "a list of 100-byte chunks", _RAW),
    Bar("flask.open", "WSGIFast", "Flask: Response(open(...)), 10 MB", _RAW),
    Bar("bodies.rows", _WSGIFAST, "a generator of lines", "coalesce=True / raw"),
    Bar("asgi.file-large", "our protocol", "FastAPI: FileResponse, 10 MB",
        "our protocol / uvicorn's"),
    Bar("django.asgi.file", "ours", "Django under ASGI: FileResponse, 10 MB", "ours / Django's"),
    Bar("worker.rates.small-32", "gthread", "1 KB of a bare app", "FastWorker / gthread"),
    Bar("worker.rates.static", "WhiteNoise on gthread", "a static file, 1 KB",
        "StaticFiles on FastWorker / WhiteNoise on gthread"),
    Bar("bodies.small", _WSGIFAST, "a small response in good shape", _RAW),
)  # fmt: skip
THEMES = {
    "light": {"ink": "#1d2126", "soft": "#5d6670", "line": "#d0d4d9", "better": "#0b7a5c",
              "slow": "#a86a00", "wrong": "#b3382c"},
    "dark": {"ink": "#e9ebed", "soft": "#a0a9b2", "line": "#3a4149", "better": "#3fc59b",
             "slow": "#e0ae5a", "wrong": "#f08a7c"},
}  # fmt: skip
GAINS_TITLE = "Times as many requests per second"


def chart_of_gains(ratios: Mapping[str, Ratio], theme: str) -> str:
    """Those of BARS that were measured, the highest first.

    :param ratios: by their rows' keys.
    :param theme: of THEMES.
    """
    found = [(ratios[bar.key], bar) for bar in BARS if bar.key in ratios]
    found.sort(key=lambda each: -each[0].median)
    bars = [
        Drawn(
            bar.what,
            (ratio.median, ratio.low, ratio.high),
            f"{bar.beside}: {_shown(ratio)}x",
            ratio.median >= 1,
        )
        for ratio, bar in found
    ]
    return _picture(bars, GAINS_TITLE, theme)


_FONT = 'font-family: system-ui, -apple-system, "Segoe UI", sans-serif'


def _picture(bars: Sequence[Drawn], title: str, theme: str) -> str:
    """Bars as an SVG file, as wide as the page that shows it."""
    style = re.sub(r"var\(--(\w+)\)", lambda match: THEMES[theme][match[1]], CHART_STYLE)
    before = f"<title>{escaped(title)}</title><style>{style}text {{ {_FONT}; }}</style>"
    return ratio_chart(bars, 'xmlns="http://www.w3.org/2000/svg" role="img"', before) + "\n"


def _shown(ratio: Ratio) -> str:
    return f"{ratio.median:.0f}" if ratio.median >= 10 else f"{ratio.median:.1f}"


# A unit of which less is better.
_LESS = re.compile(r"\bms\b|\bCPU\b|\bKiB\b")


def chart_of_table(title: str, rows: Mapping[str, Mapping[str, Any]], theme: str) -> str:
    """The ratios of a table's rows; "" if there are none.

    :param rows: by their keys, as published.
    :param theme: of THEMES.
    """
    bars = [bar for row in rows.values() for bar in _bars(row)]
    return _picture(bars, title, theme) if any(bar.ratio for bar in bars) else ""


def _bars(row: Mapping[str, Any]) -> Iterator[Drawn]:
    contenders = row["contenders"]
    first, *others = contenders
    base = row["ours"] or first
    less = _LESS.search(next(iter(contenders[first]))) is not None
    title = f"{row['title']}: "  # before the first bar alone
    for name in contenders:
        text = verdict(name, contenders)
        if name == base or not text:
            continue
        beside = f"{base} / {name}" if row["ours"] else f"{name} / {base}"
        label = title + (beside if len(others) > 1 else name if name != first else base)
        title = ""
        if (found := contenders[name]["ratio"]) is None:
            yield Drawn(label, None, text, text == RESPONDS, less)
            continue
        ratio = Ratio(**found)
        good: bool | None = (ratio.median <= 1) if less else (ratio.median >= 1)
        good = good if ratio.is_clear else None
        yield Drawn(label, (ratio.median, ratio.low, ratio.high), text, good, less)

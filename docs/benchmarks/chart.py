"""The chart of the first pages: how many times as fast, as an SVG that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wsgifast.commands.bench.results import Ratio
from wsgifast.commands.page import chart_picture


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
    return chart_picture(bars, "Times as many requests per second", _WIDTH_PX, theme)


def _shown(ratio: Ratio) -> str:
    return f"{ratio.median:.0f}" if ratio.median >= 10 else f"{ratio.median:.1f}"

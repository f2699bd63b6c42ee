"""README's table of gains: the text of each line here, its figures from what is published.

A text whose figures are not published, or do not bear it out, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .published import Figures

# What is added, and what it gains. A figure is {row|contender}, for its ratio, or
# {row|contender|what}; see Figures.text.
LINES: Mapping[str, Sequence[str]] = {
    "`gunicorn -k wsgifast.workers.FastWorker`": (
        "released applications beside eight slow downloads, on four threads: beets answers in "
        "{released.beets|FastWorker|p50} ms (p50) and dash in {released.dash|FastWorker|p50}, "
        "where on gthread neither answers{released.beets|gthread|none}{released.dash|gthread|none}",
        "1 KiB {worker.rates.small-32|gthread} times as fast as on gthread, "
        "a small Flask page {flask.page-fast|WSGIFast on FastWorker} times",
        "answers in {slow.worker.downloads-10000|FastWorker|p50} ms (p50) beside "
        "{slow.worker.downloads-10000|FastWorker|slow ones} slow downloads, where gthread answers "
        "nobody{slow.worker.downloads-10000|gthread|none}",
    ),
    "`ASGIFast(app)` and `uvicorn --http asgifast.uvicorn:HttpToolsProtocol`": (
        "a 10 MiB `FileResponse` {asgi.file-large|our protocol} times as fast as uvicorn's own, "
        "with {asgi.file-large|our protocol|cost ratio} % of its CPU",
        "`ASGIFast` alone, on stock uvicorn, {asgi.file-large|uvicorn + ASGIFast} times",
    ),
    "`compress=True` for either": (
        "JSON of 842 kB over 20 Mbit/s {compress-link.wsgi.json.zstd|raw} times as fast: "
        "{compress-link.wsgi.json.zstd|wsgifast|bytes} bytes in zstd",
        "zstd, br and gzip for pages, JSON, streams and files",
        "streams still arrive block by block, and the app's own 304 works",
    ),
    "`dictionaries=True` for `StaticFiles`, also under Django": (
        # As `python -m loadtests.deltas` reports; docs/explanation/deltas.md has the table.
        "a Chromium that comes back after a deployment gets the difference (RFC 9842): 84 kB of a "
        "site with plotly.js, Bootstrap and Django's admin, 1,132 kB in brotli",
    ),
    "`StaticFiles`, `wsgifast.django.StaticFilesMiddleware`": (
        "files of 1 KiB {static.small|StaticFiles} times as fast as WhiteNoise's; "
        "on FastWorker {worker.rates.static|WhiteNoise on gthread} times as fast as WhiteNoise's "
        "on gthread",
        "no start-up scan, no stale files",
    ),
    "`WSGIFast(app)`, on any WSGI server": (
        "ranges, 304s and resumed downloads for the app's files",
        "shapes that are rare, and slow: an open file {demo.file|WSGIFast on gthread} times as "
        "fast, a list of 100-byte chunks {demo.list-of-100|WSGIFast on gthread} times, a generator "
        "of lines {demo.rows|WSGIFast on gthread} times",
        "bare `str` and `bytes`, which fail otherwise, are sent"
        "{demo.str|gthread|none}{demo.bytes|gthread|none}",
    ),
}
_FIGURE = re.compile(r"\{([^{}|]+)\|([^{}|]+)(?:\|([^{}|]+))?\}")
_HEAD = "| what you add | what it gains ([each figure with its command, machine and date]({})) |"


def gains(figures: Figures, *, benchmarks: str) -> str:
    """The table, in Markdown.

    :param benchmarks: where the page of the figures is.
    """
    lines = [_HEAD.format(benchmarks), "|---|---|"]
    for what, texts in LINES.items():
        shown = (_filled(text, figures) for text in texts)
        lines.append(f"| {what} | {'; '.join(filter(None, shown))} |")
    return "\n".join(lines)


def figures_shown() -> list[tuple[str, str, str]]:
    """Row, contender and what: all that the table may show."""
    return [found for texts in LINES.values() for text in texts for found in _FIGURE.findall(text)]


def _filled(text: str, figures: Figures) -> str:
    """A text with its figures in it; "" where one is missing."""
    found = [figures.text(*figure) for figure in _FIGURE.findall(text)]
    return "" if None in found else _FIGURE.sub(lambda _: str(found.pop(0)), text)

"""README's table of gains: the text of each line here, its figures from what is published.

A text whose figures are not published, or do not bear it out, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .published import Figures


class Figure(NamedTuple):
    """One figure of a contender.

    `contender`: for the ratio of a row that has an `ours`, the one that ours is compared with.
    `what`: "ratio", "cost ratio" (in percent), "p50" (ms), "none" (it answered nothing; has no
    text), or the name of one of its facts.
    """

    row: str
    contender: str
    what: str

    def text(self, figures: Figures) -> str | None:
        """None where it is not published, or is no number."""
        found = figures.contender(self.row, self.contender)
        if found is None:
            return None
        if self.what == "none":
            return "" if next(iter(found.values())) is None else None
        if self.what in ("ratio", "cost ratio"):
            value = found[self.what] and found[self.what]["median"]
        else:
            value = found["ms"]["50"] if self.what == "p50" else found["facts"].get(self.what)
        if value is None:
            return None
        value *= 100 if self.what == "cost ratio" else 1
        # Two digits, or all those before the point.
        return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


# What is added, and what it gains. A figure is {row|contender}, for its ratio, or
# {row|contender|what}; the text in [brackets] is left out by itself, where it lacks a figure.
LINES: Mapping[str, Sequence[str]] = {
    "`WSGIFast(app)`, on any WSGI server": (
        "an open file {demo.file|WSGIFast on gthread} times as fast"
        "[ (in a Flask `Response` {flask.open|WSGIFast} times)]",
        "a list of 100-byte chunks {demo.list-of-100|WSGIFast on gthread} times",
        "bare `str` and `bytes`, which fail otherwise, are sent"
        "{demo.str|gthread|none}{demo.bytes|gthread|none}",
        "ranges, 304s and resumed downloads for files",
    ),
    "`gunicorn -k wsgifast.workers.FastWorker`": (
        "1 KiB {worker.rates.small-32|gthread} times as fast as on gthread"
        "[, a small Flask page {flask.page-fast|WSGIFast on FastWorker} times]",
        "a generator of 1,000 lines {flask.lines-fast|WSGIFast on FastWorker} times in Flask"
        "[ and {django.wsgi.lines|ours} times in Django]",
        "answers in {slow.worker.downloads-10000|FastWorker|p50} ms (p50) beside "
        "{slow.worker.downloads-10000|FastWorker|slow ones} slow downloads, where gthread answers "
        "nobody{slow.worker.downloads-10000|gthread|none}",
        "no slow client holds a thread",
    ),
    '`StaticFiles(directory="site")`': (
        "1 KiB files {static.small|StaticFiles} times as fast as WhiteNoise's",
        "on FastWorker {worker.rates.static|WhiteNoise on gthread} times as fast as WhiteNoise's "
        "on gthread",
        "no start-up scan, no stale files",
    ),
    "`ASGIFast(app)` and `uvicorn --http asgifast.uvicorn:HttpToolsProtocol`": (
        "a 10 MiB `FileResponse` {asgi.file-large|our protocol} times as fast as uvicorn's own, "
        "with {asgi.file-large|our protocol|cost ratio} % of its CPU",
        "on stock uvicorn {asgi.file-large|uvicorn + ASGIFast} times",
    ),
    "`wsgifast.devservers`": (
        "200 bytes {nodelay.small.wsgiref|wsgifast wsgiref} times as fast on wsgiref's server"
        "[, {nodelay.small.werkzeug|wsgifast werkzeug} times on Werkzeug's]",
        "keep-alive without the 40 ms stall, files by sendfile",
    ),
    "`wsgifast.sockets`, `wsgifast.mail`": (
        "small messages {field.coalescing.simple|no_delay} times as fast as with TCP_NODELAY"
        "[, {field.coalescing.async|no_delay} times under asyncio]",
        "mails of 20 MB {field.smtp.attachment|wsgifast, BDAT} times as fast as smtplib's to "
        "aiosmtpd",
        "receiving a whole message in one call",
    ),
}
_FIGURE = re.compile(r"\{([^{}|]+)\|([^{}|]+)(?:\|([^{}|]+))?\}")
_OPTIONAL = re.compile(r"\[([^]]*)\]")
_HEAD = "| what you add | what it gains ([each figure with its command, machine and date]({})) |"


def gains(figures: Figures, *, benchmarks: str) -> str:
    """The table, in Markdown.

    :param benchmarks: where the page of the figures is.
    """
    lines = [_HEAD.format(benchmarks), "|---|---|"]
    for what, texts in LINES.items():
        own = (_filled(_OPTIONAL.sub(lambda m: _filled(m[1], figures), t), figures) for t in texts)
        lines.append(f"| {what} | {'; '.join(filter(None, own))} |")
    return "\n".join(lines)


def rows_needed() -> list[str]:
    """The keys of the rows whose figures the table shows."""
    return list(dict.fromkeys(figure.row for figure in all_figures()))


def all_figures() -> list[Figure]:
    """What the table may show."""
    return [figure for texts in LINES.values() for text in texts for figure in _figures(text)]


def _figures(text: str) -> list[Figure]:
    return [Figure(row, name, what or "ratio") for row, name, what in _FIGURE.findall(text)]


def _filled(text: str, figures: Figures) -> str:
    """A text with its figures in it; "" where one is missing."""
    found = [figure.text(figures) for figure in _figures(text)]
    shown = [each for each in found if each is not None]
    return _FIGURE.sub(lambda _: shown.pop(0), text) if shown == found else ""

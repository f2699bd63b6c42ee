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
    "`WSGIFast(app)`, on any WSGI server": (
        "an open file {demo.file|WSGIFast on gthread} times as fast (in a Flask `Response` "
        "{flask.open|WSGIFast} times)",
        "a list of 100-byte chunks {demo.list-of-100|WSGIFast on gthread} times",
        "bare `str` and `bytes`, which fail otherwise, are sent"
        "{demo.str|gthread|none}{demo.bytes|gthread|none}",
        "ranges, 304s and resumed downloads for files",
    ),
    "`gunicorn -k wsgifast.workers.FastWorker`": (
        "1 KiB {worker.rates.small-32|gthread} times as fast as on gthread, "
        "a small Flask page {flask.page-fast|WSGIFast on FastWorker} times",
        "a generator of 1,000 lines {flask.lines-fast|WSGIFast on FastWorker} times in Flask "
        "and {django.wsgi.lines|ours} times in Django",
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
    "`WSGIFast(app, compress=True)`, `ASGIFast(app, compress=True)`": (
        "zstd, br and gzip for pages, JSON, streams and files",
        "streams still arrive block by block",
        "files keep validators and ranges, and are compressed once",
        "the app's own 304 works",
    ),
    "`wsgifast.devservers`": (
        "200 bytes {nodelay.small.wsgiref|wsgifast wsgiref} times as fast on wsgiref's server, "
        "{nodelay.small.werkzeug|wsgifast werkzeug} times on Werkzeug's",
        "keep-alive without the 40 ms stall, files by sendfile",
    ),
    "`wsgifast.sockets`, `wsgifast.mail`": (
        "small messages {field.coalescing.simple|no_delay} times as fast as with TCP_NODELAY, "
        "{field.coalescing.async|no_delay} times under asyncio",
        "mails of 20 MB {field.smtp.attachment|wsgifast, BDAT} times as fast as smtplib's to "
        "aiosmtpd",
        "receiving a whole message in one call",
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

"""README's table of gains: the sentences are here, and their figures are the published ones.

A sentence is left out if its figure is not published, or does not show the gain. Figures of servers
as they are deployed come first: those have an access log and metrics, and requests have the headers
of a browser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .published import Figures

# What the reader adds, and a sentence with its gain. A figure is {row|contender}, for its ratio, or
# {row|contender|what}; see Figures.text.
LINES: Sequence[tuple[str, str]] = (
    (
        "[FastWorker](docs/reference/fastworker.md)",
        "While {slow.worker.downloads-10000|FastWorker|slow ones} clients download slowly, other "
        "clients get a response in **{slow.worker.downloads-10000|FastWorker|p50} ms**. On gthread "
        "the other clients get no response."
        "{slow.worker.downloads-10000|gthread|none}",
    ),
    (
        "[`WSGIFast`](docs/reference/wsgifast.md)",
        "As deployed, a CSV export from a generator takes "
        "**{deployed.bodies.rows|WSGIFast on gthread|cost ratio} %** of the CPU time that it takes "
        "on gthread alone. Without an access log, the export is "
        "{bodies.rows|WSGIFast on gthread} times as fast as on gthread alone.",
    ),
    (
        "[`compress=True`](docs/how-to/compress.md)",
        "Over a line of 20 Mbit/s, a JSON response of 842 kB arrives "
        "**{compress-link.wsgi.json.zstd|raw} times** as fast as without compression.",
    ),
    (
        "[`asgifast.uvicorn`](docs/reference/asgi.md)",
        "As deployed, Starlette's `FileResponse` of 10 MiB takes "
        "**{deployed.asgi.file-large|our protocol|cost ratio} %** of the CPU time that it takes "
        "with uvicorn's own protocol. Without an access log and metrics, the file is sent "
        "{asgi.file-large|our protocol} times as fast as with uvicorn's own protocol.",
    ),
    (
        "[`StaticFiles`](docs/reference/static-files.md), FastWorker",
        "As deployed, a file of 1 KiB takes "
        "**{deployed.worker.rates.static|WhiteNoise on gthread|cost ratio} %** of the CPU time "
        "that it takes with WhiteNoise on gthread. Without an access log and metrics, the file is "
        "served {worker.rates.static|WhiteNoise on gthread} times as fast as with WhiteNoise on "
        "gthread.",
    ),
    (
        # As `python -m loadtests.deltas` reports.
        "[Deltas](docs/explanation/deltas.md)",
        "After a deployment, a returning browser loads **84 kB** of a site's files. Without deltas "
        "it loads 1,132 kB.",
    ),
)
_FIGURE = re.compile(r"\{([^{}|]+)\|([^{}|]+)(?:\|([^{}|]+))?\}")
# The path of the benchmarks page is inserted.
_INTRODUCTION = (
    "Some figures are measured *as deployed*: each compared server writes an access log, and "
    "records metrics if it supports them. ASGI servers that are written in Python run on uvloop. "
    "The requests have a browser's headers. gthread is gunicorn's own threaded worker. "
    "[Benchmarks]({}) has the command, machine and date of each figure."
)


def gains(figures: Figures, *, benchmarks: str) -> str:
    """The table, in Markdown.

    :param benchmarks: the path of the page with the figures.
    """
    lines = [_INTRODUCTION.format(benchmarks), "", "| you add | you gain |", "|---|---|"]
    for what, text in LINES:
        if shown := filled(text, figures):
            lines.append(f"| {what} | {shown} |")
    return "\n".join(lines)


def figures_shown() -> list[tuple[str, str, str]]:
    """Row, contender and what: each figure that the table may show."""
    return [found for _, text in LINES for found in _FIGURE.findall(text)]


def filled(text: str, figures: Figures) -> str:
    """Return a sentence with its figures, or "" if one is not published."""
    found = [figures.text(*figure) for figure in _FIGURE.findall(text)]
    return "" if None in found else _FIGURE.sub(lambda _: str(found.pop(0)), text)

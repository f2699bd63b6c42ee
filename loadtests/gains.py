"""README's table of gains: the text of each line here, its figures from what is published.

A text whose figures are not published, or do not bear it out, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .published import Figures

__all__ = ["LINES", "Clause", "Line", "all_figures", "fails", "gains", "rows_needed"]


@dataclass(frozen=True)
class Figure:
    """One figure of a contender.

    :ivar contender: for the ratio of a row that has an `ours`, the one that ours is compared with.
    :ivar what: "ratio", "cost ratio" (in percent), "p50" (ms), "none" (it answered nothing; has no
        text), or the name of one of its facts.
    """

    row: str
    contender: str
    what: str = "ratio"

    def text(self, figures: Figures) -> str | None:
        """None where it is not published, or is no number."""
        found = figures.contender(self.row, self.contender)
        if found is None:
            return None
        if self.what == "none":
            return "" if next(iter(found.values())) is None else None
        if self.what == "p50":
            value = found["ms"]["50"]
        elif self.what == "ratio":
            value = found["ratio"] and found["ratio"]["median"]
        elif self.what == "cost ratio":
            value = found["cost ratio"] and found["cost ratio"]["median"] * 100
        else:
            value = found["facts"].get(self.what)
        return None if value is None else _short(value)


def fails(row: str, contender: str) -> Figure:
    """Bears out a text that says so."""
    return Figure(row, contender, "none")


@dataclass(frozen=True)
class Clause:
    """A text with a "{}" for each figure, left out as a whole; and clauses that may follow it."""

    text: str
    figures: tuple[Figure, ...] = ()
    then: tuple[Clause, ...] = ()


@dataclass(frozen=True)
class Line:
    """What is added, and what it gains."""

    what: str
    gains: tuple[Clause, ...]


GTHREAD, WRAPPED, FAST = "gthread", "WSGIFast on gthread", "WSGIFast on FastWorker"
_CROWD = "slow.worker.downloads-10000"
LINES: Sequence[Line] = (
    Line(
        "`WSGIFast(app)`, on any WSGI server",
        (
            Clause(
                "an open file {} times as fast",
                (Figure("demo.file", WRAPPED),),
                (Clause(" (in a Flask `Response` {} times)", (Figure("flask.open", "WSGIFast"),)),),
            ),
            Clause("a list of 100-byte chunks {} times", (Figure("demo.list-of-100", WRAPPED),)),
            Clause(
                "bare `str` and `bytes`, which fail otherwise, are sent",
                (fails("demo.str", GTHREAD), fails("demo.bytes", GTHREAD)),
            ),
            Clause("ranges, 304s and resumed downloads for files"),
        ),
    ),
    Line(
        "`gunicorn -k wsgifast.workers.FastWorker`",
        (
            Clause(
                "1 KiB {} times as fast as on gthread",
                (Figure("worker.rates.small-32", GTHREAD),),
                (Clause(", a small Flask page {} times", (Figure("flask.page-fast", FAST),)),),
            ),
            Clause(
                "a generator of 1,000 lines {} times in Flask",
                (Figure("flask.lines-fast", FAST),),
                (Clause(" and {} times in Django", (Figure("django.wsgi.lines", "ours"),)),),
            ),
            Clause(
                "beside {} slow downloads, where gthread answers none, in {} ms (p50)",
                (
                    Figure(_CROWD, "FastWorker", "slow ones"),
                    Figure(_CROWD, "FastWorker", "p50"),
                    fails(_CROWD, GTHREAD),
                ),
            ),
            Clause("no slow client holds a thread"),
        ),
    ),
    Line(
        '`StaticFiles(directory="site")`',
        (
            Clause(
                "1 KiB files {} times as fast as WhiteNoise's",
                (Figure("static.small", "StaticFiles"),),
            ),
            Clause(
                "on FastWorker {} times as fast as WhiteNoise's on gthread",
                (Figure("worker.rates.static", "WhiteNoise on gthread"),),
            ),
            Clause("nothing read at the start, nothing stale"),
        ),
    ),
    Line(
        "`ASGIFast(app)` and `uvicorn --http asgifast.uvicorn:HttpToolsProtocol`",
        (
            Clause(
                "a 10 MiB `FileResponse` {} times as fast as uvicorn's own, with {} % of its CPU",
                (
                    Figure("asgi.file-large", "our protocol"),
                    Figure("asgi.file-large", "our protocol", "cost ratio"),
                ),
            ),
            Clause(
                "on uvicorn as it is {} times",
                (Figure("asgi.file-large", "uvicorn + ASGIFast"),),
            ),
        ),
    ),
    Line(
        "`wsgifast.devservers`",
        (
            Clause(
                "200 bytes {} times as fast on wsgiref's server",
                (Figure("nodelay.small.wsgiref", "wsgifast wsgiref"),),
                (
                    Clause(
                        ", {} times on Werkzeug's",
                        (Figure("nodelay.small.werkzeug", "wsgifast werkzeug"),),
                    ),
                ),
            ),
            Clause("kept connections without the 40 ms stall, files by sendfile"),
        ),
    ),
    Line(
        "`wsgifast.sockets`, `wsgifast.mail`",
        (
            Clause(
                "small messages {} times as fast as with TCP_NODELAY",
                (Figure("field.coalescing.simple", "no_delay"),),
                (
                    Clause(
                        ", {} times under asyncio", (Figure("field.coalescing.async", "no_delay"),)
                    ),
                ),
            ),
            Clause(
                "mails of 20 MB {} times as fast as smtplib's to aiosmtpd",
                (Figure("field.smtp.attachment", "wsgifast, BDAT"),),
            ),
            Clause("whole receives in one call"),
        ),
    ),
)
_HEAD = "| what you add | what it gains ([each figure with its command, machine and date]({})) |"


def gains(figures: Figures, *, benchmarks: str) -> str:
    """The table, in Markdown.

    :param benchmarks: where the page of the figures is.
    """
    lines = [_HEAD.format(benchmarks), "|---|---|"]
    for line in LINES:
        texts = [text for clause in line.gains if (text := _text(clause, figures))]
        lines.append(f"| {line.what} | {'; '.join(texts)} |")
    return "\n".join(lines)


def rows_needed() -> list[str]:
    """The keys of the rows whose figures the table shows."""
    return list(dict.fromkeys(figure.row for figure in all_figures()))


def all_figures() -> Iterator[Figure]:
    """What the table may show."""
    return _figures([clause for line in LINES for clause in line.gains])


def _figures(clauses: Sequence[Clause]) -> Iterator[Figure]:
    for clause in clauses:
        yield from clause.figures
        yield from _figures(clause.then)


def _text(clause: Clause, figures: Figures) -> str:
    found = [figure.text(figures) for figure in clause.figures]
    if None in found:
        return ""
    shown = [text for text in found if text]  # what fails has none
    return clause.text.format(*shown) + "".join(_text(each, figures) for each in clause.then)


def _short(figure: float) -> str:
    """Two digits, or all those before the point."""
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.2g}"

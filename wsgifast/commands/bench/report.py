"""The results of a run as text, JSON and an HTML page."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from math import inf
from typing import Any

from .. import page
from ..terminal import cell_text, printable, tables
from .results import Ratio, Result

# Figures of fewer rounds are marked.
MIN_ROUNDS = 5
READING = (
    "Figures are medians of rounds in which all contenders took turns. A ratio such as 3x "
    "(2.5..3.5) is the median of the ratios of the rounds, with its interval: the range of the "
    "rounds, widened by the noise of the machine. If 1 is in the interval, the ratio is unclear. "
    "MB are 10^6 bytes. Clients and servers share this machine, over loopback. Trust the ratios, "
    "not the absolute figures."
)
# The text in place of a ratio to a contender that never succeeded.
RESPONDS = "responds"
# A contender's cells by the titles of their columns.
Cells = Callable[[str, Mapping[str, Any]], Mapping[str, object]]


@dataclass(frozen=True)
class Grid:
    """Results of one unit side by side.

    :ivar columns: the first is the contender's name.
    :ivar parts: the title, the key, and a line for each contender of each result.
    """

    columns: Sequence[str]
    parts: Sequence[tuple[str, str, Sequence[Sequence[object]]]]

    def wide(self) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        """Return columns and rows. Titles have their own column, with the key below."""
        rows = [
            [label, *line]
            for title, key, lines in self.parts
            for label, line in zip([title, key, *[""] * len(lines)], lines, strict=False)
        ]
        return ["", *self.columns], rows

    def narrow(self) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        """Return columns and rows. A title is a row of one cell."""
        rows: list[Sequence[object]] = []
        for title, key, lines in self.parts:
            rows.append([f"{title} {key}".rstrip()])
            rows += [[f"  {line[0]}", *line[1:]] for line in lines]
        return self.columns, rows


def grid(rows: Mapping[str, Mapping[str, Any]], cells: Cells | None = None) -> Grid:
    """Return the results of one unit, without empty columns.

    :param rows: by their keys, as from :meth:`.results.Result.figures`, or as read from JSON.
    """
    cells = cells or contender_cells
    found = {
        key: {name: cells(name, row["contenders"]) for name in row["contenders"]}
        for key, row in rows.items()
    }
    every = [own for contenders in found.values() for own in contenders.values()]
    titles = dict.fromkeys(title for own in every for title in own)
    columns = [t for t in titles if any(own.get(t) not in ("", None) for own in every)]
    parts = [
        (
            rows[key]["title"],
            f"[{key}]" if key != rows[key]["title"] else "",
            [[name, *map(own.get, columns)] for name, own in contenders.items()],
        )
        for key, contenders in found.items()
    ]
    return Grid(["", *columns], parts)


def contender_cells(name: str, contenders: Mapping[str, Any]) -> dict[str, object]:
    """Return a contender's cells by the titles of their columns.

    :param contenders: the figures of all contenders, by their names.
    """
    figures = contenders[name]
    unit, cost = list(figures)[:2]
    costly = " ".join(word for word in cost.split() if "/" not in word)  # "CPU us/req": CPU
    cells = {
        unit: figures[unit],
        "ratio": verdict(name, contenders),
        "p50 ms": figures["ms"]["50"],
        "p99 ms": figures["ms"]["99"],
    }
    if body := figures.get("body"):
        sent, whole = body["bytes"], body["decoded bytes"]
        size = "unknown" if whole is None else f"{whole:,}"
        sizes = f" ({body['coding']} of {size})" if body["coding"] else ""
        cells["body bytes"] = f"{sent:,}{sizes}"
        cells |= {f"ms at {rate}": ms for rate, ms in body["link"].items()}
    return {
        **cells,
        "failed": figures["failures"] or "",
        cost: figures[cost],
        f"{costly} ratio": shown(Ratio, figures["cost ratio"]),
        "busy": figures["busy"],
    }


def verdict(name: str, contenders: Mapping[str, Any]) -> str:
    """Return a contender's ratio, or the word that replaces it.

    :param contenders: the figures of all contenders, by their names.
    """
    first, figures = next(iter(contenders.values())), contenders[name]
    unit = next(iter(figures))
    if figures["ratio"] is not None:
        return shown(Ratio, figures["ratio"])
    if figures[unit] is None:
        return "fails"
    return RESPONDS if figures is not first and not first[unit] else ""


def shown(kind: Callable[..., object], found: object) -> str:
    """Return a ratio's text, or "" for None.

    :param found: an object of this kind, or its fields as in JSON.
    """
    return "" if found is None else str(kind(**found) if isinstance(found, dict) else found)


def problems(results: Sequence[Result]) -> list[str]:
    """Return failures, bodies that differ, and limits of the figures."""
    lines = []
    for result in results:
        for name in result.runs:
            for error, count in result.errors(name).items():
                lines.append(f"{result.title}, {name}: {count} x {error}")
        if result.differs:
            sent = ", ".join(
                f"{name} {seen.body_bytes:,} bytes{seen.coding and f' in {seen.coding}'}"
                for name, seen in result.bodies.items()
            )
            why = "; why: wsgifast doctor --explain WF024" if result.loses_coding else ""
            lines.append(f"{result.title}: the bodies differ ({sent}{why})")
        elif result.changes:
            lines.append(
                f"{result.title}: the body changes with each request or start of the app, so it "
                "was not compared"
            )
    by_client = [f"{r.title}, {n}" for r in results for n in r.runs if r.busy(n) == "client"]
    if by_client:
        lines.append(f"the load generator was the bottleneck: {_listed(by_client)}")
    ratios = [ratio for r in results for name in r.runs if (ratio := r.ratio(name, r.rate))]
    noises = [ratio.noise or 1.0 for ratio in ratios if not ratio.is_clear]
    if noises:
        lines.append(
            f"two figures of the same server differ by up to {max(noises):.3g} times, so "
            f"{len(noises)} of {len(ratios)} ratios are unclear: run it again on a quiet machine, "
            "or with more or longer rounds"
        )
    few = [r.title for r in results if len(next(iter(r.runs.values()))) < MIN_ROUNDS]
    if few:
        lines.append(f"fewer than {MIN_ROUNDS} rounds are too few to rely on: {_listed(few)}")
    return lines


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def results_text(grids: Iterable[Grid], results: Sequence[Result], width: int | None = None) -> str:
    """Return tables, and the problems of the run.

    :param width: in characters. None for any width.
    """
    limit = inf if width is None else width
    found = [text for each in grids for text in tables(*each.narrow(), limit)]
    notes = "\n".join(f"- {printable(line)}" for line in problems(results))
    return "\n\n".join([*found, notes]).rstrip()


def now() -> str:
    """Return the time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def as_json(title: str, rows: Mapping[str, object]) -> str:
    """Return a table's report.

    :param rows: values for JSON, and dataclasses (Ratio, Load, ...), by their keys.
    """
    return json.dumps({"title": title, "rows": rows}, indent=2, default=dataclasses.asdict) + "\n"


# Packages that a figure may depend on.
_PACKAGES = (
    "wsgifast", "gunicorn", "gunicorn_h1c", "werkzeug", "waitress", "whitenoise", "flask", "django",
    "fastapi", "uvicorn", "uvloop", "httptools", "starlette", "granian", "hypercorn", "aiosmtpd",
    "locust",
)  # fmt: skip


def machine() -> dict[str, str | int]:
    """Return what the figures depend on: cores, kernel, Python and the versions of packages."""
    facts: dict[str, str | int] = {
        "cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[package] = metadata.version(package)
    return facts


def as_html(title: str, sections: Iterable[str], facts: Mapping[str, object]) -> str:
    """Return the whole page.

    :param facts: as from :func:`machine`.
    """
    measured_on = ", ".join(f"{name} {value}" for name, value in facts.items())
    body = f'<p class="soft">{page.escaped(READING)}</p>{"".join(sections)}'
    return page.page(title, body, by="wsgifast bench", note=f"{measured_on}.")


def section(
    title: str,
    grids: Iterable[Grid],
    results: Sequence[Result],
    notes: Iterable[str] = (),
    before: str = "",
) -> str:
    """Return a part of the page.

    :param notes: paragraphs above the figures.
    :param before: HTML above the notes.
    """
    bars = [_bar(result, name) for result in results for name in result.runs if name != result.base]
    lines = "".join(f"<li>{page.escaped(line)}</li>" for line in problems(results))
    paragraphs = "".join(f"<p>{page.escaped(note)}</p>" for note in notes)
    figures = "".join(html_table(*each.wide()) for each in grids)
    return (
        f"<article><h2>{page.escaped(title)}</h2>{before}{paragraphs}<h3>Ratios</h3>"
        '<p class="soft">The thin line is the interval. Green is better, grey is unclear, '
        f"amber is worse.</p>{page.ratio_chart(bars)}<h3>All figures</h3>{figures}"
        f"<ul>{lines or '<li>No failures, and identical bodies.</li>'}</ul></article>"
    )


def _bar(result: Result, name: str) -> page.Bar:
    ratio, less = result.ratio(name, result.rate), result.less_is_better
    label = result.title + (f": {name}" if len(result.runs) > 2 else "")
    text = verdict(name, result.figures()["contenders"])
    if ratio is None:
        return page.Bar(label, None, text, text == RESPONDS, less)
    better = ratio.median <= 1 if less else ratio.median >= 1
    ends = (ratio.median, ratio.low, ratio.high)
    return page.Bar(label, ends, text, better if ratio.is_clear else None, less)


def html_table(columns: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    rows = [[page.escaped(cell_text(cell)) for cell in line] for line in lines]
    return page.table(map(page.escaped, columns), rows)

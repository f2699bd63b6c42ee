"""The results of a run as text, JSON and an HTML page."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any

from .. import page
from ..terminal import cell_text, printable, tables
from .results import Difference, Ratio, Result
from .tables import MIN_ROUNDS, Profile, Table

READING = (
    "Figures are medians of rounds in which all contenders took turns. A ratio such as 3x "
    "(2.5..3.5) is the median of the rounds' own ratios, which need not be that of the two "
    "medians, and its interval: the range of the rounds, made wider by what one server differs "
    "from itself in the same run. Where that includes 1 there is no verdict: it is unclear. A "
    "difference such as +3 ±0.2 (2.5..3.5) is the median, its standard error, and the quartiles. "
    "MB are 10^6 bytes. Clients and servers share this machine, over loopback: trust the ratios, "
    "not the absolute figures."
)


@dataclass(frozen=True)
class Grid:
    """Results of one unit side by side.

    :ivar columns: the first is the contender's name.
    :ivar parts: of each result its title, its key, and a line for each contender.
    """

    columns: Sequence[str]
    parts: Sequence[tuple[str, str, Sequence[Sequence[object]]]]

    def wide(self) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        """Columns and rows, titles in a column of their own; below each its key."""
        rows = [
            [head, *line]
            for title, key, lines in self.parts
            for head, line in zip([title, key, *[""] * len(lines)], lines, strict=False)
        ]
        return ["", *self.columns], rows

    def narrow(self) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        """The same, titles on lines of their own."""
        rows: list[Sequence[object]] = []
        for title, key, lines in self.parts:
            rows.append([f"{title} {key}".rstrip()])
            rows += [[f"  {line[0]}", *line[1:]] for line in lines]
        return self.columns, rows


def results_text(results: Sequence[Result], width: int | None = None) -> str:
    """Tables, with each row's key, and the problems of the run.

    :param width: in characters; None for any.
    """
    found: list[str] = []
    for grid in grids({r.row.key: r.figures() for r in results}):
        columns, rows = grid.narrow()
        found += tables(columns, rows, inf if width is None else width)
    notes = "\n".join(f"- {printable(line)}" for line in problems(results))
    return "\n\n".join([*found, notes]).rstrip()


def rows_figures(results: Sequence[Result], profile: Profile, when: str) -> dict[str, object]:
    """Each row's figures under its key, with what they depend on, for :func:`as_json`.

    :param when: the run began, as of :func:`now`.
    """
    run = {"measured": when, "profile": profile, "machine": machine()}
    return {r.row.key: {**run, **r.figures()} for r in results}


def now() -> str:
    """In UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def as_json(title: str, rows: Mapping[str, object]) -> str:
    """A table's report.

    :param rows: anything that JSON takes, and dataclasses (Ratio, Load, ...), by their keys.
    """
    return json.dumps({"title": title, "rows": rows}, indent=2, default=dataclasses.asdict) + "\n"


# BBR paces large bodies by timers, over loopback too (docs/explanation/sendfile.md).
_CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
# What a figure may depend on.
_PACKAGES = (
    "wsgifast", "gunicorn", "gunicorn_h1c", "werkzeug", "waitress", "whitenoise", "flask", "django",
    "fastapi", "uvicorn", "uvloop", "httptools", "starlette", "granian", "hypercorn", "aiosmtpd",
    "locust",
)  # fmt: skip


def machine() -> dict[str, str | int]:
    """What the figures depend on: cores, kernel, congestion control, Python, package versions."""
    facts: dict[str, str | int] = {
        "cores": os.cpu_count() or 0,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": _python(),
    }
    if control := _congestion_control():
        facts["tcp"] = control
    for package in _PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return facts


def _python() -> str:
    # https://docs.python.org/3/library/sys.html#sys._jit
    jit: Any = getattr(sys, "_jit", None)
    suffix = ", JIT" if jit is not None and jit.is_enabled() else ""
    return f"{platform.python_implementation()} {platform.python_version()}{suffix}"


def _congestion_control() -> str:
    try:
        return _CONGESTION_CONTROL.read_text().strip()
    except OSError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def problems(results: Sequence[Result]) -> list[str]:
    """Failures as the client saw them, bodies that differ, and what limits the figures."""
    lines = []
    for result in results:
        title = result.row.title
        for name in result.runs:
            for error, count in result.errors(name).items():
                lines.append(f"{title}, {name}: {count} x {error}")
        if result.differs:
            sent = ", ".join(
                f"{name} {seen.body_bytes:,} bytes{seen.coding and f' in {seen.coding}'}"
                for name, seen in result.bodies.items()
            )
            why = "; why: wsgifast doctor --explain WF024" if result.loses_coding else ""
            lines.append(f"{title}: the bodies differ ({sent}{why})")
        elif result.changes:
            lines.append(
                f"{title}: the body changes with each request, or start of the app, so it was not "
                "compared"
            )
    by_client = [
        f"{r.row.title}, {name}" for r in results for name in r.runs if r.busy(name) == "client"
    ]
    if by_client:
        lines.append(f"the client was the limit, the server can do more: {_listed(by_client)}")
    found = [r.ratio(name, r.row.unit.rate) for r in results for name in r.runs]
    ratios = [ratio for ratio in found if ratio]
    noises = [ratio.noise or 1.0 for ratio in ratios if not ratio.is_clear]
    if noises:
        lines.append(
            f"two figures of the same server differ by up to {max(noises):.3g} times, so "
            f"{len(noises)} of {len(ratios)} ratios are unclear: run it again on a quiet machine, "
            "or with more or longer rounds"
        )
    few = [r.row.title for r in results if len(next(iter(r.runs.values()))) < MIN_ROUNDS]
    if few:
        lines.append(f"fewer than {MIN_ROUNDS} rounds are too few to rely on: {_listed(few)}")
    return lines


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


# In place of a ratio to a contender that never succeeded.
RESPONDS = "responds"
_OURS, _RATIO, _DIFFERENCE = "ours / this", "ratio", "difference"


def grids(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Grid]:
    """A grid for each kind of figures, with the columns in which something stands.

    :param rows: by their keys, as of :meth:`.results.Result.figures`, or as read from JSON.
    """
    kinds: dict[tuple[str, str, bool], dict[str, Mapping[str, Any]]] = {}
    for key, row in rows.items():
        unit, cost = list(next(iter(row["contenders"].values())))[:2]
        kinds.setdefault((unit, cost, bool(row["ours"])), {})[key] = row
    for group in kinds.values():
        cells = {key: {name: _cells(name, row) for name in row["contenders"]}
                 for key, row in group.items()}  # fmt: skip
        every = [own for contenders in cells.values() for own in contenders.values()]
        titles = dict.fromkeys(title for own in every for title in own)
        columns = [t for t in titles if any(own.get(t) not in ("", None) for own in every)]
        parts = [
            (
                group[key]["title"],
                f"[{key}]" if key != group[key]["title"] else "",
                [[name, *map(own.get, columns)] for name, own in contenders.items()],
            )
            for key, contenders in cells.items()
        ]
        yield Grid(["", *columns], parts)


def _cells(name: str, row: Mapping[str, Any]) -> dict[str, object]:
    """A contender's figures by the titles of their columns."""
    figures = row["contenders"][name]
    unit, cost = list(figures)[:2]
    ratio = _OURS if row["ours"] else _RATIO
    costly = " ".join(word for word in cost.split() if "/" not in word)  # "CPU us/req": CPU
    return {
        unit: figures[unit],
        ratio: verdict(name, row["contenders"]),
        _DIFFERENCE: _shown(Difference, figures.get("difference")),
        "p50 ms": figures["ms"]["50"],
        "p99 ms": figures["ms"]["99"],
        **_bytes_cells(figures.get("body", {})),
        "failed": figures["failures"] or "",
        cost: figures[cost],
        f"{costly} {ratio}": _shown(Ratio, figures["cost ratio"]),
        "busy": figures["busy"],
        **figures["facts"],
    }


def _bytes_cells(body: Mapping[str, Any]) -> dict[str, object]:
    """What is sent of a body, and the time that a link would take for it."""
    if not body.get("shown"):
        return {}
    sent, whole = body["bytes"], body["decoded bytes"]
    size = "unknown" if whole is None else f"{whole:,}"
    text = f"{sent:,} ({body['coding']} of {size})" if body["coding"] else f"{sent:,}"
    return {"body bytes": text, **{f"ms at {rate}": ms for rate, ms in body["link"].items()}}


def verdict(name: str, contenders: Mapping[str, Any]) -> str:
    """A contender's ratio, or what there is instead of one.

    :param contenders: the figures of all, by their names.
    """
    first, figures = next(iter(contenders.values())), contenders[name]
    unit = next(iter(figures))
    if figures["ratio"] is not None:
        return _shown(Ratio, figures["ratio"])
    if figures[unit] is None:
        return "fails"
    return RESPONDS if figures is not first and not first[unit] else ""


def _shown(kind: type[Ratio | Difference], found: object) -> str:
    """:param found: one of this kind, or its fields as in JSON; None: there is none."""
    return "" if found is None else str(kind(**found) if isinstance(found, dict) else found)


def as_html(title: str, parts: Sequence[tuple[Table, Sequence[Result]]]) -> str:
    """The whole page: tables, each with its results."""
    measured_on = ", ".join(f"{name} {value}" for name, value in machine().items())
    body = f'<p class="soft">{page.escaped(READING)}</p>{"".join(_section(*p) for p in parts)}'
    return page.page(title, body, by="wsgifast bench", note=f"{measured_on}.")


def _section(of: Table, results: Sequence[Result]) -> str:
    notes = "".join(f"<li>{page.escaped(line)}</li>" for line in problems(results))
    parts = [f"<h2>{page.escaped(of.title)}</h2>"]
    if of.then is not None:
        caption, columns, lines = of.then
        parts += [f"<h3>{page.escaped(caption)}</h3>", _table(columns, lines)]
    parts += [f"<p>{page.escaped(note)}</p>" for note in of.notes]
    parts += [_chart(results), "<h3>All figures</h3>"]
    parts += [_table(*grid.wide()) for grid in grids({r.row.key: r.figures() for r in results})]
    parts.append(f"<ul>{notes or '<li>No failures, and identical bodies.</li>'}</ul>")
    return f"<article>{''.join(parts)}</article>"


def _chart(results: Sequence[Result]) -> str:
    bars: list[page.Bar] = []
    for result in results:
        base = result.row.ours or result.row.contenders[0].name
        contenders = result.figures()["contenders"]
        for name in contenders:
            if name != base:
                ratio = result.ratio(name, result.row.unit.rate)
                label = result.row.title + (f": {name}" if len(result.runs) > 2 else "")
                text = verdict(name, contenders)
                if ratio is None:
                    good = text == RESPONDS
                    bars.append(page.Bar(label, None, text, good, result.row.unit.less))
                    continue
                less = result.row.unit.less
                better = ratio.median <= 1 if less else ratio.median >= 1
                ends = (ratio.median, ratio.low, ratio.high)
                bars.append(page.Bar(label, ends, text, better if ratio.is_clear else None, less))
    return (
        "<h3>Ratios</h3>"
        '<p class="soft">The thin line is the interval. Green is better, grey is unclear, '
        f"amber is worse.</p>{page.ratio_chart(bars)}"
    )


def _table(columns: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    rows = [[page.escaped(cell_text(cell)) for cell in line] for line in lines]
    return page.table(map(page.escaped, columns), rows)

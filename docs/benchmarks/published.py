"""The figures that are published: docs/benchmarks/TABLE.json, each row with its own run.

A file has the title of its table, the runs (time, machine, length) and the rows by their keys, each
with the time of its run. So a report of a few rows replaces these alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from loadtests.bench import LINKS
from wsgifast.commands.bench.results import Ratio

if TYPE_CHECKING:
    from loadtests.harness.tables import Table

# Reports of `python -m loadtests --deployed` are tables of their own: worker-deployed, with rows
# such as deployed.worker.rates.small-32.
DEPLOYED_SUFFIX, DEPLOYED_PREFIX = "-deployed", "deployed."
# A row as its report has it, and a table's rows by their keys.
Rows: TypeAlias = dict[str, dict[str, Any]]
# Figures of a contender that are not published.
_OF_A_RUN = ("runs", "errors")
# More than a measurement of this kind can carry, and less than a float has.
_DIGITS = 4


@dataclass
class Published:
    """One table.

    :ivar runs: the time of a run -> its "machine" and its "profile".
    :ivar rows: each has the time of its run as "measured".
    """

    title: str
    runs: dict[str, dict[str, Any]]
    rows: Rows


class Figures:
    """Single figures of all tables, as texts."""

    def __init__(self, tables: Mapping[str, Published]) -> None:
        self._rows = {key: row for table in tables.values() for key, row in table.rows.items()}

    def contender(self, key: str, name: str) -> Mapping[str, Any] | None:
        """Return the figures of a contender; None if they are not published."""
        found: Mapping[str, Any] | None = self._rows.get(key, {}).get("contenders", {}).get(name)
        return found

    def ratio(self, key: str, name: str) -> Ratio | None:
        """Return how many times as fast it is; None if that is not published or not a number."""
        found = self.contender(key, name)
        return Ratio(**found["ratio"]) if found and found["ratio"] else None

    def text(self, key: str, name: str, what: str = "") -> str | None:
        """Return one figure; None if it is not published, or not a number.

        :param name: the contender. If the row has an `ours`, the ratio is of ours to this one.
        :param what: "" for the ratio, "cost ratio" in percent, "p50" in ms, or the name of one of
            its facts. "none" is an empty text, and only published if no request succeeded.
        """
        found = self.contender(key, name)
        if found is None:
            return None
        if what == "none":
            return "" if next(iter(found.values())) is None else None
        if what in ("", "cost ratio"):
            value = (found[what or "ratio"] or {}).get("median")
        else:
            value = found["ms"]["50"] if what == "p50" else found["facts"].get(what)
        if value is None:
            return None
        value *= 100 if what == "cost ratio" else 1
        # Two digits, or all those before the point.
        return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def read(folder: Path, order: Sequence[str] = ()) -> dict[str, Published]:
    """Return the tables of a folder: first those of this order, then the others."""
    found = {path.stem: Published(**json.loads(path.read_text())) for path in folder.glob("*.json")}
    names = [*(name for name in order if name in found), *sorted(found.keys() - {*order})]
    return {name: found[name] for name in names}


def write(folder: Path, tables: Mapping[str, Published]) -> None:
    for name, table in tables.items():
        text = json.dumps(vars(table), indent=1, ensure_ascii=False, allow_nan=False)
        (folder / f"{name}.json").write_text(text + "\n")


def take_in(
    reports: Path, published: Mapping[str, Published], known: Sequence[Table]
) -> Iterator[str]:
    """Publish the rows of reports, and yield a line for each report.

    A row replaces an older one, but a short run never replaces a run for publication. Rows that no
    table has are left out.

    :param published: the published tables, which are changed. Other tables are not published.
    """
    tables = {row.key: table for table in known for row in table.rows}
    folders = [f"*/{rate}-mbit/{name}.json" for name, rate in LINKS.items()]
    folders.append("*/deployed/*.json")
    for path in sorted(p for glob in ("*/*.json", *folders) for p in reports.glob(glob)):
        taken, kept, unknown = [], [], []
        is_deployed = path.parent.name == "deployed"
        for key, row in json.loads(path.read_text())["rows"].items():
            if key not in tables:
                unknown.append(key)
                continue
            when = row["measured"]
            run = {name: row.pop(name) for name in ("machine", "profile")}
            into = published[tables[key].name + DEPLOYED_SUFFIX * is_deployed]
            key = DEPLOYED_PREFIX * is_deployed + key
            before = into.rows[key]["measured"] if key in into.rows else ""
            if before and not _replaces(when, run, into, before):
                kept += [key] * (before != when)
                continue
            into.runs[when] = run
            into.rows[key] = _condensed(row)
            taken.append(key)
        name = path.relative_to(reports)
        yield f"{name}: took {len(taken)} rows"
        if kept:
            yield f"{name}: did not replace {', '.join(kept)}: published runs are newer or longer"
        if unknown:
            yield f"{name}: left out rows of no table: {', '.join(unknown)}"
    for table_name, table in with_deployed(known).items():
        if table_name in published:
            _set_in_order(published[table_name], table)


def with_deployed(known: Sequence[Table]) -> dict[str, Table]:
    """Return the tables by their names, each behind the one of its deployed servers."""
    found: dict[str, Table] = {}
    for table in known:
        rows = [replace(row, key=f"{DEPLOYED_PREFIX}{row.key}") for row in table.rows]
        title = f"{table.title}, as deployed"
        found[table.name + DEPLOYED_SUFFIX] = replace(table, title=title, rows=rows)
        found[table.name] = table
    return found


def _replaces(when: str, run: Mapping[str, Any], into: Published, before: str) -> bool:
    longer = bool(run["profile"]["full"]), bool(into.runs[before]["profile"]["full"])
    return longer[0] > longer[1] or (longer[0] == longer[1] and when > before)


def _set_in_order(published: Published, table: Table) -> None:
    """Put the rows in the order of the table, with its titles, and drop runs without rows."""
    places = {row.key: place for place, row in enumerate(table.rows)}
    keys = sorted(published.rows, key=lambda key: places.get(key, len(places)))
    published.title = table.title
    published.rows = {key: published.rows[key] for key in keys}
    for row in table.rows:
        if row.key in published.rows:
            published.rows[row.key]["title"] = row.title
    times = dict.fromkeys(row["measured"] for row in published.rows.values())
    published.runs = {when: published.runs[when] for when in times}


def _condensed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _condensed(each) for name, each in value.items() if name not in _OF_A_RUN}
    if isinstance(value, list):
        return [_condensed(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value

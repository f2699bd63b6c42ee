"""The command lines of the load tests: which rows, for how long; and the exit status."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

from wsgifast.arguments import count, seconds
from wsgifast.benchmark.measuring import measure
from wsgifast.benchmark.slow_clients import raise_open_files

from .bench import REPORTS, Profile, Table

__all__ = ["PROFILES", "chosen", "command_line", "main"]

# A round of the longest row, four servers in turn beside 2,000 downloads, takes a minute.
PROFILES = {"quick": Profile(0.3), "release": Profile(1.0, row_seconds=300.0, full=True)}


def command_line(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m MODULE`, to which its own options are added.

    :param doc: the module's docstring, which its help begins with.
    """
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main(
    module: str,
    doc: str | None,
    tables: Sequence[Table],
    arguments: Sequence[str] | None = None,
    *,
    profiles: Mapping[str, Profile] = PROFILES,
    page_name: str = "",
    page_title: str = "",
    judged: bool = False,
) -> int:
    """Run the tables; return 0, 3 if a server failed, or 130 if it was stopped.

    :param judged: return 1 too, if a row is not good.
    """
    parser = command_line(module, doc)
    parser.add_argument(
        "keys",
        nargs="*",
        metavar="KEY",
        help="only rows whose key begins with this, or else has it in it",
    )
    parser.add_argument("--profile", choices=profiles, default="quick", help="how long (quick)")
    parser.add_argument("--list", action="store_true", help="tell the rows and their keys")
    parser.add_argument("--seconds", type=seconds, help="of one run")
    parser.add_argument("--rounds", type=count, help="runs of each side")
    parser.add_argument("--row-seconds", type=seconds, help="begin no round of a row after these")
    given = parser.parse_args(arguments)
    kept = chosen(tables, given.keys)
    if not kept:
        keys = ", ".join(row.key for table in tables for row in table.rows)
        parser.error(f"no row has {' or '.join(given.keys)} in its key; there are {keys}")
    if given.list:
        print("\n".join(f"{row.key:32} {row.title}" for table in kept for row in table.rows))
        return 0
    profile = profiles[given.profile]
    for name in ("seconds", "rounds", "row_seconds"):
        if getattr(given, name) is not None:
            profile = dataclasses.replace(profile, **{name: getattr(given, name)})
    raise_open_files()  # servers and crowds inherit it
    results, status = measure(
        kept, profile, folder=REPORTS, page_name=page_name, page_title=page_title
    )
    return status or int(judged and not all(result.is_good for result in results))


def chosen(tables: Sequence[Table], keys: Sequence[str]) -> list[Table]:
    """The tables with those of their rows that a key is of; all without keys.

    A key is of the rows that begin with it; where none does, of those that it is part of.
    """
    names = [row.key for table in tables for row in table.rows]
    wanted = set() if keys else {*names}
    for key in keys:
        begun = {name for name in names if name.startswith(key)}
        wanted |= begun or {name for name in names if key in name}
    kept = []
    for table in tables:
        rows = [row for row in table.rows if row.key in wanted]
        if rows:
            kept.append(dataclasses.replace(table, rows=rows))
    return kept

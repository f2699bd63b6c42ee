"""The command line of a module of tables: which rows, for how long; and its exit status."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.support.slow_clients import raise_open_files

from .bench import PROFILES, Table, command_line
from .bench.command_line import add_profile_options
from .bench.compare import measure

__all__ = ["chosen", "main"]


def main(
    module: str,
    doc: str | None,
    tables: Sequence[Table],
    arguments: Sequence[str] | None = None,
    *,
    page_name: str = "",
    page_title: str = "",
) -> int:
    """Run the tables; return 0, 1 if a server failed, or 130 if it was stopped."""
    parser = command_line(module, doc)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="only rows whose key has this in it")
    parser.add_argument("--profile", choices=PROFILES, default="quick", help="how long")
    parser.add_argument("--list", action="store_true", help="tell the rows and their keys")
    add_profile_options(parser)
    given = parser.parse_args(arguments)
    kept = chosen(tables, given.keys)
    if not kept:
        keys = ", ".join(row.key for table in tables for row in table.rows)
        parser.error(f"no row has {' or '.join(given.keys)} in its key; there are {keys}")
    if given.list:
        print("\n".join(f"{row.key:32} {row.title}" for table in kept for row in table.rows))
        return 0
    profile = PROFILES[given.profile]
    for name in ("seconds", "rounds", "row_seconds"):
        if getattr(given, name) is not None:
            profile = dataclasses.replace(profile, **{name: getattr(given, name)})
    raise_open_files()  # servers and crowds inherit it
    _, status = measure(kept, profile, page_name=page_name, page_title=page_title)
    return status


def chosen(tables: Sequence[Table], keys: Sequence[str]) -> list[Table]:
    """The tables with those of their rows that a key is part of; all without keys."""
    kept = []
    for table in tables:
        rows = [row for row in table.rows if not keys or any(key in row.key for key in keys)]
        if rows:
            kept.append(dataclasses.replace(table, rows=rows))
    return kept

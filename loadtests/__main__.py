"""Every figure of the documentation, measured again.

    python -m loadtests all                          quickly: that each row runs, and rough ratios
    python -m loadtests all --profile release        for publication: make benchmarks
    python -m loadtests worker.tls asgi --profile release
    python -m loadtests sockets.                     demo's bodies by raw sockets, and the bound
    python -m loadtests leaks. replaced. --strict    what abandoned connections leave behind; what
                                                     is lost while a server's processes are replaced

A KEY names rows: it is told beside each row, and is its key in reports/PROFILE/*.json, where a run
takes the place of its own rows and leaves the others. Contenders take turns. `all` is without the
last two lines, which the documentation has no figures of.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from wsgifast.arguments import count, seconds
from wsgifast.benchmark.measuring import measure
from wsgifast.benchmark.slow_clients import raise_open_files
from wsgifast.benchmark.tables import Profile, Table

from . import asgi, calls, leaks, metrics, replaced, slow, wsgi
from .field_reports import coalescing, mail, receive
from .payloads import REPORTS

# A round of the longest row, four servers in turn beside 2,000 downloads, takes a minute.
PROFILES = {"quick": Profile(0.3), "release": Profile(1.0, row_seconds=300.0, full=True)}
UNPUBLISHED = [wsgi.SOCKETS, leaks.TABLE, replaced.TABLE]


def tables() -> list[Table]:
    """Those whose figures are published, from bodies to servers."""
    return [
        *wsgi.BODIES, calls.TABLE, *wsgi.FILES, asgi.MEMORY, wsgi.WORKER, metrics.TABLE,
        *slow.TABLES, *asgi.TABLES, *wsgi.DEVELOPMENT, *mail.TABLES, coalescing.TABLE,
        receive.TABLE,
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rows; return 0, 3 if a server failed, 130 if it was stopped, or 1 as --strict says."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "keys",
        nargs="*",
        metavar="KEY",
        help="only rows whose key begins with this, or else has it in it",
    )
    parser.add_argument("--profile", choices=PROFILES, default="quick", help="how long (quick)")
    parser.add_argument("--list", action="store_true", help="tell the rows and their keys")
    parser.add_argument("--seconds", type=seconds, help="of one run")
    parser.add_argument("--rounds", type=count, help="runs of each side")
    parser.add_argument("--row-seconds", type=seconds, help="begin no round of a row after these")
    parser.add_argument("--page", metavar="NAME", help="of the page (load-tests, or the table's)")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 if the last contender of a row fails, or not all send the same",
    )
    given = parser.parse_args(arguments)
    keys = [key for key in given.keys if key != "all"]
    kept = chosen([*tables(), *UNPUBLISHED], keys) if keys else tables()
    if not kept:
        parser.error(f"no row has {' or '.join(keys)} in its key; --list tells the keys")
    if given.list:
        print("\n".join(f"{row.key:32} {row.title}" for table in kept for row in table.rows))
        return 0
    profile = PROFILES[given.profile]
    for name in ("seconds", "rounds", "row_seconds"):
        if getattr(given, name) is not None:
            profile = replace(profile, **{name: getattr(given, name)})
    raise_open_files()  # servers and crowds inherit it
    page = given.page or ("load-tests" if len(kept) > 1 else "")
    title = page.replace("-", " ").capitalize()
    with wsgi.LOCUST:
        results, status = measure(
            kept, profile, folder=REPORTS / given.profile, page_name=page, page_title=title,
            keep_rows=True,
        )  # fmt: skip
    return status or int(given.strict and not all(result.is_good for result in results))


def chosen(tables: Sequence[Table], keys: Sequence[str]) -> list[Table]:
    """The tables with those of their rows that a key is of.

    A key is of the rows that begin with it; where none does, of those that it is part of.
    """
    names = [row.key for table in tables for row in table.rows]
    wanted: set[str] = set()
    for key in keys:
        begun = {name for name in names if name.startswith(key)}
        wanted |= begun or {name for name in names if key in name}
    kept = []
    for table in tables:
        rows = [row for row in table.rows if row.key in wanted]
        if rows:
            kept.append(replace(table, rows=rows))
    return kept


if __name__ == "__main__":
    sys.exit(main())

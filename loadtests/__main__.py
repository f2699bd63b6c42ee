"""Measures every figure of the documentation.

    python -m loadtests all                          short runs: do all rows work? rough ratios
    python -m loadtests all --profile release        long runs for publication: make benchmarks
    python -m loadtests worker.tls asgi --profile release
    python -m loadtests worker. --deployed           with access logs, metrics, a browser's headers
                                                     and uvloop: reports/PROFILE/deployed/*.json

`all` does not include these rows:

    python -m loadtests instructions.                instructions of a request, by valgrind
    python -m loadtests leaks. --strict              leaks after aborted connections
    python -m loadtests replaced. --strict           requests lost while processes are replaced
    python -m loadtests slow.memory                  memory and temporary files of a slow reader
    python -m loadtests compress.                    compression, compared with other packages
    python -m loadtests compress-link. --link 20     compression over a link of 20 Mbit/s
    python -m loadtests upload.                      uploads by Locust, and the frameworks' parsers
    python -m loadtests upload.large --link 200      small requests during a large upload

A KEY selects rows, and --list lists the keys. The reports in reports/PROFILE/*.json have the same
keys. A run replaces only the rows that it has measured. The servers of a row run alternately.

The documentation also contains the rows of `slow.memory`, `compress.`, `compress-link.` and
`upload.large`. Locust and `upload.large` can use a link. Do not use --link for rows of other
clients. If a link cannot be made, the command prints the reason and runs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from tests.support.crowds import raise_open_files
from wsgifast.commands.arguments import STATUS_CUT_OFF, count, option, seconds
from wsgifast.commands.bench.processes import HOST

from . import (
    asgi,
    compress,
    goodput,
    http2,
    instructions,
    jit,
    leaks,
    metrics,
    peers,
    released,
    replaced,
    slow,
    slow_memory,
    uploads,
    wsgi,
)  # fmt: skip
from .bench import LINKS
from .deployed import deployed
from .field_reports import coalescing, mail, receive
from .harness.runner import measure
from .harness.tables import Profile, Table
from .link import ADDRESS, NoLink, link
from .payloads import REPORTS

# In the longest row, four servers run one after another, each with 2,000 downloads. A round of this
# row takes a minute.
PROFILES = {
    "quick": Profile(0.3, noise=True),
    "release": Profile(1.0, row_seconds=300.0, full=True, noise=True),
}
# Tables that take longer than all other tables, or that need a link.
SEPARATE = [
    compress.compress_table(wsgi.LOCUST), compress.compress_table(wsgi.LOCUST, "compress-link"),
    slow.upload_table(wsgi.LOCUST), slow_memory.TABLE,
]  # fmt: skip
UNPUBLISHED = [
    instructions.TABLE, leaks.TABLE, replaced.TABLE,
    uploads.upload_table(wsgi.LOCUST),
]  # fmt: skip


def tables() -> list[Table]:
    """Return the tables of `all`, from bodies to servers.

    The documentation contains these tables and those in SEPARATE.
    """
    return [
        *wsgi.BODIES, *wsgi.FILES, wsgi.WORKER, jit.TABLE, metrics.TABLE,
        *slow.TABLES, goodput.TABLE, released.TABLE, peers.TABLE,
        http2.TABLE,
        *asgi.TABLES, *wsgi.DEVELOPMENT, *mail.TABLES, coalescing.TABLE, receive.TABLE,
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rows. Return 0, 1 (see --strict), 3 if a server failed, or 130 if stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    keys_help = "name of a table, or the beginning or a part of the keys of rows"
    parser.add_argument("keys", nargs="*", metavar="KEY", help=keys_help)
    option(parser, "--profile", "", "length of the runs", default="quick", choices=PROFILES)
    option(parser, "--list", help="list the rows and their keys")
    option(parser, "--seconds", "S", "length of a run", type=seconds)
    option(parser, "--rounds", "N", "runs of each contender", type=count)
    option(parser, "--row-seconds", "S", "start no round of a row after this time", type=seconds)
    option(parser, "--note", "TEXT", "a sentence about the run, such as: The machine was busy.")
    option(parser, "--page", "NAME", "name of the page (default: load-tests, or the table's name)")
    option(parser, "--link", "MBIT", "run over a link with this rate in Mbit/s", type=count)
    strict_help = "exit with 1 if the last contender of a row fails, or bodies differ"
    option(parser, "--strict", help=strict_help)
    option(parser, "--deployed", help="with access logs, metrics, a browser's headers and uvloop")
    options = parser.parse_args(arguments)
    keys = [key for key in options.keys if key != "all"]
    selected = chosen([*tables(), *SEPARATE, *UNPUBLISHED], keys) if keys else tables()
    if not selected:
        parser.error(f"no key contains {' or '.join(keys)}; --list lists the keys")
    if not options.link and not options.list:
        selected = [table for table in selected if table.name not in LINKS]
        if not selected:
            parser.error(f"{' '.join(keys)}: add --link MBIT, the link's rate")
    if options.list:
        lines = [f"{row.key:32} {row.title}" for table in selected for row in table.rows]
        try:
            print("\n".join(lines), flush=True)
        except BrokenPipeError:  # a reader such as `head` has ended
            # At exit, Python would try to write the output again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return STATUS_CUT_OFF
        return 0
    profile = PROFILES[options.profile]
    for name in ("seconds", "rounds", "row_seconds", "note"):
        if getattr(options, name) is not None:
            profile = replace(profile, **{name: getattr(options, name)})
    raise_open_files()  # servers and clients inherit the limit
    page = options.page or ("load-tests" if len(selected) > 1 else "")
    title = page.replace("-", " ").capitalize()
    folder, host = REPORTS / options.profile, HOST
    with contextlib.ExitStack() as stack:
        if options.link:
            try:
                wsgi.LOCUST.within = stack.enter_context(link(options.link))
            except NoLink as error:
                print(error)
                return 0
            folder, host = folder / f"{options.link}-mbit", ADDRESS
        stack.enter_context(wsgi.LOCUST)
        if options.deployed:
            selected = [*map(stack.enter_context(deployed()).table, selected)]
            folder /= "deployed"
        results, status = measure(
            selected, profile, folder=folder, host=host, page_name=page, page_title=title,
            keep_rows=True,
        )  # fmt: skip
    return status or int(options.strict and not all(result.is_good for result in results))


def chosen(tables: Sequence[Table], keys: Sequence[str]) -> list[Table]:
    """Return the tables with only the rows that the keys select.

    A key selects the table of that name. If there is no such table, the key selects the rows whose
    keys begin with it. If there are no such rows, the key selects the rows whose keys contain it.
    """
    keys_by_table = {table.name: {row.key for row in table.rows} for table in tables}
    names: set[str] = set().union(*keys_by_table.values())
    selected_keys: set[str] = set()
    for key in keys:
        matches = keys_by_table.get(key) or {name for name in names if name.startswith(key)}
        selected_keys |= matches or {name for name in names if key in name}
    selected = []
    for table in tables:
        rows = [row for row in table.rows if row.key in selected_keys]
        if rows:
            selected.append(replace(table, rows=rows))
    return selected


if __name__ == "__main__":
    sys.exit(main())

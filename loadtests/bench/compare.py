"""Load your own app with Locust, as it is and wrapped with WSGIFast or ASGIFast, and compare.

python -m loadtests.bench myproject.wsgi:application / /download/big.pdf
python -m loadtests.bench 'myapp:create_app()' /report --server wsgiref --users 4
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .command_line import add_profile_options, command_line, count
from .load import Client
from .locust_process import locust
from .processes import ServerFailed
from .report import results_text, save_results, write_page
from .results import machine
from .runner import Contender, Profile, Result, Row, Table, run
from .serving import SERVERS, Serving
from .terminal import ProgressLine

__all__ = ["RAW", "WRAPPED", "add_serving_options", "is_good", "main", "measure", "sides"]

RAW, WRAPPED = "raw", "wrapped"
STOPPED_BY_USER = 130  # as a shell reports Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every wrapped request succeeded, 1 if one failed or a server did not start."""
    parser = command_line("loadtests.bench", __doc__)
    parser.add_argument("app", help="what gunicorn takes: module:app, or 'module:factory()'")
    parser.add_argument("paths", nargs="+", metavar="path", help="such as / or /files/a.zip?v=2")
    add_serving_options(parser)
    add_profile_options(parser, Profile(3.0))
    parser.add_argument("--users", type=count, default=1, help="asking at the same time")
    parser.add_argument("--coalesce", action="store_true", help="join small chunks of generators")
    parser.add_argument("--name", default="comparison", help="of the report's files")
    given = parser.parse_args(arguments)
    for path in given.paths:
        if not path.startswith("/"):
            parser.error(f"{path!r} is no path: it begins with a slash, as in /index.html")
    options: dict[str, Any] = {"coalesce": True} if given.coalesce else {}
    serving = serving_of(parser, given, given.app)
    client = locust(given.users)
    rows = [sides(f"{given.name}:{p}", p, serving, p, client, options) for p in given.paths]
    profile = Profile(given.seconds, given.rounds, given.row_seconds)
    title = f"{given.app} on {serving}"
    results, status = measure([Table(given.name, title, rows)], profile, port=given.port)
    return status or int(not all(is_good(result) for result in results))


def sides(
    key: str,
    title: str,
    serving: Serving,
    path: str,
    client: Client,
    options: Mapping[str, Any] | None = None,
    *,
    body_bytes: int | None = None,
) -> Row:
    """A row of an app's path, raw and wrapped.

    :param options: WSGIFast's (or ASGIFast's).
    """
    contenders = (
        Contender(RAW, serving.side(None), path),
        Contender(WRAPPED, serving.side(options or {}), path),
    )
    return Row(key, title, contenders, client, body_bytes=body_bytes)


def is_good(result: Result) -> bool:
    """Whether every wrapped request succeeded, with the body that the raw app sends."""
    runs = result.runs[WRAPPED]
    answered = any(m.load.requests for m in runs)
    return answered and not result.failures(WRAPPED) and not result.differs


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """The options that say how both sides are served."""
    group = parser.add_argument_group("server")
    group.add_argument("--server", choices=SERVERS, default="gunicorn", help="of both sides")
    group.add_argument("--worker-class", default="gthread", help="gunicorn's")
    group.add_argument("--wrapped-worker-class", help="gunicorn's for the wrapped app, if another")
    group.add_argument("--threads", type=int, default=4, help="of a gunicorn worker")
    group.add_argument("--workers", type=int, default=1, help="gunicorn's processes")
    group.add_argument("--port", type=int, help="the first server's; free ones without it")


def serving_of(parser: argparse.ArgumentParser, given: argparse.Namespace, app: str) -> Serving:
    """What the options say; the parser tells of a value that cannot be."""
    try:
        return Serving(
            app,
            given.server,
            given.worker_class,
            given.wrapped_worker_class,
            given.threads,
            given.workers,
        )
    except ValueError as error:
        parser.error(str(error))


def measure(
    tables: Sequence[Table],
    profile: Profile,
    *,
    port: int | None = None,
    page_name: str = "",
    page_title: str = "",
) -> tuple[list[Result], int]:
    """Run tables; print each, and write its JSON file; write a page of all.

    :returns: the results, and the exit status: 1 if a server or a client of a table failed, so
        that its results are missing; 130 if it was stopped.
    """
    parts: list[tuple[Table, list[Result]]] = []
    status = 0
    facts = machine()
    for table in tables:
        print(f"{table.title}; {facts['python']}, {facts['cores']} cores", file=sys.stderr)
        progress = ProgressLine()
        try:
            results = run(table, profile, port=port, progress=progress)
        except KeyboardInterrupt:
            print("\nStopped; the servers have ended.", file=sys.stderr)
            return [], STOPPED_BY_USER
        except (ServerFailed, RuntimeError, OSError) as error:
            print(f"\nerror: {table.title}: {error}", file=sys.stderr)
            status = 1
            continue
        finally:
            progress.end()
        print(f"\n{table.title}\n\n{results_text(results)}\n")
        print(save_results(table.name, results, title=table.title, profile=profile), flush=True)
        parts.append((table, results))
    if parts:
        print(write_page(page_name or tables[0].name, page_title or tables[0].title, parts))
    return [result for _, results in parts for result in results], status

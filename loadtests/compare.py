"""Load your own WSGI app with Locust, as it is and wrapped with WSGIFast, and compare.

python -m loadtests.compare myproject.wsgi:application / /download/big.pdf
python -m loadtests.compare 'myapp:create_app()' /report --server wsgiref --users 4
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any

from .command_line import command_line
from .comparison import Row
from .measuring import ServerFailed, machine, save
from .report import write_report
from .runner import compare
from .serving import SERVERS, Serving
from .terminal import ProgressLine, problems, results_table

__all__ = ["main", "run_and_report"]

STOPPED_BY_USER = 130  # as a shell reports Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every wrapped request succeeded, 1 if one failed or a server did not start."""
    parser = command_line("loadtests.compare", __doc__)
    parser.add_argument("app", help="what gunicorn takes: module:app, or 'module:factory()'")
    parser.add_argument("paths", nargs="+", metavar="path", help="such as / or /files/a.zip?v=2")
    add_serving_options(parser)
    add_load_options(parser, seconds=3.0, rounds=5, row_seconds=60.0)
    parser.add_argument("--users", type=_count, default=1, help="asking at the same time")
    parser.add_argument("--coalesce", action="store_true", help="join small chunks of generators")
    parser.add_argument("--name", default="comparison", help="of the report's files")
    given = parser.parse_args(arguments)
    for path in given.paths:
        if not path.startswith("/"):
            parser.error(f"{path!r} is no path: it begins with a slash, as in /index.html")
    options: dict[str, Any] = {"coalesce": True} if given.coalesce else {}
    rows = [Row(path, users=given.users, options=options) for path in given.paths]
    try:
        serving = serving_of(given, given.app)
    except ValueError as error:
        parser.error(str(error))
    return run_and_report(serving, rows, given, name=given.name, title=f"{given.app}")


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """The options that say how both sides are served."""
    group = parser.add_argument_group("server")
    group.add_argument("--server", choices=SERVERS, default="gunicorn", help="of both sides")
    group.add_argument("--worker-class", default="gthread", help="gunicorn's")
    group.add_argument("--wrapped-worker-class", help="gunicorn's for the wrapped app, if another")
    group.add_argument("--threads", type=int, default=4, help="of a gunicorn worker")
    group.add_argument("--workers", type=int, default=1, help="gunicorn's processes")
    group.add_argument("--port", type=int, help="the first server's; free ones without it")


def add_load_options(
    parser: argparse.ArgumentParser,
    *,
    seconds: float | None,
    rounds: int | None,
    row_seconds: float | None = None,
) -> None:
    """The options that bound a run, and their defaults."""
    group = parser.add_argument_group("load")
    group.add_argument("--seconds", type=_positive, default=seconds, help="of one run")
    group.add_argument("--rounds", type=_count, default=rounds, help="runs of each side")
    group.add_argument(
        "--row-seconds",
        type=_positive,
        default=row_seconds,
        help="begin no further round of a path after this time",
    )


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def serving_of(given: argparse.Namespace, app: str) -> Serving:
    """:raises ValueError: if an option has a value that cannot be."""
    return Serving(
        app,
        given.server,
        given.worker_class,
        given.wrapped_worker_class,
        given.threads,
        given.workers,
    )


def run_and_report(
    serving: Serving, rows: Sequence[Row], given: argparse.Namespace, *, name: str, title: str
) -> int:
    """Run, print the table, write JSON and HTML; return the exit status."""
    facts = machine()
    print(f"{title} on {serving}; {facts['python']}, {facts['cores']} cores", file=sys.stderr)
    progress = ProgressLine()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results = compare(
            serving,
            rows,
            seconds=given.seconds,
            rounds=given.rounds,
            row_seconds=given.row_seconds,
            port=given.port,
            progress=progress,
        )
    except KeyboardInterrupt:
        progress.end()
        print("Stopped; the servers have ended.", file=sys.stderr)
        return STOPPED_BY_USER
    except (ServerFailed, RuntimeError) as error:
        progress.end()
        print(f"error: {error}", file=sys.stderr)
        return 1
    progress.end()
    print(results_table(results))
    for line in problems(results):
        print(f"- {line}")
    json_path = save(name, {"served": str(serving), "results": results})
    html_path = write_report(name, title, serving, results)
    print(f"\n{json_path}\n{html_path}")
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The command line of `wsgifast bench`."""

from __future__ import annotations

import argparse
import importlib.util
import os
from typing import Any

from ..arguments import APP_HELP, add_header_options, add_parser, count, seconds
from ..errors import ConfigurationError, MissingExtra
from . import SERVERS

__all__ = ["add_command"]

_EXAMPLES = """\
  wsgifast bench shop.wsgi:application
  wsgifast bench 'shop:create_app()' / /download/big.pdf --users 4
  wsgifast bench shop.settings /accounts/ --cookie sessionid=... --coalesce
  wsgifast bench api:app /items --budget 'p99=50ms,ratio>=1'
  wsgifast bench shop.wsgi / /download/big.pdf --slow-clients 200
  wsgifast bench shop.wsgi / --worker-class sync -- --workers 2
"""


def add_command(commands: Any) -> None:
    """Add `bench` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "bench",
        help="compare an app as it is and wrapped, on several servers",
        description="Serve an app as it is and wrapped on this machine, load each in turn with "
        "Locust, compare the bodies byte by byte, and print the ratios. Everything after -- is "
        "passed to the server.",
        examples=_EXAMPLES,
    )
    parser.add_argument("app", nargs="?", help=APP_HELP)
    parser.add_argument("paths", nargs="*", metavar="/PATH", help="requested by GET (default: /)")

    serving = parser.add_argument_group("servers")
    serving.add_argument(
        "--server", choices=SERVERS, help="default: gunicorn, or uvicorn for an ASGI app"
    )
    serving.add_argument(
        "--worker-class",
        metavar="NAME",
        action="append",
        help="gunicorn worker class; may be repeated (default: gthread and FastWorker); the "
        "unwrapped app runs on the first",
    )
    serving.add_argument(
        "--coalesce", action="store_true", help="wrap with WSGIFast(app, coalesce=True)"
    )

    load = parser.add_argument_group("load")
    load.add_argument(
        "--users", type=count, metavar="N", default=4, help="concurrent requests (default: 4)"
    )
    load.add_argument(
        "--seconds", type=seconds, metavar="S", default=1.0, help="length of a run (default: 1)"
    )
    load.add_argument(
        "--rounds", type=count, metavar="N", default=5, help="runs of each contender (default: 5)"
    )
    load.add_argument(
        "--slow-clients",
        type=count,
        metavar="N",
        help="meanwhile keep N clients downloading the largest body, at 64 KiB/s each",
    )
    add_header_options(load)

    result = parser.add_argument_group("result")
    result.add_argument(
        "--budget",
        metavar="BARS",
        help="exit with 1 if the last contender misses one, as in 'p99=50ms,ratio>=1'; figures: "
        "ratio, cpu-ratio, requests, p50, p95, p99",
    )
    result.add_argument(
        "--report",
        metavar="NAME",
        default="wsgifast-bench",
        help="write NAME.json and NAME.html (default: %(default)s)",
    )

    more = parser.add_argument_group("more than one Locust process")
    more.add_argument(
        "--processes", type=count, metavar="N", help="start N Locust workers on this machine"
    )
    more.add_argument("--master", action="store_true", help="wait for workers on other machines")
    more.add_argument(
        "--expect-workers", type=count, metavar="N", default=1, help="how many (default: 1)"
    )
    more.add_argument("--worker", action="store_true", help="be such a worker")
    more.add_argument(
        "--master-host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="the master's address, on which its servers listen too (default: 127.0.0.1)",
    )
    more.add_argument(
        "--master-port", type=count, metavar="PORT", default=5557, help="default: 5557"
    )
    parser.usage = "wsgifast bench [OPTION ...] APP [/PATH ...] [-- SERVER'S OPTION ...]"
    parser.set_defaults(run=_run, takes_rest=True)


def _run(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("locust") is None:
        raise MissingExtra("wsgifast bench", "locust", "bench")
    # These need the extra, and are slow to import.
    from .comparison import compare
    from .locust_client import worker_command

    if options.worker:
        host, port = options.master_host, options.master_port
        print(f"Working for the master at {host}:{port} until it ends, or Ctrl-C", flush=True)
        command = worker_command((host, port))
        return os.execv(command[0], command)
    if options.app is None:
        raise ConfigurationError("name an app, as in: wsgifast bench shop.wsgi:application")
    return compare(options)

"""The command line of `wsgifast bench`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
from typing import Any

from ...errors import ConfigurationError, MissingExtra
from ..arguments import APP_HELP, add_header_options, add_parser, count, option, seconds
from ..terminal import show

_MASTER = ("127.0.0.1", 5557)  # Locust's own default

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kmg])bit(?:/s)?", re.ASCII | re.IGNORECASE)
_MBIT = {"k": 1e-3, "m": 1.0, "g": 1e3}

_EXAMPLES = """\
  wsgifast bench shop.wsgi:application
  wsgifast bench 'shop:create_app()' / /download/big.pdf --users 4
  wsgifast bench shop.settings /accounts/ --cookie sessionid=... --coalesce
  wsgifast bench api:app /items --budget 'p99=50ms,ratio>=1'
  wsgifast bench api:app /items --compress --link 20mbit
  wsgifast bench shop.wsgi / --worker-class sync -- --workers 2
"""


def add_command(commands: Any) -> None:
    """Add `bench` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "bench",
        help="measure an app on gunicorn or uvicorn, with and without wsgifast",
        description="Serve an app on this machine, with and without wsgifast. Send requests to "
        "each server in turn with Locust, and compare the requests per second. The decompressed "
        "bodies are compared byte by byte. Options after -- are passed to the server.",
        examples=_EXAMPLES,
    )
    parser.add_argument("app", nargs="?", help=APP_HELP)
    parser.add_argument("paths", nargs="*", metavar="/PATH", help="paths to request (default: /)")

    serving = parser.add_argument_group("servers")
    classes = (
        "a worker class of gunicorn (repeatable, default: gthread and FastWorker). The first class "
        "also serves the app without wsgifast"
    )
    option(serving, "--worker-class", "NAME", classes, action="append")
    option(serving, "--coalesce", help="wrap the app in WSGIFast(app, coalesce=True)")
    option(serving, "--compress", help="wrap the app with compress=True, like wsgifast run")

    load = parser.add_argument_group("load")
    option(load, "--users", "N", "number of concurrent requests", default=4, type=count)
    option(load, "--seconds", "S", "length of each run in seconds", default=1.0, type=seconds)
    option(load, "--rounds", "N", "number of runs of each server", default=5, type=count)
    add_header_options(load)

    result = parser.add_argument_group("result")
    link = "also compute how long the bodies take on a link of this rate, such as 20mbit"
    option(result, "--link", "RATE", link, type=_mbit)
    limits = (
        "exit with status 1 if the app with wsgifast misses a limit, as in 'p99=50ms,ratio>=1'. "
        "The limits are ratio, cpu-ratio, requests, p50, p95 and p99"
    )
    option(result, "--budget", "LIMITS", limits)
    option(result, "--report", "NAME", "write NAME.json and NAME.html", default="wsgifast-bench")

    more = parser.add_argument_group("more than one Locust process")
    option(more, "--processes", "N", "start N Locust workers on this machine", type=count)
    option(more, "--master", help="use Locust workers on other machines")
    expected = "number of Locust workers to wait for (default: 1)"
    option(more, "--expect-workers", "N", expected, type=count)
    option(more, "--worker", help="run as a Locust worker for --master")
    address = f"address of the master and of the app's servers (default: {_MASTER[0]})"
    option(more, "--master-host", "ADDRESS", address)
    option(more, "--master-port", "PORT", f"port of the master (default: {_MASTER[1]})", type=count)
    parser.usage = "wsgifast bench [OPTION ...] APP [/PATH ...] [-- SERVER'S OPTION ...]"
    parser.set_defaults(run=_run, takes_rest=True)


def _mbit(text: str) -> float:
    """Parse the rate of --link, and return Mbit/s."""
    found = _RATE.fullmatch(text)
    rate = float(found[1]) * _MBIT[found[2].lower()] if found else 0.0
    if not rate:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a rate such as 20mbit or 1gbit")
    return rate


def _run(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("locust") is None:
        raise MissingExtra("wsgifast bench", "locust", "bench")
    # These modules need the extra, and are slow to import.
    from .comparison import compare
    from .locust_client import worker_command

    of_master = ("expect_workers", "master_host", "master_port")
    given = [name for name in of_master if getattr(options, name) is not None]
    if given and not (options.master or options.worker):
        raise ConfigurationError(
            f"--{given[0].replace('_', '-')} has no effect without --master or --worker: add one"
        )
    host, port = options.master_host or _MASTER[0], options.master_port or _MASTER[1]
    if options.worker:
        show(f"Working for the master at {host}:{port} until it ends, or Ctrl-C")
        command = worker_command((host, port))
        return os.execv(command[0], command)
    if options.app is None:
        raise ConfigurationError("name an app, as in: wsgifast bench shop.wsgi:application")
    return compare(options, (host, port))

"""The command line of `wsgifast top`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from typing import Any

from .. import terminal
from ..arguments import add_parser, count, option, seconds
from ..errors import WSGIFastError
from ..metrics.setup import VARIABLE, metrics_address
from ..sockets.options import Address
from .reading import clients, scrape
from .text import lines
from .view import View, view

_DEFAULT_ADDRESS = "127.0.0.1:9100"
_INTERVAL_S = 2.0

_EXAMPLES = """\
  wsgifast top
  wsgifast top 10.0.0.5:9100 --interval 5
  wsgifast top --once --json | jq .threads_busy
"""


def add_command(commands: Any) -> None:
    """Add `top` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "top",
        help="watch a running server: threads, rates, slow endpoints and clients, memory",
        description="Poll a server's metrics address, and show what changes. The server can be "
        "FastWorker, started with WSGIFAST_METRICS=HOST:PORT, or any other that serves wsgifast's "
        "metrics. On a terminal the view is live; press q to quit.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "address",
        nargs="?",
        metavar="ADDRESS",
        help=f"HOST:PORT (default: the environment variable {VARIABLE}, or {_DEFAULT_ADDRESS})",
    )
    option(
        parser, "--interval", "SECONDS", "time between two polls", default=_INTERVAL_S, type=seconds
    )
    option(parser, "--once", help="poll twice, print what changed, and exit")
    option(parser, "--json", help="print one JSON object per poll")
    option(parser, "--most", "N", "endpoints and clients to show", default=20, type=count)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    shown = options.address or os.environ.get(VARIABLE) or _DEFAULT_ADDRESS
    # Also accept it as a browser shows it.
    address = metrics_address(shown.removeprefix("http://").partition("/")[0], "ADDRESS")
    watch = _Watch(address, options.most)
    if not (options.once or options.json) and sys.stdout.isatty():
        try:
            from .screen import show
        except ImportError:  # a Python without curses
            pass
        else:
            first = f"Looking at {watch.name} ..."
            if show(watch.lines_or_error, first, interval_s=options.interval):
                return 0
    while True:
        time.sleep(options.interval)
        if options.json:
            terminal.show(json.dumps(dataclasses.asdict(watch.look())))
        else:
            terminal.show("\n".join(watch.lines()))
        if options.once:
            return 0
        if not options.json:
            terminal.show()


class _Watch:
    """A server that is polled repeatedly.

    :raises WSGIFastError: if the first poll fails.
    """

    def __init__(self, address: Address, most: int) -> None:
        self.name = str(address)
        self._address = address
        self._most = most
        self._before = scrape(address)

    def look(self) -> View:
        """What has changed since the last poll."""
        after = scrape(self._address)
        before, self._before = self._before, after
        return view(before, after, clients(self._address))

    def lines(self) -> list[str]:
        return lines(self.look(), self.name, most=self._most, width=terminal.output_width())

    def lines_or_error(self) -> list[str]:
        """As lines(), or an error if the server is down; it may come back."""
        try:
            return self.lines()
        except WSGIFastError as error:
            return [str(error), "", "Trying again."]

"""`wsgifast top`: the command line, and a view as lines of text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..checks import size_text
from ..errors import WSGIFastError
from ..metrics.setup import VARIABLE, metrics_address
from ..sockets.options import Address
from . import terminal
from .arguments import add_parser, count, option, seconds
from .scrapes import View, clients, scrape, view
from .terminal import fitted, printable, table

try:
    import curses
except ImportError:  # a Python without it
    curses = None  # type: ignore[assignment]

_DEFAULT_ADDRESS = "127.0.0.1:9100"
_INTERVAL_S = 2.0

_EXAMPLES = """\
  wsgifast top
  wsgifast top 10.0.0.5:9100 --interval 5
  wsgifast top --once --json | jq .threads_busy
"""
# Of a pattern or path, however narrow the terminal is.
_LEAST_COLUMNS = 16


def add_command(commands: Any) -> None:
    """Add `top` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "top",
        help="watch a running server: threads, rates, slow endpoints and clients, memory",
        description="Poll a server's metrics address, and show what changes. The server can be "
        "`wsgifast run --metrics HOST:PORT`, FastWorker started with WSGIFAST_METRICS=HOST:PORT, "
        "or any other that serves wsgifast's metrics. On a terminal the view is live; press q to "
        "quit.",
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
        first = f"Looking at {watch.name} ..."
        if _shown_live(watch.lines_or_error, first, interval_s=options.interval):
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


def lines(view: View, address: str, *, most: int = 20, width: int | None = None) -> list[str]:
    """The lines of a view.

    :param most: endpoints, and clients.
    :param width: in columns: in longer tables patterns and paths are cut; the caller cuts the rest.
    """
    text = [f"{address}: {_counted(view.workers, 'worker')}, over {view.seconds:.1f} s", ""]
    if view.threads is not None:
        text.append(
            f"threads   {view.threads_busy} of {view.threads} busy, "
            f"{_counted(view.requests_waiting, 'request')} waiting"
            f"{_optional(', none free %s of the time', _percent(view.none_free))}"
            f"{_optional(', wait p99 %s', _time(view.wait_p99_s))}"
        )
    text.append(
        f"requests  {_rate(view.requests_per_s)}, {_rate(view.errors_per_s)} with 5xx"
        f"{_optional(', p50 %s', _time(view.p50_s))}{_optional(', p99 %s', _time(view.p99_s))}"
    )
    text.append(
        f"bytes     {_size(view.body_bytes_per_s)}/s of bodies, "
        f"{_size(view.sendfile_bytes_per_s)}/s by sendfile"
    )
    if view.connections:
        states = ", ".join(f"{n:,} {state}" for state, n in view.connections.items() if n)
        text.append(
            f"clients   {sum(view.connections.values()):,} connected{_optional(': %s', states)}"
            f"{_optional('; %s in the accept queue', view.accept_backlog)}"
        )
    if view.slow_clients is not None:
        text.append(
            f"slow      {_counted(view.slow_clients, 'client')}, "
            f"{_size(view.queued_bytes)} queued, {_size(view.spooled_bytes)} in files, "
            f"{_rate(view.clients_left_per_s)} left, {_rate(view.timeouts_per_s)} timed out"
        )
    if view.memory_bytes:
        each = ", ".join(_size(size) for size in view.memory_bytes.values())
        cpu = "" if view.cpu is None else f", {view.cpu:.2f} processors in use"
        text.append(f"memory    {_size(sum(view.memory_bytes.values()))} ({each}){cpu}")
    if view.endpoints:
        rows = [
            (
                printable(each.pattern),
                f"{each.requests_per_s:,.1f}",
                f"{each.errors_per_s:,.1f}",
                _time(each.p50_s),
                _time(each.p99_s),
                _size(each.body_bytes_per_s),
            )
            for each in view.endpoints[:most]
        ]
        columns = ("slowest endpoints", "requests/s", "5xx/s", "p50", "p99", "bytes/s")
        text += ["", *_table(columns, rows, 0, width)]
    if view.clients:
        slow = [
            (
                printable(each.client),
                f"{_size(each.bytes_per_s)}/s",
                _size(each.queued_bytes),
                _time(each.waited_s),
                printable(each.path),
            )
            for each in view.clients[:most]
        ]
        titles = ("slowest clients", "takes", "queued", "for", "path")
        text += ["", *_table(titles, slow, 4, width)]
    return text


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], long: int, width: int | None
) -> list[str]:
    """:param long: the number of the column that is cut where the table is too wide."""
    titles, *cells = fitted([columns, *rows], width, {long: _LEAST_COLUMNS})
    return table(titles, cells).splitlines()


def _counted(count: int | None, what: str) -> str:
    return f"- {what}s" if count is None else f"{count:,} {what}{'' if count == 1 else 's'}"


def _optional(text: str, value: object) -> str:
    return "" if value in (None, "", "-", 0) else text % value


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}/s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(size: float | None) -> str:
    return "-" if size is None else size_text(size)


_QUIT = (ord("q"), 27)  # or Escape


def _shown_live(next_lines: Callable[[], Sequence[str]], first: str, *, interval_s: float) -> bool:
    """Redraw the view until q or Ctrl-C.

    :param next_lines: makes the next one.
    :param first: what is shown until there is one.
    :param interval_s: seconds between two of them.
    :returns: False, and nothing is drawn, on an unknown kind of terminal, or without curses.
    """
    if curses is None:
        return False
    try:
        curses.setupterm()
    except curses.error:
        return False
    try:
        curses.wrapper(_loop, next_lines, [first], interval_s)
    except KeyboardInterrupt:
        pass
    return True


def _loop(
    window: curses.window,
    next_lines: Callable[[], Sequence[str]],
    lines: Sequence[str],
    interval_s: float,
) -> None:
    try:
        curses.curs_set(0)
    except curses.error:
        pass  # a terminal that cannot hide it
    due = time.monotonic() + interval_s
    while True:
        _draw(window, lines)
        window.timeout(max(0, round((due - time.monotonic()) * 1000)))
        if window.getch() in _QUIT:
            return
        if time.monotonic() >= due:  # or the window has another size
            lines = next_lines()
            due = time.monotonic() + interval_s


def _draw(window: curses.window, lines: Sequence[str]) -> None:
    height, width = window.getmaxyx()
    window.erase()
    for row, line in enumerate(lines[: height - 1]):
        # Not into the last column: the cursor could not go on behind it.
        style = curses.A_BOLD if row == 0 else curses.A_NORMAL
        window.addnstr(row, 0, printable(line), width - 1, style)
    window.addnstr(height - 1, 0, "q quits", width - 1, curses.A_DIM)
    window.refresh()

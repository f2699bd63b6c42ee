"""`wsgifast top`: show the activity of a server, from /top at its metrics address."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..checks import size_text
from ..errors import WSGIFastError
from ..metrics.setup import VARIABLE, metrics_address
from ..sockets.options import Address
from .arguments import add_parser, count, option, seconds
from .client import HTTPClient, NoResponse
from .terminal import cell_text, fitted, output_width, show, table

_DEFAULT_ADDRESS = "127.0.0.1:9100"
_INTERVAL_S = 2.0
# The most seconds for a response after the end of the interval.
_TIMEOUT_S = 5.0
# The least width of a pattern or path, in any terminal.
_MIN_COLUMNS = 16

_EXAMPLES = """\
  wsgifast top
  wsgifast top 10.0.0.5:9100 --every 5
  wsgifast top --json | jq .threads_busy
"""


def add_command(commands: Any) -> None:
    """Add `top` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "top",
        help="show threads, rates, memory, slow endpoints and slow clients of a running server",
        description="Show the activity of a running server. Start the server with `wsgifast run "
        "--metrics HOST:PORT`. For FastWorker and asgifast's protocols, you can also set "
        "WSGIFAST_METRICS=HOST:PORT.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "address",
        nargs="?",
        metavar="ADDRESS",
        help=f"HOST:PORT (default: ${VARIABLE}, or {_DEFAULT_ADDRESS})",
    )
    again = f"show a new view at this interval (default: one view, over {_INTERVAL_S:g} s)"
    option(parser, "--every", "SECONDS", again, type=seconds)
    option(parser, "--json", help="print one JSON object for each view")
    option(parser, "--most", "N", "number of endpoints and clients to show", default=20, type=count)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    shown = options.address or os.environ.get(VARIABLE) or _DEFAULT_ADDRESS
    # A URL is also accepted, such as http://127.0.0.1:9100/.
    address = metrics_address(shown.removeprefix("http://").partition("/")[0], "ADDRESS")
    while True:
        view = view_of(address, options.every or _INTERVAL_S)
        if options.json:
            show(json.dumps(view))
        else:
            show("\n".join(lines(view, str(address), most=options.most, width=output_width())))
        if options.every is None:
            return 0
        if not options.json:
            show()


def lines(
    view: Mapping[str, Any], address: str, *, most: int = 20, width: int | None = None
) -> list[str]:
    """Return a view as lines of text. A value that the server does not report is "-".

    :param most: the most endpoints, and the most clients.
    :param width: the width of the terminal. Patterns and paths are truncated to fit.
    """
    values = {name: value for name, value in view.items() if not isinstance(value, list)}
    shown = {name: _shown(name, value) for name, value in values.items()}
    text = [f"{address}, over {shown['seconds']} s", ""]
    text += [line.format(**shown) for name, line in _LINES.items() if shown[name] != "-"]
    for titles, found in ((_ENDPOINTS, view["endpoints"]), (_CLIENTS, view["clients"])):
        if found:
            rows = [[_shown(name, each[name]) for name in titles] for each in found[:most]]
            least = {n: _MIN_COLUMNS for n, name in enumerate(titles) if name in _LONG}
            columns, *cells = fitted([[*titles.values()], *rows], width, least)
            text += ["", *table(columns, cells).splitlines()]
    return text


# Lines of the view. A line is omitted if the server does not report the value in its key.
_LINES = {
    "workers": "workers   {workers}, {memory_bytes}, {cpu} processors in use",
    "threads": "threads   {threads_busy} of {threads} busy, none free {none_free} of the time, "
    "{requests_waiting} waiting for one, wait p99 {wait_p99_s}",
    "seconds": "requests  {requests_per_s}, {errors_per_s} with 5xx, p50 {p50_s}, p99 {p99_s}",
    "body_bytes_per_s": "bytes     {body_bytes_per_s} of bodies, {sendfile_bytes_per_s} by "
    "sendfile",
    "connections": "clients   {connections}, {accept_backlog} in the accept queue",
    "slow_clients": "slow      {slow_clients} of them, {queued_bytes} queued, {spooled_bytes} in "
    "files, {clients_left_per_s} left, {timeouts_per_s} timed out",
}
# Maps keys of the view to column titles.
_ENDPOINTS = {
    "pattern": "slowest endpoints", "requests_per_s": "requests", "errors_per_s": "5xx",
    "p50_s": "p50", "p99_s": "p99", "body_bytes_per_s": "bodies",
}  # fmt: skip
_CLIENTS = {
    "client": "slowest clients", "bytes_per_s": "receives", "queued_bytes": "queued",
    "waited_s": "for", "path": "path",
}  # fmt: skip
_LONG = ("pattern", "path")


def _shown(name: str, value: Any) -> str:
    """Return a value as text. The end of its name says the unit."""
    if isinstance(value, Mapping):
        each = ", ".join(f"{key}: {_shown(name, part)}" for key, part in value.items() if part)
        total = _shown(name, sum(value.values())) if value else "-"
        return f"{total} ({each})" if each else total
    for end, form in _FORMATS.items():
        if value is not None and name.endswith(end):
            return form(value)
    return cell_text(value)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "bytes_per_s": lambda value: f"{size_text(value)}/s",
    "_per_s": "{:,.1f}/s".format,
    "bytes": size_text,
    "_free": "{:.0%}".format,
    "_s": _time,
}


def view_of(address: Address, interval_s: float) -> dict[str, Any]:
    """Return the activity of a server in an interval that begins now.

    :raises WSGIFastError: if no server listens at the address, or it does not report a view.
    """
    limit_s = interval_s + _TIMEOUT_S
    client = HTTPClient(*address, headers=[("Accept", "application/json")], limit_s=limit_s)
    try:
        response = client.ask(f"/top?seconds={interval_s:g}")
    except NoResponse as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            raise WSGIFastError(
                f"nothing listens on {address}: start the server with `wsgifast run --metrics "
                f"{address}` or {VARIABLE}={address}, or name its metrics address"
            ) from None
        raise
    text = response.body.decode("utf-8", "replace")
    if response.status in (400, 500, 503):  # the body is the reason
        raise WSGIFastError(f"{address}/top answers {response.status}: {text.strip()}")
    try:
        view: dict[str, Any] = json.loads(text)
        lines(view, "")
    except (ValueError, TypeError, KeyError):
        raise WSGIFastError(
            f"{address}/top answers {response.status} without a view. {address} is not a metrics "
            "address of this version of wsgifast"
        ) from None
    return view

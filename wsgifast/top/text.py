"""A view as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from ..checks import size_text
from ..terminal import fitted, printable, table
from .view import View

# Of a pattern or path, however narrow the terminal is.
_LEAST_COLUMNS = 16


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

"""Plain text output: tables that fit the terminal, and a progress line."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

# Called with the number of parts that are done, their total, and the name of the next one.
Progress = Callable[[int, int, str], None]
_BAR_CHARACTERS = 24
# Where a terminal does not tell.
_DEFAULT_COLUMNS = 80


def output_width() -> int | None:
    """The columns of the terminal that stdout is; None if it is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@contextlib.contextmanager
def progress_line(*, after_s: float = 0.0) -> Iterator[Progress]:
    """A progress line on stderr, if that is a terminal.

    :param after_s: show nothing before this time, for runs that are usually over by then.
    """
    stream = sys.stderr
    if not stream.isatty():
        yield lambda done, total, what: None
        return
    began = time.monotonic()

    def show(done: int, total: int, what: str) -> None:
        if time.monotonic() - began < after_s:
            return
        filled = _BAR_CHARACTERS * done // max(1, total)
        bar = "#" * filled + "." * (_BAR_CHARACTERS - filled)
        line = f"[{bar}] {done}/{total} {what}"
        # Of this terminal: stdout may be a file.
        columns = os.get_terminal_size(stream.fileno()).columns or _DEFAULT_COLUMNS
        stream.write(f"\r\033[K{line[: columns - 1]}")
        stream.flush()

    try:
        yield show
    finally:
        stream.write("\r\033[K")
        stream.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align rows under their column titles: the first column left, the others right.

    :param rows: cells of any type, see :func:`cell_text`; a single cell is a line of its own.
    """
    widths = _widths(columns, rows)
    lines = [_line(columns, widths), "  ".join("-" * width for width in widths)]
    lines += [_line([cell_text(cell) for cell in row], widths) for row in rows]
    return "\n".join(lines)


def tables(
    columns: Sequence[str], rows: Sequence[Sequence[object]], width: int, beside: Set[str]
) -> list[str]:
    """As :func:`table`, split into several tables that fit, each with the first column.

    :param width: in characters; a table of two columns may be wider.
    :param beside: titles of columns that must stay beside the one before.
    """
    widths = _widths(columns, rows)
    groups: list[list[int]] = []
    for number in range(1, len(columns)):
        if groups and columns[number] in beside:
            groups[-1].append(number)
        else:
            groups.append([number])
    parts: list[list[int]] = []
    room = 0
    for group in groups:
        wanted = sum(2 + widths[number] for number in group)
        if wanted > room:
            parts.append([0])
            room = width - widths[0]
        parts[-1] += group
        room -= wanted
    return [
        table(
            [columns[number] for number in part],
            [row if len(row) == 1 else [row[number] for number in part] for row in rows],
        )
        for part in parts
    ]


def _widths(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[int]:
    cells = [[cell_text(cell) for cell in row] for row in rows if len(row) == len(columns)]
    return [max(map(len, column)) for column in zip(columns, *cells, strict=True)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if number == 0 else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=False))
    )
    return "  ".join([first, *others]).rstrip()


def fitted(
    rows: Sequence[Sequence[str]], width: int | None, least: Mapping[int, int]
) -> list[list[str]]:
    """The cells of a table, all of a column in as many columns of the terminal.

    :param width: of the table, if it can be; None for any.
    :param least: the columns that are cut where it is too wide, in this order, and what is left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, kept in least.items():
        whole = sum(widths) + 2 * (len(widths) - 1)
        over = 0 if width is None else max(0, whole - width)
        widths[number] = max(min(widths[number], kept), widths[number] - over)
    return [list(map(cut, row, widths)) for row in rows]


def cut(text: str, width: int) -> str:
    """A text in so many columns: filled up with spaces, or cut off with an ellipsis."""
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"


def printable(text: str) -> str:
    """A text of somebody else's without control characters, which a terminal would act on."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def next_steps(*steps: tuple[str, str]) -> str:
    """Commands to run next.

    :param steps: command lines, each with its purpose.
    """
    width = max(len(command) for command, _ in steps)
    return "\n".join(["Next:", *(f"  {command:<{width}}  {what}" for command, what in steps)])


def cell_text(cell: object) -> str:
    """Three significant digits for a float, thousands apart, "-" for None."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return number_text(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    return str(cell)


def number_text(number: float) -> str:
    """Three digits, which is what a measurement can carry, or all those before the point."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"

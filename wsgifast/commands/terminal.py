"""Text output: escaped text for a terminal, tables that fit it, and a progress line.

Much of a command's output comes from outside: paths that clients requested, file names, texts of
exceptions. A terminal acts on control characters and escape sequences in them, and bidirectional
overrides and other invisible characters make text look like something else. So commands write by
:func:`show`, which escapes all of these, and nothing is printed elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TextIO

# Called with the number of parts that are done, their total, and the name of the next one.
Progress = Callable[[int, int, str], None]
_BAR_CHARACTERS = 24
# In a file or pipe there is no line before this time, and at most one in it.
LINE_S = 5.0
# Where a terminal does not report it.
_DEFAULT_COLUMNS = 80
# The colours in which our own text may be.
RED, YELLOW, CYAN, DIM = "\033[31m", "\033[33m", "\033[36m", "\033[2m"
RESET = "\033[0m"
_COLOURS = re.compile("|".join(map(re.escape, (RED, YELLOW, CYAN, DIM, RESET))))


def show(text: str = "", *, error: bool = False, colours: bool = False, end: str = "\n") -> None:
    """Print lines: the only way of a command's text to a terminal, a file or a pipe.

    :param error: to stderr.
    :param colours: the text has some of this module's colours.
    """
    stream = sys.stderr if error else sys.stdout
    safe = lines_of(text, colours=colours)
    stream.write(_encodable(safe + end, stream))
    stream.flush()


def printable(text: str) -> str:
    r"""Text for one line: characters that a terminal could act on, or would not show, are escaped.

    That is each character that is no letter, mark, digit, punctuation, symbol or plain space:
    control characters (C0, DEL, C1), so also ESC and line ends, formatting characters, such as
    bidirectional overrides, surrogates, and unassigned ones. They are written as in Python:
    "\\x1b", "\\u202e".
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def lines_of(text: str, *, colours: bool = False) -> str:
    """As :func:`printable`, with the line ends, and this module's colours if there are any."""
    if colours:
        plain = _COLOURS.split(text)
        between = [*_COLOURS.findall(text), ""]
        return "".join(lines_of(p) + c for p, c in zip(plain, between, strict=True))
    return "\n".join(map(printable, text.split("\n")))


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def output_width() -> int | None:
    """The columns of the terminal that stdout is. None if it is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@contextlib.contextmanager
def progress_line() -> Iterator[Progress]:
    """A progress line on stderr. If that is no terminal, a line every 5 s at most."""
    stream = sys.stderr
    if not stream.isatty():
        last = time.monotonic()

        def write(done: int, total: int, what: str) -> None:
            nonlocal last
            if time.monotonic() - last >= LINE_S:
                last = time.monotonic()
                stream.write(_encodable(f"{done}/{total} {printable(what)}\n", stream))
                stream.flush()

        yield write
        return

    def show(done: int, total: int, what: str) -> None:
        filled = _BAR_CHARACTERS * done // max(1, total)
        bar = "#" * filled + "." * (_BAR_CHARACTERS - filled)
        line = f"[{bar}] {done}/{total} {printable(what)}"
        # Of this terminal: stdout may be a file.
        columns = os.get_terminal_size(stream.fileno()).columns or _DEFAULT_COLUMNS
        shown = line if width_of(line) < columns else cut(line, columns - 1)
        stream.write(_encodable(f"\r\033[K{shown}", stream))
        stream.flush()

    try:
        yield show
    finally:
        stream.write("\r\033[K")
        stream.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align rows under their column titles: the first column left, the others right.

    :param rows: cells of any type, see :func:`cell_text`. A single cell is a line of its own.
    """
    widths = _widths(columns, rows)
    lines = [_line(columns, widths), "  ".join("-" * width for width in widths)]
    lines += [_line([cell_text(cell) for cell in row], widths) for row in rows]
    return "\n".join(lines)


def tables(columns: Sequence[str], rows: Sequence[Sequence[object]], width: float) -> list[str]:
    """As :func:`table`, split into several tables that fit, each with the first column.

    :param width: in characters. A table of two columns may be wider.
    """
    widths = _widths(columns, rows)
    parts: list[list[int]] = []
    room = 0.0
    for number in range(1, len(columns)):
        wanted = 2 + widths[number]
        if wanted > room:
            parts.append([0])
            room = width - widths[0]
        parts[-1].append(number)
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
    return [max(map(width_of, column)) for column in zip(columns, *cells, strict=True)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = []
    for number, (cell, width) in enumerate(zip(cells, widths, strict=False)):
        blanks = " " * (width - width_of(cell))
        padded.append(blanks + cell if number else cell + blanks)
    return "  ".join(padded).rstrip()


def fitted(
    rows: Sequence[Sequence[str]], width: int | None, least: Mapping[int, int]
) -> list[list[str]]:
    """The cells of a table, all of a column in as many columns of the terminal.

    :param width: of the table, if it can be. None for any.
    :param least: the columns to cut where it is too wide, in this order, and their least widths.
    """
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    for number, shown in least.items():
        whole = sum(widths) + 2 * (len(widths) - 1)
        over = 0 if width is None else max(0, whole - width)
        widths[number] = max(min(widths[number], shown), widths[number] - over)
    return [list(map(cut, row, widths)) for row in rows]


def cut(text: str, width: int) -> str:
    """A text in so many columns: filled up with spaces, or cut off with an ellipsis."""
    if width_of(text) > width:
        shown = text[: width - 1]  # a character takes a column, or more
        while width_of(shown) >= width:
            shown = shown[:-1]
        text = shown + "…"
    return text + " " * (width - width_of(text))


def width_of(text: str) -> int:
    """How many columns of a terminal a text takes at most: two for each wide character."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(c) in "WF" for c in text)


def next_steps(*steps: tuple[str, str]) -> str:
    """Commands to run next.

    :param steps: command lines, each with its purpose.
    """
    width = max(width_of(command) for command, _ in steps)
    return "\n".join(["Next:", *(f"  {command:<{width}}  {what}" for command, what in steps)])


def cell_text(cell: object) -> str:
    """Three significant digits for a float, thousands apart, "-" for None."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return number_text(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    return printable(str(cell))


def number_text(number: float) -> str:
    """Three digits, as a measurement is no more precise, or all those before the point."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"

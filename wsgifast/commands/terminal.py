"""Text output of the commands: escaped text, tables that fit the terminal, and a progress line.

Much of the output is untrusted: requested paths, file names, texts of exceptions. A terminal
executes control characters and escape sequences. Bidirectional overrides and other invisible
characters make a text look like another text. So all output goes through :func:`show`, which
escapes these characters.
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

# A function that reports progress: (finished parts, all parts, name of the current part).
Progress = Callable[[int, int, str], None]
_BAR_CHARACTERS = 24
# The least time between two progress lines in a file or pipe.
LINE_S = 5.0
# The width of a terminal that does not report its width.
_DEFAULT_COLUMNS = 80
# The escape sequences for colours. show() does not escape them if `colours` is set.
RED, YELLOW, CYAN, DIM = "\033[31m", "\033[33m", "\033[36m", "\033[2m"
RESET = "\033[0m"
_COLOURS = re.compile("|".join(map(re.escape, (RED, YELLOW, CYAN, DIM, RESET))))


def show(text: str = "", *, error: bool = False, colours: bool = False, end: str = "\n") -> None:
    """Escape and print lines. All commands print only with this function.

    :param error: print to stderr.
    :param colours: do not escape the colours of this module.
    """
    stream = sys.stderr if error else sys.stdout
    safe = lines_of(text, colours=colours)
    stream.write(_encodable(safe + end, stream))
    stream.flush()


def printable(text: str) -> str:
    r"""Return a text for one line, with Python escape sequences such as "\\x1b" or "\\u202e".

    Letters, marks, digits, punctuation, symbols and plain spaces are not escaped. All other
    characters are escaped: control characters (with ESC and line ends), formatting characters (with
    bidirectional overrides), surrogates, and unassigned characters.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def lines_of(text: str, *, colours: bool = False) -> str:
    """Return a text escaped like :func:`printable`, except line ends.

    :param colours: do not escape the colours of this module either.
    """
    if colours:
        plain = _COLOURS.split(text)
        between = [*_COLOURS.findall(text), ""]
        return "".join(lines_of(p) + c for p, c in zip(plain, between, strict=True))
    return "\n".join(map(printable, text.split("\n")))


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def output_width() -> int | None:
    """Return the columns of the terminal. None if stdout is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@contextlib.contextmanager
def progress_line() -> Iterator[Progress]:
    """Show progress in one line on stderr. In a file or pipe, print a line at most every 5 s."""
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
        # The width of the terminal at stderr: stdout may be a file.
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
    """Return a table as text. The first column is aligned left, all others right.

    :param rows: cells of any type. See :func:`cell_text`. A row with one cell becomes a line that
        does not affect the widths of the columns.
    """
    widths = _widths(columns, rows)
    lines = [_line(columns, widths), "  ".join("-" * width for width in widths)]
    lines += [_line([cell_text(cell) for cell in row], widths) for row in rows]
    return "\n".join(lines)


def tables(columns: Sequence[str], rows: Sequence[Sequence[object]], width: float) -> list[str]:
    """Return a table as text, split into several tables that fit into a width.

    Each of them has the first column. See :func:`table`.

    :param width: the width in characters. A table of two columns may be wider.
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
    """Pad or truncate the cells of a table, so that it fits into a width.

    :param width: the width of the table in characters. None for no limit.
    :param least: the numbers of the columns to truncate, in this order, with their least widths.
    """
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    for number, shown in least.items():
        whole = sum(widths) + 2 * (len(widths) - 1)
        over = 0 if width is None else max(0, whole - width)
        widths[number] = max(min(widths[number], shown), widths[number] - over)
    return [list(map(cut, row, widths)) for row in rows]


def cut(text: str, width: int) -> str:
    """Return a text of exactly this width. Add spaces, or truncate it with an ellipsis."""
    if width_of(text) > width:
        shown = text[: width - 1]  # a character is one or two columns wide
        while width_of(shown) >= width:
            shown = shown[:-1]
        text = shown + "…"
    return text + " " * (width - width_of(text))


def width_of(text: str) -> int:
    """Return the width of a text in columns of a terminal. Wide characters count as two."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(c) in "WF" for c in text)


def next_steps(*steps: tuple[str, str]) -> str:
    """Return lines with commands that the user can run next.

    :param steps: command lines, each with its purpose.
    """
    width = max(width_of(command) for command, _ in steps)
    return "\n".join(["Next:", *(f"  {command:<{width}}  {what}" for command, what in steps)])


def cell_text(cell: object) -> str:
    """Return a cell as text. An int has commas between thousands, and None is "-".

    See :func:`number_text` for floats.
    """
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return number_text(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    return printable(str(cell))


def number_text(number: float) -> str:
    """Return a measured number with three significant digits, or as an integer from 100 on."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"

"""Plain text: tables, and a line that tells how far a run is."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

__all__ = ["ProgressLine", "cell_text", "table"]


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align rows under their column titles: the first column left, the others right.

    :param rows: cells of any type; floats are shown with three significant digits, None as "-".
    """
    cells = [[cell_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [_line(columns, widths), "  ".join("-" * width for width in widths)]
    lines += [_line(row, widths) for row in cells]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if number == 0 else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def cell_text(cell: object) -> str:
    """Three significant digits for a float, thousands apart, "-" for None."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return str(cell)


class ProgressLine:
    """One line that is written over on a terminal; elsewhere a line for each new row.

    Call it with what runs now, such as "a row: 2/5 this one", and the share that is done, 0 to 1.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun = time.monotonic()
        self._last = ""

    def __call__(self, what: str, done: float = 0.0) -> None:
        line = f"[{time.monotonic() - self._begun:4.0f} s {done:4.0%}] {what}"
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + line[:width].ljust(width))
        elif what.rpartition(": ")[0] != self._last:
            self._last = what.rpartition(": ")[0]
            self._stream.write(f"{line.rpartition(': ')[0]}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave the terminal with an empty line for what follows."""
        if self._stream.isatty():
            self._stream.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            self._stream.flush()

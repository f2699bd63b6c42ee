"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["cell_text", "table"]


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

"""The live view on a terminal."""

from __future__ import annotations

import curses
import time
from collections.abc import Callable, Sequence

from ..terminal import printable

_QUIT = (ord("q"), 27)  # or Escape


def show(next_lines: Callable[[], Sequence[str]], first: str, *, interval_s: float) -> bool:
    """Redraw the view until q or Ctrl-C.

    :param next_lines: makes the next one.
    :param first: what is shown until there is one.
    :param interval_s: seconds between two of them.
    :returns: False, and nothing is drawn, on an unknown kind of terminal.
    """
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

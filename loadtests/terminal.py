"""What the runner shows while it works, and the table at the end."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from .comparison import Comparison, Side
from .measuring import table

__all__ = ["ProgressLine", "problems", "results_table"]

BAR_CELLS = 24


class ProgressLine:
    """One line that is written over on a terminal; elsewhere a line for each new step.

    Call it with what runs now and the share that is done, 0 to 1; it never runs backwards.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun = time.monotonic()
        self._on_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._last = ""
        self._done = 0.0

    def __call__(self, what: str, done: float = 0.0) -> None:
        done = self._done = max(self._done, done)
        elapsed = time.monotonic() - self._begun
        if self._on_terminal:
            filled = round(done * BAR_CELLS)
            bar = "█" * filled + "░" * (BAR_CELLS - filled)
            line = f"{bar} {done:4.0%} {elapsed:4.0f} s  {what}"
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + line[:width].ljust(width))
        else:
            step = what.partition(":")[0]
            if step == self._last:
                return
            self._last = step
            self._stream.write(f"[{elapsed:4.0f} s {done:4.0%}] {step}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave the terminal with an empty line for what follows."""
        if self._on_terminal:
            self._stream.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            self._stream.flush()


def results_table(results: Sequence[Comparison]) -> str:
    """Two lines for each path: raw, and wrapped with the ratio."""
    columns = ["the app returns", "", "req/s", "MB/s", "p50 ms", "p95 ms", "failed"]
    rows: list[Sequence[object]] = []
    for result in results:
        rows.append([result.row.label, "raw", *_figures(result.raw), ""])
        rows.append(["", "wrapped", *_figures(result.wrapped), result.verdict])
    return table([*columns, "CPU ms/req", "wrapped / raw"], rows)


def _figures(side: Side) -> list[object]:
    return [
        side.requests_per_s,
        side.megabytes_per_s,
        side.latency_ms(50),
        side.latency_ms(95),
        side.failures or "",
        side.server_cpu_ms,
    ]


def problems(results: Sequence[Comparison]) -> list[str]:
    """What to know beside the table: failures as the client saw them, other bodies, limits."""
    lines = []
    for result in results:
        for name, side in (("raw", result.raw), ("wrapped", result.wrapped)):
            for error, count in side.errors.items():
                lines.append(f"{result.row.label}, {name}: {count} x {error}")
        if result.differs:
            raw, wrapped = result.raw.seen, result.wrapped.seen
            lines.append(
                f"{result.row.label}: the wrapped body ({wrapped.body_bytes:,} bytes) is another "
                f"than the raw one ({raw.body_bytes:,} bytes); is the page different every time?"
            )
    limited = [r.row.label for r in results if r.wrapped.client_is_limit]
    if limited:
        lines.append(f"Locust was at its limit, the server can do more: {', '.join(limited)}")
    return lines

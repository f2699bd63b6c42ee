"""Warns when all threads of the pool are stuck, so that nobody is served."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

_Turns = list[tuple[str, int | None, int | None]]


class Watchdog:
    """Checks whether any thread has ended its turn since the last check; not thread-safe.

    :param turns: see :meth:`.Pool.turns`.
    :param after_s: after this many seconds without that, each thread's stack is logged, once.
    :param kill_after_s: after this many seconds `kill` is called, once.
    """

    def __init__(
        self,
        turns: Callable[[], _Turns],
        *,
        log: Any,
        after_s: float,
        kill_after_s: float,
        kill: Callable[[], object],
    ) -> None:
        self._look_at_turns = turns
        self._log = log
        self._after_s = after_s
        self._kill_after_s = kill_after_s
        self._kill = kill
        self._turns: _Turns = []
        self._since = 0.0
        self._told = self._killed = False

    def look(self, now: float) -> None:
        """Check now.

        :param now: monotonic.
        """
        turns = self._look_at_turns()
        if turns != self._turns or any(turn is None for _, _, turn in turns):
            self._turns, self._since = turns, now
            if self._told:
                self._told = self._killed = False
                self._log.warning("A thread is free again")
            return
        stuck_s = now - self._since
        if stuck_s >= self._after_s and not self._told:
            self._told = True
            self._log.error(
                "All %d threads have been in the same request for %.0f s; nobody else is "
                "answered.\n%s",
                len(turns),
                stuck_s,
                _stacks(turns),
            )
        if stuck_s >= self._kill_after_s and not self._killed:
            self._killed = True
            self._log.critical("All threads are stuck for %.0f s: the worker ends", stuck_s)
            self._kill()


def _stacks(turns: _Turns) -> str:
    frames = sys._current_frames()
    stacks = []
    for name, ident, _ in turns:
        frame = None if ident is None else frames.get(ident)
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        stacks.append(f"Thread {name} (most recent call last):\n{stack}")
    return "\n".join(stacks)

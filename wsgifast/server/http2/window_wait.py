"""How long a client may keep a stream, or all of its streams, waiting for a window."""

from __future__ import annotations

import time

from ..output_rules import OutputRules

__all__ = ["WindowWait"]


class WindowWait:
    """Adds up the times in which a client has left no window.

    The rule is that for sockets (:meth:`OutputRules.time_left_s`); but only these times count: for
    the rest the stream waits for others of its connection.

    :ivar taken: bytes sent since the first of these times.
    """

    __slots__ = ("_rules", "_since", "_waited_s", "taken")

    def __init__(self, rules: OutputRules) -> None:
        self._rules = rules
        self._since: float | None = None
        self._waited_s = 0.0
        self.taken = 0

    def begin(self) -> float:
        """There is no window; return until when one is waited for, by the monotonic clock."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if not self._waited_s:
                self.taken = 0
        waited_s = self._waited_s + now - self._since
        return now + self._rules.time_left_s(waited_s, self.taken)

    def pace(self, now: float) -> tuple[float, int] | None:
        """See :meth:`~..output.Sends.pace`."""
        waited_s = self._waited_s
        if (since := self._since) is not None:
            waited_s += now - since
        return (waited_s, self.taken) if waited_s else None

    def end(self) -> None:
        """There is one again."""
        if self._since is not None:
            self._waited_s += time.monotonic() - self._since
            self._since = None

"""How long a client may leave a flow-control window closed."""

from __future__ import annotations

import time

from ..output_rules import OutputRules

__all__ = ["WindowWait"]


class WindowWait:
    """Adds up the time during which a window was used up: of a stream, or of the connection.

    The limit is the one for sockets (:meth:`OutputRules.time_left_s`). Other waiting does not
    count: the stream then waits for other streams of its connection.

    :ivar taken: bytes sent since the window was used up for the first time.
    """

    __slots__ = ("_rules", "_since", "_waited_s", "taken")

    def __init__(self, rules: OutputRules) -> None:
        self._rules = rules
        self._since: float | None = None
        self._waited_s = 0.0
        self.taken = 0

    def begin(self) -> float:
        """The window is used up; returns when to give up on the client (monotonic)."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if not self._waited_s:
                self.taken = 0
        waited_s = self._waited_s + now - self._since
        return now + self._rules.time_left_s(waited_s, self.taken)

    def pace(self, now: float) -> tuple[float, int] | None:
        """See :meth:`~..sending.SenderLike.pace`."""
        waited_s = self._waited_s
        if (since := self._since) is not None:
            waited_s += now - since
        return (waited_s, self.taken) if waited_s else None

    def end(self) -> None:
        """The window is open again."""
        if self._since is not None:
            self._waited_s += time.monotonic() - self._since
            self._since = None

"""When to end a worker that is to be replaced: while nothing long is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Drain"]

C = TypeVar("C")

# What has been open for no longer is expected to end soon.
_YOUNG_S = 1.0


class Drain(Generic[C]):
    """Waits until a worker can end without making anybody wait for the next one.

    An arbiter starts the next worker only after this one has ended, and while one ends, it accepts
    nobody. So it goes on accepting, and looks for a moment at which all that is open is young: it
    remembers what is open, and is over if all of that has closed soon after. If something took
    longer, it remembers anew.

    :param connections: those of the worker, as they come and go.
    :param counts: whether a connection that is open has to be waited for.
    :param now: the monotonic clock, in seconds, here and below.
    :param limit_s: seconds after which the worker ends in any case.
    """

    def __init__(
        self, connections: set[C], *, counts: Callable[[C], bool], now: float, limit_s: float
    ) -> None:
        self._connections = connections
        self._counts = counts
        self._end = now + limit_s
        self._since = now
        self._old = set(connections)

    def is_over(self, now: float) -> bool:
        """Whether this is the moment."""
        if now >= self._end:
            return True
        self._old = {c for c in self._old if c in self._connections and self._counts(c)}
        if self._old:
            return False
        if now - self._since > _YOUNG_S:
            self._since, self._old = now, set(self._connections)
        return not self._old

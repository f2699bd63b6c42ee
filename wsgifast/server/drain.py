"""Finds a good moment to end a worker that is to be replaced: when nothing long is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# A connection that is younger is expected to end soon.
_YOUNG_S = 1.0


class Drain:
    """Tells when a worker can end without making clients wait for its successor.

    The arbiter starts the successor only after this worker has ended, and a worker that ends
    accepts nothing. So it goes on accepting until all open connections are young: it remembers the
    open ones, and the moment has come if all of them have closed soon after. If not, it starts
    again with those that are open then.

    :param connections: the worker's, as they come and go.
    :param counts: whether to wait for an open connection.
    :param now: monotonic, here and below.
    :param limit_s: seconds after which the worker ends in any case.
    """

    def __init__(
        self, connections: set[Any], *, counts: Callable[[Any], bool], now: float, limit_s: float
    ) -> None:
        self._connections = connections
        self._counts = counts
        self._end = now + limit_s
        self._since = now
        self._old = set(connections)

    def is_over(self, now: float) -> bool:
        """Whether the worker should end now."""
        if now >= self._end:
            return True
        self._old = {c for c in self._old if c in self._connections and self._counts(c)}
        if self._old:
            return False
        if now - self._since > _YOUNG_S:
            self._since, self._old = now, set(self._connections)
        return not self._old

"""Since when, and for how long altogether, no thread of a pool has had nothing to do."""

from __future__ import annotations

import time

__all__ = ["Exhaustion"]


class Exhaustion:
    """The time in which no thread was free.

    Unlike :attr:`.Pool.saturated` it outlasts a thread that ends its turn and takes up the next
    job.

    :ivar since: monotonic; None if a thread has nothing to do now.
    """

    __slots__ = ("_over_s", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self._over_s = 0.0  # such times that are over

    def begin(self) -> None:
        """No thread is free."""
        if self.since is None:
            self.since = time.monotonic()

    def end(self) -> None:
        """A thread has nothing to do."""
        since, self.since = self.since, None
        if since is not None:
            self._over_s += time.monotonic() - since

    def seconds(self, now: float) -> float:
        """How long it was, altogether, until now by the monotonic clock."""
        since = self.since
        return self._over_s + (0.0 if since is None else now - since)

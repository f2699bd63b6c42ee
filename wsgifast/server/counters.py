"""What a server counts about itself. It only counts; the metrics exporter reads the values.

Additions take no lock: CPython switches threads only at calls and at the end of loops, and an
addition to an attribute contains neither.
"""

from __future__ import annotations

import time
from collections import Counter

# Most waits kept between two reads.
_MOST_WAITS = 10_000


class Counters:
    """Totals since the server started.

    :ivar accepted: connections accepted.
    :ivar sendfile_bytes: bytes of files sent by sendfile.
    :ivar timeouts: connections ended by a timeout, by what they were waiting for.
    :ivar refused: requests answered without calling the app, by status.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.sendfile_bytes = 0
        self.timeouts = Counter[str]()
        self.refused = Counter[int]()
        self._waits: list[float] = []

    def count_wait(self, seconds: float) -> None:
        """Record that a request waited for a free thread."""
        if len(self._waits) < _MOST_WAITS:
            self._waits.append(seconds)

    def take_waits(self) -> list[float]:
        """Return the waits recorded since the last call, in seconds."""
        taken = self._waits[:]
        del self._waits[: len(taken)]
        return taken


class Exhaustion:
    """Measures the time during which no thread of a pool was free.

    Unlike :attr:`.Pool.saturated`, it does not end when a thread finishes one job and immediately
    takes the next.

    :ivar since: when the current period began (monotonic); None if a thread is free.
    """

    __slots__ = ("_over_s", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self._over_s = 0.0  # the periods that have ended

    def begin(self) -> None:
        """No thread is free."""
        if self.since is None:
            self.since = time.monotonic()

    def end(self) -> None:
        """A thread is idle."""
        since, self.since = self.since, None
        if since is not None:
            self._over_s += time.monotonic() - since

    def seconds(self, now: float) -> float:
        """Return the total up to `now` (monotonic)."""
        since = self.since
        return self._over_s + (0.0 if since is None else now - since)

"""What a server counts of itself while it serves; nobody is told of it here.

Whoever is to tell of it reads it now and then. An addition takes no lock: CPython hands the
interpreter to another thread at calls and at the ends of loops, and there is neither in one.
"""

from __future__ import annotations

from collections import Counter

__all__ = ["Counters"]

# Waits that nobody has asked for.
_MOST_WAITS = 10_000


class Counters:
    """Counts since the server began.

    :ivar accepted: connections.
    :ivar sendfile_bytes: that the kernel has sent from files by itself.
    :ivar timeouts: connections that have ended as their time was over, by what was waited for.
    :ivar refused: requests that were answered without the app, by status.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.sendfile_bytes = 0
        self.timeouts = Counter[str]()
        self.refused = Counter[int]()
        self._waits: list[float] = []

    def count_wait(self, seconds: float) -> None:
        """A request has waited for a thread; those that have not are not told."""
        if len(self._waits) < _MOST_WAITS:
            self._waits.append(seconds)

    def take_waits(self) -> list[float]:
        """The waits since the last call, in seconds."""
        taken = self._waits[:]
        del self._waits[: len(taken)]
        return taken

"""A clock for writers that gather: one thread of the process sends what nobody comes back for.

Theory of operation
-------------------
A writer that keeps something back asks once to be *watched*. The thread looks at every watched
writer, sends what is overdue, and drops a writer as soon as nothing more is to be expected of it;
the writer asks again with what it gathers next. So a stream of messages costs no wake-up for each
message or batch, but one at its beginning, and the thread's looks while it lasts.

    unwatched --something gathered--> watched --nothing gathered for some looks--> unwatched

The thread never waits for a peer, so one that reads nothing does not keep the others waiting. It is
started for the first writer, sleeps while there is none, and refers to no writer longer than it
watches it. A forked child has no such thread: it forgets what it inherited, which the parent sends,
and starts its own when it needs one.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Protocol

from ..wake_event import WakeEvent

__all__ = ["Flusher", "Watched", "flusher"]

# Linux adds a slack of 50 us to every timed wait: a shorter one would hardly end earlier.
_SHORTEST_WAIT_S = 50e-6


class Watched(Protocol):
    """What the thread knows of a writer."""

    def look(self, *, at_exit: bool = False) -> float | None:
        """Send what is overdue (at the exit of the process: all), without waiting for the peer.

        :returns: seconds until the next look; None if nothing is expected any more.
        """

    def leave(self) -> bool:
        """Be told that nobody looks any more; return whether something was gathered meanwhile."""

    def forget(self) -> None:
        """In a forked child: drop what is gathered; whoever held the lock is not here."""


class Flusher:
    """The thread, which starts when it is first needed.

    :ivar runs: whether it has been started.
    """

    def __init__(self) -> None:
        self._watched: dict[Watched, None] = {}
        self._wake = WakeEvent()
        self._starting = threading.Lock()
        self.runs = False

    def watch(self, writer: Watched) -> None:
        """Look at a writer until it expects nothing more.

        :raises RuntimeError: if the process can start no thread.
        """
        if not self.runs:
            with self._starting:
                if not self.runs:
                    thread = threading.Thread(target=self._run, name="wsgifast-flusher")
                    thread.daemon = True
                    thread.start()
                    self.runs = True
        self._watched[writer] = None
        self._wake.set()

    def _run(self) -> None:
        pause: float | None = None
        while True:
            self._wake.wait(pause)
            pause = self._look_at_all()

    def _look_at_all(self) -> float | None:
        """Look at each writer once; return the seconds until the next look, None for no one."""
        pauses = []
        for writer in list(self._watched):
            pause = writer.look()
            if pause is None:
                del self._watched[writer]
                if not writer.leave():
                    continue
                self._watched[writer] = None
                pause = 0.0
            pauses.append(max(pause, _SHORTEST_WAIT_S))
        return min(pauses, default=None)

    def at_exit(self) -> None:
        for writer in list(self._watched):
            writer.look(at_exit=True)

    def begin_again(self) -> None:
        inherited = list(self._watched)
        self._watched = {}
        self._wake = WakeEvent()
        self._starting = threading.Lock()
        self.runs = False
        for writer in inherited:
            writer.forget()


flusher = Flusher()
atexit.register(flusher.at_exit)
os.register_at_fork(after_in_child=flusher.begin_again)

"""The flusher: one thread per process that sends what coalescing writers still hold.

Theory of operation
-------------------
A writer that gathers something has itself *watched*. The thread looks at all watched writers, sends
what is overdue, and stops watching a writer that has been idle for some looks; it is watched again
when it gathers the next message. So a burst of messages costs one wake-up at its beginning, and the
looks while it lasts, but none for each message or batch.

    unwatched --something gathered--> watched --nothing gathered for some looks--> unwatched

The thread never waits for a peer, so one that does not read delays no other. It is started for the
first writer, sleeps while it watches none, and keeps no reference to a writer that it does not
watch. A forked child has no such thread: it drops what it inherited, which the parent sends, and
starts its own thread when it needs one.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from ..alarm import WakeEvent

if TYPE_CHECKING:
    from .blocking import CoalescingWriter

# Linux adds a timer slack of 50 us to each wait, so that a shorter one would hardly end earlier.
_SHORTEST_WAIT_S = 50e-6


class Flusher:
    """The thread, started when it is first needed.

    :ivar runs: whether it has been started.
    """

    def __init__(self) -> None:
        self._watched: dict[CoalescingWriter, None] = {}
        self._wake = WakeEvent()
        self._starting = threading.Lock()
        self.runs = False

    def watch(self, writer: CoalescingWriter) -> None:
        """Look at a writer until it is idle.

        :raises RuntimeError: if no thread can be started.
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
        """Look at each writer once; returns seconds until the next look, None without writers."""
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

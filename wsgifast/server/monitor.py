"""The monitor: keeps the lead of the pool with a thread that is free.

The monitor runs in the main thread, and does nothing that could block: neither polling nor
receiving, only what `on_tick` and `on_saturation` do. So it always sees a leader that is blocked,
and whoever runs it may give a sign of life at each of its rounds. It sleeps until its alarm goes
off. Whoever begins a turn puts the alarm off (:meth:`Monitor.guard`), a little before the next tick
again and again, so that it only goes off when a turn takes longer than a tick, or after the last
one: while all turns are quick the monitor never asks for the interpreter lock. While the long ones
are at work, it looks in less often; when one was blocked, again after a tick. What is left for
`on_tick` has the alarm go off within a tick, whatever else happens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..sockets.alarm import make_alarm

__all__ = ["TICK_S", "Member", "Monitor", "is_running"]

# How long a turn that is blocked may keep the lead: one to two ticks, if the last long one was.
TICK_S = 0.0007
# Turns that take longer because they have much to do, such as sending large files, are looked in on
# less often, up to this time: each look takes the interpreter lock from the one who works.
_MOST_PATIENCE_S = 4 * TICK_S
# A leader that runs, or waits for nothing but a processor, keeps the lead for so long: who would
# follow it waits for the same processor, or for the interpreter lock that the leader has.
_RUNNING_PATIENCE_S = 0.005
# A spare may take so long for a turn: it competes with all the apps for the interpreter lock, and
# is no sooner back if another one joins. Longer than that, it is blocked.
_SPARE_PATIENCE_S = 0.25


class Member:
    """One thread of the pool."""

    __slots__ = ("busy", "gate", "name", "polling", "since", "spare", "thread", "turn")

    def __init__(self, name: str, *, spare: bool = False) -> None:
        self.name = name
        self.spare = spare
        self.thread: threading.Thread | None = None
        self.busy = False  # in a turn: receiving, or in the app
        self.since = 0.0  # when its last turn has begun; monotonic
        self.polling = False  # waiting in the poller, or about to
        self.turn = 0  # turns begun: tells the watchdog whether it is still the same one
        self.gate = threading.Lock()
        self.gate.acquire()


class Monitor:
    """Looks after the leader of a pool, and has it replaced if it is kept.

    :param leader: the one at the moment.
    :param replace: called with the leader that is to be replaced.
    :param on_tick: see :class:`~.pool.Pool`.
    :ivar ticking: whether it runs, so that a tick comes where one is asked for.
    :ivar guard_at: who begins a turn after this calls :meth:`guard`; monotonic.
    """

    def __init__(
        self,
        *,
        leader: Callable[[], Member],
        replace: Callable[[Member], object],
        on_tick: Callable[[], bool],
    ) -> None:
        self.ticking = False
        self.guard_at = 0.0
        self._leader = leader
        self._replace = replace
        self._on_tick = on_tick
        # The alarm is not to be put off: a tick was promised.
        self._promised = False
        # How long a turn is not looked in on.
        self._patience_s = TICK_S
        self._alarm = make_alarm()
        self._interrupted = False

    def run(self, seconds: float) -> None:
        """Keep the lead with a thread that is free, for a while.

        :param seconds: return after that long, or when :meth:`interrupt` was called.
        """
        now = time.monotonic()
        deadline = now + seconds
        self.ticking = True
        while not self._interrupted:
            # In this order: whoever asks for a tick, or begins a turn, from here on sets the alarm.
            self._promised = False
            self.guard_at = 0.0
            more = self._on_tick()
            leader = self._leader()
            now = time.monotonic()
            if leader.busy and self._keeps_too_long(leader, now - leader.since):
                self._replace(leader)
                leader = self._leader()
            if now >= deadline:
                break
            if more:
                self.ticks_soon()
            elif leader.busy:
                self.guard(now)
            self._alarm.wait(deadline - now)
        self._interrupted = False

    def guard(self, now: float) -> None:
        """Have it look in if the turn that begins now takes long."""
        # Put off at the first turn after half of the patience: a turn that has begun in between has
        # had all of it when the alarm goes off.
        half = self._patience_s / 2
        self.guard_at = now + half
        if not (self._promised or self._interrupted):
            self._alarm.set(self._patience_s + half)

    def ticks_soon(self) -> bool:
        """Whether the monitor looks in within TICK_S: something may be left for `on_tick` then."""
        if not self._promised:
            self._promised = True
            self._alarm.set(TICK_S)
        return self.ticking

    def interrupt(self) -> None:
        """Make :meth:`run` return, or its next call; safe in a signal handler."""
        self._interrupted = True
        self._alarm.set(0)

    def _keeps_too_long(self, leader: Member, seconds: float) -> bool:
        """Whether the leader keeps others waiting, so long after it was seen in the same turn."""
        if leader.spare:
            return seconds >= _SPARE_PATIENCE_S
        # The monitor may look in early: something was left for a tick.
        if seconds < TICK_S:
            return False
        if seconds >= _RUNNING_PATIENCE_S:
            return True
        if is_running(leader.thread):
            self._patience_s = min(2 * self._patience_s, _MOST_PATIENCE_S)
            return False
        self._patience_s = TICK_S
        return True


def is_running(thread: threading.Thread | None) -> bool:
    """Whether a thread runs or waits for a processor; False where the system does not tell."""
    try:
        with open(f"/proc/self/task/{thread and thread.native_id}/stat", "rb", 0) as file:
            # proc_pid_stat(5): the name in parentheses may have any character in it.
            return file.read(256).rpartition(b") ")[2].startswith(b"R")
    except OSError:
        return False

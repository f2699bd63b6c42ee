"""The monitor: keeps the lead of the pool with a thread that is free.

The monitor runs in the main thread, and does nothing that could block: neither polling nor
receiving, only what `on_tick` and `on_saturation` do. So it always sees a leader that is blocked,
and whoever runs it may give a sign of life at each of its rounds. Each tick takes the interpreter
lock from the leader, so they become rarer while all turns are quick, until one is not or something
is left for `on_tick`. While nothing happens the monitor sleeps; the next turn wakes it (one release
of a lock), and after a quiet moment it sleeps again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..sockets.wake_event import WakeEvent

__all__ = ["TICK_S", "Member", "Monitor", "is_running"]

# How long a turn may keep the lead: one to two ticks.
TICK_S = 0.0007
# The tick after so many ticks in a row that saw the leader in a new turn: 0.2 s and more without a
# slow app. It is still shorter than what an app that computes may keep the interpreter lock
# (sys.getswitchinterval, 5 ms).
SLOW_TICK_S = 0.0028
_QUICK_TICKS = 300
# A leader that runs, or waits for nothing but a processor, keeps the lead for so long: who would
# follow it waits for the same processor, or for the interpreter lock that the leader has.
_RUNNING_PATIENCE_S = 0.005
# After so long without a turn the monitor sleeps until it is woken; a steady trickle of requests
# does not pay for waking it each time.
_QUIET_S = 0.03
# A spare may take so long for a turn: it competes with all the apps for the interpreter lock, and
# is no sooner back if another one joins. Longer than that, it is blocked.
_SPARE_PATIENCE_S = 0.25


class Member:
    """One thread of the pool."""

    __slots__ = ("busy", "gate", "name", "polling", "spare", "thread", "turn")

    def __init__(self, name: str, *, spare: bool = False) -> None:
        self.name = name
        self.spare = spare
        self.thread: threading.Thread | None = None
        self.busy = False  # in a turn: receiving, or in the app
        self.polling = False  # waiting in the poller, or about to
        self.turn = 0  # turns begun: tells the monitor whether it is still the same one
        self.gate = threading.Lock()
        self.gate.acquire()


class Monitor:
    """Looks at the leader of a pool, again and again, and has it replaced if it is kept.

    :param leader: the one at the moment.
    :param replace: called with the leader that is to be replaced.
    :param on_tick: see :class:`~.pool.Pool`.
    :ivar ticking: whether it looks in at every tick.
    :ivar asleep: it sleeps until it is woken; whoever begins a turn wakes it.
    :ivar ticks: how often it has looked.
    """

    def __init__(
        self,
        *,
        leader: Callable[[], Member],
        replace: Callable[[Member], object],
        on_tick: Callable[[], bool],
    ) -> None:
        self.ticking = False
        self.asleep = False
        self.ticks = 0
        self._leader = leader
        self._replace = replace
        self._on_tick = on_tick
        # Ticks in a row that have seen the leader in another turn than the one before.
        self._quick_ticks = 0
        self._wake_event = WakeEvent()
        self._interrupted = False

    def run(self, seconds: float) -> None:
        """Keep the lead with a thread that is free, for a while.

        :param seconds: return after that long, or when :meth:`interrupt` was called.
        """
        now = time.monotonic()
        deadline = now + seconds
        seen: tuple[Member, int] | None = None
        seen_at = active_at = now
        self.ticking = True
        while not self._interrupted:
            self.ticks += 1
            if self._on_tick():
                active_at, self._quick_ticks = now, 0
            leader = self._leader()
            busy, stamp = leader.busy, (leader, leader.turn)
            if stamp != seen:
                seen, seen_at = stamp, now
                active_at = now
                self._quick_ticks += 1
            elif busy and _keeps_too_long(leader, now - seen_at):
                self._quick_ticks = 0
                self._replace(leader)
            if busy:
                active_at = now
            now = time.monotonic()
            remaining = deadline - now
            if remaining <= 0:
                break
            if now - active_at > _QUIET_S:
                self.ticking = False
                self.asleep = True
                self._on_tick()
                woken = self._leader().busy or self._wake_event.wait(remaining)
                self.asleep = False
                if not woken:
                    break
                self.ticking = True
                now = active_at = time.monotonic()
            else:
                tick_s = TICK_S if self._quick_ticks < _QUICK_TICKS else SLOW_TICK_S
                self._wake_event.wait(min(tick_s, remaining))
                now = time.monotonic()
        self._interrupted = False

    def ticks_soon(self) -> bool:
        """Whether the monitor looks in within TICK_S: something may be left for `on_tick` then."""
        if self.ticking and self._quick_ticks >= _QUICK_TICKS:
            self._quick_ticks = 0
            self._wake_event.set()
        return self.ticking

    def interrupt(self) -> None:
        """Make :meth:`run` return, or its next call; safe in a signal handler."""
        self._interrupted = True
        self.wake()

    def wake(self) -> None:
        """Let it look in at once, if it sleeps."""
        self.asleep = False
        self._wake_event.set()


def _keeps_too_long(leader: Member, seconds: float) -> bool:
    """Whether the leader keeps others waiting, so long after it was seen in the same turn."""
    if leader.spare:
        return seconds >= _SPARE_PATIENCE_S
    # A tick may come early: whoever wants one soon wakes the monitor.
    if seconds < TICK_S / 2:
        return False
    return seconds >= _RUNNING_PATIENCE_S or not is_running(leader.thread)


def is_running(thread: threading.Thread | None) -> bool:
    """Whether a thread runs or waits for a processor; False where the system does not tell."""
    try:
        with open(f"/proc/self/task/{thread and thread.native_id}/stat", "rb", 0) as file:
            # proc_pid_stat(5): the name in parentheses may have any character in it.
            return file.read(256).rpartition(b") ")[2].startswith(b"R")
    except OSError:
        return False

"""The monitor: promotes another thread to leader while the pool's leader is busy, and cannot poll.

It works in the main thread and never blocks. It neither polls nor receives. It calls only `on_tick`
and `on_saturation`, and its caller works between rounds. So it notices every blocked leader.

It sleeps until its alarm goes off. A thread that begins a turn sets the alarm forward
(:meth:`Monitor.guard`), at most once in half a tick. So the alarm goes off only if a turn takes
longer than a tick, or when no turn follows. While all turns are short, the monitor never asks for
the GIL. If long turns turn out to be computing, it looks less often. If one was blocked, it looks
after a tick again. A tick that was requested for `on_tick` comes in any case.

The watchdog warns when all threads of the pool are stuck, so that no client is served.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..sockets.alarm import make_alarm
from .shared import Shared

if TYPE_CHECKING:
    from .pool import Pool

# One tick. A blocked turn keeps the lead for one to two, if the last long turn was blocked too.
TICK_S = 0.0007
# The longest wait before looking at a turn, where long turns compute or send large files: each look
# takes the GIL away from the thread that works.
_MOST_PATIENCE_S = 4 * TICK_S
# How long a leader that computes, or waits for a CPU, has the lead. Its follower would wait for
# the same CPU, or for the leader's GIL.
_RUNNING_PATIENCE_S = 0.005
# The spare is blocked if its turn takes longer. Until then it may just compete with all the apps
# for the GIL.
_SPARE_PATIENCE_S = 0.25

# See :meth:`.Pool.turns`.
_Turns = list[tuple[str, int | None, int | None]]


@dataclass(slots=True, eq=False)
class Member:
    """One thread of the pool."""

    name: str
    spare: bool = False
    thread: threading.Thread | None = None
    busy: bool = False  # in a turn: receiving, or in the app
    since: float = 0.0  # when its last turn began, monotonic
    polling: bool = False  # in the poller, or about to be
    turn: int = 0  # number of turns begun, by which the watchdog recognizes one
    job: Any = None  # the channel of the app that it runs
    # The close() of its apps' bodies: those not called yet, and those to be called now.
    closes: set[Any] = field(default_factory=set)
    due: deque[Any] = field(default_factory=deque)
    gate: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.gate.acquire()


class Exhaustion:
    """Measures the time during which no thread of a pool was free.

    Unlike :attr:`.Pool.saturated`, it does not end when a thread finishes one job and immediately
    takes the next.

    :ivar since: when the current period began (monotonic), or None if a thread is free.
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


# `member` is the thread's own. Only threads that run apps have it.
this_thread = threading.local()


class Monitor:
    """Watches the leader of a pool, and has it replaced when its turn takes too long.

    :param on_tick: see :class:`.Pool`.
    :ivar guard_at: a thread that begins a turn after this monotonic time calls :meth:`guard`.
    """

    def __init__(self, pool: Pool, on_tick: Callable[[], bool]) -> None:
        self.guard_at = 0.0
        self._pool = pool
        self._on_tick = on_tick
        self._tick_requested = False  # a tick was requested: the alarm must not be set forward
        # How long a turn may take before the monitor looks at it.
        self._patience_s = TICK_S
        self._alarm = make_alarm()
        self._interrupted = False

    def watch(self, seconds: float) -> None:
        """Watch the leader for some time.

        :param seconds: when to return, unless :meth:`interrupt` is called before.
        """
        now = time.monotonic()
        deadline = now + seconds
        while not self._interrupted:
            # Before looking: a thread that requests a tick or begins a turn from here on sets the
            # alarm.
            self._tick_requested = False
            self.guard_at = 0.0
            more = self._on_tick()
            leader = self._pool.leader
            now = time.monotonic()
            if leader.busy and self._keeps_too_long(leader, now - leader.since):
                self._pool.replace(leader)
                leader = self._pool.leader
            if now >= deadline:
                break
            if more:
                self.request_tick()
            elif leader.busy:
                self.guard(now)
            self._alarm.wait(deadline - now)
        self._interrupted = False

    def guard(self, now: float) -> None:
        """Have the monitor look if the turn that begins now takes long."""
        # The alarm is set to one and a half times the patience. It is set again half of it later at
        # the earliest. So every turn has had all of it when the alarm goes off.
        half = self._patience_s / 2
        self.guard_at = now + half
        if not (self._tick_requested or self._interrupted):
            self._alarm.set(self._patience_s + half)

    def request_tick(self) -> None:
        """Have `on_tick` called within TICK_S, or as soon as the monitor begins to watch."""
        if not self._tick_requested:
            self._tick_requested = True
            self._alarm.set(TICK_S)

    def interrupt(self) -> None:
        """Make :meth:`watch`, or its next call, return. Safe in a signal handler."""
        self._interrupted = True
        self._alarm.set(0)

    def _keeps_too_long(self, leader: Member, seconds: float) -> bool:
        """Return whether to replace a leader that has been in a turn for so long."""
        if leader.spare:
            return seconds >= _SPARE_PATIENCE_S
        # It may look early, for a requested tick.
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
    """Return whether a thread runs or waits for a CPU, if the system reports it."""
    try:
        with open(f"/proc/self/task/{thread and thread.native_id}/stat", "rb", 0) as file:
            # proc_pid_stat(5): the name in parentheses may have any character in it.
            return file.read(256).rpartition(b") ")[2].startswith(b"R")
    except OSError:
        return False


class Watchdog:
    """Checks whether any thread has ended its turn since the last check. Not thread-safe.

    After `stuck_after_s` without that, each thread's stack is logged, once. After
    `kill_stuck_after_s` the server is killed.

    :param turns: see :meth:`.Pool.turns`.
    :param kill: ends the server.
    """

    def __init__(
        self, shared: Shared, turns: Callable[[], _Turns], kill: Callable[[], object]
    ) -> None:
        self._options, self.log = shared.options, shared.log
        self._get_turns, self._kill = turns, kill
        self._turns: _Turns = []
        self._since = 0.0
        self._has_warned = self._has_killed = False

    def look(self, now: float) -> None:
        """Check now.

        :param now: monotonic.
        """
        turns = self._get_turns()
        if turns != self._turns or any(turn is None for _, _, turn in turns):
            self._turns, self._since = turns, now
            if self._has_warned:
                self._has_warned = self._has_killed = False
                self.log.warning("A thread is free again")
            return
        stuck_s = now - self._since
        if stuck_s >= self._options.stuck_after_s and not self._has_warned:
            self._has_warned = True
            self.log.error(
                "All %d threads have been in the same request for %.0f s; nobody else is "
                "answered.\n%s",
                len(turns),
                stuck_s,
                _stacks(turns),
            )
        if stuck_s >= self._options.kill_stuck_after_s and not self._has_killed:
            self._has_killed = True
            self.log.critical("All threads are stuck for %.0f s: the worker ends", stuck_s)
            self._kill()


def _stacks(turns: _Turns) -> str:
    return "\n".join(_stack(name, ident) for name, ident, _ in turns)


def stack_of(member: Member) -> str:
    """Return the stack of a thread, as a traceback shows it."""
    return _stack(member.name, None if member.thread is None else member.thread.ident)


def _stack(name: str, ident: int | None) -> str:
    frame = None if ident is None else sys._current_frames().get(ident)
    stack = "" if frame is None else "".join(traceback.format_stack(frame))
    return f"Thread {name} (most recent call last):\n{stack}"

"""The monitor makes another thread lead if the pool's leader is in a long turn and cannot poll.

The monitor runs in the main thread. It never blocks, polls or receives. The only functions of
others that it calls are `on_tick` and `on_saturation`. So it notices every blocked leader. Its
caller does other work between two calls of
:meth:`Monitor.watch`.

The monitor sleeps until its alarm. A thread that begins a turn postpones the alarm
(:meth:`Monitor.guard`), at most once in half a tick. So the alarm goes off only if a turn takes
longer than a tick, or if no turn follows. While all turns are short, the monitor does not acquire
the GIL. If the app computes in long turns, the monitor checks less often. After a turn that was
blocked, the monitor checks after one tick again. If a tick was requested, the monitor calls
`on_tick` in time.

The watchdog logs an error if all threads of the pool are stuck. Then no client is served.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..sockets.alarm import make_alarm
from .shared import Shared

if TYPE_CHECKING:
    from .pool import Pool

# One tick. If the last long turn was blocked too, a blocked leader is replaced after one to two
# ticks.
TICK_S = 0.0007
# The maximum time of a turn before the monitor checks it, if long turns compute or send large
# files. Each check takes the GIL away from the working thread.
_MAX_PATIENCE_S = 4 * TICK_S
# A leader that computes, or waits for a CPU, is only replaced after this time, because a new leader
# would wait for the same CPU or GIL.
_RUNNING_PATIENCE_S = 0.005
# A spare counts as blocked if its turn takes longer than this. A shorter turn may be long because
# the spare competes with all apps for the GIL.
_SPARE_PATIENCE_S = 0.25


@dataclass(slots=True, eq=False)
class Member:
    """One thread of the pool."""

    name: str
    spare: bool = False
    thread: threading.Thread | None = None
    busy: bool = False  # whether it is in a turn
    since: float = 0.0  # the monotonic time at which its last turn began
    polling: bool = False  # whether it polls or is about to poll
    turn: int = 0  # the number of turns so far, so that the watchdog can compare turns
    job: Any = None  # the channel whose app it runs
    # The close() calls of its apps' bodies that have not been called, and those that are due.
    closes: set[Any] = field(default_factory=set)
    due: deque[Any] = field(default_factory=deque)
    gate: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.gate.acquire()


@dataclass(slots=True, eq=False)
class Exhaustion:
    """Measures the time during which no thread of a pool was free.

    A thread that finishes a job and immediately runs the next one ends :attr:`.Pool.saturated`, but
    not this period.

    :ivar since: the monotonic time at which the current period began. None if a thread is free.
    """

    since: float | None = None
    _total_s: float = 0.0  # the sum of all past periods

    def begin(self) -> None:
        """Note that no thread is free."""
        if self.since is None:
            self.since = time.monotonic()

    def end(self) -> None:
        """Note that a thread is idle."""
        since, self.since = self.since, None
        if since is not None:
            self._total_s += time.monotonic() - since

    def seconds(self, now: float) -> float:
        """Return the total time in seconds up to `now`, a monotonic time."""
        since = self.since
        return self._total_s + (0.0 if since is None else now - since)


class _ThisThread(threading.local):
    """The current thread's Member. None in threads that are not the pool's."""

    member: Member | None = None


this_thread = _ThisThread()


class Monitor:
    """Checks the leader of a pool, and replaces the leader if its turn takes too long.

    :ivar guard_at: the first thread that begins a turn after this monotonic time calls
        :meth:`guard`.
    """

    def __init__(self, pool: Pool) -> None:
        self.guard_at = 0.0
        self._pool = pool
        self._tick_requested = False  # if True, the alarm must not be postponed
        # The duration of a turn after which the monitor checks the leader.
        self._patience_s = TICK_S
        self._alarm = make_alarm()
        self._interrupted = False

    def watch(self, seconds: float) -> None:
        """Check the leader when the alarm goes off, for some time.

        :param seconds: the duration, unless :meth:`interrupt` is called before.
        """
        now = time.monotonic()
        deadline = now + seconds
        while not self._interrupted:
            # These are reset before the checks. If a thread requests a tick or begins a turn from
            # now on, it sets the alarm.
            self._tick_requested = False
            self.guard_at = 0.0
            more = self._pool.on_tick()
            leader = self._pool.leader
            now = time.monotonic()
            if leader.busy and self._must_replace(leader, now - leader.since):
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
        """Set the alarm, so that the monitor checks a turn that begins now if it takes long."""
        # The alarm is set to one and a half times `_patience_s`. The next turn that begins after
        # half of `_patience_s` sets it again. So a turn has lasted at least `_patience_s` at the
        # alarm.
        half = self._patience_s / 2
        self.guard_at = now + half
        if not (self._tick_requested or self._interrupted):
            self._alarm.set(self._patience_s + half)

    def request_tick(self) -> None:
        """Request a call of `on_tick` within TICK_S, or when :meth:`watch` is called next."""
        if not self._tick_requested:
            self._tick_requested = True
            self._alarm.set(TICK_S)

    def interrupt(self) -> None:
        """Make :meth:`watch` return, now or in its next call. A signal handler may call this."""
        self._interrupted = True
        self._alarm.set(0)

    def _must_replace(self, leader: Member, seconds: float) -> bool:
        """Return whether to replace a leader that has been in a turn for this many seconds."""
        if leader.spare:
            return seconds >= _SPARE_PATIENCE_S
        # A requested tick may cause an early check.
        if seconds < TICK_S:
            return False
        if seconds >= _RUNNING_PATIENCE_S:
            return True
        if is_running(leader.thread):
            self._patience_s = min(2 * self._patience_s, _MAX_PATIENCE_S)
            return False
        self._patience_s = TICK_S
        return True


def is_running(thread: threading.Thread | None) -> bool:
    """Return whether a thread is running or waits for a CPU. False if the system does not tell."""
    try:
        with open(f"/proc/self/task/{thread and thread.native_id}/stat", "rb", 0) as file:
            # The name is in parentheses and may contain any character (proc_pid_stat(5)).
            return file.read(256).rpartition(b") ")[2].startswith(b"R")
    except OSError:
        return False


@dataclass(eq=False, repr=False)
class Watchdog:
    """Checks whether a thread has finished its turn since the last check. It is not thread-safe.

    If no thread has finished for `stuck_after_s`, the watchdog logs each thread's stack once. After
    `kill_stuck_after_s` it ends the server.

    :param members: the threads that run apps.
    :param kill: see :meth:`.Server.kill`.
    """

    shared: Shared
    members: Sequence[Member]
    kill: Callable[..., object]
    _turns: Sequence[int] = ()  # the turns of the busy threads at the last check
    _since: float = 0.0
    _has_warned: bool = False

    def check(self, now: float) -> None:
        """Check the threads, and log or end the server if they are stuck.

        :param now: the monotonic time.
        """
        members, options, log = self.members, self.shared.options, self.shared.log
        turns = [member.turn for member in members if member.busy]
        if turns != self._turns or len(turns) < len(members):
            self._turns, self._since = turns, now
            if self._has_warned:
                self._has_warned = False
                log.warning("A thread is free again")
            return
        stuck_s = now - self._since
        if stuck_s >= options.stuck_after_s and not self._has_warned:
            self._has_warned = True
            log.error(
                "All %d threads have worked on the same requests for %.0f s. No other request is "
                "served.\n%s",
                len(turns),
                stuck_s,
                "\n".join(map(stack_of, members)),
            )
        if stuck_s >= options.kill_stuck_after_s:
            self.kill("All threads have been stuck for %.0f s", stuck_s)


def stack_of(member: Member) -> str:
    """Return the stack of a thread as text, in the format of a traceback."""
    ident = None if member.thread is None else member.thread.ident
    frame = None if ident is None else sys._current_frames().get(ident)
    stack = "" if frame is None else "".join(traceback.format_stack(frame))
    return f"Thread {member.name} (most recent call last):\n{stack}"

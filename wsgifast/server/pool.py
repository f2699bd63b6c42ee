"""The threads: one leads, the others are in the app or follow (the leader/followers pattern).

Theory of operation
-------------------
Handing each request from a polling thread to an app thread costs two context switches and a fight
for the interpreter lock, more than a short request itself. So the *leader* polls and then serves
what it found by itself, and nobody is woken. That holds only while apps are quick. When the leader
has been inside the app for a tick (about a millisecond), the *monitor*, which runs in the main
thread, promotes a *follower*, as Go's sysmon hands a processor on when a goroutine sits in a system
call. If every thread is inside the app, the monitor itself leads: it polls, receives and sends, but
never runs an app, so that downloads, uploads and new connections go on, and so do the events that a
thread had left in `work` when it went into the app; what is ready to run waits in `ready`.

    following --(promoted)--> leading <--> leading, in the app
        ^                                          | the monitor promotes another
        |                                          v
        +--(another one leads)------------- not leading, in the app
                                                   | the leader is in the app: lead

The leader is who *should* poll; nothing breaks when two threads do for a moment, because an event
is delivered to one of them only (see poller.py) and a deque gives an item out once. What must hold
is that somebody polls: the leader never waits to be promoted, and a follower becomes the leader
only together with its wake-up. The leader changes under one lock, except that a thread which still
leads after its app need not ask.

While nothing runs, the monitor sleeps; the first request wakes it (one release of a lock), and
after some quiet ticks it sleeps again. An idle worker wakes up for the arbiter's heartbeat only.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ..sockets.wake_event import WakeEvent
from .poller import Event, Poller

__all__ = ["TICK_S", "Pool"]

# How long an app may keep the lead: one to two ticks. A shorter tick promotes sooner; at this one
# the monitor costs about 1 % of a busy core.
TICK_S = 0.0007
# After so many ticks without a request the monitor sleeps until it is woken: 30 ms, so that a
# steady trickle of requests does not pay for waking it each time.
_QUIET_TICKS = 40
# After an app that was slow, so many quick ones in a row before the lead is kept during the app
# again: slow requests come in bursts, and each would cost a tick of waiting for the next one.
_EARLY_PROMOTIONS = 8

Job = TypeVar("Job")


class Pool(Generic[Job]):
    """A fixed number of threads that poll a poller and run what becomes ready.

    :param size: threads, that is, apps at once.
    :param receive: takes an event or a job up: does the non-blocking input and output that it
        calls for, and returns the job if it is ready to run. Called by any thread, the monitor's
        included. Must not raise.
    :param run: runs a job; called by the pool's threads only. Must not raise.
    :param on_tick: called by the monitor at every tick, and once more when it stops ticking.
    :param on_failure: called in a thread of the pool that ends by an error of our own.
    """

    def __init__(
        self,
        *,
        size: int,
        poller: Poller,
        receive: Callable[[Event | Job], Job | None],
        run: Callable[[Job], None],
        on_tick: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.work: deque[Event | Job] = deque()
        # Jobs that the monitor has received while every thread was busy.
        self.ready: deque[Job] = deque()
        # Whether the monitor looks in every TICK_S; work may then be left for `on_tick`.
        self.ticking = False
        # A thread has ended by an error of our own; the worker must not go on without it.
        self.failed = False
        self._poller = poller
        self._receive = receive
        self._run = run
        self._on_tick = on_tick
        self._on_failure = on_failure
        self._members = [_Member() for _ in range(size)]
        self._monitor_member = _Member()  # the main thread, while it leads
        self._leader = self._members[0]
        self._followers: list[_Member] = []
        self._lock = threading.Lock()
        self._stopped = False
        self._ticks = 0
        self._promote_early = 0
        self._wake_event = WakeEvent()
        self._asleep = False
        self._interrupted = False

    def start(self) -> None:
        """Start the threads; the first one leads."""
        for number, member in enumerate(self._members):
            threading.Thread(
                target=self._serve, args=(member,), name=f"wsgifast-{number}", daemon=True
            ).start()

    def push(self, item: Event | Job) -> None:
        """Add to the work, from any thread, and see that somebody takes it."""
        self.work.append(item)
        self._see_to_work(self._leader)

    def stop(self) -> None:
        """Let every thread end that is not inside an app; the others end after it."""
        self._stopped = True
        with self._lock:
            for member in self._followers:
                member.gate.release()
            self._followers.clear()
        self._poller.wake()

    def interrupt(self) -> None:
        """Make :meth:`monitor` return, or its next call; safe in a signal handler."""
        self._interrupted = True
        if self._leader is self._monitor_member:
            self._poller.wake()
        self._wake_monitor()

    def monitor(self, seconds: float) -> None:
        """Keep the lead with a thread that is free, for a while; the main thread's part.

        :param seconds: return after that long, or when :meth:`interrupt` was called.
        """
        deadline = time.monotonic() + seconds
        quiet = 0
        seen: tuple[_Member, int] | None = None
        self.ticking = True
        while not self._interrupted:
            self._ticks += 1
            self._on_tick()
            leader = self._leader
            if leader is self._monitor_member:
                self.ticking = False
                self._on_tick()
                self._lead_until(deadline)
                if self._leader is self._monitor_member or time.monotonic() >= deadline:
                    break
                self.ticking = True
                seen = None
            elif leader.busy:
                quiet = 0
                stamp = (leader, leader.turn)
                if stamp == seen:
                    self._promote_early = _EARLY_PROMOTIONS
                    self._replace(leader)
                    continue
                seen = stamp
            else:
                # Requests may have come and gone between two ticks.
                stamp = (leader, leader.turn)
                quiet = quiet + 1 if stamp == seen else 0
                seen = stamp
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            if quiet > _QUIET_TICKS:
                self.ticking = False
                self._asleep = True
                self._on_tick()
                woken = self._leader.busy or self._wake_event.wait(remaining)
                self._asleep = False
                if not woken:
                    break
                self.ticking = True
            else:
                self._wake_event.wait(min(TICK_S, remaining))
        self._interrupted = False

    def _see_to_work(self, leader: _Member) -> None:
        """See that somebody takes up what has just been added."""
        if leader is self._monitor_member:
            with self._lock:
                if self._leader is leader and self._followers:
                    self._promote(self._followers.pop())
        if leader.polling:
            self._poller.wake()

    def _wake_monitor(self) -> None:
        self._asleep = False
        self._wake_event.set()

    # The pool's threads.

    def _serve(self, me: _Member) -> None:
        try:
            while not self._stopped:
                self._take_turn(me)
        except BaseException:
            self.failed = True
            self._on_failure()
            raise

    def _take_turn(self, me: _Member) -> None:
        try:
            item = (self.ready or self.work).popleft()
        except IndexError:
            if self._leader is me:
                # Said before the last look at what is there: whoever adds to it either sees that
                # we poll, and wakes us, or is seen by us.
                me.polling = True
                if not self.work and not self.ready:
                    self.work.extend(self._poller.poll(None))
                me.polling = False
            else:
                self._lead_or_follow(me)
            return
        job = self._receive(item)
        if job is None:
            if self._leader is not me:
                self._lead_or_follow(me)
            return
        me.turn += 1
        me.busy = True
        if self._asleep:
            self._wake_monitor()
        began = self._ticks
        if self._promote_early:
            self._promote_before_app(me)
        self._run(job)
        me.busy = False
        if self._promote_early:
            self._promote_early = (
                _EARLY_PROMOTIONS if self._ticks > began + 1 else self._promote_early - 1
            )
        if self._leader is not me:
            self._lead_or_follow(me)

    def _lead_or_follow(self, me: _Member) -> None:
        """Lead if the leader is in the app; else follow until promoted."""
        with self._lock:
            leader = self._leader
            if self._stopped or leader is me:
                return
            if leader.busy:
                self._leader = me
                return
            if (self.work or self.ready) and (leader.polling or leader is self._monitor_member):
                return  # nobody else would look at it now
            self._followers.append(me)
        me.gate.acquire()

    def _promote_before_app(self, me: _Member) -> None:
        """Promote another before a request that may be slow."""
        with self._lock:
            if self._leader is me and self._followers:
                self._promote(self._followers.pop())

    # The monitor.

    def _replace(self, leader: _Member) -> None:
        with self._lock:
            if self._leader is not leader or not leader.busy:
                return
            if self._followers:
                self._promote(self._followers.pop())
            else:
                self._leader = self._monitor_member

    def _promote(self, member: _Member) -> None:
        self._leader = member
        member.gate.release()

    def _lead_until(self, deadline: float) -> None:
        """Poll in place of the pool's threads until one is free for a request, or time is over."""
        me = self._monitor_member
        while self._leader is me and not self._interrupted:
            try:
                item = self.work.popleft()
            except IndexError:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return
                me.polling = True
                if not self.work:
                    self.work.extend(self._poller.poll(remaining))
                me.polling = False
                continue
            job = self._receive(item)
            if job is not None:
                self.ready.append(job)
                self._see_to_work(self._leader)


class _Member:
    """One thread of the pool."""

    __slots__ = ("busy", "gate", "polling", "turn")

    def __init__(self) -> None:
        self.busy = False  # inside the app
        self.polling = False  # waiting in the poller, or about to
        self.turn = 0  # requests begun: tells the monitor whether it is still the same one
        self.gate = threading.Lock()
        self.gate.acquire()

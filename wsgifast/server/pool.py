"""The threads: one leads, the others are in the app or follow (the leader/followers pattern).

Theory of operation
-------------------
Handing each request from a polling thread to an app thread costs two context switches and a fight
for the interpreter lock, more than a short request itself. So the *leader* polls and then serves
what it found by itself, and nobody is woken. That holds only while its turns are quick. When the
leader has been in one turn for a tick, in the app or blocked in a system call, the *monitor*
promotes a *follower*, as Go's sysmon hands a processor on when a goroutine sits in a system call. A
leader that could go on and only has no processor is given more time: two threads that take turns
at the interpreter lock are slower than one. For the same reason a thread that comes out of its turn
follows, although another one leads and is in a turn, unless that one has found nobody to hand the
lead to. If no thread is free, the pool is *saturated*, and the monitor promotes a *spare*:
it polls, receives and sends, but never runs an app, so that downloads, uploads and new connections
go on, and so do the events that a thread had left in `work` when it went into the app; what is
ready to run waits in `ready`.

    following --(promoted)--> leading <--> leading, in a turn
        ^                                          | the monitor promotes another
        |                                          v
        +--(another one leads)------------- not leading, in a turn
                                                   | the lead is on offer: lead

    spare, idle --(no follower)--> leading --(job for a follower, or blocked)--> spare, idle

The leader is who *should* poll; nothing breaks when two threads do for a moment, because an event
is delivered to one of them only (see poller.py) and a deque gives an item out once. What must hold
is that somebody polls: the leader never waits to be promoted, and a thread that waits becomes the
leader only together with its wake-up. The leader changes under one lock, except that a thread which
still leads after its turn need not ask.

A connection that has more to do already, such as the next of its pipelined requests, would keep
everybody from polling if it came back into `work` at once. It waits in `behind` until the leader,
without other work, has asked the poller who else is ready: those have their turn first, and then
some of those behind, for about as long, before the poller is asked again. So do sockets that have
room for more, where many events come at once: it may be thousands of downloads, and a short request
waits for few of them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from .counters import Exhaustion
from .monitor import TICK_S, Member, Monitor, is_running
from .poller import WRITE, Event, Poller

__all__ = ["MAX_SPARES", "Pool", "Task"]

# After an app that was slow, so many quick ones in a row before the lead is kept during the app
# again: slow requests come in bursts, and each would cost a tick of waiting for the next one.
_EARLY_PROMOTIONS = 8
# What counts as slow there; on a busy machine a quick one may wait as long for a processor.
_SLOW_S = 4 * TICK_S
# Spares, all of which can be blocked only by what nothing in here should wait for.
MAX_SPARES = 4
# Among no more events than these nobody waits long, whatever they are.
_FEW_EVENTS = 8
# What is behind has its turn for so long between two polls: at least, which is longer than a poll
# takes, and at most, however long the others have taken.
_BEHIND_S = 0.0005
_MOST_BEHIND_S = 0.005

Job = TypeVar("Job")
# Work that is no event: does what there is to do, and returns a job if that is ready to run.
Task = Callable[[], Job | None]


class Pool(Generic[Job]):
    """A fixed number of threads that poll and run what becomes ready, and spare ones that poll.

    :param size: threads, that is, apps at once.
    :param receive: takes an event or a task up: does the non-blocking input and output that it
        calls for, and returns a job if one is ready to run. Called by any thread but the monitor's.
        Must not raise.
    :param run: runs a job; called by the pool's threads but the spare ones. Must not raise.
    :param on_tick: called by the monitor whenever it looks in, and at the ticks it is asked for.
        Returns whether there was anything to do, and there may be more. Must not block.
    :param on_failure: called in a thread of the pool that ends by an error of our own.
    :param on_saturation: called when `saturated` has changed. Must not block.
    :param on_queued: called with a job that no thread is free for, before it waits in `ready`.
    :param on_taken: called with such a job when a thread has taken it up.
    """

    def __init__(
        self,
        *,
        size: int,
        poller: Poller,
        receive: Callable[[Event | Task[Job]], Job | None],
        run: Callable[[Job], None],
        on_tick: Callable[[], bool],
        on_failure: Callable[[], object],
        on_saturation: Callable[[], object] = lambda: None,
        on_queued: Callable[[Job], object] = lambda job: None,
        on_taken: Callable[[Job], object] = lambda job: None,
    ) -> None:
        self.work: deque[Event | Task[Job]] = deque()
        # What lets other events go first.
        self.behind: deque[Event | Task[Job]] = deque()
        self._polled_at = 0.0
        # Jobs that a spare has received while every thread was taken.
        self.ready: deque[Job] = deque()
        # No thread is free to run a job, and a spare leads.
        self.saturated = False
        self.exhaustion = Exhaustion()
        # A thread has ended by an error of our own; the worker must not go on without it.
        self.failed = False
        self._poller = poller
        self._receive = receive
        self._run = run
        self._on_saturation = on_saturation
        self._on_queued = on_queued
        self._on_taken = on_taken
        self._on_failure = on_failure
        self._members = [Member(f"wsgifast-{number}") for number in range(size)]
        self._spares = [Member("wsgifast-spare-0", spare=True)]
        self._leader = self._members[0]
        # The leader is in an app that may be slow, and nobody was free to lead in its place.
        self._on_offer = False
        # Threads that wait at their gates.
        self._followers: list[Member] = []
        self._idle_spares: list[Member] = []
        self._lock = threading.Lock()
        self._stopped = False
        self._promote_early = 0
        self.monitor = Monitor(leader=lambda: self._leader, replace=self._replace, on_tick=on_tick)

    def start(self) -> None:
        """Start the threads; the first one leads."""
        for member in [*self._members, *self._spares]:
            self._start(member)

    def push(self, item: Event | Task[Job]) -> None:
        """Add to the work, from any thread, and see that somebody takes it."""
        self.work.append(item)
        self._see_to_work()

    def push_behind(self, task: Task[Job]) -> None:
        """As :meth:`push`, for a task that comes after the events that are there by then."""
        self.behind.append(task)
        self._see_to_work()

    def take_up_events(self, timeout: float | None) -> None:
        """Add the poller's events to the work, and then what has let them go first.

        :param timeout: as for :meth:`Poller.poll`; nothing is waited for if something came behind.
        """
        work, behind = self.work, self.behind
        events = self._poller.poll(0 if behind else timeout)
        if len(events) <= _FEW_EVENTS:
            work.extend(events)
        else:
            for event in events:
                (behind if event[1] == WRITE else work).append(event)
        if behind:
            self._polled_at = time.monotonic()
            work.append(self._take_behind)

    def _take_behind(self, until: float | None = None) -> Job | None:
        """Take up what is behind, each at most once, for as long as the others have taken.

        :param until: when that ends, if it has begun already.
        """
        now = time.monotonic()
        if until is None:
            until = now + min(max(now - self._polled_at, _BEHIND_S), _MOST_BEHIND_S)
        behind = self.behind
        for _ in range(len(behind)):
            if now >= until:
                break
            try:
                item = behind.popleft()
            except IndexError:
                break  # another thread was quicker
            job = self._receive(item)
            if job is not None:
                if behind:
                    self.work.appendleft(partial(self._take_behind, until))
                return job
            now = time.monotonic()
        return None

    def make_way(self) -> None:
        """Have another thread go on with the work, if there is any, beside a long turn of this one.

        The monitor would leave it the lead for some time. But this turn has no need of the
        interpreter lock, so that others can run beside it.
        """
        leader = self._leader
        if (self.work or self.behind) and leader.thread is threading.current_thread():
            self._offer_the_lead(leader)

    def stop(self) -> None:
        """Let every thread end that is not inside an app; the others end after it."""
        self._stopped = True
        with self._lock:
            for member in [*self._followers, *self._idle_spares]:
                member.gate.release()
            self._followers.clear()
            self._idle_spares.clear()
        self._poller.wake()

    def turns(self) -> list[tuple[str, int | None, int | None]]:
        """Of each thread that runs apps: its name, its ident, and the turn that it is in."""
        return [
            (
                member.name,
                None if member.thread is None else member.thread.ident,
                member.turn if member.busy else None,
            )
            for member in self._members
        ]

    # The pool's threads.

    def _start(self, member: Member) -> None:
        serve = self._serve_as_spare if member.spare else self._serve
        member.thread = threading.Thread(
            target=self._until_stopped, args=(serve, member), name=member.name, daemon=True
        )
        member.thread.start()

    def _until_stopped(self, serve: Callable[[Member], None], me: Member) -> None:
        try:
            while not self._stopped:
                serve(me)
            self._poller.wake()  # another one may poll still
        except BaseException:
            self.failed = True
            self._on_failure()
            raise

    def _serve(self, me: Member) -> None:
        """Take a turn, or wait for one."""
        job = item = None
        try:
            if self.ready:
                job = self.ready.popleft()
                self._on_taken(job)
            elif self.work:
                item = self.work.popleft()
            elif self._leader is me:
                self._poll(me)
                return
            else:
                self._lead_or_follow(me)
                return
        except IndexError:
            return  # another thread was quicker
        me.turn += 1
        me.since = now = time.monotonic()
        me.busy = True
        if now >= self.monitor.guard_at:
            self.monitor.guard(now)
        if item is not None:
            job = self._receive(item)
        if job is not None:
            if self._promote_early:
                self._run_without_the_lead(me, job)
            else:
                self._run(job)
        me.busy = False
        if self._leader is not me:
            self._lead_or_follow(me)

    def _serve_as_spare(self, me: Member) -> None:
        """Take a turn in place of the others, or wait until they are all taken."""
        if self._leader is not me:
            with self._lock:
                if self._leader is me or self._stopped:
                    return
                self._idle_spares.append(me)
            me.gate.acquire()
            return
        if not self.work:
            self._poll(me)
            return
        try:
            item = self.work.popleft()
        except IndexError:
            return  # another thread was quicker
        me.turn += 1
        me.since = now = time.monotonic()
        me.busy = True
        if now >= self.monitor.guard_at:
            self.monitor.guard(now)
        job = self._receive(item)
        me.busy = False
        if job is not None:
            self._on_queued(job)
            self.ready.append(job)
            self._see_to_work()

    def _poll(self, me: Member) -> None:
        # Said before the last look at what is there: whoever adds to it either sees that we poll,
        # and wakes us, or is seen by us.
        me.polling = True
        if not self.work and (me.spare or not self.ready):
            if self.exhaustion.since is not None and not me.spare:
                self.exhaustion.end()
            self.take_up_events(None)
        me.polling = False
        if self._leader is not me:
            self._see_to_work()  # it may have been woken in place of the leader

    def _run_without_the_lead(self, me: Member, job: Job) -> None:
        """Promote another before a job that may be slow; see whether it was."""
        self._offer_the_lead(me)
        self._run(job)
        slow = time.monotonic() - me.since > _SLOW_S
        self._promote_early = _EARLY_PROMOTIONS if slow else self._promote_early - 1

    def _offer_the_lead(self, me: Member) -> None:
        """Promote another if it is this thread that leads; whoever is free first, if nobody is."""
        with self._lock:
            if self._leader is me:
                if self._followers:
                    self._promote(self._followers.pop())
                else:
                    self._on_offer = True

    def _lead_or_follow(self, me: Member) -> None:
        """Lead if the lead is on offer; else follow until promoted."""
        with self._lock:
            leader = self._leader
            if self._stopped or leader is me:
                return
            leads = leader.busy and (self._on_offer or leader.spare)
            if leads:
                self._set_leader(me)
            elif (self.work or self.ready) and (leader.polling or leader.spare):
                return  # nobody else would look at it now
            else:
                self._followers.append(me)
                self.exhaustion.end()
            saturated, self.saturated = self.saturated, False
        if saturated:
            self._on_saturation()
        if not leads:
            me.gate.acquire()

    # Changes of the leader.

    def _see_to_work(self) -> None:
        """See that somebody takes up what has just been added."""
        leader = self._leader
        if leader.spare:
            with self._lock:
                if self._leader is leader and self._followers:
                    self._promote(self._followers.pop())
        if leader.polling:
            self._poller.wake()

    def _replace(self, leader: Member) -> None:
        """Promote another, if the leader is still in the turn that it keeps too long."""
        if not leader.spare and not is_running(leader.thread):
            self._promote_early = _EARLY_PROMOTIONS
        with self._lock:
            if self._leader is not leader or not leader.busy:
                return
            if self._followers:
                self._promote(self._followers.pop())
                return
            spare = self._idle_spares.pop() if self._idle_spares else self._make_spare()
            if spare is None:
                return
            self._set_leader(spare)
            self.saturated = True
            self.exhaustion.begin()
        self._on_saturation()  # before it polls
        if spare.thread is None:
            self._start(spare)
        else:
            spare.gate.release()

    def _make_spare(self) -> Member | None:
        if len(self._spares) == MAX_SPARES or self._spares[-1].thread is None:
            return None
        spare = Member(f"wsgifast-spare-{len(self._spares)}", spare=True)
        self._spares.append(spare)
        return spare

    def _promote(self, member: Member) -> None:
        self._set_leader(member)
        member.gate.release()

    def _set_leader(self, member: Member) -> None:
        self._leader = member
        self._on_offer = False

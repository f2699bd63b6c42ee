"""The thread pool: one thread leads, the others run apps or wait (the leader/followers pattern).

Theory of operation
-------------------
Passing a request from a polling thread to an app thread costs two context switches and a wait for
the GIL, which is more than a short request costs. So one thread, the *leader*, polls, and then
serves the request itself without waking another thread.

This works while each turn is short. A *turn* is one event, task or job that a thread handles. If
the leader is in a turn for longer than a tick, the *monitor* (monitor.py) makes another thread the
leader. It *promotes* a *follower*, which is a waiting thread. The old leader may run an app, or be
blocked in a system call. A leader that computes gets more time, because two threads that alternate
on the GIL are slower than one. For the same reason, a thread that is not the leader does not become
the leader after its turn, but waits as a follower. There are two exceptions: a busy leader has
found no follower and *offered* the lead, or the busy leader is the spare (see below).

If no thread is free, the pool is *saturated* and the monitor promotes the *spare* thread. The spare
polls, receives and sends, but never runs an app. So downloads, uploads and new connections
continue. The spare also handles the events that are in `work` because the old leader called an app
before it could handle them. Jobs that are ready to run wait in `ready`.

    following --promoted--> leading <--> leading, in a turn
        ^                                          | the monitor promotes another thread
        |                                          v
        +--another thread leads------------ not leading, in a turn
                                                   | the lead was offered: leading

    spare, idle --no follower--> leading --a follower is free, or spare is blocked--> spare, idle

The leader is the thread that *should* poll. Two threads may poll for a moment without harm: the
poller reports an event to only one thread (poller.py), and a deque returns an item only once. But
at least one thread must poll. So the leader never waits at its gate, which is a lock that another
thread releases to wake it. A waiting thread becomes the leader only when it is woken. The leader
changes under one lock. A thread that still leads after its turn does not acquire this lock.

Some connections have further work after a turn, such as the next pipelined request. This work is
*deferred*, so that other connections do not wait for it. The leader finishes its work and polls.
Then it handles the events of the poll. Before the next poll, it handles deferred items for about
the time that the events took. If many events arrive at once, writable sockets are deferred too.
They may be thousands of downloads, and a short request should not wait for them.

*close() of bodies.* If the output queue reads a file of the app, the body is closed after the last
byte was sent. The thread that ran the app calls close(), because frameworks store objects for each
thread. It calls close() between two of its turns. The thread that sends the last byte makes the
close() *due*. If the app's thread polls or follows, it is woken. It calls due close()s before it
does other work.

A thread with a pending close() leads only if every follower has a pending close() too. As a
follower, the thread is free to call close() when it becomes due. As the leader, it might run a
request that waits for a lock that only this close() releases.

    pending --last byte sent, or the client disconnects--> due --its thread's next turn--> called
                                                               --that thread is stuck--> called by a
                                                                       new thread
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .monitor import TICK_S, Exhaustion, Member, Monitor, is_running, this_thread
from .poller import WRITE, Event, Poller

# After a slow app, each leader promotes another thread before it runs an app. This ends after this
# number of consecutive quick apps. Slow requests arrive in bursts, and each would delay the next
# request by a tick.
_EARLY_PROMOTIONS = 8
# An app is slow if it takes this long. The time is not shorter because a quick app may wait for a
# CPU on a busy machine.
_SLOW_S = 4 * TICK_S
# If a poll returns at most this many events, writable sockets are not deferred, because no event
# has to wait long for them.
_FEW_EVENTS = 8
# The minimum and maximum time for deferred items between two polls. The minimum is longer than a
# poll takes.
_DEFERRED_S = 0.0005
_MAX_DEFERRED_S = 0.005

Job = Any  # a channel whose app is to be run
# Work that is not an event. It returns a job if one is ready to run.
Task = Callable[[], Job | None]


@dataclass(slots=True, eq=False)
class Close:
    """The postponed close() of a body whose bytes are still being sent.

    :param call: calls the body's close().
    :param req: the request, for the log.
    :param member: the thread that ran the app.
    """

    call: Callable[[], object]
    req: Any
    member: Member


@dataclass(eq=False, repr=False, kw_only=True)
class Pool:
    """A fixed number of threads that poll and run jobs, and a spare thread that only polls.

    Any thread of the pool may call the functions that are passed to it. They must not raise.

    :param size: the number of threads that run jobs.
    :param log: the error log.
    :param receive: handles an event or a task, and returns a job if one is ready to run.
    :param run: runs a job. The spare never calls it.
    :param on_tick: called by the monitor when it checks the leader, or when a tick was requested.
        It returns whether there was something to do.
    :param on_queued: called before a job is added to `ready`, because no thread is free.
    :param on_dequeued: called when a thread removes a job from `ready`. It returns whether to run
        the job.
    :param on_saturation: called when `saturated` has changed. The monitor may call it too.
    :ivar members: the threads that run apps.
    :ivar leader: the thread that should poll.
    :ivar saturated: whether no thread is free to run a job, so that the spare leads.
    :ivar failed: whether a thread has ended because of an internal error. The worker must end.
    """

    size: int
    poller: Poller
    log: Any
    receive: Callable[[Event | Task], Job | None]
    run: Callable[[Job], object]
    on_tick: Callable[[], bool]
    on_queued: Callable[[Job], object]
    on_dequeued: Callable[[Job], bool]
    on_saturation: Callable[[], object]
    work: deque[Event | Task] = field(default_factory=deque)
    deferred: deque[Event | Task] = field(default_factory=deque)
    ready: deque[Job] = field(default_factory=deque)  # jobs that wait for a free thread
    saturated: bool = False
    exhaustion: Exhaustion = field(default_factory=Exhaustion)
    failed: bool = False
    _polled_at: float = 0.0
    _spare_waits: bool = False  # at its gate
    # Whether the lead is offered: the leader's turn may be long, and no thread was free to lead.
    _lead_is_offered: bool = False
    _followers: list[Member] = field(default_factory=list)  # the threads that wait at their gates
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False
    _early_promotions_left: int = 0

    def __post_init__(self) -> None:
        self.members = [Member(f"wsgifast-{number}") for number in range(self.size)]
        self._spare = Member("wsgifast-spare", spare=True)
        self.leader = self.members[0]
        self.monitor = Monitor(self)

    @property
    def is_behind(self) -> bool:
        """Return whether at least as many events and jobs wait as there are threads."""
        return len(self.work) + len(self.ready) >= len(self.members)

    def start(self) -> None:
        """Start the threads. The first one leads."""
        for member in [*self.members, self._spare]:
            member.thread = threading.Thread(
                target=self._serve_until_stopped, args=(member,), name=member.name, daemon=True
            )
            member.thread.start()

    def push(self, item: Event | Task, *, after: int = sys.maxsize) -> None:
        """Add work from any thread.

        :param after: the position in the queue, as the number of items to handle before this one.
            By default the item is the last. With 0, the item must not exceed a tick.
        """
        self.work.insert(after, item)
        self._wake_for_work()

    def defer(self, task: Task) -> None:
        """Add a task like :meth:`push`, to run after the events of the next poll."""
        self.deferred.append(task)
        self._wake_for_work()

    def poll_events(self, timeout: float | None) -> None:
        """Poll, and add the events to the work. Deferred items follow them.

        :param timeout: see :meth:`Poller.poll`. With deferred items, the poll does not wait.
        """
        work, deferred = self.work, self.deferred
        events = self.poller.poll(0 if deferred else timeout)
        if len(events) <= _FEW_EVENTS:
            work.extend(events)
        else:
            for event in events:
                (deferred if event[1] == WRITE else work).append(event)
        if deferred:
            self._polled_at = time.monotonic()
            work.append(self._handle_deferred)

    def _handle_deferred(self, until: float | None = None) -> Job | None:
        """Handle deferred items, each at most once, for as long as the other events took.

        :param until: the monotonic time at which to stop. None to compute it now.
        """
        now = time.monotonic()
        if until is None:
            until = now + min(max(now - self._polled_at, _DEFERRED_S), _MAX_DEFERRED_S)
        deferred = self.deferred
        for _ in range(len(deferred)):
            if now >= until:
                break
            try:
                item = deferred.popleft()
            except IndexError:
                break  # another thread has handled the last item
            job = self.receive(item)
            if job is not None:
                if deferred:
                    self.work.appendleft(partial(self._handle_deferred, until))
                return job
            now = time.monotonic()
        return None

    def share_work(self) -> None:
        """Make another thread handle the remaining work during a long turn of this thread.

        A turn calls this before it releases the GIL for long, such as for encryption. The monitor
        would not promote another thread, because it sees that this thread is running.
        """
        leader = self.leader
        if (self.work or self.deferred) and leader.thread is threading.current_thread():
            self._offer_lead(leader)

    # The close() of bodies.

    def postpone(self, close: Callable[[], object], req: Any) -> Callable[[], None]:
        """Make this thread call the close() of its app's body later, when the close() is due.

        :param req: the request, for the log.
        :returns: a function that makes the close() due. Any thread may call it. The app's thread
            then calls close() between two of its turns.
        """
        me = this_thread.member
        assert me is not None
        postponed = Close(close, req, me)
        me.closes.add(postponed)
        return partial(self._make_due, postponed)

    def _make_due(self, close: Close) -> None:
        member = close.member
        member.due.append(close)
        if member.polling:
            self.poller.wake()
            return
        with self._lock:
            if member in self._followers:
                self._followers.remove(member)
                member.gate.release()

    @property
    def has_pending_closes(self) -> bool:
        """Return whether any postponed close() has not finished."""
        return any(member.closes for member in self.members)

    def close_in_other_thread(self, stuck_since: float) -> None:
        """For each stuck thread with due close()s, start a new thread that calls them.

        :param stuck_since: a thread is stuck if its turn began before this monotonic time.
        """
        for member in self.members:
            if not (member.due and member.busy and member.since < stuck_since):
                continue
            thread = threading.Thread(
                target=self._close_all, args=(member.due,), name=f"{member.name}-close", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # no thread can be started: try again later
                thread.start()

    def _close_all(self, due: deque[Close]) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._close(due.popleft())

    def _close(self, close: Close) -> None:
        try:
            close.call()
        except BaseException:  # sys.exit() in an app must not end the thread
            req = close.req
            text = "Error in close() of the response to %s %s"
            self.log.exception(text, req.method, req.uri)
        close.member.closes.discard(close)

    def stop(self) -> None:
        """End all threads. A thread that runs an app ends when the app returns."""
        self._stopped = True
        with self._lock:
            for member in self._followers:
                member.gate.release()
            self._followers.clear()
            self._wake_spare()
        self.poller.wake()

    # The threads of the pool.

    def _serve_until_stopped(self, me: Member) -> None:
        this_thread.member = me
        try:
            while not self._stopped:
                self._serve(me)
            self.poller.wake()  # another thread may still be polling
        except BaseException:
            self.failed = True
            self.log.exception("A thread of the worker has failed. The worker ends")
            self.monitor.interrupt()
            raise

    def _serve(self, me: Member) -> None:
        """Handle one event, task, job or close(), or wait for work."""
        job = item = close = None
        try:
            if me.spare and self.leader is not me:
                self._park(me)
                return
            if me.due:
                close = me.due.popleft()
            elif self.ready and not me.spare:
                job = self.ready.popleft()
                if not self.on_dequeued(job):
                    return
            elif self.work:
                item = self.work.popleft()
            elif self.leader is me:
                self._poll(me)
                return
            else:
                self._lead_or_follow(me)
                return
        except IndexError:
            return  # another thread has removed the item
        me.turn += 1
        me.since = now = time.monotonic()
        me.busy = True
        if now >= self.monitor.guard_at:
            self.monitor.guard(now)
        if item is not None:
            job = self.receive(item)
        elif close is not None:
            self._close(close)
        if job is not None:
            if me.spare:
                self.on_queued(job)
                self.ready.append(job)
                self._wake_for_work()
            else:
                me.job = job
                if self._early_promotions_left:
                    self._promote_and_run(me, job)
                else:
                    self.run(job)
                me.job = None
        me.busy = False
        job = item = close = None  # the thread may wait for long now, and must not keep a request
        if me.spare:
            return
        if self.leader is not me:
            self._lead_or_follow(me)
        elif me.closes:
            self._pass_lead(me)

    def _park(self, me: Member) -> None:
        """Make the spare wait until no other thread is free."""
        with self._lock:
            if self.leader is me or self._stopped:
                return
            self._spare_waits = True
        me.gate.acquire()

    def _wake_spare(self) -> None:
        if self._spare_waits:
            self._spare_waits = False
            self._spare.gate.release()

    def _poll(self, me: Member) -> None:
        # `polling` is set before the checks below. A thread that adds work either sees `polling`
        # and wakes the poll, or has added the work before the checks.
        me.polling = True
        if not (self.work or me.due) and (me.spare or not self.ready):
            if self.exhaustion.since is not None and not me.spare:
                self.exhaustion.end()
            self.poll_events(None)
        me.polling = False
        if self.leader is not me:
            self._wake_for_work()  # this wake-up may have been meant for the new leader

    def _promote_and_run(self, me: Member, job: Job) -> None:
        """Promote another thread before a job that may be slow, and record whether it was slow."""
        self._offer_lead(me)
        self.run(job)
        slow = time.monotonic() - me.since > _SLOW_S
        self._early_promotions_left = _EARLY_PROMOTIONS if slow else self._early_promotions_left - 1

    def _offer_lead(self, me: Member) -> None:
        """Promote another thread if this one leads. If no thread is free, offer the lead."""
        with self._lock:
            if self.leader is me:
                if self._followers:
                    self._promote(self._pop_follower())
                else:
                    self._lead_is_offered = True

    def _pass_lead(self, me: Member) -> None:
        """Promote a follower that has no pending close(), if there is one."""
        with self._lock:
            if self.leader is me and not all(each.closes for each in self._followers):
                self._promote(self._pop_follower())

    def _lead_or_follow(self, me: Member) -> None:
        """Lead if the lead was offered. Otherwise wait until another thread promotes this one."""
        with self._lock:
            leader = self.leader
            if self._stopped or leader is me or me.due:
                return
            leads = leader.busy and (self._lead_is_offered or leader.spare)
            if leads:
                self._set_leader(me)
            elif (self.work or self.ready) and (leader.polling or leader.spare):
                return  # otherwise no thread would handle the work now
            else:
                self._followers.append(me)
                self.exhaustion.end()
            saturated, self.saturated = self.saturated, False
        if saturated:
            self.on_saturation()
        if not leads:
            me.gate.acquire()

    # Changes of the leader.

    def _wake_for_work(self) -> None:
        """Make sure that a thread handles the new work."""
        leader = self.leader
        if leader.spare:
            with self._lock:
                if self.leader is leader and self._followers:
                    self._promote(self._pop_follower())
        if leader.polling:
            self.poller.wake()

    def replace(self, leader: Member) -> None:
        """Promote another thread if the leader is still in its long turn.

        The monitor calls this.
        """
        if not leader.spare and not is_running(leader.thread):
            self._early_promotions_left = _EARLY_PROMOTIONS
        with self._lock:
            if self.leader is not leader or not leader.busy:
                return
            if self._followers:
                self._promote(self._pop_follower())
                return
            if leader is self._spare:
                return  # the next free thread leads
            self._set_leader(self._spare)
            self.saturated = True
            self.exhaustion.begin()
        self.on_saturation()  # before the spare polls
        with self._lock:
            self._wake_spare()

    def _pop_follower(self) -> Member:
        """Return the most recent follower, if possible one without a pending close()."""
        followers = self._followers
        for number in reversed(range(len(followers))):
            if not followers[number].closes:
                return followers.pop(number)
        return followers.pop()

    def _promote(self, member: Member) -> None:
        self._set_leader(member)
        member.gate.release()

    def _set_leader(self, member: Member) -> None:
        self.leader = member
        self._lead_is_offered = False

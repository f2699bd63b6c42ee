"""The thread pool: one thread leads, the others run apps or follow (the leader/followers pattern).

Theory of operation
-------------------
To pass each request from a polling thread to an app thread costs two context switches and a wait
for the GIL. A short request costs less than that. So the *leader* polls, and then serves the
request itself: no other thread wakes up.

That only works while its turns are short. A leader may be in one turn for a tick, in the app or
blocked in a system call. Then the *monitor* (monitor.py) promotes a *follower*. Go's sysmon retakes
a processor from a goroutine in the same way. A leader that computes has more time, because two
threads that alternate on the GIL are slower than one. For the same reason a thread follows after
its turn if another one leads, even if that one is in a turn. It takes the lead only if the lead is
on offer, because no thread was free to take it.

If no thread is free, the pool is *saturated* and the monitor promotes the *spare*. It polls,
receives and sends, but never runs an app. So downloads, uploads and new connections go on, and so
do events that a thread left in `work` when it entered the app. Jobs that are ready to run wait in
`ready`.

    following --promoted--> leading <--> leading, in a turn
        ^                                          | the monitor promotes another thread
        |                                          v
        +--another thread leads------------ not leading, in a turn
                                                   | the lead is on offer: lead

    spare, idle --no follower--> leading --a job for a follower, or blocked--> spare, idle

The leader is the thread that *should* poll. Nothing breaks if two threads poll for a moment: the
poller reports an event to one of them only (poller.py), and a deque gives an item out once. But
some thread must poll. So the leader never waits at its gate, and a waiting thread becomes the
leader only when it is woken. The leader changes under one lock. A thread that still leads after its
turn need not take it.

A connection with more work to do at once, such as the next pipelined request, must not keep the
others waiting. It is *deferred* until the leader has run out of work and polled. The events of the
poll go first. Then come some of the deferred items, for about as long, before the next poll.
Writable sockets are deferred too where many events arrive at once: they may be thousands of
downloads, and a short request should wait for few of them.

*close().* If the output reads a file of the app, the body is closed when its last byte has been
sent. The thread that ran the app closes it, since frameworks keep things by thread. It does so
between two of its turns, never within one. The thread that has sent the last byte makes the close()
*due*. The app's thread is woken if it polls or follows, and looks for due calls first.

A thread with a close() to come leads only if every follower has one. So it is free when its time
comes. A request that waits for a lock of the body is not run by the one thread that would release
the lock.

    to come --last byte sent, or the client disconnects--> due --its thread's next turn--> called
                                                            --that thread is stuck--> called by a
                                                                    thread of its own
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .monitor import TICK_S, Exhaustion, Member, Monitor, is_running, this_thread
from .poller import WRITE, Event, Poller

# After a slow app, the lead passes on before each app, until this many in a row were quick. Slow
# requests come in bursts, and each would make the next one wait for a tick.
_EARLY_PROMOTIONS = 8
# The time from which on an app counts as slow. On a busy machine a quick one may wait for a CPU.
_SLOW_S = 4 * TICK_S
# Up to this many events are not sorted: none of them waits long.
_FEW_EVENTS = 8
# The least and the most seconds for deferred items between two polls. A poll takes less than the
# least. The most counts even if other events took longer.
_DEFERRED_S = 0.0005
_MOST_DEFERRED_S = 0.005

Job = Any  # a channel with an app to run
# Work other than an event. It returns a job if one is ready to run.
Task = Callable[[], Job | None]


@dataclass(slots=True, eq=False)
class Close:
    """close() of a body that is still being sent.

    :param call: it.
    :param req: the request, for the log.
    :param member: the thread that ran the app.
    """

    call: Callable[[], object]
    req: Any
    member: Member


class Pool:
    """A fixed number of threads that poll and run jobs, and a spare one that only polls.

    Any of its threads may call the functions that it is given. None of them may raise.

    :param size: number of threads, which is the number of apps that run at once.
    :param log: the error log.
    :param receive: handles an event or a task, and returns a job if one is ready to run.
    :param run: runs a job. The spare never calls it.
    :param on_tick: called by the monitor when it looks, or if a tick was requested. It returns
        whether there was something to do.
    :param on_queued: called before a job waits in `ready`, as no thread is free for it.
    :param on_taken: called when a thread takes such a job. It returns whether to run it.
    :param on_saturation: called when `saturated` has changed, by the monitor too.
    :ivar leader: the thread that should poll.
    :ivar saturated: no thread is free to run a job, and a spare leads.
    :ivar failed: a thread has ended because of an internal error: the worker must end.
    """

    def __init__(
        self,
        size: int,
        poller: Poller,
        log: Any,
        *,
        receive: Callable[[Event | Task], Job | None],
        run: Callable[[Job], object],
        on_tick: Callable[[], bool],
        on_queued: Callable[[Job], object],
        on_taken: Callable[[Job], bool],
        on_saturation: Callable[[], object],
    ) -> None:
        self.work: deque[Event | Task] = deque()
        self.deferred: deque[Event | Task] = deque()
        self._polled_at = 0.0
        # Jobs that a spare has received while no thread was free.
        self.ready: deque[Job] = deque()
        self.saturated = False
        self.exhaustion = Exhaustion()
        self.failed = False
        self._poller = poller
        self.log = log
        self._receive, self._run = receive, run
        self._on_queued, self._on_taken = on_queued, on_taken
        self._on_saturation = on_saturation
        self._members = [Member(f"wsgifast-{number}") for number in range(size)]
        self._spare = Member("wsgifast-spare", spare=True)
        self._spare_waits = False  # at its gate
        self._by_ident: dict[int, Member] = {}  # those that have started
        self.leader = self._members[0]
        # The leader is in a turn that may be long, and no thread was free to take the lead.
        self._lead_is_offered = False
        # Threads that wait at their gates.
        self._followers: list[Member] = []
        self._lock = threading.Lock()
        self._stopped = False
        self._promote_early = 0
        self.monitor = Monitor(self, on_tick)

    @property
    def is_behind(self) -> bool:
        """Return whether as many events and jobs wait as there are threads, or more."""
        return len(self.work) + len(self.ready) >= len(self._members)

    def start(self) -> None:
        """Start the threads. The first one leads."""
        for member in [*self._members, self._spare]:
            member.thread = threading.Thread(
                target=self._serve_until_stopped, args=(member,), name=member.name, daemon=True
            )
            member.thread.start()

    def push(self, item: Event | Task) -> None:
        """Add work from any thread."""
        self.work.append(item)
        self._wake_for_work()

    def push_first(self, task: Task) -> None:
        """As :meth:`push`, before all other work. For tasks that take no longer than a tick."""
        self.work.appendleft(task)
        self._wake_for_work()

    def defer(self, task: Task) -> None:
        """As :meth:`push`, but let the events of the next poll go first."""
        self.deferred.append(task)
        self._wake_for_work()

    def poll_events(self, timeout: float | None) -> None:
        """Poll, and add the events to the work, followed by deferred tasks.

        :param timeout: as for :meth:`Poller.poll`. It does not wait if something is deferred.
        """
        work, deferred = self.work, self.deferred
        events = self._poller.poll(0 if deferred else timeout)
        if len(events) <= _FEW_EVENTS:
            work.extend(events)
        else:
            for event in events:
                (deferred if event[1] == WRITE else work).append(event)
        if deferred:
            self._polled_at = time.monotonic()
            work.append(self._take_deferred)

    def _take_deferred(self, until: float | None = None) -> Job | None:
        """Handle deferred items, each at most once, for as long as the other events took.

        :param until: when to stop (monotonic), if this goes on with an earlier call.
        """
        now = time.monotonic()
        if until is None:
            until = now + min(max(now - self._polled_at, _DEFERRED_S), _MOST_DEFERRED_S)
        deferred = self.deferred
        for _ in range(len(deferred)):
            if now >= until:
                break
            try:
                item = deferred.popleft()
            except IndexError:
                break  # another thread was quicker
            job = self._receive(item)
            if job is not None:
                if deferred:
                    self.work.appendleft(partial(self._take_deferred, until))
                return job
            now = time.monotonic()
        return None

    def share_work(self) -> None:
        """Let another thread handle the remaining work during a long turn of this one.

        For turns that release the GIL, such as those that encrypt: the monitor would take the
        thread for a busy one and leave it the lead.
        """
        leader = self.leader
        if (self.work or self.deferred) and leader.thread is threading.current_thread():
            self._offer_the_lead(leader)

    # The close() of bodies

    def postpone(self, close: Callable[[], object], req: Any) -> Callable[[], None]:
        """Have this thread, which runs an app, call the close() of its body when that is due.

        :param req: the request, for the log.
        :returns: a function that makes it due: the thread then calls it between two of its turns.
            Any thread may call this function.
        """
        me = self._by_ident[threading.get_ident()]
        postponed = Close(close, req, me)
        me.closes.add(postponed)
        return partial(self._make_due, postponed)

    def _make_due(self, close: Close) -> None:
        member = close.member
        member.due.append(close)
        if member.polling:
            self._poller.wake()
            return
        with self._lock:
            if member in self._followers:
                self._followers.remove(member)
                member.gate.release()

    @property
    def has_pending_closes(self) -> bool:
        """Return whether a postponed close() has not returned yet."""
        return any(member.closes for member in self._members)

    def close_in_other_thread(self, stuck_since: float) -> None:
        """Have another thread call a due close() if its own thread is stuck, and may wait for it.

        :param stuck_since: for threads in a turn since before this monotonic time.
        """
        for member in self._members:
            if not (member.due and member.busy and member.since < stuck_since):
                continue
            thread = threading.Thread(
                target=self._close_all, args=(member.due,), name=f"{member.name}-close", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # no more threads: it is tried again
                thread.start()

    def _close_all(self, due: deque[Close]) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._close(due.popleft())

    def _close(self, close: Close) -> None:
        try:
            close.call()
        except BaseException:  # sys.exit() in an app ends no thread
            req = close.req
            text = "Error in close() of the response to %s %s"
            self.log.exception(text, req.method, req.uri)
        close.member.closes.discard(close)

    def stop(self) -> None:
        """End every thread: at once, or when its app returns."""
        self._stopped = True
        with self._lock:
            for member in self._followers:
                member.gate.release()
            self._followers.clear()
            self._wake_spare()
        self._poller.wake()

    @property
    def members(self) -> list[Member]:
        """The threads that run apps."""
        return self._members

    def turns(self) -> list[tuple[str, int | None, int | None]]:
        """Return name, ident and current turn (None: idle) of each thread that runs apps."""
        return [
            (
                member.name,
                None if member.thread is None else member.thread.ident,
                member.turn if member.busy else None,
            )
            for member in self._members
        ]

    # The pool's threads

    def _serve_until_stopped(self, me: Member) -> None:
        self._by_ident[threading.get_ident()] = this_thread.member = me
        try:
            while not self._stopped:
                self._serve(me)
            self._poller.wake()  # another thread may still poll
        except BaseException:
            self.failed = True
            self.log.exception("A thread of the worker has failed; the worker restarts")
            self.monitor.interrupt()
            raise

    def _serve(self, me: Member) -> None:
        """Take one turn, or wait for one."""
        job = item = close = None
        try:
            if me.spare and self.leader is not me:
                self._park(me)
                return
            if me.due:
                close = me.due.popleft()
            elif self.ready and not me.spare:
                job = self.ready.popleft()
                if not self._on_taken(job):
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
            return  # another thread was quicker
        me.turn += 1
        me.since = now = time.monotonic()
        me.busy = True
        if now >= self.monitor.guard_at:
            self.monitor.guard(now)
        if item is not None:
            job = self._receive(item)
        elif close is not None:
            self._close(close)
        if job is not None:
            if me.spare:
                self._on_queued(job)
                self.ready.append(job)
                self._wake_for_work()
            else:
                me.job = job
                if self._promote_early:
                    self._hand_over_and_run(me, job)
                else:
                    self._run(job)
                me.job = None
        me.busy = False
        job = item = close = None  # it may wait for long now, and keeps nothing of a request
        if me.spare:
            return
        if self.leader is not me:
            self._lead_or_follow(me)
        elif me.closes:
            self._step_back(me)

    def _park(self, me: Member) -> None:
        """The spare does not lead: it waits until none of the other threads is free."""
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
        # Set before the last look at the work: a thread that adds some either sees this and wakes
        # the poll, or has added it before that look.
        me.polling = True
        if not (self.work or me.due) and (me.spare or not self.ready):
            if self.exhaustion.since is not None and not me.spare:
                self.exhaustion.end()
            self.poll_events(None)
        me.polling = False
        if self.leader is not me:
            self._wake_for_work()  # the wake-up may have been meant for the leader

    def _hand_over_and_run(self, me: Member, job: Job) -> None:
        """Hand the lead over before a job that may be slow, and note whether it was."""
        self._offer_the_lead(me)
        self._run(job)
        slow = time.monotonic() - me.since > _SLOW_S
        self._promote_early = _EARLY_PROMOTIONS if slow else self._promote_early - 1

    def _offer_the_lead(self, me: Member) -> None:
        """Promote another thread if this one leads, or the next one that is free."""
        with self._lock:
            if self.leader is me:
                if self._followers:
                    self._promote(self._take_follower())
                else:
                    self._lead_is_offered = True

    def _step_back(self, me: Member) -> None:
        """Leave the lead to a follower without a close() to come, if there is one."""
        with self._lock:
            if self.leader is me and not all(each.closes for each in self._followers):
                self._promote(self._take_follower())

    def _lead_or_follow(self, me: Member) -> None:
        """After a turn: take the lead if it is on offer, else follow until promoted."""
        with self._lock:
            leader = self.leader
            if self._stopped or leader is me or me.due:
                return
            leads = leader.busy and (self._lead_is_offered or leader.spare)
            if leads:
                self._set_leader(me)
            elif (self.work or self.ready) and (leader.polling or leader.spare):
                return  # no other thread would handle it now
            else:
                self._followers.append(me)
                self.exhaustion.end()
            saturated, self.saturated = self.saturated, False
        if saturated:
            self._on_saturation()
        if not leads:
            me.gate.acquire()

    # Changes of the leader

    def _wake_for_work(self) -> None:
        """See that some thread handles the new work."""
        leader = self.leader
        if leader.spare:
            with self._lock:
                if self.leader is leader and self._followers:
                    self._promote(self._take_follower())
        if leader.polling:
            self._poller.wake()

    def replace(self, leader: Member) -> None:
        """Promote another thread if the leader is still in its long turn (for the monitor)."""
        if not leader.spare and not is_running(leader.thread):
            self._promote_early = _EARLY_PROMOTIONS
        with self._lock:
            if self.leader is not leader or not leader.busy:
                return
            if self._followers:
                self._promote(self._take_follower())
                return
            if leader is self._spare:
                return  # the next thread that is free takes the lead
            self._set_leader(self._spare)
            self.saturated = True
            self.exhaustion.begin()
        self._on_saturation()  # before it polls
        with self._lock:
            self._wake_spare()

    def _take_follower(self) -> Member:
        """Return the follower that came last, of those without a close() to come if possible."""
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

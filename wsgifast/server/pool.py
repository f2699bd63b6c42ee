"""The threads: one is on duty, the others are in the app or parked.

Theory of operation
-------------------
Handing each request from a polling thread to an app thread costs two context switches and a fight
for the interpreter lock, more than a short request itself. So the thread *on duty* polls and then
serves what it found by itself, and nobody is woken. That holds only while apps are quick. When the
one on duty has been inside the app for a tick (about a millisecond), the *watch*, which runs in
the main thread, gives the duty to a parked thread, as Go's sysmon hands a processor on when a
goroutine sits in a system call. If every thread is inside the app, the watch itself stands in: it
polls, receives and sends, but never runs an app, so that downloads, uploads and new connections go
on, and so do the events that a thread had left in `work` when it went into the app; what is ready
to run waits in `ready`.

    parked --(duty handed over)--> on duty <--> in the app, on duty
      ^                                              | the watch gives the duty away
      |                                              v
      +--(someone else is on duty)---------- in the app, off duty
                                                     | the one on duty is in the app: take the duty

The duty decides who *should* poll; nothing breaks when two threads do for a moment, because an
event is delivered to one of them only (see dispatcher.py) and a deque gives an item out once. What
must hold is that somebody polls: whoever is on duty never parks, and a parked thread gets the duty
only together with its wake-up. All changes of hands are made under one lock, except that a thread
which is still on duty after its app need not ask.

While nothing runs, the watch sleeps; the first request wakes it (one release of a lock), and after
some quiet ticks it sleeps again. An idle worker wakes up for the arbiter's heartbeat only.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ..sockets.wake_event import WakeEvent
from .poller import Dispatcher, Event

__all__ = ["TICK_S", "Crew"]

# How long an app may keep the duty: one to two ticks. A shorter tick hands over sooner; at this
# one the watch costs about 1 % of a busy core.
TICK_S = 0.0007
# After so many ticks without a request the watch sleeps until it is woken: 30 ms, so that a
# steady trickle of requests does not pay for waking it each time.
_QUIET_TICKS = 40
# After an app that was slow, so many quick ones in a row before the duty is kept during the app
# again: slow requests come in bursts, and each would cost a tick of waiting for the next one.
_WARY_REQUESTS = 8

Job = TypeVar("Job")


class Crew(Generic[Job]):
    """A fixed number of threads that poll a dispatcher and run what becomes ready.

    :param size: threads, that is, apps at once.
    :param receive: takes an event or a job up: does the non-blocking input and output that it
        calls for, and returns the job if it is ready to run. Called by any thread, the watch's
        included. Must not raise.
    :param run: runs a job; called by the crew's threads only. Must not raise.
    :param on_tick: called by the watch at every tick, and once more when it stops ticking.
    :param on_failure: called in a thread of the crew that ends by an error of our own.
    """

    def __init__(
        self,
        *,
        size: int,
        dispatcher: Dispatcher,
        receive: Callable[[Event | Job], Job | None],
        run: Callable[[Job], None],
        on_tick: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.work: deque[Event | Job] = deque()
        # Jobs that the watch has received while every thread was busy.
        self.ready: deque[Job] = deque()
        # Whether the watch looks in every TICK_S; work may then be left for `on_tick`.
        self.ticking = False
        # A thread has ended by an error of our own; the worker must not go on without it.
        self.failed = False
        self._dispatcher = dispatcher
        self._receive = receive
        self._run = run
        self._on_tick = on_tick
        self._on_failure = on_failure
        self._hands = [_Hand() for _ in range(size)]
        self._watch_hand = _Hand()  # stands for the main thread while it stands in
        self._holder = self._hands[0]
        self._parked: list[_Hand] = []
        self._lock = threading.Lock()
        self._stopped = False
        self._ticks = 0
        self._wary = 0
        self._wake_event = WakeEvent()
        self._asleep = False
        self._rung = False

    def start(self) -> None:
        """Start the threads; the first is on duty, the others park."""
        for number, hand in enumerate(self._hands):
            threading.Thread(
                target=self._serve, args=(hand,), name=f"wsgifast-{number}", daemon=True
            ).start()

    def push(self, item: Event | Job) -> None:
        """Add to the work, from any thread, and see that somebody takes it."""
        self.work.append(item)
        self._call_for(self._holder)

    def stop(self) -> None:
        """Let every thread end that is not inside an app; the others end after it."""
        self._stopped = True
        with self._lock:
            for hand in self._parked:
                hand.gate.release()
            self._parked.clear()
        self._dispatcher.wake()

    def ring(self) -> None:
        """Make :meth:`watch` return, or its next call; safe in a signal handler."""
        self._rung = True
        if self._holder is self._watch_hand:
            self._dispatcher.wake()
        self._rouse()

    def watch(self, seconds: float) -> None:
        """Keep the duty with a thread that is free, for a while; the main thread's part.

        :param seconds: return after that long, or when :meth:`ring` was called.
        """
        deadline = time.monotonic() + seconds
        quiet = 0
        seen: tuple[_Hand, int] | None = None
        self.ticking = True
        while not self._rung:
            self._ticks += 1
            self._on_tick()
            holder = self._holder
            if holder is self._watch_hand:
                self.ticking = False
                self._on_tick()
                self._stand_in(deadline)
                if self._holder is self._watch_hand or time.monotonic() >= deadline:
                    break
                self.ticking = True
                seen = None
            elif holder.busy:
                quiet = 0
                stamp = (holder, holder.turn)
                if stamp == seen:
                    self._wary = _WARY_REQUESTS
                    self._hand_over(holder)
                    continue
                seen = stamp
            else:
                # Requests may have come and gone between two ticks.
                stamp = (holder, holder.turn)
                quiet = quiet + 1 if stamp == seen else 0
                seen = stamp
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            if quiet > _QUIET_TICKS:
                self.ticking = False
                self._asleep = True
                self._on_tick()
                woken = self._holder.busy or self._wake_event.wait(remaining)
                self._asleep = False
                if not woken:
                    break
                self.ticking = True
            else:
                self._wake_event.wait(min(TICK_S, remaining))
        self._rung = False

    def _call_for(self, holder: _Hand) -> None:
        """See that somebody takes up what has just been added; `holder` has the duty."""
        if holder is self._watch_hand:
            with self._lock:
                if self._holder is holder and self._parked:
                    self._give_duty_to(self._parked.pop())
        if holder.polling:
            self._dispatcher.wake()

    def _rouse(self) -> None:
        self._asleep = False
        self._wake_event.set()

    # The crew's threads.

    def _serve(self, me: _Hand) -> None:
        try:
            while not self._stopped:
                self._take_turn(me)
        except BaseException:
            self.failed = True
            self._on_failure()
            raise

    def _take_turn(self, me: _Hand) -> None:
        try:
            item = (self.ready or self.work).popleft()
        except IndexError:
            if self._holder is me:
                # Said before the last look at what is there: whoever adds to it either sees that
                # we poll, and wakes us, or is seen by us.
                me.polling = True
                if not self.work and not self.ready:
                    self.work.extend(self._dispatcher.poll(None))
                me.polling = False
            else:
                self._relieve_or_park(me)
            return
        job = self._receive(item)
        if job is None:
            if self._holder is not me:
                self._relieve_or_park(me)
            return
        me.turn += 1
        me.busy = True
        if self._asleep:
            self._rouse()
        began = self._ticks
        if self._wary:
            self._pass_on(me)
        self._run(job)
        me.busy = False
        if self._wary:
            self._wary = _WARY_REQUESTS if self._ticks > began + 1 else self._wary - 1
        if self._holder is not me:
            self._relieve_or_park(me)

    def _relieve_or_park(self, me: _Hand) -> None:
        """Take the duty if who has it is in the app; else park until it is handed over."""
        with self._lock:
            holder = self._holder
            if self._stopped or holder is me:
                return
            if holder.busy:
                self._holder = me
                return
            if (self.work or self.ready) and (holder.polling or holder is self._watch_hand):
                return  # nobody else would look at it now
            self._parked.append(me)
        me.gate.acquire()

    def _pass_on(self, me: _Hand) -> None:
        """Give the duty away before a request that may be slow."""
        with self._lock:
            if self._holder is me and self._parked:
                self._give_duty_to(self._parked.pop())

    # The watch.

    def _hand_over(self, holder: _Hand) -> None:
        with self._lock:
            if self._holder is not holder or not holder.busy:
                return
            if self._parked:
                self._give_duty_to(self._parked.pop())
            else:
                self._holder = self._watch_hand

    def _give_duty_to(self, hand: _Hand) -> None:
        self._holder = hand
        hand.gate.release()

    def _stand_in(self, deadline: float) -> None:
        """Poll in place of the crew until a thread is free for a request, or the time is over."""
        me = self._watch_hand
        while self._holder is me and not self._rung:
            try:
                item = self.work.popleft()
            except IndexError:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return
                me.polling = True
                if not self.work:
                    self.work.extend(self._dispatcher.poll(remaining))
                me.polling = False
                continue
            job = self._receive(item)
            if job is not None:
                self.ready.append(job)
                self._call_for(self._holder)


class _Hand:
    """One thread of the crew."""

    __slots__ = ("busy", "gate", "polling", "turn")

    def __init__(self) -> None:
        self.busy = False  # inside the app
        self.polling = False  # waiting in the dispatcher, or about to
        self.turn = 0  # requests begun: tells the watch whether it is still the same one
        self.gate = threading.Lock()
        self.gate.acquire()

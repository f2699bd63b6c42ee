"""The monitor over the pool, tick by tick, with a clock that stands still in between.

There are no threads here: the test says who is in the app, and who follows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.servers import wait_for
from wsgifast.server import exhaustion, pool
from wsgifast.server import monitor as module
from wsgifast.server.monitor import _RUNNING_PATIENCE_S, _SPARE_PATIENCE_S, TICK_S
from wsgifast.server.poller import READ, WRITE, Event
from wsgifast.server.pool import _BEHIND_S, Pool

SIZE = 3
LONG_S = 10.0


class Monitored:
    """A pool whose members are moved by the test; what it has of a pool within is all in here.

    :ivar at_pause: called each time that the monitor waits; `at_poll`, when a member polls (None:
        time goes by); `at_tick`, at each tick, `at_saturation`, `at_queued` and `at_taking`: the
        pool's own calls; `in_app` is the app.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.alarm_at = math.inf
        self.alarms: list[float] = []  # for how long it was set
        # Of each tick, who led; and of each poll, its timeout.
        self.ticks: list[Any] = []
        self.polls: list[float | None] = []
        self.wakes = 0
        self.saturations: list[bool] = []
        self.sent = False  # whether a tick has found something to send
        self.ran: list[Any] = []
        self.started: list[Any] = []  # spares
        self.at_pause: Callable[[], object] = lambda: None
        self.at_poll: Callable[[], list[Event] | None] | None = None
        self.at_wake: Callable[[], object] = lambda: None
        self.at_tick: Callable[[], object] = lambda: None
        self.at_saturation: Callable[[], object] = lambda: None
        self.at_queued: Callable[[str], object] = lambda job: None
        self.at_taking: Callable[[str], object] = lambda job: None
        self.at_promotion: Callable[[], object] = lambda: None
        self.in_app: Callable[[], object] = lambda: None
        self.receive: Callable[[Any], Any] = lambda item: (
            None if isinstance(item, tuple) else item()
        )
        for each in (module, pool, exhaustion):
            monkeypatch.setattr(each, "time", SimpleNamespace(monotonic=lambda: self.now))
        poller: Any = SimpleNamespace(poll=self._poll, wake=self._wake)
        self.pool: Pool[str] = Pool(
            size=SIZE,
            poller=poller,
            receive=lambda item: self.receive(item),
            run=self._run,
            on_tick=self._tick,
            on_saturation=self._saturate,
            on_failure=lambda: None,
            on_queued=lambda job: self.at_queued(job),
            on_taken=lambda job: self.at_taking(job),
        )
        alarm: Any = SimpleNamespace(wait=self._pause, set=self._set_alarm)
        self.pool.monitor._alarm = alarm
        self.first, *self.others = self.pool._members
        (self.spare,) = self.pool._spares
        self.spare.thread = threading.current_thread()
        self.idle_spares.append(self.spare)
        self.pool._start = self._start  # type: ignore[method-assign]
        self._promote, self.pool._promote = self.pool._promote, self._promoted  # type: ignore[method-assign]

    # The lead.

    @property
    def leader(self) -> Any:
        return self.pool._leader

    @leader.setter
    def leader(self, member: Any) -> None:
        self.pool._set_leader(member)

    @property
    def followers(self) -> list[Any]:
        return self.pool._followers

    @property
    def idle_spares(self) -> list[Any]:
        return self.pool._idle_spares

    @property
    def lead_is_on_offer(self) -> bool:
        return self.pool._on_offer

    @lead_is_on_offer.setter
    def lead_is_on_offer(self, on_offer: bool) -> None:
        self.pool._on_offer = on_offer

    @property
    def early_promotions(self) -> int:
        """Before how many apps more another one is promoted, as they may be slow."""
        return self.pool._promote_early

    @early_promotions.setter
    def early_promotions(self, count: int) -> None:
        self.pool._promote_early = count

    def replace(self, leader: Any) -> None:
        """The monitor has seen this leader in one turn for too long."""
        self.pool._replace(leader)

    # What a member does.

    def serve(self, member: Any) -> None:
        """One turn, and what it does then."""
        (self.pool._serve_as_spare if member.spare else self.pool._serve)(member)

    def turn(self, member: Any) -> list[Any]:
        """One turn; who would have led or followed then."""
        came_back: list[Any] = []
        follow, self.pool._lead_or_follow = self.pool._lead_or_follow, came_back.append  # type: ignore[method-assign,assignment]
        try:
            self.pool._serve(member)
        finally:
            self.pool._lead_or_follow = follow  # type: ignore[method-assign]
        return came_back

    def come_back(self, member: Any) -> None:
        """Behind its turn: it leads, or follows."""
        Pool._lead_or_follow(self.pool, member)

    def run(self, ticks: float) -> None:
        self.pool.monitor.run(ticks * TICK_S)

    def enter(self, member: Any) -> None:
        """Let a member begin with a request."""
        member.turn += 1
        member.since = self.now
        member.busy = True
        if self.now >= self.pool.monitor.guard_at:
            self.pool.monitor.guard(self.now)

    def follow(self, *members: Any) -> None:
        self.followers.extend(members)

    def _tick(self) -> bool:
        self.ticks.append(self.leader)
        self.at_tick()
        return self.sent

    def _saturate(self) -> None:
        self.saturations.append(self.pool.saturated)
        self.at_saturation()

    def _start(self, member: Any) -> None:
        self.started.append(member)
        member.thread = threading.current_thread()

    def _promoted(self, member: Any) -> None:
        self.at_promotion()
        self._promote(member)

    def _pause(self, timeout: float) -> bool:
        assert timeout > 0
        self.pauses.append(timeout)
        end = self.now + timeout
        self.at_pause()
        goes_off = self.alarm_at <= end
        self.now = max(self.now, min(self.alarm_at, end))
        if goes_off:
            self.alarm_at = math.inf
        return goes_off

    def _set_alarm(self, seconds: float) -> None:
        self.alarms.append(seconds)
        self.alarm_at = self.now + seconds

    def _poll(self, timeout: float | None) -> list[Event]:
        self.polls.append(timeout)
        assert len(self.polls) < 1000
        if self.at_poll is not None:
            return self.at_poll() or []
        if timeout is not None:
            self.now += timeout
        return []

    def _wake(self) -> None:
        self.wakes += 1
        self.at_wake()

    def _run(self, job: str) -> None:
        self.ran.append(job)
        self.in_app()


@pytest.fixture
def monitored(monkeypatch: pytest.MonkeyPatch) -> Monitored:
    return Monitored(monkeypatch)


def test_without_a_turn_it_sleeps(monitored: Monitored) -> None:
    monitored.pool.monitor.run(LONG_S)
    assert monitored.pauses == [LONG_S]
    assert monitored.now == pytest.approx(100.0 + LONG_S)
    assert not monitored.alarms


def test_quick_turns_put_it_off_and_now_and_then_only(monitored: Monitored) -> None:
    """The monitor does not wake, and who leads keeps the lead."""
    turns = 1000

    def come_and_go() -> None:
        monitored.at_pause = lambda: None
        for _ in range(turns):
            monitored.enter(monitored.first)
            monitored.now += TICK_S / 10
            assert monitored.alarm_at > monitored.now
        monitored.first.busy = False

    monitored.follow(*monitored.others)
    monitored.at_pause = come_and_go
    monitored.pool.monitor.run(LONG_S)
    assert len(monitored.pauses) == 2  # once after the last turn
    assert turns / 10 <= len(monitored.alarms) <= turns / 4
    assert monitored.leader is monitored.first
    assert not monitored.early_promotions


def test_a_turn_that_begins_while_it_sleeps_is_seen(monitored: Monitored) -> None:
    def begin() -> None:
        monitored.at_pause = lambda: None
        monitored.now += 1
        monitored.enter(monitored.first)

    monitored.at_pause = begin
    monitored.pool.monitor.run(LONG_S)
    assert monitored.leader is monitored.spare
    assert monitored.pauses[1] <= LONG_S - 1


def test_a_turn_that_begins_as_it_looks_is_seen(monitored: Monitored) -> None:
    """It still saw that the alarm need not be put off."""

    def begin_at_the_tick() -> None:
        if not monitored.first.turn:
            monitored.first.turn += 1
            monitored.first.since = monitored.now
            monitored.first.busy = True

    monitored.at_tick = begin_at_the_tick
    monitored.follow(monitored.others[0])
    monitored.run(2)
    assert monitored.leader is monitored.others[0]


def test_a_tick_that_was_promised_is_not_put_off(monitored: Monitored) -> None:
    monitor = monitored.pool.monitor
    assert not monitor.ticks_soon()  # it does not run

    def promise() -> None:
        monitored.at_pause = lambda: None
        monitored.ticks.clear()
        monitored.alarms.clear()
        for _ in range(10):
            assert monitor.ticks_soon()
            monitored.enter(monitored.first)
            monitored.now += TICK_S / 20
        monitored.first.busy = False
        assert monitored.alarms == [TICK_S]

    monitored.at_pause = promise
    monitored.run(200)
    assert len(monitored.ticks) == 2  # at the alarm, and at the end
    assert monitor.ticks_soon()
    assert monitored.alarms == [TICK_S, TICK_S]  # the promise was kept: the next is a new one


def test_a_promise_made_while_it_looks_is_kept(monitored: Monitored) -> None:
    ticks = 0

    def leave_more() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 1:
            assert monitored.pool.monitor.ticks_soon()

    monitored.at_tick = leave_more
    monitored.run(1.5)
    assert ticks == 3
    assert monitored.alarms == [TICK_S]


def test_a_look_that_comes_early_promotes_nobody(monitored: Monitored) -> None:
    monitored.follow(*monitored.others)

    def promise() -> None:
        monitored.at_pause = lambda: None
        monitored.pool.monitor.ticks_soon()
        monitored.now += TICK_S / 2
        monitored.enter(monitored.first)

    monitored.at_pause = promise
    monitored.run(10)
    assert monitored.ticks[:3] == [monitored.first] * 3
    assert monitored.leader is monitored.others[-1]


def test_an_interrupt_is_not_put_off(monitored: Monitored) -> None:
    def interrupt() -> None:
        monitored.pool.monitor.interrupt()
        monitored.now += TICK_S
        monitored.enter(monitored.first)

    monitored.at_pause = interrupt
    monitored.pool.monitor.run(LONG_S)
    assert monitored.now == pytest.approx(100.0 + TICK_S)


def test_a_follower_is_promoted(monitored: Monitored) -> None:
    monitored.follow(*monitored.others)
    monitored.enter(monitored.first)
    monitored.run(1.5)  # two ticks
    given = monitored.leader
    assert given is monitored.others[-1]
    assert not given.gate.locked()  # with its wake-up
    assert monitored.others[0].gate.locked()
    assert monitored.followers == [monitored.others[0]]
    assert monitored.early_promotions


def test_a_leader_that_only_waits_for_a_processor_is_given_time(
    monitored: Monitored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_running", lambda thread: True)
    monitored.follow(*monitored.others)
    monitored.enter(monitored.first)
    patience = _RUNNING_PATIENCE_S / TICK_S
    monitored.run(patience - 1)
    assert monitored.leader is monitored.first
    assert not monitored.early_promotions
    monitored.run(patience + 2)
    assert monitored.leader is monitored.others[-1]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not tell")
def test_whether_a_thread_runs() -> None:
    assert module.is_running(threading.current_thread())
    gate = threading.Lock()
    gate.acquire()
    blocked = threading.Thread(target=gate.acquire)
    assert not module.is_running(blocked)  # it has not begun
    blocked.start()
    wait_for(lambda: not module.is_running(blocked), "it waits at the gate")
    gate.release()
    wait_for(lambda: not module.is_running(blocked), "it has ended")
    assert not module.is_running(None)


def test_without_a_follower_a_spare_is_promoted(monitored: Monitored) -> None:
    monitored.enter(monitored.first)
    monitored.run(1.5)
    pool = monitored.pool
    assert monitored.leader is monitored.spare
    assert not monitored.spare.gate.locked()
    assert pool.saturated
    assert monitored.saturations == [True]
    assert not monitored.polls  # the monitor never does


def test_saturation_is_told_before_the_spare_polls(monitored: Monitored) -> None:
    gate: list[bool] = []
    monitored.at_saturation = lambda: gate.append(monitored.spare.gate.locked())
    monitored.enter(monitored.first)
    monitored.run(1.5)
    assert gate == [True]


def test_a_spare_that_is_slow_is_left_alone_but_not_if_it_is_blocked(monitored: Monitored) -> None:
    monitored.enter(monitored.first)
    monitored.run(1.5)
    monitored.enter(monitored.spare)
    monitored.run(20)
    assert monitored.leader is monitored.spare
    early = monitored.early_promotions
    monitored.run(2 * _SPARE_PATIENCE_S / TICK_S)
    assert monitored.started == [monitored.leader]
    assert monitored.leader.spare
    assert monitored.leader is not monitored.spare
    assert monitored.early_promotions == early  # that is about apps
    # A thread that comes back is the better one.
    monitored.enter(monitored.leader)
    monitored.follow(monitored.others[0])
    monitored.run(2 * _SPARE_PATIENCE_S / TICK_S)
    assert monitored.leader is monitored.others[0]


def test_spares_are_not_made_without_end(monitored: Monitored) -> None:
    for _ in range(20):
        monitored.enter(monitored.leader)
        monitored.run(2 * _SPARE_PATIENCE_S / TICK_S)
    assert 1 < len(monitored.started) < 8
    assert monitored.leader is monitored.started[-1]  # blocked, and the last one


@pytest.mark.parametrize("leads", [True, False])
def test_a_thread_that_comes_back_ends_the_saturation(monitored: Monitored, leads: bool) -> None:
    monitored.enter(monitored.first)
    monitored.run(1.5)
    monitored.spare.busy = leads
    monitored.first.busy = False
    monitored.first.gate.release()  # so that it does not wait here
    monitored.come_back(monitored.first)
    assert (monitored.leader is monitored.first) == leads
    assert monitored.followers == ([] if leads else [monitored.first])
    assert monitored.saturations == [True, False]


def exhaust(monitored: Monitored) -> float:
    """Let the only thread that is free be taken; returns when that was noticed."""
    monitored.enter(monitored.first)
    monitored.run(1.5)
    monitored.first.busy = False
    since = monitored.pool.exhaustion.since
    assert since is not None
    assert 100 < since <= monitored.now
    return since


def test_it_is_exhausted_until_a_thread_has_nothing_to_do(monitored: Monitored) -> None:
    pool = monitored.pool
    assert pool.exhaustion.since is None
    since = exhaust(monitored)
    pool.ready.extend(["first", "second"])
    monitored.spare.busy = True
    monitored.come_back(monitored.first)
    assert not pool.saturated
    for _ in range(2):
        monitored.turn(monitored.first)
        monitored.now += 1
        assert pool.exhaustion.since == since
    assert monitored.ran == ["first", "second"]
    monitored.turn(monitored.first)  # it polls
    assert pool.exhaustion.since is None


def test_who_follows_has_nothing_to_do(monitored: Monitored) -> None:
    exhaust(monitored)
    monitored.first.gate.release()
    monitored.come_back(monitored.first)
    assert monitored.followers == [monitored.first]
    assert monitored.pool.exhaustion.since is None


def test_a_spare_that_polls_helps_nobody_who_waits(monitored: Monitored) -> None:
    since = exhaust(monitored)
    monitored.serve(monitored.spare)
    assert monitored.polls
    assert monitored.pool.exhaustion.since == since


def test_what_no_thread_is_free_for_is_told_before_it_can_be_taken(monitored: Monitored) -> None:
    pool = monitored.pool
    told: list[tuple[str, list[str]]] = []
    monitored.at_queued = lambda job: told.append((job, list(pool.ready)))
    exhaust(monitored)
    pool.work.append(lambda: "request")
    monitored.serve(monitored.spare)
    assert told == [("request", [])]
    assert list(pool.ready) == ["request"]


def test_a_blocked_turn_without_an_app_is_seen_too(monitored: Monitored) -> None:
    """Whatever blocks it: reading a disk, or a log that nobody reads."""
    monitored.follow(*monitored.others)

    def receive(item: Any) -> None:
        assert monitored.first.busy
        monitored.run(1.5)

    monitored.receive = receive
    monitored.pool.work.append((7, 1))
    monitored.turn(monitored.first)
    assert monitored.leader is monitored.others[-1]
    assert not monitored.first.busy


def test_it_stays_awake_while_something_is_sent_at_its_ticks(monitored: Monitored) -> None:
    monitored.sent = True
    monitored.run(200)
    assert len(monitored.pauses) >= 199
    monitored.sent = False
    monitored.run(200)
    assert len(monitored.pauses) < 205


def test_an_interrupt_ends_it_and_the_next_one_begins_anew(monitored: Monitored) -> None:
    monitored.at_pause = monitored.pool.monitor.interrupt
    monitored.pool.monitor.run(LONG_S)
    assert monitored.now < 100.0 + LONG_S
    assert len(monitored.pauses) == 1
    monitored.at_pause = lambda: setattr(monitored, "now", monitored.now + LONG_S)
    monitored.pool.monitor.run(LONG_S)
    assert monitored.now >= 100.0 + LONG_S
    monitored.pool.monitor.interrupt()
    before = len(monitored.ticks)
    monitored.pool.monitor.run(LONG_S)  # an interrupt that came before counts
    assert len(monitored.ticks) == before
    monitored.pool.monitor.interrupt()
    monitored.pool.monitor.interrupt()  # a second one does no harm


def test_after_a_slow_app_another_is_promoted_before_the_next_ones(monitored: Monitored) -> None:
    """They come in bursts; so many quick ones in a row end that."""
    pool = monitored.pool
    monitored.follow(monitored.others[0])
    monitored.in_app = lambda: monitored.run(1.5)
    pool.work.append(lambda: "slow")
    monitored.turn(monitored.first)
    assert monitored.leader is monitored.others[0]
    assert monitored.early_promotions

    monitored.in_app = lambda: None
    quick = 0
    leader, other = monitored.others[0], monitored.first
    while monitored.early_promotions:
        monitored.followers[:] = [other]
        monitored.leader = leader
        other.gate.acquire(blocking=False)
        pool.work.append(lambda: "quick")
        monitored.turn(leader)
        assert monitored.leader is other  # before its app, whatever that will be
        quick += 1
        assert quick < 100
    assert quick > 3
    monitored.followers[:] = [other]
    monitored.leader = leader
    pool.work.append(lambda: "quick")
    monitored.turn(leader)
    assert monitored.leader is leader


def test_a_lead_that_nobody_could_take_is_on_offer(monitored: Monitored) -> None:
    """While apps are slow: who comes out of one takes it, without waiting for the monitor."""
    pool = monitored.pool
    monitored.early_promotions = 3
    back = monitored.others[0]
    offered: list[bool] = []

    def in_app() -> None:
        offered.append(monitored.lead_is_on_offer)
        monitored.come_back(back)

    monitored.in_app = in_app
    pool.work.append(lambda: "request")
    monitored.turn(monitored.first)
    assert offered == [True]
    assert monitored.leader is back
    # Promoting somebody takes it back.
    monitored.lead_is_on_offer = True
    monitored.follow(monitored.first)
    monitored.enter(back)
    monitored.run(1.5)
    assert monitored.leader is monitored.first
    assert not monitored.lead_is_on_offer


@pytest.mark.parametrize("queue", ["work", "behind"])
def test_a_long_turn_makes_way_if_there_is_work(queue: str, monitored: Monitored) -> None:
    """It runs, so that the monitor would leave it the lead; but it runs beside others."""
    pool = monitored.pool
    first, other = monitored.first, monitored.others[0]
    monitored.enter(first)
    monitored.follow(other)
    first.thread = threading.current_thread()
    pool.make_way()
    assert monitored.leader is first  # there is nothing to do
    getattr(pool, queue).append(lambda: "request")
    first.thread = threading.Thread()
    pool.make_way()
    assert monitored.leader is first  # its turn is not the one that takes long
    first.thread = threading.current_thread()
    pool.make_way()
    assert monitored.leader is other
    monitored.leader = first
    pool.make_way()
    assert monitored.leader is first
    assert monitored.lead_is_on_offer  # nobody was free


def test_a_slow_app_among_quick_ones_begins_the_count_anew(monitored: Monitored) -> None:
    pool = monitored.pool
    monitored.early_promotions = 3

    def several_ticks() -> None:
        monitored.run(5.5)

    monitored.in_app = several_ticks
    monitored.follow(*monitored.others)
    pool.work.append(lambda: "slow")
    monitored.turn(monitored.first)
    assert monitored.early_promotions > 3
    before = monitored.early_promotions
    monitored.in_app = lambda: None
    monitored.leader = monitored.first
    pool.work.append(lambda: "quick")
    monitored.turn(monitored.first)
    assert monitored.early_promotions == before - 1


def test_a_request_in_the_app_is_seen_as_the_next_one(monitored: Monitored) -> None:
    """Its number changes before the member is seen busy, or the monitor might take two for one."""
    seen: list[tuple[bool, int]] = []
    member = monitored.first

    class Looked:
        """A member; notes what the monitor could see at each change."""

        busy: bool
        turn: int

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)
            if name in ("busy", "turn") and hasattr(self, "turn"):
                seen.append((self.busy, self.turn))

    looked: Any = Looked()
    looked.gate, looked.polling, looked.busy, looked.turn = member.gate, False, False, 7
    looked.spare = False
    monitored.leader = looked
    seen.clear()
    monitored.pool.work.append(lambda: "request")
    monitored.serve(looked)
    assert seen == [(False, 8), (True, 8), (False, 8)]


def test_what_was_received_for_a_thread_comes_first(monitored: Monitored) -> None:
    """It has waited longest; events behind it cannot starve it."""
    monitored.pool.work.append(lambda: "event")
    monitored.pool.ready.append("request")
    monitored.turn(monitored.first)
    monitored.turn(monitored.first)
    assert monitored.ran == ["request", "event"]
    assert not monitored.pool.ready


def test_what_is_behind_has_its_turn_between_two_polls(
    monitored: Monitored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as the events before it have taken, at least a moment and at most a few."""
    monkeypatch.setattr("wsgifast.server.pool._FEW_EVENTS", 3)
    monkeypatch.setattr("wsgifast.server.pool._BEHIND_S", 1.0)
    monkeypatch.setattr("wsgifast.server.pool._MOST_BEHIND_S", 8.0)
    pool = monitored.pool
    taken: list[Any] = []

    def takes(item: Any) -> Any:
        if callable(item):
            return item()
        taken.append(item)
        monitored.now += 0.25
        return None

    monitored.receive = takes
    events: list[Event] = [(7, READ), (8, WRITE), (9, READ | WRITE), (10, WRITE)]
    monitored.at_poll = lambda: events
    pool.behind.extend((fd, WRITE) for fd in range(100, 200))

    def turns(events_s: float) -> list[int]:
        pool.take_up_events(None)
        events.clear()
        while pool.work:
            before = len(taken)
            monitored.turn(monitored.first)
            if len(pool.work) == 1:
                monitored.now += events_s
        return [fd for fd, _ in taken[before:]]

    assert turns(0.0) == [100, 101, 102, 103]
    assert [fd for fd, _ in taken[:2]] == [7, 9]
    assert list(pool.behind)[-2:] == [(8, WRITE), (10, WRITE)]
    events.append((11, READ))
    assert len(turns(1.75)) == 8
    events.append((11, READ))
    assert turns(100.0) == list(range(112, 144))
    # Where few come, all have their turn.
    events += [(12, READ), (13, WRITE)]
    turns(0.0)
    assert taken[-6:-4] == [(12, READ), (13, WRITE)]
    # Each once, also what comes there again; a poll that finds nothing ends it.
    pool.behind.clear()
    again = 0

    def comes_again() -> None:
        nonlocal again
        again += 1
        pool.behind.append(comes_again)

    pool.behind.append(comes_again)
    assert turns(0.0) == []
    assert again == 1


def test_what_is_behind_may_be_ready_to_run(monitored: Monitored) -> None:
    """Others go on where it was left, as long as there is time."""
    pool = monitored.pool
    monitored.in_app = lambda: setattr(monitored, "now", monitored.now + 0.3 * _BEHIND_S)
    monitored.at_poll = list
    pool.behind.extend(lambda number=number: str(number) for number in range(9))  # type: ignore[misc]
    pool.take_up_events(None)
    while pool.work:
        monitored.turn(monitored.first)
    assert monitored.ran == ["0", "1", "2", "3"]
    assert len(pool.behind) == 5


class Polling:
    """A member; work comes in the moment in which it says that it polls."""

    def __init__(self, queue: Any, late: Any, *, spare: bool = False) -> None:
        self._queue = queue
        self._late = late
        self.spare = spare
        self.busy, self.turn, self._polling = False, 0, False

    @property
    def polling(self) -> bool:
        return self._polling

    @polling.setter
    def polling(self, polling: bool) -> None:
        self._polling = polling
        if polling and not self.turn:
            self._queue.append(self._late)


def test_nobody_polls_for_ever_while_there_is_work(monitored: Monitored) -> None:
    """Whoever adds to it sees that somebody polls, or is seen by them."""
    pool = monitored.pool
    late: Callable[[], str] = lambda: "late"  # noqa: E731
    for queue, what in ((pool.work, late), (pool.ready, "late")):
        member: Any = Polling(queue, what)
        monitored.leader = member
        monitored.turn(member)
        assert not monitored.polls
        monitored.turn(member)
        assert not member.polling
    assert monitored.ran == ["late", "late"]


def test_nor_does_a_spare(monitored: Monitored) -> None:
    pool = monitored.pool
    member: Any = Polling(pool.work, lambda: "late", spare=True)
    monitored.leader = member
    monitored.follow(monitored.others[0])
    monitored.serve(member)
    assert not monitored.polls
    monitored.serve(member)
    assert list(pool.ready) == ["late"]
    assert monitored.leader is monitored.others[0]


@pytest.mark.parametrize("spare", [False, True])
def test_who_is_woken_in_place_of_the_leader_passes_it_on(
    monitored: Monitored, spare: bool
) -> None:
    """Two may poll for a moment, and only one of them is woken."""
    me = monitored.spare if spare else monitored.first
    monitored.leader = me
    leader = monitored.others[0]

    def another_leads() -> None:
        monitored.leader = leader
        leader.polling = True

    monitored.at_poll = another_leads
    monitored.serve(me)
    assert monitored.wakes == 1


def test_a_spare_waits_while_another_leads(monitored: Monitored) -> None:
    pool = monitored.pool
    monitored.idle_spares.clear()
    monitored.spare.gate.release()  # so that it does not wait here
    pool.work.append((7, 1))
    monitored.serve(monitored.spare)
    assert monitored.idle_spares == [monitored.spare]
    assert pool.work
    assert not monitored.polls


def test_who_does_not_lead_never_polls_and_never_spins(monitored: Monitored) -> None:
    pool = monitored.pool
    monitored.leader = monitored.others[0]
    items: list[Any] = [None, (7, 1), lambda: "request"]
    for item in items:
        if item is not None:
            pool.work.append(item)
        assert monitored.turn(monitored.first) == [monitored.first]
    assert not monitored.polls
    # The leader does neither.
    monitored.leader = monitored.first
    for item in items[1:]:
        pool.work.append(item)
        assert not monitored.turn(monitored.first)


def test_a_pool_that_stops_wakes_everybody_once(monitored: Monitored) -> None:
    monitored.follow(*monitored.others)
    monitored.pool.stop()
    assert not any(member.gate.locked() for member in [*monitored.others, monitored.spare])
    assert monitored.wakes == 1
    monitored.enter(monitored.first)
    monitored.replace(monitored.first)  # an app that goes on: there is nobody to wake
    assert monitored.leader.spare


def test_work_wakes_who_polls_after_it_is_there(monitored: Monitored) -> None:
    pool = monitored.pool
    there: list[int] = []
    monitored.at_wake = lambda: there.append(len(pool.work))
    pool.push((7, 1))
    assert there == []  # nobody polls
    monitored.first.polling = True
    pool.push((8, 1))
    assert there == [2]


def test_what_a_spare_receives_wakes_a_thread_after_it_is_there(monitored: Monitored) -> None:
    pool = monitored.pool
    monitored.leader = monitored.spare
    monitored.follow(monitored.others[0])
    pool.work.append(lambda: "request")
    ready: list[int] = []
    monitored.at_promotion = lambda: ready.append(len(pool.ready))
    monitored.serve(monitored.spare)
    assert ready == [1]
    assert monitored.leader is monitored.others[0]


def test_it_promotes_nobody_once_another_leads(monitored: Monitored) -> None:
    pool = monitored.pool
    monitored.follow(monitored.others[0])
    # Between the monitor's look and its lock, the app has ended, or another leads.
    monitored.replace(monitored.first)
    assert monitored.leader is monitored.first
    monitored.enter(monitored.first)
    monitored.leader = monitored.others[1]
    monitored.replace(monitored.first)
    assert monitored.leader is monitored.others[1]
    pool.push(lambda: "request")
    assert monitored.leader is monitored.others[1]
    monitored.early_promotions = 3
    monitored.turn(monitored.first)
    assert monitored.ran == ["request"]
    assert monitored.leader is monitored.others[1]
    assert monitored.followers == [monitored.others[0]]


def test_who_comes_out_of_an_app_follows_unless_something_waits(monitored: Monitored) -> None:
    pool = monitored.pool
    me, leader = monitored.others

    def follows() -> bool:
        me.gate.release()  # so that it does not wait here
        monitored.come_back(me)
        followed = me in monitored.followers
        monitored.followers.clear()
        me.gate.acquire(blocking=False)
        return followed

    monitored.leader = leader
    assert follows()
    queues: list[Any] = [pool.work, pool.ready]
    for queue in queues:
        queue.append("request")
        assert follows()  # the other one is about to look
        leader.polling = True
        assert not follows()
        leader.polling = False
        monitored.leader = monitored.spare
        assert not follows()
        monitored.leader = leader
        queue.clear()
    leader.busy = True
    assert follows()  # it may be quick
    monitored.lead_is_on_offer = True
    assert not follows()
    assert monitored.leader is me
    assert not monitored.lead_is_on_offer
    assert not follows()  # the leader never does
    monitored.leader = leader
    leader.busy = False
    pool.stop()
    assert not follows()

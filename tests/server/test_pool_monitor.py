"""The monitor of the pool, tick by tick. The test moves the clock.

There are no threads here: the test decides which member is in an app, and which follows.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.server.pool_harness import Monitored, exhaust
from tests.support.servers import wait_for
from wsgifast.server import monitor as module
from wsgifast.server.monitor import _RUNNING_PATIENCE_S, _SPARE_PATIENCE_S, TICK_S

LONG_S = 10.0


def test_monitor_without_a_turn_sleeps(monitored: Monitored) -> None:
    monitored.pool.monitor.watch(LONG_S)
    assert monitored.pauses == [LONG_S]
    assert monitored.now == pytest.approx(100.0 + LONG_S)
    assert not monitored.alarms


def test_quick_turns_put_the_alarm_off_rarely(monitored: Monitored) -> None:
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
    monitored.pool.monitor.watch(LONG_S)
    assert len(monitored.pauses) == 2  # once after the last turn
    assert turns / 10 <= len(monitored.alarms) <= turns / 4
    assert monitored.leader is monitored.first
    assert not monitored.early_promotions


def test_turn_begun_while_monitor_sleeps_is_seen(monitored: Monitored) -> None:
    def begin() -> None:
        monitored.at_pause = lambda: None
        monitored.now += 1
        monitored.enter(monitored.first)

    monitored.at_pause = begin
    monitored.pool.monitor.watch(LONG_S)
    assert monitored.leader is monitored.spare
    assert monitored.pauses[1] <= LONG_S - 1


def test_turn_that_begins_as_the_monitor_looks_is_seen(monitored: Monitored) -> None:
    def begin_at_the_tick() -> None:
        if not monitored.first.turn:
            monitored.first.turn += 1
            monitored.first.since = monitored.now
            monitored.first.busy = True

    monitored.at_tick = begin_at_the_tick
    monitored.follow(monitored.others[0])
    monitored.run(2)
    assert monitored.leader is monitored.others[0]


def test_promised_tick_is_not_put_off(monitored: Monitored) -> None:
    monitor = monitored.pool.monitor

    def promise() -> None:
        monitored.at_pause = lambda: None
        monitored.ticks.clear()
        monitored.alarms.clear()
        for _ in range(10):
            monitor.request_tick()
            monitored.enter(monitored.first)
            monitored.now += TICK_S / 20
        monitored.first.busy = False
        assert monitored.alarms == [TICK_S]

    monitored.at_pause = promise
    monitored.run(200)
    assert len(monitored.ticks) == 2  # at the alarm, and at the end
    monitor.request_tick()
    assert monitored.alarms == [TICK_S, TICK_S]  # the next promotion is a new one


def test_tick_promised_while_monitor_looks_comes(monitored: Monitored) -> None:
    ticks = 0

    def leave_more() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 1:
            monitored.pool.monitor.request_tick()

    monitored.at_tick = leave_more
    monitored.run(1.5)
    assert ticks == 3
    assert monitored.alarms == [TICK_S]


def test_look_that_comes_early_promotes_nobody(monitored: Monitored) -> None:
    monitored.follow(*monitored.others)

    def promise() -> None:
        monitored.at_pause = lambda: None
        monitored.pool.monitor.request_tick()
        monitored.now += TICK_S / 2
        monitored.enter(monitored.first)

    monitored.at_pause = promise
    monitored.run(10)
    assert monitored.ticks[:3] == [monitored.first] * 3
    assert monitored.leader is monitored.others[-1]


def test_interrupt_is_not_put_off(monitored: Monitored) -> None:
    def interrupt() -> None:
        monitored.pool.monitor.interrupt()
        monitored.now += TICK_S
        monitored.enter(monitored.first)

    monitored.at_pause = interrupt
    monitored.pool.monitor.watch(LONG_S)
    assert monitored.now == pytest.approx(100.0 + TICK_S)


def test_follower_of_a_blocked_leader_is_promoted(monitored: Monitored) -> None:
    monitored.follow(*monitored.others)
    monitored.enter(monitored.first)
    monitored.run(1.5)  # two ticks
    given = monitored.leader
    assert given is monitored.others[-1]
    assert not given.gate.locked()  # with its wake-up
    assert monitored.others[0].gate.locked()
    assert monitored.followers == [monitored.others[0]]
    assert monitored.early_promotions


def test_leader_waiting_for_a_processor_gets_time(
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


def test_turns_at_work_are_seldom_looked_at(
    monitored: Monitored, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = True
    monkeypatch.setattr(module, "is_running", lambda thread: running)
    monitor = monitored.pool.monitor
    monitored.follow(*monitored.others)

    def guarded_ticks() -> float:
        monitor.guard(monitored.now)
        return monitored.alarms[-1] / TICK_S

    def look_in_on_a_turn() -> None:
        monitored.enter(monitored.leader)
        monitored.now += 2 * TICK_S
        monitor.watch(0)
        monitored.leader.busy = False

    assert guarded_ticks() == pytest.approx(1.5)
    for ticks in (3, 6, 6):
        look_in_on_a_turn()
        assert guarded_ticks() == pytest.approx(ticks)
    running = False
    look_in_on_a_turn()
    assert monitored.leader is monitored.others[-1]
    assert guarded_ticks() == pytest.approx(1.5)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not report it")
def test_running_thread_is_distinguished_from_waiting() -> None:
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


def test_spare_is_promoted_where_nobody_follows(monitored: Monitored) -> None:
    gate: list[bool] = []
    monitored.at_saturation = lambda: gate.append(monitored.spare.gate.locked())
    monitored.enter(monitored.first)
    monitored.run(1.5)
    pool = monitored.pool
    assert monitored.leader is monitored.spare
    assert not monitored.spare.gate.locked()
    assert gate == [True]  # it is reported before the spare polls
    assert pool.saturated
    assert monitored.saturations == [True]
    assert not monitored.polls  # the monitor never does


def test_spare_that_is_slow_leads_until_one_is_free(monitored: Monitored) -> None:
    monitored.enter(monitored.first)
    monitored.run(1.5)
    monitored.enter(monitored.spare)
    monitored.run(20)
    assert monitored.leader is monitored.spare
    early = monitored.early_promotions
    monitored.run(2 * _SPARE_PATIENCE_S / TICK_S)
    assert monitored.leader is monitored.spare  # there is no other follower
    assert monitored.early_promotions == early  # that one is about apps
    # A member that returns is preferred to the spare.
    monitored.follow(monitored.others[0])
    monitored.run(2 * _SPARE_PATIENCE_S / TICK_S)
    assert monitored.leader is monitored.others[0]


@pytest.mark.parametrize("leads", [True, False])
def test_thread_that_comes_back_ends_the_saturation(monitored: Monitored, leads: bool) -> None:
    monitored.enter(monitored.first)
    monitored.run(1.5)
    monitored.spare.busy = leads
    monitored.first.busy = False
    monitored.first.gate.release()  # so that it does not wait here
    monitored.come_back(monitored.first)
    assert (monitored.leader is monitored.first) == leads
    assert monitored.followers == ([] if leads else [monitored.first])
    assert monitored.saturations == [True, False]


def test_pool_is_exhausted_until_a_thread_is_idle(monitored: Monitored) -> None:
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
    monitored.turn(monitored.first)  # the member polls
    assert pool.exhaustion.since is None


def test_thread_that_follows_ends_the_exhaustion(monitored: Monitored) -> None:
    exhaust(monitored)
    monitored.first.gate.release()
    monitored.come_back(monitored.first)
    assert monitored.followers == [monitored.first]
    assert monitored.pool.exhaustion.since is None


def test_spare_that_polls_does_not_end_the_exhaustion(monitored: Monitored) -> None:
    since = exhaust(monitored)
    monitored.serve(monitored.spare)
    assert monitored.polls
    assert monitored.pool.exhaustion.since == since


def test_job_without_free_thread_is_reported_first(monitored: Monitored) -> None:
    pool = monitored.pool
    reported: list[tuple[str, list[str]]] = []
    monitored.at_queued = lambda job: reported.append((job, list(pool.ready)))
    exhaust(monitored)
    pool.work.append(lambda: "request")
    monitored.serve(monitored.spare)
    assert reported == [("request", [])]
    assert list(pool.ready) == ["request"]


def test_blocked_turn_without_an_app_is_seen_too(monitored: Monitored) -> None:
    monitored.follow(*monitored.others)

    def receive(item: Any) -> None:
        assert monitored.first.busy
        monitored.run(1.5)

    monitored.receive = receive
    monitored.pool.work.append((7, 1))
    monitored.turn(monitored.first)
    assert monitored.leader is monitored.others[-1]
    assert not monitored.first.busy


def test_monitor_stays_awake_while_ticks_send(monitored: Monitored) -> None:
    monitored.sent = True
    monitored.run(200)
    assert len(monitored.pauses) >= 199
    monitored.sent = False
    monitored.run(200)
    assert len(monitored.pauses) < 205


def test_interrupt_while_monitor_promotes_is_not_lost(monitored: Monitored) -> None:
    monitored.at_promotion = monitored.pool.monitor.interrupt
    monitored.follow(monitored.others[0])
    monitored.enter(monitored.first)
    monitored.pool.monitor.watch(LONG_S)
    assert monitored.leader is monitored.others[0]
    assert monitored.now < 100.0 + LONG_S


def test_interrupt_ends_one_watch_alone(monitored: Monitored) -> None:
    monitored.at_pause = monitored.pool.monitor.interrupt
    monitored.pool.monitor.watch(LONG_S)
    assert monitored.now < 100.0 + LONG_S
    assert len(monitored.pauses) == 1
    monitored.at_pause = lambda: setattr(monitored, "now", monitored.now + LONG_S)
    monitored.pool.monitor.watch(LONG_S)
    assert monitored.now >= 100.0 + LONG_S
    monitored.pool.monitor.interrupt()
    before = len(monitored.ticks)
    monitored.pool.monitor.watch(LONG_S)  # an interrupt before the call counts
    assert len(monitored.ticks) == before
    monitored.pool.monitor.interrupt()
    monitored.pool.monitor.interrupt()  # a second interrupt has no effect

"""The turns of the pool's members: which one polls, serves, or leads after a slow app."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from tests.server.pool_harness import Monitored
from wsgifast.server.poller import READ, WRITE, Event
from wsgifast.server.pool import _DEFERRED_S


def test_slow_app_has_another_promoted_first(monitored: Monitored) -> None:
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


def test_lead_that_nobody_could_take_is_on_offer(monitored: Monitored) -> None:
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
    # A promotion withdraws the offer.
    monitored.lead_is_on_offer = True
    monitored.follow(monitored.first)
    monitored.enter(back)
    monitored.run(1.5)
    assert monitored.leader is monitored.first
    assert not monitored.lead_is_on_offer


@pytest.mark.parametrize("queue", ["work", "deferred"])
def test_long_turn_shares_the_work_if_there_is_any(queue: str, monitored: Monitored) -> None:
    """The member runs, so the monitor would not replace it. But it runs beside others."""
    pool = monitored.pool
    first, other = monitored.first, monitored.others[0]
    monitored.enter(first)
    monitored.follow(other)
    first.thread = threading.current_thread()
    pool.share_work()
    assert monitored.leader is first  # there is nothing to do
    getattr(pool, queue).append(lambda: "request")
    first.thread = threading.Thread()
    pool.share_work()
    assert monitored.leader is first  # its turn is not the long one
    first.thread = threading.current_thread()
    pool.share_work()
    assert monitored.leader is other
    monitored.leader = first
    pool.share_work()
    assert monitored.leader is first
    assert monitored.lead_is_on_offer  # no member was free


def test_slow_app_among_quick_ones_restarts_the_count(monitored: Monitored) -> None:
    pool = monitored.pool
    monitored.early_promotions = 3
    monitored.in_app = lambda: monitored.run(5.5)
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


def test_turn_changes_number_before_it_is_seen_busy(monitored: Monitored) -> None:
    """The number of the turn changes before the member is marked as busy.

    Otherwise the monitor might take two turns for one.
    """
    seen: list[tuple[bool, int]] = []
    member = monitored.first

    class Looked:
        """A member that records the state that the monitor could see at each change."""

        busy: bool
        turn: int

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)
            if name in ("busy", "turn") and hasattr(self, "turn"):
                seen.append((self.busy, self.turn))

    looked: Any = Looked()
    looked.gate, looked.polling, looked.busy, looked.turn = member.gate, False, False, 7
    looked.spare, looked.closes, looked.due = False, set(), deque()
    monitored.leader = looked
    seen.clear()
    monitored.pool.work.append(lambda: "request")
    monitored.serve(looked)
    assert seen == [(False, 8), (True, 8), (False, 8)]


def test_request_that_waited_for_a_thread_comes_first(monitored: Monitored) -> None:
    monitored.pool.work.append(lambda: "event")
    monitored.pool.ready.append("request")
    monitored.turn(monitored.first)
    monitored.turn(monitored.first)
    assert monitored.ran == ["request", "event"]
    assert not monitored.pool.ready


def test_deferred_items_run_between_two_polls(
    monitored: Monitored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wsgifast.server.pool._FEW_EVENTS", 3)
    monkeypatch.setattr("wsgifast.server.pool._DEFERRED_S", 1.0)
    monkeypatch.setattr("wsgifast.server.pool._MAX_DEFERRED_S", 8.0)
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
    pool.deferred.extend((fd, WRITE) for fd in range(100, 200))

    def turns(events_s: float) -> list[int]:
        pool.poll_events(None)
        events.clear()
        while pool.work:
            before = len(taken)
            monitored.turn(monitored.first)
            if len(pool.work) == 1:
                monitored.now += events_s
        return [fd for fd, _ in taken[before:]]

    assert turns(0.0) == [100, 101, 102, 103]
    assert [fd for fd, _ in taken[:2]] == [7, 9]
    assert list(pool.deferred)[-2:] == [(8, WRITE), (10, WRITE)]
    events.append((11, READ))
    assert len(turns(1.75)) == 8
    events.append((11, READ))
    assert turns(100.0) == list(range(112, 144))
    # With few events, all have their turn.
    events += [(12, READ), (13, WRITE)]
    turns(0.0)
    assert taken[-6:-4] == [(12, READ), (13, WRITE)]
    # Each item is handled once, even if it is added there again. A poll without events ends it.
    pool.deferred.clear()
    again = 0

    def comes_again() -> None:
        nonlocal again
        again += 1
        pool.deferred.append(comes_again)

    pool.deferred.append(comes_again)
    assert turns(0.0) == []
    assert again == 1


def test_deferred_items_may_be_ready_to_run(monitored: Monitored) -> None:
    pool = monitored.pool
    monitored.in_app = lambda: setattr(monitored, "now", monitored.now + 0.3 * _DEFERRED_S)
    monitored.at_poll = list
    pool.deferred.extend(lambda number=number: str(number) for number in range(9))  # type: ignore[misc]
    pool.poll_events(None)
    while pool.work:
        monitored.turn(monitored.first)
    assert monitored.ran == ["0", "1", "2", "3"]
    assert len(pool.deferred) == 5


class Polling:
    """A member. Work arrives at the moment when it announces that it polls."""

    def __init__(self, queue: Any, late: Any, *, spare: bool = False) -> None:
        self._queue = queue
        self._late = late
        self.spare = spare
        self.busy, self.turn, self._polling = False, 0, False
        self.closes, self.due = set[Any](), deque[Any]()

    @property
    def polling(self) -> bool:
        return self._polling

    @polling.setter
    def polling(self, polling: bool) -> None:
        self._polling = polling
        if polling and not self.turn:
            self._queue.append(self._late)


@pytest.mark.parametrize("queue", ["work", "ready"])
def test_member_polls_not_while_there_is_work(monitored: Monitored, queue: str) -> None:
    """A thread that adds work sees that a member polls, or the member sees the work."""
    late: Any = "late" if queue == "ready" else lambda: "late"
    member: Any = Polling(getattr(monitored.pool, queue), late)
    monitored.leader = member
    monitored.turn(member)
    assert not monitored.polls
    monitored.turn(member)
    assert not member.polling
    assert monitored.ran == ["late"]


def test_spare_polls_not_while_there_is_work(monitored: Monitored) -> None:
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
def test_member_woken_for_the_leader_passes_it_on(monitored: Monitored, spare: bool) -> None:
    """Two members may poll for a moment, and only one of them is woken."""
    me = monitored.spare if spare else monitored.first
    monitored.leader = me
    leader = monitored.others[0]

    def another_leads() -> None:
        monitored.leader = leader
        leader.polling = True

    monitored.at_poll = another_leads
    monitored.serve(me)
    assert monitored.wakes == 1


def test_spare_waits_while_another_leads(monitored: Monitored) -> None:
    pool = monitored.pool
    pool._spare_waits = False
    monitored.spare.gate.release()  # so that it does not wait here
    pool.work.append((7, 1))
    monitored.serve(monitored.spare)
    assert monitored.spare_waits
    assert pool.work
    assert not monitored.polls


def test_member_that_does_not_lead_never_polls(monitored: Monitored) -> None:
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


def test_stopping_pool_wakes_everybody_once(monitored: Monitored) -> None:
    monitored.follow(*monitored.others)
    monitored.pool.stop()
    assert not any(member.gate.locked() for member in [*monitored.others, monitored.spare])
    assert monitored.wakes == 1
    monitored.enter(monitored.first)
    monitored.replace(monitored.first)  # the app continues: there is no member to wake
    assert monitored.leader.spare


def test_work_wakes_a_polling_member_after_it_is_there(monitored: Monitored) -> None:
    pool = monitored.pool
    there: list[int] = []
    monitored.at_wake = lambda: there.append(len(pool.work))
    pool.push((7, 1))
    assert there == []  # no member polls
    monitored.first.polling = True
    pool.push((8, 1))
    assert there == [2]


def test_request_of_a_spare_wakes_a_thread_afterwards(monitored: Monitored) -> None:
    pool = monitored.pool
    monitored.leader = monitored.spare
    monitored.follow(monitored.others[0])
    pool.work.append(lambda: "request")
    ready: list[int] = []
    monitored.at_promotion = lambda: ready.append(len(pool.ready))
    monitored.serve(monitored.spare)
    assert ready == [1]
    assert monitored.leader is monitored.others[0]


def test_monitor_promotes_nobody_once_another_leads(monitored: Monitored) -> None:
    pool = monitored.pool
    monitored.follow(monitored.others[0])
    # Between the monitor's check and its lock, the app has ended, or another member leads.
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


def test_member_out_of_an_app_follows_if_nothing_waits(monitored: Monitored) -> None:
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
        assert follows()  # the other member is about to check
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

"""The watch over the crew, tick by tick, with a clock that stands still in between.

There are no threads here: the test says who is in the app, and who waits for the duty.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast.server import pool as module
from wsgifast.server.poller import Event
from wsgifast.server.pool import TICK_S, Crew

SIZE = 3
LONG_S = 10.0


class Watched:
    """A crew whose hands are moved by the test.

    :param at_pause: called each time that the watch waits.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        # Of each tick, and of each poll: whether held output may be left for the next tick.
        self.ticks: list[bool] = []
        self.polls: list[tuple[float | None, bool]] = []
        self.wakes = 0
        self.ran: list[Any] = []
        self.at_pause: Callable[[], object] = lambda: None
        self.at_poll: Callable[[], object] | None = None  # None: time goes by
        self.in_app: Callable[[], object] = lambda: None
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        dispatcher: Any = SimpleNamespace(poll=self._poll, wake=self._wake)
        self.crew: Crew[str] = Crew(
            size=SIZE,
            dispatcher=dispatcher,
            receive=lambda item: item if isinstance(item, str) else None,
            run=self._run,
            on_tick=lambda: self.ticks.append(self.crew.ticking),
            on_failure=lambda: None,
        )
        bell: Any = SimpleNamespace(wait=self._pause, set=self._ring)
        self._rung = False
        self.crew._wake_event = bell
        self.first, *self.others = self.crew._hands

    def watch(self, ticks: float) -> None:
        self.crew.watch(ticks * TICK_S)

    def enter(self, hand: Any) -> None:
        """Let a hand begin with a request."""
        hand.turn += 1
        hand.busy = True

    def park(self, *hands: Any) -> None:
        self.crew._parked.extend(hands)

    def _pause(self, timeout: float) -> bool:
        assert timeout > 0
        self.pauses.append(timeout)
        self.at_pause()
        rung, self._rung = self._rung, False
        if not rung:
            self.now += timeout
        return rung

    def _ring(self) -> None:
        self._rung = True

    def _poll(self, timeout: float | None) -> list[Event]:
        self.polls.append((timeout, self.crew.ticking))
        assert len(self.polls) < 1000
        if self.at_poll is not None:
            self.at_poll()
        elif timeout is not None:
            self.now += timeout
        return []

    def _wake(self) -> None:
        self.wakes += 1

    def _run(self, job: str) -> None:
        self.ran.append(job)
        self.in_app()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_it_ticks_while_something_runs_and_then_sleeps(watched: Watched) -> None:
    watched.crew.watch(LONG_S)
    *ticks, sleep = watched.pauses
    assert set(ticks) == {TICK_S}
    assert 10 < len(ticks) < 100
    assert sleep == pytest.approx(LONG_S - len(ticks) * TICK_S)
    # The last tick takes what was held when the one before it was.
    assert watched.ticks == [True] * (len(ticks) + 1) + [False]
    assert watched.now == pytest.approx(100.0 + LONG_S)
    assert not watched.crew.ticking


def test_requests_between_the_ticks_keep_it_awake(watched: Watched) -> None:
    def come_and_go() -> None:
        watched.first.turn += 1

    watched.at_pause = come_and_go
    watched.watch(200)
    assert set(watched.pauses[:-1]) == {TICK_S}
    assert len(watched.pauses) in (200, 201)  # as the clock rounds
    assert watched.crew.ticking


def test_a_request_now_and_then_keeps_it_awake(watched: Watched) -> None:
    """Each begins the quiet time anew."""

    def now_and_then() -> None:
        watched.first.busy = False
        if len(watched.pauses) % 30 == 0:
            watched.enter(watched.first)

    watched.at_pause = now_and_then
    watched.watch(200)
    assert len(watched.pauses) >= 200


def test_a_request_wakes_it(watched: Watched) -> None:
    """Also one that begins just while it falls asleep."""

    def begin() -> None:
        if watched.crew._asleep:
            watched.enter(watched.first)
            watched.crew._rouse()
            watched.at_pause = lambda: None

    watched.at_pause = begin
    watched.watch(200)
    asleep = next(i for i, pause in enumerate(watched.pauses) if pause > 2 * TICK_S)
    assert watched.pauses[asleep + 1] <= TICK_S
    assert watched.crew._holder is watched.crew._watch_hand
    assert not watched.crew._asleep


def test_it_ticks_again_once_it_is_woken(watched: Watched) -> None:
    asleep = 0

    def come_and_go() -> None:
        nonlocal asleep
        if watched.crew._asleep and not asleep:
            asleep = len(watched.pauses)
            watched.first.turn += 1
            watched.crew._rouse()

    watched.at_pause = come_and_go
    watched.crew.watch(LONG_S)
    again = watched.pauses[asleep:-1]
    assert set(again) == {TICK_S}
    assert len(again) > 10
    assert watched.ticks.count(False) == 2
    assert watched.ticks[-2]


def test_a_request_that_begins_as_it_falls_asleep(watched: Watched) -> None:
    ticks = watched.crew._on_tick

    def begin_at_the_last_tick() -> None:
        ticks()
        if not watched.crew.ticking and not watched.first.busy:
            watched.enter(watched.first)  # and sees nobody asleep yet, so rings no bell

    watched.crew._on_tick = begin_at_the_last_tick
    watched.park(watched.others[0])
    watched.watch(70)
    assert max(watched.pauses) < 2 * TICK_S
    assert watched.crew._holder is watched.others[0]


def test_the_duty_is_kept_by_who_is_quick(watched: Watched) -> None:
    """In the app at every tick, but never in the same request."""
    watched.park(*watched.others)

    def next_request() -> None:
        watched.enter(watched.first)

    watched.enter(watched.first)
    watched.at_pause = next_request
    watched.watch(50)
    assert watched.crew._holder is watched.first
    assert not watched.crew._wary


def test_the_duty_goes_to_who_is_parked(watched: Watched) -> None:
    watched.park(*watched.others)
    watched.enter(watched.first)
    watched.watch(1.5)  # two ticks
    given = watched.crew._holder
    assert given is watched.others[-1]
    assert not given.gate.locked()  # with its wake-up
    assert watched.others[0].gate.locked()
    assert watched.crew._parked == [watched.others[0]]
    assert watched.crew._wary


def test_without_anybody_parked_it_stands_in_at_once(watched: Watched) -> None:
    watched.enter(watched.first)
    polled: list[int] = []

    def take_over() -> None:
        polled.append(len(watched.pauses))
        if len(polled) == 3:
            watched.crew._holder = watched.first  # its app has ended
            watched.first.busy = False

    watched.at_poll = take_over
    watched.watch(10)
    assert polled == [1, 1, 1]  # without a tick's delay
    # What was held has been sent before, and nothing is held meanwhile.
    assert watched.ticks[:3] == [True, True, True]
    assert watched.ticks[3] is False
    assert not any(ticking for _, ticking in watched.polls)
    assert all(timeout is not None and timeout > 0 for timeout, _ in watched.polls)
    assert watched.ticks[4:]
    assert all(watched.ticks[4:])


def test_it_stands_in_for_no_longer_than_it_may(watched: Watched) -> None:
    watched.crew._holder = watched.crew._watch_hand

    def time_goes_by() -> None:
        watched.now += TICK_S

    watched.at_poll = time_goes_by
    watched.watch(5)
    assert 4 <= len(watched.polls) <= 6
    assert watched.crew._holder is watched.crew._watch_hand
    assert not watched.crew._watch_hand.polling
    assert not watched.pauses


@pytest.mark.parametrize("standing_in", [True, False])
def test_a_ring_ends_it_and_the_next_one_begins_anew(watched: Watched, standing_in: bool) -> None:
    if standing_in:
        watched.crew._holder = watched.crew._watch_hand
        watched.at_poll = watched.crew.ring
    else:
        watched.at_pause = watched.crew.ring
    watched.crew.watch(LONG_S)
    assert watched.now < 100.0 + LONG_S
    assert len(watched.pauses) + len(watched.polls) == 1
    assert watched.wakes == standing_in
    watched.at_poll = watched.at_pause = lambda: setattr(watched, "now", watched.now + LONG_S)
    watched.crew.watch(LONG_S)
    assert watched.now >= 100.0 + LONG_S
    watched.crew.ring()
    before = len(watched.ticks)
    watched.crew.watch(LONG_S)  # a ring that came before counts
    assert len(watched.ticks) == before
    watched.crew.ring()
    watched.crew.ring()  # a second one does no harm


def test_after_a_slow_app_the_duty_is_passed_on_before_the_next_ones(watched: Watched) -> None:
    """They come in bursts; so many quick ones in a row end that."""
    crew = watched.crew
    watched.park(watched.others[0])
    watched.in_app = lambda: watched.watch(1.5)
    crew.work.append("slow")
    turn(watched, watched.first)
    assert crew._holder is watched.others[0]
    assert crew._wary

    watched.in_app = lambda: None
    quick = 0
    holder, other = watched.others[0], watched.first
    while crew._wary:
        crew._parked[:] = [other]
        crew._holder = holder
        other.gate.acquire(blocking=False)
        crew.work.append("quick")
        turn(watched, holder)
        assert crew._holder is other  # before its app, whatever that will be
        quick += 1
        assert quick < 100
    assert quick > 3
    crew._parked[:] = [other]
    crew._holder = holder
    crew.work.append("quick")
    turn(watched, holder)
    assert crew._holder is holder


def turn(watched: Watched, hand: Any) -> None:
    """One request in a hand, without parking it afterwards."""
    crew = watched.crew
    park, crew._relieve_or_park = crew._relieve_or_park, lambda me: None  # type: ignore[method-assign]
    crew._take_turn(hand)
    crew._relieve_or_park = park  # type: ignore[method-assign]


def test_a_slow_app_among_quick_ones_begins_the_count_anew(watched: Watched) -> None:
    crew = watched.crew
    crew._wary = 3

    def several_ticks() -> None:
        watched.watch(3.5)

    watched.in_app = several_ticks
    watched.park(*watched.others)
    crew.work.append("slow")
    turn(watched, watched.first)
    assert crew._wary > 3
    before = crew._wary
    watched.in_app = lambda: None
    crew._holder = watched.first
    crew.work.append("quick")
    turn(watched, watched.first)
    assert crew._wary == before - 1


def test_a_request_in_the_app_is_seen_as_the_next_one(watched: Watched) -> None:
    """Its number changes before the hand is seen busy, or the watch might take two for one."""
    seen: list[tuple[bool, int]] = []
    hand = watched.first

    class Looked:
        """A hand; notes what the watch could see at each change."""

        busy: bool
        turn: int

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)
            if name in ("busy", "turn") and hasattr(self, "turn"):
                seen.append((self.busy, self.turn))

    looked: Any = Looked()
    looked.gate, looked.polling, looked.busy, looked.turn = hand.gate, False, False, 7
    watched.crew._holder = looked
    seen.clear()
    watched.crew.work.append("request")
    watched.crew._take_turn(looked)
    assert seen == [(False, 8), (True, 8), (False, 8)]


def test_what_was_received_for_a_thread_comes_first(watched: Watched) -> None:
    """It has waited longest; events behind it cannot starve it."""
    watched.crew.work.append("event")
    watched.crew.ready.append("request")
    turn(watched, watched.first)
    turn(watched, watched.first)
    assert watched.ran == ["request", "event"]
    assert not watched.crew.ready


class Polling:
    """A hand; work comes in the moment in which it says that it polls."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.busy, self.turn, self._polling = False, 0, False

    @property
    def polling(self) -> bool:
        return self._polling

    @polling.setter
    def polling(self, polling: bool) -> None:
        self._polling = polling
        if polling and not self.turn:
            self._queue.append("late")


def test_nobody_polls_for_ever_while_there_is_work(watched: Watched) -> None:
    """Whoever adds to it sees that somebody polls, or is seen by them."""
    crew = watched.crew
    for queue in (crew.work, crew.ready):
        hand: Any = Polling(queue)
        crew._holder = hand
        turn(watched, hand)
        assert not watched.polls
        turn(watched, hand)
        assert not hand.polling
    assert watched.ran == ["late", "late"]


def test_nor_does_the_watch(watched: Watched) -> None:
    crew = watched.crew
    hand: Any = Polling(crew.work)
    crew._holder = crew._watch_hand = hand
    watched.park(watched.others[0])
    crew._stand_in(watched.now + LONG_S)
    assert not watched.polls
    assert list(crew.ready) == ["late"]
    assert crew._holder is watched.others[0]


def test_who_is_not_on_duty_never_polls_and_never_spins(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = watched.crew
    parked: list[Any] = []
    monkeypatch.setattr(crew, "_relieve_or_park", parked.append)
    crew._holder = watched.others[0]
    for item in (None, (7, 1), "request"):
        if item is not None:
            crew.work.append(item)
        parked.clear()
        crew._take_turn(watched.first)
        assert parked == [watched.first]
    assert not watched.polls
    # On duty it does neither.
    crew._holder = watched.first
    parked.clear()
    for item in ((7, 1), "request"):
        crew.work.append(item)
        crew._take_turn(watched.first)
    assert not parked


def test_a_crew_that_stops_wakes_everybody_once(watched: Watched) -> None:
    watched.park(*watched.others)
    watched.crew.stop()
    assert not any(hand.gate.locked() for hand in watched.others)
    assert watched.wakes == 1
    watched.enter(watched.first)
    watched.crew._hand_over(watched.first)  # an app that goes on: there is nobody to wake
    assert watched.crew._holder is watched.crew._watch_hand


def test_work_wakes_who_polls_after_it_is_there(watched: Watched) -> None:
    crew = watched.crew
    there: list[int] = []
    crew._dispatcher.wake = lambda: there.append(len(crew.work))  # type: ignore[method-assign]
    crew.push("a")
    assert there == []  # nobody polls
    watched.first.polling = True
    crew.push("b")
    assert there == [2]


def test_what_the_watch_receives_wakes_a_thread_after_it_is_there(watched: Watched) -> None:
    crew = watched.crew
    crew._holder = crew._watch_hand
    watched.park(watched.others[0])
    crew.work.append("request")
    ready: list[int] = []
    give = crew._give_duty_to

    def look(hand: Any) -> None:
        ready.append(len(crew.ready))
        give(hand)

    crew._give_duty_to = look  # type: ignore[method-assign]
    crew._stand_in(watched.now + 1)
    assert ready == [1]
    assert crew._holder is watched.others[0]


def test_it_gives_no_duty_away_that_it_has_no_longer(watched: Watched) -> None:
    crew = watched.crew
    watched.park(watched.others[0])
    # Between the watch's look and its lock, the app has ended, or another has taken the duty.
    crew._hand_over(watched.first)
    assert crew._holder is watched.first
    watched.enter(watched.first)
    crew._holder = watched.others[1]
    crew._hand_over(watched.first)
    assert crew._holder is watched.others[1]
    crew._call_for(crew._watch_hand)
    assert crew._holder is watched.others[1]
    crew._pass_on(watched.first)
    assert crew._holder is watched.others[1]
    assert crew._parked == [watched.others[0]]


def test_who_comes_out_of_an_app_parks_unless_something_waits(watched: Watched) -> None:
    crew = watched.crew
    me, holder = watched.others

    def parks() -> bool:
        me.gate.release()  # so that it does not wait here
        crew._relieve_or_park(me)
        parked = me in crew._parked
        crew._parked.clear()
        me.gate.acquire(blocking=False)
        return parked

    crew._holder = holder
    assert parks()
    for queue in (crew.work, crew.ready):
        queue.append("request")
        assert parks()  # the other one is about to look
        holder.polling = True
        assert not parks()
        holder.polling = False
        crew._holder = crew._watch_hand
        assert not parks()
        crew._holder = holder
        queue.clear()
    holder.busy = True
    assert not parks()
    assert crew._holder is me
    assert not parks()  # on duty, never
    crew._holder = holder
    holder.busy = False
    crew._stopped = True
    assert not parks()

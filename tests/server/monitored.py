"""A pool and its monitor in tests: no thread does anything by itself."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast.server.monitor import TICK_S
from wsgifast.server.poller import Event
from wsgifast.server.pool import Pool

__all__ = ["SIZE", "Monitored", "exhaust", "monitored"]

SIZE = 3


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
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        poller: Any = SimpleNamespace(poll=self._poll, wake=self._wake)
        work: Any = SimpleNamespace(
            receive=lambda item: self.receive(item),
            run=self._run,
            on_tick=self._tick,
            on_saturation=self._saturate,
            on_failure=lambda: None,
            on_queued=lambda job: self.at_queued(job),
            on_taken=lambda job: self.at_taking(job),
            close_body=lambda close: close.call(),
        )
        self.pool: Pool = Pool(SIZE, poller, work)
        alarm: Any = SimpleNamespace(wait=self._pause, set=self._set_alarm)
        self.pool.monitor._alarm = alarm
        self.first, *self.others = self.pool._members
        self.spare = self.pool._spare
        self.spare.thread = threading.current_thread()
        self.pool._spare_waits = True
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
    def spare_waits(self) -> bool:
        return self.pool._spare_waits

    @property
    def lead_is_on_offer(self) -> bool:
        return self.pool._lead_is_offered

    @lead_is_on_offer.setter
    def lead_is_on_offer(self, on_offer: bool) -> None:
        self.pool._lead_is_offered = on_offer

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
        self.pool._serve(member)

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
        self.pool.monitor.watch(ticks * TICK_S)

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


def exhaust(monitored: Monitored) -> float:
    """Let the only thread that is free be taken; returns when that was noticed."""
    monitored.enter(monitored.first)
    monitored.run(1.5)
    monitored.first.busy = False
    since = monitored.pool.exhaustion.since
    assert since is not None
    assert 100 < since <= monitored.now
    return since

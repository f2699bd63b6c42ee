"""Pools for tests: with threads (Harness), and without threads, step by step (Monitored)."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workers.serving import POLLERS
from wsgifast.server.monitor import TICK_S
from wsgifast.server.poller import READ, EpollPoller, Event, Poller, PollPoller
from wsgifast.server.pool import Pool, Task

# The time limit of waits that only a faulty pool would reach.
PATIENCE_S = 60.0
SIZE = 3
SPARE = "wsgifast-spare"

App = Callable[[], object]


def poller_of(kind: str) -> Poller:
    """:param kind: "epoll" or "poll"."""
    kinds: dict[str, type[Poller]] = {"epoll": EpollPoller, "poll": PollPoller}
    return kinds[kind]()


class Harness:
    """A pool with its monitor in a thread of its own, and jobs that are callables.

    They come by `push`, or as an event: a byte on a socket.

    :param round_s: the duration of one call of the monitor, unless an interrupt ends it.
    """

    def __init__(self, kind: str, size: int, round_s: float = 10 * PATIENCE_S) -> None:
        self.poller = poller_of(kind)
        self.failed = threading.Event()
        log = SimpleNamespace(exception=lambda *args: self.failed.set())
        self.pool = Pool(
            size=size,
            poller=self.poller,
            log=log,
            receive=self.receive,
            run=self.run,
            on_tick=lambda: False,
            on_queued=lambda job: None,
            on_dequeued=lambda job: True,
            on_saturation=lambda: None,
        )
        self.received_in: set[str] = set()
        self.ran_in: set[str] = set()
        self.rounds = 0  # of the monitor
        self._round_s = round_s
        self._apps: dict[int, tuple[socket.socket, App]] = {}
        self._transfers: dict[int, Callable[[int], object]] = {}
        self._sockets = contextlib.ExitStack()
        self.stopping = False
        self.monitor = threading.Thread(target=self._monitor_on, name="monitor")
        before = set(threading.enumerate())
        self.pool.start()
        self.threads = sorted(set(threading.enumerate()) - before, key=lambda t: t.name)
        self.monitor.start()

    def deliver(self, app: App) -> None:
        """Have an event start the app."""
        sock = self._readable()
        self._apps[sock.fileno()] = (sock, app)
        self.poller.add(sock.fileno(), READ)

    def push(self, app: App) -> None:
        """Have a task start the app."""
        self.pool.push(lambda: app)

    def transfer(self, step: Callable[[int], object], *, push: bool = False) -> None:
        """Let an event be input or output only, with nothing to run.

        :param step: called with a descriptor that is readable.
        :param push: push the event instead of leaving it to the poller.
        """
        fd = self._readable().fileno()
        self._transfers[fd] = step
        if push:
            self.pool.push((fd, 0))
        else:
            self.poller.add(fd, READ)

    def sees_an_event(self, *, push: bool = False) -> bool:
        """Return whether a thread handles an event that arrives now, and starts no app."""
        handled = threading.Event()
        self.transfer(lambda _: handled.set(), push=push)
        return handled.wait(PATIENCE_S)

    @contextlib.contextmanager
    def occupied(self, count: int = SIZE) -> Iterator[list[Gate]]:
        """Keep this number of threads in apps."""
        gates = [Gate() for _ in range(count)]
        try:
            for gate in gates:
                self.deliver(gate)
                assert gate.entered.wait(PATIENCE_S)
            yield gates
        finally:
            for gate in gates:
                gate.release()

    def _readable(self) -> socket.socket:
        sock, peer = socket.socketpair()
        self._sockets.enter_context(sock)
        self._sockets.enter_context(peer)
        peer.send(b"a")
        return sock

    def stop(self) -> None:
        self.stopping = True
        self.pool.monitor.interrupt()
        self.monitor.join(PATIENCE_S)
        self.pool.stop()
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} goes on"
        self._sockets.close()
        self.poller.close()

    def _monitor_on(self) -> None:
        while not self.stopping:
            self.pool.monitor.watch(self._round_s)
            self.rounds += 1

    # The functions that the pool calls

    def receive(self, item: Event | Task) -> App | None:
        self.received_in.add(threading.current_thread().name)
        if not isinstance(item, tuple):
            return item()
        if item[0] in self._transfers:
            self._transfers[item[0]](item[0])
            return None
        sock, app = self._apps[item[0]]
        assert sock.recv(2) == b"a", "an event has been delivered twice"
        return app

    def run(self, app: App) -> None:
        self.ran_in.add(threading.current_thread().name)
        app()


class Gate:
    """An app that waits in its thread until the test releases it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.left = threading.Event()
        self._released = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._released.wait(PATIENCE_S)
        self.left.set()

    def release(self) -> None:
        self._released.set()


@pytest.fixture(params=POLLERS)
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = Harness(request.param, SIZE)
    yield harness
    harness.stop()


def _within(name: str) -> Any:
    """Return an attribute of the pool, like :class:`Monitored`."""
    return property(
        lambda self: getattr(self.pool, name), lambda self, value: setattr(self.pool, name, value)
    )


class Monitored:
    """A pool without threads. Tests use a pool's private attributes only through this class.

    :ivar at_pause: called each time that the monitor waits; `at_poll`, when a member polls (None:
        time goes by); `at_tick`, at each tick, `at_saturation`, `at_queued` and `at_taking`: the
        pool's own calls; `in_app` is the app.
    :ivar early_promotions: before how many apps more another member is promoted, as they may be
        slow.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.alarm_at = math.inf
        self.alarms: list[float] = []  # for how long the alarm was set
        # The leader at each tick, and the timeout of each poll.
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
        self.pool: Pool = Pool(
            size=SIZE,
            poller=poller,
            log=logging.getLogger("test"),
            receive=lambda item: self.receive(item),
            run=self._run,
            on_tick=self._tick,
            on_saturation=self._saturate,
            on_queued=lambda job: self.at_queued(job),
            on_dequeued=lambda job: self.at_taking(job) is not False,
        )
        alarm: Any = SimpleNamespace(wait=self._pause, set=self._set_alarm)
        self.pool.monitor._alarm = alarm
        self.first, *self.others = self.pool.members
        self.spare = self.pool._spare
        self.spare.thread = threading.current_thread()
        self.pool._spare_waits = True
        self._promote, self.pool._promote = self.pool._promote, self._promoted  # type: ignore[method-assign]

    leader = property(
        lambda self: self.pool.leader, lambda self, member: self.pool._set_leader(member)
    )
    followers = _within("_followers")
    spare_waits = _within("_spare_waits")
    lead_is_on_offer = _within("_lead_is_offered")
    early_promotions = _within("_early_promotions_left")

    def replace(self, leader: Any) -> None:
        """The monitor has seen this leader in one turn for too long."""
        self.pool.replace(leader)

    # The actions of a member

    def serve(self, member: Any) -> None:
        self.pool._serve(member)

    def turn(self, member: Any) -> list[Any]:
        came_back: list[Any] = []
        follow, self.pool._lead_or_follow = self.pool._lead_or_follow, came_back.append  # type: ignore[method-assign,assignment]
        try:
            self.pool._serve(member)
        finally:
            self.pool._lead_or_follow = follow  # type: ignore[method-assign]
        return came_back

    def come_back(self, member: Any) -> None:
        """After its turn: the member leads or follows."""
        Pool._lead_or_follow(self.pool, member)

    def run(self, ticks: float) -> None:
        self.pool.monitor.watch(ticks * TICK_S)

    def enter(self, member: Any) -> None:
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
    """Have the only free thread taken. Return when the pool noticed it."""
    monitored.enter(monitored.first)
    monitored.run(1.5)
    monitored.first.busy = False
    since = monitored.pool.exhaustion.since
    assert since is not None
    assert 100 < since <= monitored.now
    return since

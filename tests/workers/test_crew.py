"""The crew by itself: who polls, who runs, who stands in, and that no work is left lying."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.support.servers import wait_for
from tests.workers.serving import DISPATCHERS
from wsgifast.workers.crew import Crew
from wsgifast.workers.dispatcher import READ, Event, make_dispatcher

# Longer than anything here takes: who waits so long has been forgotten.
PATIENCE_S = 20.0
FOREVER_S = 300.0

Job = Callable[[], None]


class Doorbell:
    """A pipe: ringing it is an event in the dispatcher."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()

    def ring(self) -> None:
        os.write(self._write_fd, b"a")

    def hear(self) -> None:
        os.read(self.fd, 1)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write_fd)


class Team:
    """A crew whose jobs are functions, and whose main thread is one of this test's.

    :ivar on_event: what the event of a descriptor calls for; it returns a job, or None.
    :ivar receivers: the threads that have taken up events, in turn.
    """

    def __init__(self, kind: str, size: int, watched: bool = True) -> None:
        self.dispatcher = make_dispatcher(kind)
        self.on_event: dict[int, Callable[[], Job | None]] = {}
        self.receivers: list[str] = []
        self.runners: list[str] = []
        self.ticks: list[bool] = []
        self.failures = 0
        self.crew: Crew[Job] = Crew(
            size=size,
            dispatcher=self.dispatcher,
            receive=self._receive,
            run=self._run,
            on_tick=lambda: self.ticks.append(self.crew.ticking),
            on_failure=self._on_failure,
        )
        self._ended = False
        self._watched = watched
        self.watch = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._before = set(threading.enumerate())

    def start(self) -> None:
        self.crew.start()
        if self._watched:
            self.watch.start()

    def end(self) -> None:
        """Stop, and see that every thread ends."""
        self._ended = True
        self.crew.stop()
        self.crew.ring()
        wait_for(lambda: not self.threads(), "all threads have ended")
        self.dispatcher.close()

    def threads(self) -> set[threading.Thread]:
        return {t for t in set(threading.enumerate()) - self._before if t.is_alive()}

    def expect(self, doorbell: Doorbell, on_event: Callable[[], Job | None]) -> None:
        self.on_event[doorbell.fd] = on_event
        self.dispatcher.add(doorbell.fd, READ)

    def _receive(self, item: Event | Job) -> Job | None:
        if not isinstance(item, tuple):
            return item
        self.receivers.append(threading.current_thread().name)
        return self.on_event[item[0]]()

    def _run(self, job: Job) -> None:
        self.runners.append(threading.current_thread().name)
        job()

    def _on_failure(self) -> None:
        self.failures += 1
        self.crew.ring()

    def _watch(self) -> None:
        while not self._ended:
            self.crew.watch(FOREVER_S)


@pytest.fixture(params=DISPATCHERS)
def kind(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@contextlib.contextmanager
def team_of(kind: str, size: int, *, watched: bool = True) -> Iterator[Team]:
    """A team that the block sets up and starts; every thread must end after it."""
    team = Team(kind, size, watched)
    try:
        yield team
    finally:
        team.end()


@pytest.fixture
def doorbells() -> Iterator[list[Doorbell]]:
    made = [Doorbell() for _ in range(4)]
    yield made
    for doorbell in made:
        doorbell.close()


class Blocked:
    """Jobs that wait until they are let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self._free = threading.Event()

    def __call__(self) -> None:
        self.begun.release()
        assert self._free.wait(FOREVER_S)

    def wait_for(self, count: int) -> None:
        for number in range(count):
            assert self.begun.acquire(timeout=PATIENCE_S), f"{number} of {count} jobs have begun"

    def let_go(self) -> None:
        self._free.set()


@contextlib.contextmanager
def blocking() -> Iterator[Blocked]:
    """Let go at the end, whatever fails: nobody's threads are left behind."""
    blocked = Blocked()
    try:
        yield blocked
    finally:
        blocked.let_go()


def test_jobs_and_events_are_run(kind: str, doorbells: list[Doorbell]) -> None:
    done = threading.Semaphore(0)
    with team_of(kind, 2) as team:
        for doorbell in doorbells:
            team.expect(doorbell, lambda: done.release)
        team.start()
        for doorbell in doorbells:
            doorbell.ring()
        for _ in range(10):
            team.crew.push(done.release)
        for number in range(len(doorbells) + 10):
            assert done.acquire(timeout=PATIENCE_S), f"{number} have run"
    assert set(team.runners) <= {"wsgifast-0", "wsgifast-1"}


@pytest.mark.parametrize("size", [1, 2, 8])
def test_as_many_at_once_as_there_are_threads(kind: str, size: int) -> None:
    """Each of the jobs waits for all others: one thread too few, and none would ever end."""
    barrier = threading.Barrier(size + 1)
    with team_of(kind, size) as team:
        team.start()
        for _ in range(3):
            for _ in range(size):
                team.crew.push(lambda: (barrier.wait(PATIENCE_S), None)[1])
            barrier.wait(PATIENCE_S)
        assert len(team.runners) == 3 * size
        assert len(set(team.runners[-size:])) == size


def test_the_duty_is_handed_over_while_its_thread_is_in_a_job(
    kind: str, doorbells: list[Doorbell]
) -> None:
    with team_of(kind, 2) as team, blocking() as blocked:
        answered = threading.Event()
        team.expect(doorbells[0], lambda: blocked)
        team.expect(doorbells[1], lambda: answered.set)
        team.start()
        doorbells[0].ring()
        blocked.wait_for(1)
        doorbells[1].ring()
        assert answered.wait(PATIENCE_S)
        assert len(set(team.runners)) == 2
        assert "watch" not in team.receivers


def test_the_watch_stands_in_when_every_thread_is_busy(
    kind: str, doorbells: list[Doorbell]
) -> None:
    with team_of(kind, 2) as team, blocking() as blocked:
        received, answered = threading.Event(), threading.Event()
        team.expect(doorbells[0], received.set)  # input and output only: no job
        team.expect(doorbells[1], lambda: answered.set)
        team.start()
        team.crew.push(blocked)
        team.crew.push(blocked)
        blocked.wait_for(2)
        doorbells[0].ring()
        assert received.wait(PATIENCE_S)
        assert team.receivers == ["watch"]
        doorbells[1].ring()
        wait_for(lambda: len(team.receivers) == 2, "the watch has received the request too")
        assert not answered.is_set()  # the watch runs no app
        # Nor does a request that waits keep it from what comes next.
        received.clear()
        team.expect(doorbells[2], received.set)
        doorbells[2].ring()
        assert received.wait(PATIENCE_S)
        blocked.let_go()
        assert answered.wait(PATIENCE_S)
        assert "watch" not in team.runners


def test_the_watch_takes_up_events_that_a_thread_has_left_for_a_job(
    kind: str, doorbells: list[Doorbell]
) -> None:
    """One poll gave several events; the thread that has them is in the app for the first."""
    with team_of(kind, 1) as team, blocking() as blocked:
        received = threading.Semaphore(0)
        first = iter([blocked])

        def on_event() -> Job | None:
            received.release()
            return next(first, None)

        for doorbell in doorbells:
            doorbell.ring()
            team.expect(doorbell, on_event)
        team.start()
        blocked.wait_for(1)
        for number in range(len(doorbells)):
            assert received.acquire(timeout=PATIENCE_S), f"{number} of 4 events were taken up"


def test_an_event_pushed_while_every_thread_is_busy(kind: str, doorbells: list[Doorbell]) -> None:
    with team_of(kind, 1) as team, blocking() as blocked:
        received = threading.Event()
        team.on_event[doorbells[0].fd] = received.set
        team.start()
        team.crew.push(blocked)
        blocked.wait_for(1)
        wait_for(lambda: team.ticks[-1:] == [False], "the watch stands in")
        team.crew.push((doorbells[0].fd, 0))
        assert received.wait(PATIENCE_S)


def test_a_watch_that_stands_in_comes_back_in_time(kind: str, doorbells: list[Doorbell]) -> None:
    """However many events keep coming: it has time limits and a heartbeat to look after."""
    with team_of(kind, 1, watched=False) as team, blocking() as blocked:
        again = 0
        enough = threading.Event()

        def on_event() -> None:
            nonlocal again
            again += 1
            if not enough.is_set():
                team.dispatcher.arm(doorbells[0].fd, READ)  # never read, so ready at once

        team.start()
        team.crew.push(blocked)
        blocked.wait_for(1)
        team.expect(doorbells[0], on_event)
        doorbells[0].ring()
        watch = threading.Thread(target=team.crew.watch, args=(0.05,), daemon=True)
        watch.start()
        watch.join(2.0)
        returned = not watch.is_alive()
        enough.set()
        watch.join(PATIENCE_S)
        assert again, "the watch has not stood in at all"
        assert returned, f"the watch has not come back after {again} events"


def test_jobs_wait_for_the_crew_not_for_the_watch(kind: str) -> None:
    count = 100
    with team_of(kind, 2) as team, blocking() as blocked:
        done = threading.Semaphore(0)
        team.start()
        for _ in range(2):
            team.crew.push(blocked)
        blocked.wait_for(2)
        for _ in range(count):
            team.crew.push(done.release)
        assert not done.acquire(blocking=False)
        blocked.let_go()
        for number in range(count):
            assert done.acquire(timeout=PATIENCE_S), f"{number} of {count} have run"
        assert "watch" not in team.runners


def _asleep(team: Team) -> bool:
    return team.ticks[-1:] == [False]


def _ticked(team: Team, since: int) -> bool:
    return True in team.ticks[since:]


@pytest.mark.parametrize("state", ["ticking", "asleep", "standing in"])
def test_a_ring_brings_the_watch_back(kind: str, state: str) -> None:
    """As a signal does, which shall be heeded at once."""
    with team_of(kind, 1, watched=False) as team, blocking() as blocked:
        team.start()
        if state == "standing in":
            team.crew.push(blocked)
            blocked.wait_for(1)
        watch = threading.Thread(target=team.crew.watch, args=(FOREVER_S,), daemon=True)
        watch.start()
        if state == "ticking":
            wait_for(lambda: team.ticks, "the watch ticks")
        else:
            wait_for(lambda: _asleep(team), f"the watch is {state}")
        team.crew.ring()
        watch.join(PATIENCE_S)
        assert not watch.is_alive()


def test_an_idle_watch_sleeps_and_a_job_wakes_it(kind: str) -> None:
    with team_of(kind, 2) as team:
        team.start()
        for _ in range(3):
            wait_for(lambda: _asleep(team), "the watch sleeps")
            ticks = len(team.ticks)
            with blocking() as blocked:
                team.crew.push(blocked)
                blocked.wait_for(1)
                wait_for(partial(_ticked, team, ticks), "it ticks again")


def test_stop_lets_a_busy_thread_finish_its_job(kind: str) -> None:
    team = Team(kind, 3)
    team.start()
    with blocking() as blocked:
        team.crew.push(blocked)
        blocked.wait_for(1)
        team.crew.stop()
        wait_for(
            lambda: sum(t.name.startswith("wsgifast-") for t in team.threads()) == 1,
            "the other two have ended",
        )
    team.end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("where", ["receive", "run"])
def test_an_error_of_our_own_is_told(kind: str, where: str, doorbells: list[Doorbell]) -> None:
    def fail() -> None:
        raise ZeroDivisionError(where)

    with team_of(kind, 2) as team:
        team.expect(doorbells[0], fail if where == "receive" else lambda: fail)
        team.start()
        assert not team.crew.failed
        doorbells[0].ring()
        wait_for(lambda: team.failures, "the failure is told")
        assert team.failures == 1
        assert team.crew.failed


@pytest.mark.parametrize("size", [1, 2, 4])
def test_nobody_parks_while_there_is_work(kind: str, size: int, doorbells: list[Doorbell]) -> None:
    """Bursts of short jobs from outside, from jobs and from events; after each, all have run."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # many more changes of threads, in more places
    rounds, burst = 150, 6
    done = threading.Semaphore(0)
    try:
        with team_of(kind, size) as team:

            def more() -> None:
                team.crew.push(done.release)
                done.release()

            def on_event(doorbell: Doorbell) -> Job:
                doorbell.hear()
                team.dispatcher.arm(doorbell.fd, READ)
                return done.release

            for doorbell in doorbells:
                team.expect(doorbell, partial(on_event, doorbell))
            team.start()
            for number in range(rounds):
                for _ in range(burst):
                    team.crew.push(more)
                for doorbell in doorbells:
                    doorbell.ring()
                expected = 2 * burst + len(doorbells)
                for count in range(expected):
                    assert done.acquire(timeout=PATIENCE_S), (
                        f"round {number}: {count} of {expected} have run"
                    )
            assert not done.acquire(blocking=False), "something has run twice"
    finally:
        sys.setswitchinterval(interval)

"""The pool alone: a thread always polls, work runs once, and there are as many apps as threads."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from tests.server.pool_harness import PATIENCE_S, SIZE, SPARE, App, Gate, Harness
from tests.support.calls import raising
from tests.support.servers import wait_for
from tests.workers.serving import POLLERS
from wsgifast.server.monitor import is_running
from wsgifast.server.poller import READ, Event


@pytest.fixture(params=["push", "deliver"])
def start(request: pytest.FixtureRequest, harness: Harness) -> Callable[[App], None]:
    """The two ways in which work arrives."""
    return harness.push if request.param == "push" else harness.deliver


Start = Callable[[App], None]


@pytest.mark.parametrize("kind", POLLERS)
def test_task_that_comes_again_lets_events_go_first(kind: str) -> None:
    harness = Harness(kind, 1)
    done = threading.Event()
    turns = 0

    def again() -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            harness.deliver(done.set)
        if not done.is_set() and not harness.stopping:
            harness.pool.defer(again)

    harness.pool.defer(again)
    came = done.wait(PATIENCE_S)
    harness.stop()
    assert came
    assert turns < 10  # one poll, and as many as a poller needs to learn of the event


def test_as_many_apps_run_at_once_as_there_are_threads(harness: Harness, start: Start) -> None:
    meeting = threading.Barrier(SIZE + 1)
    for _ in range(3):  # in turns: the leader changes in between
        for _ in range(SIZE):
            start(lambda: meeting.wait(PATIENCE_S))
        meeting.wait(PATIENCE_S)
    assert harness.ran_in == {thread.name for thread in harness.threads} - {SPARE}


def test_no_more_apps_run_at_once_than_threads(harness: Harness, start: Start) -> None:
    lock = threading.Lock()
    inside = most = 0
    ran: Counter[int] = Counter()
    everything = threading.Event()

    def app(number: int) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            ran[number] += 1
        if number % 7 == 0:  # long enough for the promotion of another thread
            threading.Event().wait(0.003)
        with lock:
            inside -= 1
            if len(ran) == 300:
                everything.set()

    for number in range(300):
        start(lambda number=number: app(number))  # type: ignore[misc]
    assert everything.wait(PATIENCE_S)
    assert set(ran.values()) == {1}
    assert most <= SIZE


def test_another_leads_while_a_thread_is_in_an_app(harness: Harness, start: Start) -> None:
    for _ in range(3):
        first = Gate()
        start(first)
        assert first.entered.wait(PATIENCE_S)
        start(first.release)  # only the test ends it
        second = threading.Event()
        start(second.set)
        assert second.wait(PATIENCE_S)


def test_spare_receives_for_a_pool_that_is_all_in_apps(harness: Harness) -> None:
    with harness.occupied() as gates:
        late = [threading.Event() for _ in range(10)]
        for number, event in enumerate(late):
            (harness.push if number % 2 else harness.deliver)(event.set)
        wait_for(lambda: SPARE in harness.received_in, "a spare receives", PATIENCE_S)
        assert harness.pool.saturated
        assert not any(event.is_set() for event in late)  # and waits for a thread of the pool
        # Waiting requests do not delay later work.
        assert harness.sees_an_event()
        assert harness.sees_an_event(push=True)
        gates[0].release()
        for event in late:
            assert event.wait(PATIENCE_S)
        wait_for(lambda: not harness.pool.saturated, "the saturation ends", PATIENCE_S)
        assert SPARE not in harness.ran_in


def test_spare_takes_events_that_a_thread_left(harness: Harness) -> None:
    seen: list[bool] = []
    done = threading.Event()

    def app() -> None:
        seen.append(harness.sees_an_event(push=True))
        done.set()

    with harness.occupied(SIZE - 1):
        harness.deliver(app)
        assert done.wait(PATIENCE_S)
    assert seen == [True]


@pytest.mark.parametrize("kind", POLLERS)
def test_monitor_keeps_time_while_threads_are_taken(kind: str) -> None:
    """The number of events does not matter: the monitor checks time limits and the heartbeat."""
    harness = Harness(kind, 1, round_s=0.01)
    steps = 0
    over = threading.Event()

    def step(fd: int) -> None:  # reads nothing, so the socket is readable again at once
        nonlocal steps
        steps += 1
        if not over.is_set():
            harness.poller.arm(fd, READ)

    try:
        with harness.occupied(1):
            harness.transfer(step)
            wait_for(lambda: steps > 100, "a spare transfers")
            rounds = harness.rounds
            wait_for(lambda: harness.rounds > rounds + 2, "its rounds go on")
    finally:
        over.set()
        harness.stop()


def block_a_turn(harness: Harness) -> Gate:
    """Block a thread while it receives, without an app, like sendfile does for a slow disk."""
    gate = Gate()
    harness.transfer(lambda _: gate())
    assert gate.entered.wait(PATIENCE_S)
    return gate


@pytest.mark.parametrize("blocked", range(1, SIZE + 1))
def test_blocked_turns_keep_nobody_else_waiting(harness: Harness, blocked: int) -> None:
    gates = [block_a_turn(harness) for _ in range(blocked)]
    assert harness.sees_an_event()
    ran = threading.Event()
    harness.deliver(ran.set)
    if blocked < SIZE:
        assert ran.wait(PATIENCE_S)
    for gate in gates:
        gate.release()
    assert ran.wait(PATIENCE_S)


@pytest.mark.parametrize("busy", range(SIZE - 1))
def test_blocked_turns_beside_apps_delay_nobody(harness: Harness, busy: int) -> None:
    with harness.occupied(busy):
        gates = [block_a_turn(harness) for _ in range(2)]
        assert harness.sees_an_event()
        for gate in gates:
            gate.release()


def test_monitor_never_polls_nor_receives(harness: Harness) -> None:
    """The monitor keeps the worker's heartbeat. Other threads do all that could block."""
    polled_in: set[str] = set()
    poll = harness.poller.poll

    def look(timeout: float | None) -> list[Event]:
        polled_in.add(threading.current_thread().name)
        return poll(timeout)

    harness.poller.poll = look  # type: ignore[method-assign]
    with harness.occupied(SIZE - 2):
        gates = [block_a_turn(harness) for _ in range(2)]
        assert harness.sees_an_event()
        for gate in gates:
            gate.release()
    assert "monitor" not in harness.received_in | harness.ran_in | polled_in
    assert len(harness.received_in) > SIZE


def test_app_that_pushes_is_followed_by_its_pushes(harness: Harness, start: Start) -> None:
    """A pipelined request follows the one before it."""
    done = threading.Event()
    left = 100

    def app() -> None:
        nonlocal left
        left -= 1
        if left:
            harness.push(app)
        else:
            done.set()

    start(app)
    assert done.wait(PATIENCE_S)


def test_pushes_from_many_threads_run_once_each(harness: Harness) -> None:
    ran: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()
    everything = threading.Event()
    pushers, each = 4, 300

    def app(key: tuple[int, int], pause: bool) -> None:
        if pause:
            threading.Event().wait(0.002)
        with lock:
            ran[key] += 1
            if len(ran) == pushers * each:
                everything.set()

    def push(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(each):
            key, pause = (seed, number), chance.random() < 0.02
            harness.push(lambda key=key, pause=pause: app(key, pause))  # type: ignore[misc]
            if chance.random() < 0.05:
                threading.Event().wait(chance.random() * 0.002)

    threads = [threading.Thread(target=push, args=(seed,)) for seed in range(pushers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert everything.wait(PATIENCE_S), f"{len(ran)} have run"
    assert set(ran.values()) == {1}


@pytest.mark.parametrize("busy", [0, 1, SIZE])
def test_stop_waits_for_nobody_and_ends_everyone(harness: Harness, busy: int) -> None:
    with harness.occupied(busy):
        harness.pool.stop()  # returns although apps run
    for thread in harness.threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert not harness.pool.failed


def test_interrupt_ends_a_monitor_that_sleeps(harness: Harness) -> None:
    wait_for(lambda: not is_running(harness.monitor), "the monitor sleeps", PATIENCE_S)
    assert harness.rounds == 0
    harness.pool.monitor.interrupt()
    wait_for(lambda: harness.rounds == 1, "its round is over", PATIENCE_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_internal_error_in_a_thread_is_reported(harness: Harness, start: Start) -> None:
    assert not harness.pool.failed
    start(raising(RuntimeError, "an error of our own"))
    assert harness.failed.wait(PATIENCE_S)
    assert harness.pool.failed

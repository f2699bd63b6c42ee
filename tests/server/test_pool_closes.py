"""Which thread of a pool calls close() of a body, and when."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.pool_harness import PATIENCE_S, SIZE, Gate, Harness, Monitored
from tests.support.servers import wait_for
from wsgifast.server.pool import Close


class Sent:
    """An app whose body is still being sent when it returns.

    :ivar ran_in, closed_in: the threads.
    """

    def __init__(self, harness: Harness, close: Callable[[], object] = lambda: None) -> None:
        self.ran_in = ""
        self.closed_in: list[str] = []
        self.done = threading.Event()
        self.closed = threading.Event()
        self._harness = harness
        self._call = close

    def __call__(self) -> None:
        self.ran_in = threading.current_thread().name
        self.schedule_close = self._harness.pool.postpone(self._close, None)
        self.done.set()

    def _close(self) -> None:
        self.closed_in.append(threading.current_thread().name)
        self._call()
        self.closed.set()

    def deliver(self) -> Sent:
        self._harness.deliver(self)
        assert self.done.wait(PATIENCE_S)
        return self

    def end(self) -> Sent:
        """Another thread of the pool has sent the last byte."""
        self._harness.pool.push(lambda: self.schedule_close())
        return self

    def assert_closed_in_its_thread(self) -> None:
        assert self.closed.wait(PATIENCE_S)
        assert self.closed_in == [self.ran_in]


def test_idle_thread_is_woken_to_close(harness: Harness) -> None:
    for _ in range(50):
        Sent(harness).deliver().end().assert_closed_in_its_thread()


def test_close_due_outside_the_pool_wakes_its_thread(harness: Harness) -> None:
    for _ in range(50):
        sent = Sent(harness).deliver()
        sent.schedule_close()
        sent.assert_closed_in_its_thread()


def test_busy_threads_close_after_their_requests(harness: Harness) -> None:
    sent = [Sent(harness).deliver() for _ in range(SIZE * 3)]
    assert len({each.ran_in for each in sent}) == SIZE
    with harness.occupied() as gates:
        for each in sent:
            each.end()
        assert harness.sees_an_event()
        assert not any(each.closed_in for each in sent)
        for gate in gates:
            gate.release()
    for each in sent:
        each.assert_closed_in_its_thread()
    assert not harness.pool.has_pending_closes


def test_thread_closes_due_bodies_before_a_request(harness: Harness) -> None:
    sent = Sent(harness).deliver()
    seen: list[tuple[str, bool]] = []
    done = threading.Semaphore(0)

    def looks() -> None:
        seen.append((threading.current_thread().name, sent.closed.is_set()))
        done.release()

    with harness.occupied():
        sent.schedule_close()
        for _ in range(SIZE * 5):
            harness.deliver(looks)
        assert harness.sees_an_event()
    for _ in range(SIZE * 5):
        assert done.acquire(timeout=PATIENCE_S)
    sent.assert_closed_in_its_thread()
    assert all(closed for name, closed in seen if name == sent.ran_in)


def test_request_waiting_for_a_close_runs_elsewhere(harness: Harness) -> None:
    """close() may release a lock. Its thread must not run a request that waits for the lock."""
    for _ in range(20):
        lock = threading.Lock()
        lock.acquire()
        sent = Sent(harness, lock.release).deliver()
        waiting, got_it = threading.Event(), threading.Event()

        def waits(
            lock: threading.Lock = lock,
            waiting: threading.Event = waiting,
            got_it: threading.Event = got_it,
        ) -> None:
            waiting.set()
            if lock.acquire(timeout=PATIENCE_S):
                got_it.set()

        wait_for(lambda: harness.pool.leader.thread is not None, "somebody leads")
        wait_for(lambda sent=sent: harness.pool.leader.name != sent.ran_in, "another one leads")  # type: ignore[misc]
        harness.deliver(waits)
        assert waiting.wait(PATIENCE_S)
        sent.end().assert_closed_in_its_thread()
        assert got_it.wait(PATIENCE_S)


def test_requests_are_served_while_all_threads_close(harness: Harness) -> None:
    sent = [Sent(harness).deliver() for _ in range(SIZE * 2)]
    with harness.occupied():
        assert harness.sees_an_event()
    for each in sent:
        each.end().assert_closed_in_its_thread()


def test_close_that_blocks_holds_its_thread_only(harness: Harness) -> None:
    gate = Gate()
    sent = Sent(harness, gate).deliver().end()
    assert gate.entered.wait(PATIENCE_S)
    with harness.occupied(SIZE - 1):
        assert harness.sees_an_event()
        gate.release()
    sent.assert_closed_in_its_thread()


def test_close_due_in_stuck_thread_is_called_elsewhere(harness: Harness) -> None:
    sent = [Sent(harness).deliver() for _ in range(SIZE * 2)]
    with harness.occupied():
        for each in sent:
            each.schedule_close()
        harness.pool.close_in_other_thread(time.monotonic() - PATIENCE_S)
        assert harness.pool.has_pending_closes
        assert not any(each.closed_in for each in sent)  # they are busy, and not stuck yet
        harness.pool.close_in_other_thread(time.monotonic())
        for each in sent:
            assert each.closed.wait(PATIENCE_S)
            assert each.closed_in == [f"{each.ran_in}-close"]
        wait_for(lambda: not harness.pool.has_pending_closes, "none is left")


def test_close_of_stuck_thread_waits_without_threads(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(harness).deliver()
    with harness.occupied():
        sent.schedule_close()
        start = threading.Thread.start

        def cannot(thread: threading.Thread) -> None:
            if thread.name.endswith("-close"):
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", cannot)
            harness.pool.close_in_other_thread(time.monotonic())
        assert not sent.closed_in
    sent.assert_closed_in_its_thread()


def test_leader_looks_for_due_work_before_it_polls(monitored: Monitored) -> None:
    called: list[str] = []
    member = monitored.first
    close = Close(lambda: called.append("close"), None, member)
    member.closes.add(close)

    class Polling:
        """close() becomes due just when the member announces that it polls."""

        def __set__(self, owner: Any, polling: bool) -> None:
            owner.is_polling = polling
            if polling and not called:
                owner.due.append(close)

        def __get__(self, owner: Any, kind: Any) -> bool:
            return bool(getattr(owner, "is_polling", False))

    looked: Any = type("Looked", (), {"polling": Polling()})()
    for name in ("busy", "closes", "due", "gate", "name", "since", "spare", "thread", "turn"):
        setattr(looked, name, getattr(member, name))
    monitored.leader = looked
    monitored.serve(looked)
    assert not monitored.polls
    monitored.serve(looked)
    assert called == ["close"]
    assert not looked.closes


def test_leader_with_close_leaves_the_lead(monitored: Monitored) -> None:
    first, (second, third) = monitored.first, monitored.others
    monitored.follow(second, third)
    first.closes.add("close")
    third.closes.add("close")
    monitored.pool.work.append(lambda: None)
    monitored.serve(first)
    assert monitored.leader is second
    assert monitored.followers == [third]
    second.closes.add("close")
    monitored.pool.work.append(lambda: None)
    monitored.serve(second)
    assert monitored.leader is second  # every thread has a close() to call


class Turn:
    """A job, an event or a close() that records its call."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def __call__(self) -> None:
        self._done.append(threading.current_thread().name)


@pytest.mark.parametrize("what", ["job", "event", "close"])
def test_idle_thread_keeps_nothing_of_its_last_turn(harness: Harness, what: str) -> None:
    seen: list[weakref.ref[Any]] = []
    done: list[str] = []

    def take_turn() -> None:
        turn = Turn(done)
        seen.append(weakref.ref(turn))
        if what == "job":
            harness.deliver(turn)
        elif what == "event":
            harness.pool.push(turn)
        else:
            harness.deliver(lambda: harness.pool.postpone(turn, None)())

    with harness.occupied(SIZE - 1):
        take_turn()
        wait_for(lambda: len(done) == 1, "its turn is over")
    take_turn()
    wait_for(lambda: len(done) == 2, "its turn is over")
    harness._apps.clear()
    wait_for(lambda: not any(ref() for ref in seen), "nothing is stored")

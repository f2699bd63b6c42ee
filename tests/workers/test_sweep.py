"""The sweep of overdue connections, beside threads that close some and accept others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from wsgifast.workers import FastWorker
from wsgifast.workers.dispatcher import READ


class Waiting:
    """A connection that waits, as far as the sweep looks at it."""

    def __init__(self, fd: int, *, overdue: bool = False, starved: bool = False) -> None:
        self.fd = fd
        self.deadline = float("-inf") if overdue else float("inf")
        self.starved = starved
        self.ended = 0
        self.retried = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def on_overdue(self) -> None:
        self.ended += 1
        self.meanwhile()

    def retry(self) -> None:
        self.retried += 1


@pytest.fixture
def worker() -> Any:
    worker = FastWorker.__new__(FastWorker)
    worker.waiting = {}
    worker.pushed = []
    worker.crew = SimpleNamespace(push=worker.pushed.append)
    worker._acceptor = SimpleNamespace(resume=lambda: None)
    return worker


def test_only_what_is_overdue_or_starved_is_taken(worker: Any) -> None:
    late, starved, waiting = Waiting(7, overdue=True), Waiting(8, starved=True), Waiting(9)
    worker.waiting = {each.fd: each for each in (late, starved, waiting)}
    worker._sweep()
    assert (late.ended, starved.retried) == (1, 1)
    assert worker.waiting == {9: waiting}
    assert not worker.pushed


def test_what_has_an_event_meanwhile_is_left_to_it(worker: Any) -> None:
    first, second = Waiting(7, overdue=True), Waiting(8, overdue=True)
    worker.waiting = {7: first, 8: second}
    first.meanwhile = lambda: worker.waiting.pop(8)
    worker._sweep()
    assert (first.ended, second.ended) == (1, 0)
    assert not worker.pushed


@pytest.mark.parametrize("why", ["overdue", "starved"])
def test_a_descriptor_that_is_used_again_meanwhile_loses_no_connection(
    worker: Any, why: str
) -> None:
    first, closed, other = Waiting(7, overdue=True), Waiting(8, **{why: True}), Waiting(8)
    worker.waiting = {7: first, 8: closed}

    def used_again() -> None:
        worker.waiting[8] = other

    first.meanwhile = used_again
    worker._sweep()
    assert (closed.ended, closed.retried, other.ended, other.retried) == (0, 0, 0, 0)
    assert worker.waiting == {8: other}
    assert worker.pushed == [(8, READ)]  # in place of an event that found it taken

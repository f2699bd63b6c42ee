"""The moment at which a worker that is to be replaced ends."""

from __future__ import annotations

from wsgifast.server.server import _YOUNG_S, Drain


class Worker:
    def __init__(self, *connections: str) -> None:
        self.now = 1000.0
        self.open = set(connections)
        self.lingering: set[str] = set()
        self.drain: Drain = Drain(self.open, counts=self.counts, now=self.now, limit_s=100.0)

    def counts(self, connection: str) -> bool:
        return connection not in self.lingering

    def is_over(self, after_s: float = 0.01) -> bool:
        self.now += after_s
        return self.drain.is_over(self.now)


def test_a_worker_with_nothing_open_ends_at_once() -> None:
    assert Worker().is_over()


def test_what_is_quick_is_not_waited_for_beyond_the_first() -> None:
    worker = Worker("first")
    assert not worker.is_over()
    worker.open.add("second")
    worker.open.discard("first")
    assert worker.is_over()


def test_after_something_slow_all_that_is_open_then_has_to_be_young() -> None:
    worker = Worker("slow")
    worker.open.add("begun meanwhile")
    assert not worker.is_over(_YOUNG_S + 1)
    worker.open.discard("slow")
    assert not worker.is_over()
    worker.open.add("young")
    worker.open.discard("begun meanwhile")
    assert worker.is_over()


def test_after_something_slow_nothing_may_be_left() -> None:
    worker = Worker("slow")
    worker.open.discard("slow")
    assert worker.is_over(_YOUNG_S + 1)


def test_who_only_lingers_is_not_waited_for() -> None:
    worker = Worker("slow")
    worker.lingering.add("slow")
    assert worker.is_over()


def test_patience_has_an_end() -> None:
    worker = Worker("slow")
    assert not worker.is_over(99)
    assert worker.is_over(2)

"""Threads that are all stuck: the watchdog reports each occurrence once, with their stacks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workers.stepped_worker import SteppedWorker
from wsgifast.server.monitor import Member, Watchdog


class Stuck:
    """A pool with one real thread in an app, and a pool that the test drives."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []  # with their levels
        self.kills: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self.an_app_that_never_ends)
        self._thread.start()
        options = SimpleNamespace(stuck_after_s=30.0, kill_stuck_after_s=60.0)
        levels = ("warning", "error", "critical")
        log = SimpleNamespace(**{level: functools.partial(self._log, level) for level in levels})
        shared: Any = SimpleNamespace(log=log, options=options)
        self.member = Member("two", turn=7, busy=True)
        members = [Member("one", thread=self._thread, turn=3, busy=True), self.member]
        self.watchdog = Watchdog(shared, members, self.kill)

    def set_turn(self, turn: int | None) -> None:
        """Let the second thread begin this turn. None: it is idle."""
        self.member.busy = turn is not None
        self.member.turn = turn or self.member.turn

    def _log(self, level: str, text: str, *args: object) -> None:
        self.lines.append((level, text % args))

    @property
    def levels(self) -> list[str]:
        return [level for level, _ in self.lines]

    def an_app_that_never_ends(self) -> None:
        assert self._over.wait(60)

    def kill(self, reason: str, *args: object) -> None:
        self.kills.append(reason % args)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.end()


def test_stuck_threads_are_logged_once_with_stacks(stuck: Stuck) -> None:
    for now in (100, 120, 129.9):
        stuck.watchdog.check(now)
    assert not stuck.lines
    for now in (130, 131, 159):
        stuck.watchdog.check(now)
    ((level, text),) = stuck.lines
    assert level == "error"
    assert "All 2 threads" in text
    assert "for 30 s" in text
    assert "Thread one" in text
    assert "an_app_that_never_ends" in text
    assert "Thread two" in text
    assert not stuck.kills


def test_stuck_worker_is_killed(stuck: Stuck) -> None:
    for now in (100, 130, 159):
        stuck.watchdog.check(now)
    assert not stuck.kills
    stuck.watchdog.check(160)
    assert stuck.kills == ["All threads have been stuck for 60 s"]
    assert stuck.levels == ["error"]


def test_killed_server_logs_its_first_reason(stepped: SteppedWorker) -> None:
    stepped.server.kill("stuck for %d s", 60)
    stepped.server.kill("stuck for %d s", 61)
    assert stepped.server.end == "stuck"
    assert stepped.log.warnings == ["stuck for 60 s: the worker ends"]


@pytest.mark.parametrize("turn", [None, 8])
def test_one_running_thread_satisfies_the_watchdog(stuck: Stuck, turn: int | None) -> None:
    stuck.watchdog.check(100)
    stuck.set_turn(turn)
    stuck.watchdog.check(129)
    stuck.set_turn(8)
    stuck.watchdog.check(150)
    stuck.watchdog.check(158)
    assert not stuck.lines
    stuck.watchdog.check(180)
    assert len(stuck.lines) == 1
    stuck.set_turn(None)
    stuck.watchdog.check(181)
    stuck.watchdog.check(182)
    assert stuck.levels == ["error", "warning"]
    stuck.set_turn(9)
    stuck.watchdog.check(200)
    stuck.watchdog.check(230)
    assert stuck.levels == ["error", "warning", "error"]

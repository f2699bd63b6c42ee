"""An alarm goes off once, at the time of its last set(), and wakes no thread before."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.calls import raising
from wsgifast.sockets import alarm as module
from wsgifast.sockets.alarm import KernelAlarm, PlainAlarm, WakeEvent, make_alarm

# The limit of a wait that ends. A wait that hangs fails the test and not the run.
PATIENCE_S = 60.0


@pytest.fixture(params=["kernel", "plain"])
def alarm(request: pytest.FixtureRequest) -> Any:
    if request.param == "plain":
        return PlainAlarm()
    made = make_alarm()
    if not isinstance(made, KernelAlarm):
        pytest.skip("this system has no timerfd_create: it is Linux's")
    return made


def test_alarm_that_is_not_set_does_not_go_off(alarm: Any) -> None:
    assert not alarm.wait(0.001)


def test_alarm_goes_off_once(alarm: Any) -> None:
    alarm.set(0.001)
    assert alarm.wait(PATIENCE_S)
    assert not alarm.wait(0.001)


def test_alarm_that_went_off_before_the_wait_counts(alarm: Any) -> None:
    alarm.set(0)
    threading.Event().wait(0.002)
    assert alarm.wait(PATIENCE_S)


def test_alarm_set_again_goes_off_at_the_new_time(alarm: Any) -> None:
    alarm.set(0.001)
    alarm.set(10 * PATIENCE_S)
    assert not alarm.wait(0.01)
    alarm.set(1.5)
    alarm.set(0)
    assert alarm.wait(PATIENCE_S)


@pytest.mark.parametrize("before", [False, True])
def test_alarm_set_by_another_thread_ends_the_wait(alarm: Any, before: bool) -> None:
    if before:
        alarm.set(10 * PATIENCE_S)
    went_off: list[bool] = []
    waiting = threading.Thread(target=lambda: went_off.append(alarm.wait(PATIENCE_S)))
    waiting.start()
    alarm.set(0)
    waiting.join(PATIENCE_S)
    assert went_off == [True]


@pytest.mark.parametrize("error", [AttributeError, ImportError, OSError])
def test_system_without_timerfd_has_the_plain_alarm(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    kind: Callable[[], None] = raising(error)
    monkeypatch.setattr(module, "KernelAlarm", kind)
    assert isinstance(make_alarm(), PlainAlarm)


@pytest.mark.parametrize("seconds", [math.inf, 1e300, 1e10])
def test_alarm_and_wait_without_an_end_do_not_fail(alarm: Any, seconds: float) -> None:
    alarm.set(seconds)
    assert not alarm.wait(0.001)
    alarm.set(0.001)
    assert alarm.wait(seconds)
    event = WakeEvent()
    event.set()
    assert event.wait(seconds)

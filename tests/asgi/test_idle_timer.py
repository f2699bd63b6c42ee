"""One timer for all idle periods of a connection. The tests set the clock of the loop."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable
from typing import Any

from asgifast.protocols.receiving import ConnectionLoop

from tests.support.process import uncollected


class Timer:
    def __init__(self, due: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.due, self.callback, self.args = due, callback, args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Return the timers of an event loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def create_task(self, coro: Any) -> Any:
        return coro

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(self.now + delay, callback, args)
        self.timers.append(timer)
        return timer

    def wait(self, until: float) -> None:
        while due := [t for t in self.timers if t.due <= until and not t.cancelled]:
            timer = min(due, key=lambda t: t.due)
            self.timers.remove(timer)
            self.now = max(self.now, timer.due)
            timer.callback(*timer.args)
        self.now = until


def made() -> tuple[Loop, Any]:
    loop: Any = Loop()
    return loop, ConnectionLoop(loop, lambda: math.inf)


def test_idle_timer_calls_once_when_its_time_is_over() -> None:
    loop, idle = made()
    called: list[float] = []
    idle.call_later(5, lambda: called.append(loop.now))
    loop.wait(4.9)
    assert called == []
    loop.wait(20)
    assert called == [5.0], "once"


def test_idle_timer_is_one_for_many_requests() -> None:
    loop, idle = made()
    called: list[float] = []
    for request in range(1, 100):
        set_ = idle.call_later(5, lambda: called.append(loop.now))
        assert len(loop.timers) == 1
        loop.wait(request * 0.1)
        set_.cancel()
    idle.call_later(5, lambda: called.append(loop.now))
    loop.wait(100)
    assert called == [9.9 + 5], "counted from the last request"
    assert loop.timers == []


def test_cancelled_idle_timer_does_not_call() -> None:
    loop, idle = made()
    called: list[str] = []
    idle.call_later(5, lambda: called.append("first")).cancel()
    loop.wait(100)
    assert called == []
    assert loop.timers == [], "nobody is idle: nothing runs"
    idle.call_later(5, lambda: called.append("second"))
    loop.wait(105)
    assert called == ["second"]


def test_second_timer_is_the_loops_own() -> None:
    loop, idle = made()
    called: list[object] = []
    first = idle.call_later(5, lambda: called.append("idle"))
    second = idle.call_later(3, called.append, "other")
    first.cancel()
    assert isinstance(second, Timer)
    loop.wait(10)
    assert called == ["other"]


def test_stopped_idle_timer_keeps_no_connection() -> None:
    class Connection:
        def close(self) -> None: ...

    loop, idle = made()
    connection = Connection()
    left = weakref.ref(connection)
    idle.call_later(5, connection.close)
    idle.stop()
    with uncollected():
        del connection
        assert left() is None
    assert all(timer.cancelled for timer in loop.timers)


async def test_connection_loop_passes_on_everything_else() -> None:
    loop = asyncio.get_running_loop()
    idle = ConnectionLoop(loop, lambda: math.inf)
    assert idle.real is loop
    assert idle.is_running()
    assert await idle.create_task(asyncio.sleep(0, "done")) == "done"

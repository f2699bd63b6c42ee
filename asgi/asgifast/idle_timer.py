"""A connection's event loop with one timer for all the times that the connection is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["IdleTimerLoop"]


class IdleTimerLoop:
    """What a protocol of uvicorn takes for its event loop.

    uvicorn sets a timer behind every response, for the end of a kept connection, and the next
    request unsets it. To an event loop a timer costs more than all else that it does for a small
    response. So here one timer runs through: when its time is over it looks whether, and until
    when, the connection is idle by now.

    It is the timer, too, as :meth:`call_later` returns it: there is :meth:`cancel` alone.
    Everything but timers is the loop's own.
    """

    __slots__ = ("_callback", "_due", "_time", "_timer", "create_task", "real")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.real = loop
        self.create_task = loop.create_task
        self._time = loop.time
        # What is to be called at `_due`, by the loop's time; None: nothing is.
        self._callback: Callable[[], object] | None = None
        self._due = 0.0
        # The one that runs through.
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, **options: Any
    ) -> IdleTimerLoop | asyncio.TimerHandle:
        if self._callback is not None or args or options:
            return self.real.call_later(delay, callback, *args, **options)
        self.arm(delay, callback)
        return self

    def arm(self, delay: float, callback: Callable[[], object]) -> None:
        """Have a function called in so many seconds, in place of what is due by now."""
        self._due = self._time() + delay
        self._callback = callback
        if self._timer is None:
            self._timer = self.real.call_later(delay, self._over)

    def cancel(self) -> None:
        self._callback = None

    def stop(self) -> None:
        """End the timer: the connection is gone, and would be kept in memory by it."""
        self._callback = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        if self._callback is None:
            return
        left = self._due - self._time()
        if left > 0:
            self._timer = self.real.call_later(left, self._over)
            return
        callback, self._callback = self._callback, None
        callback()

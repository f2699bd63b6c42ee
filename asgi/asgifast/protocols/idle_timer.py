"""One keep-alive timer for each connection, in place of one for each response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class IdleTimerLoop:
    """Stands for the event loop in one of uvicorn's protocols.

    uvicorn sets a keep-alive timer after every response, and the next request cancels it. A timer
    costs an event loop more than everything else that it does for a small response. Here one timer
    runs on: when it fires, it checks whether the connection is idle by then, and since when.

    :meth:`call_later` returns this object: uvicorn uses nothing of a timer but :meth:`cancel`.
    Everything but call_later() is the real loop's.
    """

    __slots__ = ("_callback", "_due", "_time", "_timer", "create_task", "real")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.real = loop
        self.create_task = loop.create_task
        self._time = loop.time
        # To be called at `_due`, by the loop's time, unless it is None.
        self._callback: Callable[[], object] | None = None
        self._due = 0.0
        # Runs on while requests come and go.
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, **options: Any
    ) -> IdleTimerLoop | asyncio.TimerHandle:
        if self._callback is not None or args or options:
            return self.real.call_later(delay, callback, *args, **options)
        self._due = self._time() + delay
        self._callback = callback
        if self._timer is None:
            self._timer = self.real.call_later(delay, self._on_timer)
        return self

    def cancel(self) -> None:
        self._callback = None

    def stop(self) -> None:
        """The connection is lost: drop the timer, which refers to it."""
        self._callback = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._callback is None:
            return
        left = self._due - self._time()
        if left > 0:
            self._timer = self.real.call_later(left, self._on_timer)
            return
        callback, self._callback = self._callback, None
        callback()

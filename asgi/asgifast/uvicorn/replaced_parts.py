"""Parts of uvicorn's protocols that asgifast replaces: the timer, queues, and a transport.

Most are replaced by smaller ones, for connections whose clients are reading a download. There may
be thousands, each for minutes. An empty deque takes as much memory as the rest of a request's
state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

from ..messages import Scope

T = TypeVar("T")
_ACCEPTED = b"HTTP/1.1 101 "


class IdleTimerLoop:
    """Stands for the event loop in one of uvicorn's protocols, with one timer for a connection.

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


class Pipeline(list[Any]):
    """uvicorn's queue of pipelined requests, with the methods that it uses of a deque."""

    __slots__ = ()

    def appendleft(self, request: Any) -> None:
        self.insert(0, request)


@lru_cache(maxsize=64)
def shared(value: T) -> T:
    """Return the same object for all equal values, such as the server's address."""
    return value


def make_small(event: Any) -> None:
    """Replace the deque of an asyncio.Event that nobody waits for by a list."""
    waiters = getattr(event, "_waiters", None)
    if type(waiters) is deque and not waiters:
        event._waiters = []


def forget_request(protocol: Any, cycle: Any, scope: Scope) -> None:
    """Release a request whose app has returned, and whose response has begun.

    :param protocol: uvicorn's, over HTTP/1.1.
    :param cycle: its RequestResponseCycle, which uses nothing of the scope any more but the method.
    """
    cycle.scope = _scope_of(scope["method"])
    make_small(cycle.message_event)
    if protocol.scope is scope:  # and not the next request's
        protocol.scope = protocol.headers = None


@lru_cache(maxsize=16)
def _scope_of(method: str) -> Scope:
    return {"method": method}


class FramesBehindRequest:
    """The transport of a WebSocket protocol, with frames that came with the request for it.

    Not every protocol of uvicorn's takes frames before it has accepted: wsproto drops them. So they
    are delivered behind the 101, and nothing is read before. Everything else is the transport's.
    """

    def __init__(self, transport: asyncio.Transport, frames: bytes) -> None:
        self._transport = transport
        self._frames = frames
        transport.pause_reading()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        if self._frames and data.startswith(_ACCEPTED):
            asyncio.get_running_loop().call_soon(self._deliver, self._frames)
            self._frames = b""

    def _deliver(self, frames: bytes) -> None:
        if not self._transport.is_closing():
            cast("asyncio.Protocol", self._transport.get_protocol()).data_received(frames)
            self._transport.resume_reading()

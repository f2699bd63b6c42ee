"""Less memory for a connection whose client is reading a download.

There may be thousands, each for minutes. An empty deque takes as much memory as the rest of a
request's state.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any, TypeVar

from ..messages import Scope

T = TypeVar("T")


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

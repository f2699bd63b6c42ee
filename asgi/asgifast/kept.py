"""What uvicorn keeps of a connection while its client reads a download, made small.

Thousands may be under way, each for minutes, and an empty deque takes as much memory as the rest of
a request's state.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any, TypeVar

from .messages import Scope

__all__ = ["Pipeline", "forget_request", "make_small", "shared"]

T = TypeVar("T")


class Pipeline(list[Any]):
    """The requests that wait for the one before them, as uvicorn treats them: they are few."""

    __slots__ = ()

    def appendleft(self, request: Any) -> None:
        self.insert(0, request)


@lru_cache(maxsize=64)
def shared(value: T) -> T:
    """One of all equal values, as the server's address is for each of its connections."""
    return value


def make_small(event: Any) -> None:
    """Give an asyncio.Event for which nobody waits a list of waiters in place of its deque."""
    waiters = getattr(event, "_waiters", None)
    if type(waiters) is deque and not waiters:
        event._waiters = []


def forget_request(cycle: Any, scope: Scope) -> None:
    """Let go of a request whose app has returned, and whose response has begun.

    :param cycle: uvicorn's, of HTTP/1.1; of the scope it asks for the method from now on.
    """
    cycle.scope = _scope_of(scope["method"])
    make_small(cycle.message_event)
    protocol = cycle.on_response.__self__
    if protocol.scope is scope:  # and not that of the request behind it
        protocol.scope = protocol.headers = None


@lru_cache(maxsize=16)
def _scope_of(method: str) -> Scope:
    return {"method": method}

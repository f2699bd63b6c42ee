"""Waiting for room in sockets' send buffers, without a descriptor more for each.

Event loops refuse to watch the descriptor of a connection that they serve, and a duplicate would
count against the process's limit for as long as its client reads. So one selector watches all such
sockets of a loop, and the loop watches the selector: epoll and kqueue may stand in each other. It
exists as long as there is something to watch.

Thousands of downloads may have room at once, as when one link comes free again. To serve all of
them in one turn of the loop would have everybody else wait for all of them, so a turn ends after
TURN_S. Who has not been served comes first in the next one: epoll puts what it has told of behind
what it has not, and of other selectors it is remembered.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice

__all__ = ["CAN_WATCH", "call_while_writable", "stop_calling"]

# Whether the system has a selector that another one can watch.
CAN_WATCH = hasattr(selectors.DefaultSelector, "fileno")

# What callbacks may take of one turn of the loop, before it looks at anything else: many times what
# it costs to ask the loop for the next turn.
TURN_S = 0.001
# So many are told of at once, between two looks at the clock: their steps together should take no
# longer than a turn, also where fast clients take whole windows.
EVENTS_AT_ONCE = 8

_Callback = Callable[[], object]


def call_while_writable(
    loop: asyncio.AbstractEventLoop, fd: int, callback: Callable[[], object]
) -> None:
    """Have a function called again and again while a socket has room.

    :param fd: stays open until :func:`stop_calling`, since its number may be another's next.
    """
    watched = _watched.get(loop)
    if watched is None:
        watched = _watched[loop] = _ByEpoll() if hasattr(select, "epoll") else _BySelector()
        loop.add_reader(watched.fileno(), watched.call_ready)
    watched.add(fd, callback)


def stop_calling(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    """Undo :func:`call_while_writable`."""
    watched = _watched[loop]
    watched.remove(fd)
    if not watched:
        del _watched[loop]
        loop.remove_reader(watched.fileno())
        watched.close()


class _Watched(ABC):
    """The sockets of a loop that are waited for, and what is called for each."""

    def __init__(self) -> None:
        self._callbacks: dict[int, _Callback] = {}

    def __len__(self) -> int:
        return len(self._callbacks)

    def add(self, fd: int, callback: _Callback) -> None:
        self._watch(fd)
        self._callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        self._forget(fd)
        del self._callbacks[fd]

    def call_ready(self) -> None:
        """Call what is to be called, for one turn of the loop."""
        callbacks = self._callbacks
        end = time.monotonic() + TURN_S
        while callbacks:  # without any, the selector is closed
            ready = self._ready()
            for fd in ready:
                callback = callbacks.get(fd)
                if callback is not None:  # another callback may have removed it
                    callback()
            if len(ready) < EVENTS_AT_ONCE or time.monotonic() >= end:
                return

    @abstractmethod
    def fileno(self) -> int:
        """What the loop watches."""

    @abstractmethod
    def close(self) -> None:
        """Nothing is watched any more."""

    @abstractmethod
    def _watch(self, fd: int) -> None: ...

    @abstractmethod
    def _forget(self, fd: int) -> None: ...

    @abstractmethod
    def _ready(self) -> Sequence[int]:
        """Those with room, EVENTS_AT_ONCE at most: first who has waited longest."""


class _ByEpoll(_Watched):
    """Linux's own, without the objects that selectors makes of each event."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll = select.epoll()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()

    def _watch(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLOUT)

    def _forget(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def _ready(self) -> Sequence[int]:
        return [fd for fd, _ in self._epoll.poll(0, EVENTS_AT_ONCE)]


class _BySelector(_Watched):
    """kqueue, on macOS and the BSDs: it tells of all at once, and always in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = selectors.DefaultSelector()
        self._told: dict[int, None] = {}  # in their order, and not called since

    def fileno(self) -> int:
        return self._selector.fileno()  # type: ignore[attr-defined,unused-ignore,no-any-return]

    def close(self) -> None:
        self._selector.close()

    def _watch(self, fd: int) -> None:
        self._selector.register(fd, selectors.EVENT_WRITE)

    def _forget(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._told.pop(fd, None)

    def _ready(self) -> Sequence[int]:
        told = self._told
        if not told:
            told.update((key.fd, None) for key, _ in self._selector.select(0))
        ready = list(islice(told, EVENTS_AT_ONCE))
        for fd in ready:
            del told[fd]
        return ready


_watched: dict[asyncio.AbstractEventLoop, _Watched] = {}

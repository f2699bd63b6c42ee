"""Callbacks while a socket is writable, without another descriptor for each socket.

An event loop refuses to watch the descriptor of a transport's socket, and a duplicate would count
against the process's limit for as long as the client reads. So one selector watches all such
sockets of a loop, and the loop watches the selector: epoll and kqueue can be nested. The selector
exists as long as it watches a socket.

Thousands of downloads may have room at once, such as when a link recovers. Serving all of them in
one turn of the loop would delay everything else, so that a turn ends after TURN_S. The next one
begins with those not served: epoll puts the events that it has reported behind the others, and for
other selectors the rest is remembered.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice

# Whether the system has a selector that another one can watch.
CAN_WATCH = hasattr(selectors.DefaultSelector, "fileno")

# How long callbacks may take in one turn of the loop: many times what the next turn costs.
TURN_S = 0.001
# So many callbacks between two looks at the clock: together they should take no longer than a turn,
# even if fast clients take whole windows.
EVENTS_AT_ONCE = 8

_Callback = Callable[[], object]


def call_while_writable(
    loop: asyncio.AbstractEventLoop, fd: int, callback: Callable[[], object]
) -> None:
    """Call a function again and again while a socket has room.

    :param fd: must stay open until :func:`stop_calling`: its number may be reused.
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
    """The watched sockets of a loop, and their callbacks."""

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
        """Call the callbacks of sockets with room, for one turn of the loop."""
        callbacks = self._callbacks
        end = time.monotonic() + TURN_S
        while callbacks:  # without one, the selector is closed
            ready = self._ready()
            for fd in ready:
                callback = callbacks.get(fd)
                if callback is not None:  # another callback may have removed it
                    callback()
            if len(ready) < EVENTS_AT_ONCE or time.monotonic() >= end:
                return

    @abstractmethod
    def fileno(self) -> int:
        """The selector's, for the loop to watch."""

    @abstractmethod
    def close(self) -> None:
        """Close the selector."""

    @abstractmethod
    def _watch(self, fd: int) -> None: ...

    @abstractmethod
    def _forget(self, fd: int) -> None: ...

    @abstractmethod
    def _ready(self) -> Sequence[int]:
        """Descriptors with room, at most EVENTS_AT_ONCE, those that have waited longest first."""


class _ByEpoll(_Watched):
    """epoll itself, without the objects that the selectors module makes of each event."""

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
    """kqueue, on macOS and the BSDs: it reports all events at once, always in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = selectors.DefaultSelector()
        self._reported: dict[int, None] = {}  # not called yet, in order

    def fileno(self) -> int:
        return self._selector.fileno()  # type: ignore[attr-defined,unused-ignore,no-any-return]

    def close(self) -> None:
        self._selector.close()

    def _watch(self, fd: int) -> None:
        self._selector.register(fd, selectors.EVENT_WRITE)

    def _forget(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._reported.pop(fd, None)

    def _ready(self) -> Sequence[int]:
        reported = self._reported
        if not reported:
            reported.update((key.fd, None) for key, _ in self._selector.select(0))
        ready = list(islice(reported, EVENTS_AT_ONCE))
        for fd in ready:
            del reported[fd]
        return ready


_watched: dict[asyncio.AbstractEventLoop, _Watched] = {}

"""Waiting for room in sockets' send buffers, without a descriptor more for each.

Event loops refuse to watch the descriptor of a connection that they serve, and a duplicate would
count against the process's limit for as long as its client reads. So one selector watches all such
sockets of a loop, and the loop watches the selector: epoll and kqueue may stand in each other. It
exists as long as there is something to watch.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from functools import partial

__all__ = ["CAN_WATCH", "call_while_writable", "stop_calling"]

# Whether the system has a selector that another one can watch.
CAN_WATCH = hasattr(selectors.DefaultSelector, "fileno")

_selectors: dict[asyncio.AbstractEventLoop, selectors.DefaultSelector] = {}


def call_while_writable(
    loop: asyncio.AbstractEventLoop, fd: int, callback: Callable[[], object]
) -> None:
    """Have a function called in every turn of the loop in which a socket has room.

    :param fd: stays open until :func:`stop_calling`, since its number may be another's next.
    """
    selector = _selectors.get(loop)
    if selector is None:
        selector = _selectors[loop] = selectors.DefaultSelector()
        loop.add_reader(selector.fileno(), partial(_call_ready, selector))
    selector.register(fd, selectors.EVENT_WRITE, callback)


def stop_calling(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    """Undo :func:`call_while_writable`."""
    selector = _selectors[loop]
    selector.unregister(fd)
    if not selector.get_map():
        del _selectors[loop]
        loop.remove_reader(selector.fileno())
        selector.close()


def _call_ready(selector: selectors.DefaultSelector) -> None:
    for key, _ in selector.select(0):
        key.data()

"""The order of what several tasks send of one response."""

from __future__ import annotations

from collections import deque

from .loops import Event, new_event


class SendOrder:
    """Lets one send() at a time through, in the order of their calls.

    Only who is let through may wait for the server::

        if order.is_taken:
            await order.wait()
        order.is_taken = True
        try:
            ...
        finally:
            order.leave()

    :ivar is_taken: whether a send() was let through and has not left.
    """

    __slots__ = ("_waiting", "is_taken")

    def __init__(self) -> None:
        self.is_taken = False
        self._waiting: deque[Event] | None = None  # made when needed, as few responses need it

    async def wait(self) -> None:
        """Wait behind the others; then the order is taken by the caller."""
        event = new_event()
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(event)
        try:
            await event.wait()
        except BaseException:
            if event in self._waiting:
                self._waiting.remove(event)
            else:  # let through and cancelled in the same turn
                self.leave()
            raise

    def leave(self) -> None:
        """Let the next one through."""
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self.is_taken = False

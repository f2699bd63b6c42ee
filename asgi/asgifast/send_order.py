"""The order of what several tasks send of one response."""

from __future__ import annotations

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
        self._waiting: tuple[Event, ...] = ()

    async def wait(self) -> None:
        """Wait behind the others; then the order is taken by the caller."""
        event = new_event()
        self._waiting += (event,)
        try:
            await event.wait()
        except BaseException:
            if event in self._waiting:
                self._waiting = tuple(other for other in self._waiting if other is not event)
            else:  # let through and cancelled in the same turn
                self.leave()
            raise

    def leave(self) -> None:
        """Let the next one through."""
        if self._waiting:
            event, *others = self._waiting
            self._waiting = tuple(others)
            event.set()
        else:
            self.is_taken = False

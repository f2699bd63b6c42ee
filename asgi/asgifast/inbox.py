"""A request's receive(), for the app and for whoever listens whether its client has left."""

from __future__ import annotations

from .messages import Message, Receive

__all__ = ["Inbox"]

# What is kept of a request body while a file is sent. Behind it the disconnect is not heard; to go
# on listening would take an upload of any size into memory.
_KEPT_BYTES = 64 * 1024
_KEPT_MESSAGES = 64


class Inbox:
    """The server's receive(), of which :meth:`listen` keeps for :meth:`receive` what comes.

    While a file is sent, a disconnect is listened for: servers ignore what is sent after it, and
    the file would be read to its end for nobody.

    :ivar is_awaited: the app waits for a message; two may not wait at once.
    """

    __slots__ = ("_kept", "_server_receive", "is_awaited")

    def __init__(self, receive: Receive) -> None:
        self._server_receive = receive
        self._kept: tuple[Message, ...] = ()
        self.is_awaited = False

    async def receive(self) -> Message:
        """The receive() that the app is given."""
        if self._kept:
            message, *kept = self._kept
            self._kept = tuple(kept)
            return message
        self.is_awaited = True
        try:
            return await self._server_receive()
        finally:
            self.is_awaited = False

    def has_left(self) -> bool:
        """Whether the client is known to have left."""
        return bool(self._kept) and self._kept[-1]["type"] == "http.disconnect"

    async def listen(self) -> None:
        """Keep what comes until the client leaves, or until it is too much to keep."""
        while (
            not self.has_left()
            and len(self._kept) < _KEPT_MESSAGES
            and sum(len(message.get("body", b"")) for message in self._kept) < _KEPT_BYTES
        ):
            self._kept += (await self._server_receive(),)

"""The app's receive(), which can also listen for the client's disconnect on behalf of a sender."""

from __future__ import annotations

from .messages import Message, Receive

__all__ = ["Receiver"]

# How much of a request body is kept while a file is sent. Beyond it the disconnect is not noticed;
# to listen on would take an upload of any size into memory.
_KEPT_BYTES = 64 * 1024
_KEPT_MESSAGES = 64


class Receiver:
    """Wraps the server's receive(): what :meth:`listen_for_disconnect` gets, the app gets later.

    After a disconnect servers ignore what is sent: without listening, the rest of a file would be
    read for nobody.

    :ivar is_awaited: the app is waiting for a message; two may not wait at once.
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

    def is_disconnected(self) -> bool:
        """Whether http.disconnect has been received."""
        return bool(self._kept) and self._kept[-1]["type"] == "http.disconnect"

    async def listen_for_disconnect(self) -> None:
        """Receive until the client disconnects, or until the limits of what is kept."""
        while (
            not self.is_disconnected()
            and len(self._kept) < _KEPT_MESSAGES
            and sum(len(message.get("body", b"")) for message in self._kept) < _KEPT_BYTES
        ):
            self._kept += (await self._server_receive(),)

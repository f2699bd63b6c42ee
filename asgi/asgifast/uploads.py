"""A request's body under uvicorn's protocols, on its way to the app.

Theory of operation. uvicorn adds what comes to its cycle's `body`, reads no further while that is
more than HIGH_WATER_LIMIT, and goes on when the app asks for more. All of that stays. Here
:class:`Arrived` is the cycle's `body`, and :meth:`Upload.receive` stands around the cycle's own.

- An app that waits is given what is read as it is, without a copy. One read is mostly above
  uvicorn's mark, so there is no second one before the app has the first.
- While the app does something else, such as writing to a file, reading goes on, up to
  GATHERED_BYTES. All that has come by its next receive() is one message.
- The streams of an HTTP/2 connection share what may wait above uvicorn's mark. zttp opens a
  stream's window again as soon as its bytes are read from the socket, so that what holds a client
  up is that nothing is read, as with HTTP/1.1.
- A client that sends faster than the app receives is read into one buffer for all (`reads.py`).
- What the app has not received when it returns is dropped: the connection may stay for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

from wsgifast.imports import needs

from .messages import Message
from .reads import read_into_buffer

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

__all__ = ["GATHERED_BYTES", "Arrived", "Upload"]

# What may wait for an app that is busy before reading stops; one more read may come on top.
GATHERED_BYTES = 256 * 1024
_MORE_BYTES = GATHERED_BYTES - HIGH_WATER_LIMIT
# Less than this is added to what came before it: small pieces take many times their bytes.
_PIECE_BYTES = 4 * 1024


class Arrived:
    """Body bytes that the app has not received, as uvicorn treats them: `+=`, len() and bytes().

    :param sharers: the requests of the connection that are under way; by default there is one.
    :ivar size: how many they are.
    :ivar awaited: the app waits for them.
    """

    __slots__ = ("_pieces", "_sharers", "awaited", "size")

    def __init__(self, sharers: Sized = ()) -> None:
        self._sharers = sharers
        self._pieces: list[bytes | bytearray] = []
        self.size = 0
        self.awaited = False

    def __iadd__(self, data: bytes | bytearray) -> Arrived:
        pieces = self._pieces
        size = len(data)
        self.size += size
        if size >= _PIECE_BYTES:
            pieces.append(data if type(data) is bytes else bytes(data))
        elif pieces and type(pieces[-1]) is bytearray:
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))
        return self

    def __len__(self) -> int:
        """What uvicorn holds against its mark, above which it stops reading."""
        if self.awaited:
            return self.size
        return max(0, self.size - _MORE_BYTES // (len(self._sharers) or 1))

    def __bytes__(self) -> bytes:
        """Take all of them."""
        pieces = self._pieces
        data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.size = 0
        return data

    def drop(self) -> None:
        self._pieces.clear()
        self.size = 0


class Upload:
    """The receive() of an app whose request has more body to come.

    :param cycle: uvicorn's RequestResponseCycle.
    :param read_on: has the connection read on, if no other request holds it up.
    :param sharers: as for :class:`Arrived`.
    """

    __slots__ = ("_arrived", "_cycle", "_read_on")

    def __init__(self, cycle: Any, read_on: Callable[[], None], sharers: Sized = ()) -> None:
        self._cycle = cycle
        self._read_on = read_on
        self._arrived = Arrived(sharers)
        if cycle.body:
            self._arrived += cycle.body
        cycle.body = self._arrived

    async def receive(self) -> Message:
        """The receive() that the app is given."""
        cycle, arrived = self._cycle, self._arrived
        arrived.awaited = not arrived.size
        try:
            message: Message = await cycle.receive()
        finally:
            arrived.awaited = False
        if message["type"] == "http.request":
            if type(message["body"]) is not bytes:  # the oldest uvicorns hand on what they have
                message["body"] = bytes(message["body"])
            cycle.body = arrived
            if message["more_body"] and cycle.flow.read_paused:
                read_into_buffer(cycle.transport.real)
                self._read_on()
        return message

    def end(self) -> None:
        """The app has returned, or was cancelled."""
        self._arrived.drop()

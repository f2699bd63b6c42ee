"""Request bodies under uvicorn's protocols: how they are read, buffered and discarded.

Theory of operation. uvicorn appends what it reads to its cycle's `body`, stops reading while that
is longer than HIGH_WATER_LIMIT, and resumes when the app asks for more. All of that stays. Here
:class:`ReceivedBody` is the cycle's `body`, and :meth:`Upload.receive` wraps the cycle's receive().

- An app that waits gets what is read without a copy. One read is mostly above uvicorn's limit, so
  that there is no second one before the app has the first.
- While the app is busy, writing to a file for example, reading goes on up to BUFFERED_BYTES. All
  that has come by its next receive() is one message.
- The streams of an HTTP/2 connection share what may be buffered above uvicorn's limit. zttp opens a
  stream's window as soon as its bytes are read from the socket, so that the back-pressure is TCP's,
  as with HTTP/1.1.
- A client that sends faster than the app receives is read into one buffer for all connections, as
  is what is discarded by a lingering close.
- What the app has not received when it returns is dropped: the connection may live for long.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sized
from typing import Any, cast

from wsgifast.checks import needs
from wsgifast.sockets.closing import Lingering

from ..messages import Message

with needs("asgifast.uvicorn", "uvicorn", "asgi"):
    from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

# What is buffered for a busy app before reading stops; one more read may come on top.
BUFFERED_BYTES = 256 * 1024
_MORE_BYTES = BUFFERED_BYTES - HIGH_WATER_LIMIT
# A shorter piece is appended to the one before: an object for each would take many times its bytes.
_PIECE_BYTES = 4 * 1024
# One read of the socket. A copy of it stays below the 128 KiB from which on glibc's malloc() maps
# fresh pages and unmaps them again (mallopt(3), M_MMAP_THRESHOLD).
READ_BYTES = 112 * 1024
# Bytes are read and parsed in one callback, so that one buffer serves all of a thread's loop.
_of_this_thread = threading.local()


class ReceivedBody:
    """Body bytes for the app, with what uvicorn uses of a bytearray: `+=`, len() and bytes().

    :param requests: those of the connection that are in progress; by default there is one.
    :ivar size: bytes buffered.
    :ivar awaited: the app is waiting for them.
    """

    __slots__ = ("_pieces", "_requests", "awaited", "size")

    def __init__(self, requests: Sized = ()) -> None:
        self._requests = requests
        self._pieces: list[bytes | bytearray] = []
        self.size = 0
        self.awaited = False

    def __iadd__(self, data: bytes | bytearray) -> ReceivedBody:
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
        """What uvicorn compares with HIGH_WATER_LIMIT, above which it stops reading."""
        if self.awaited:
            return self.size
        return max(0, self.size - _MORE_BYTES // (len(self._requests) or 1))

    def __bytes__(self) -> bytes:
        """Take all bytes."""
        pieces = self._pieces
        data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.size = 0
        return data

    def drop(self) -> None:
        self._pieces.clear()
        self.size = 0


class Upload:
    """The receive() of an app whose request's body has not been read completely.

    :param cycle: uvicorn's RequestResponseCycle.
    :param resume_reading: resumes reading, unless another request of the connection prevents it.
    :param requests: as for :class:`ReceivedBody`.
    """

    __slots__ = ("_cycle", "_received", "_resume_reading")

    def __init__(
        self, cycle: Any, resume_reading: Callable[[], None], requests: Sized = ()
    ) -> None:
        self._cycle = cycle
        self._resume_reading = resume_reading
        self._received = ReceivedBody(requests)
        if cycle.body:
            self._received += cycle.body
        cycle.body = self._received

    async def receive(self) -> Message:
        """The receive() that the app is given."""
        cycle, received = self._cycle, self._received
        received.awaited = not received.size
        try:
            message: Message = await cycle.receive()
        finally:
            received.awaited = False
        if message["type"] == "http.request":
            if type(message["body"]) is not bytes:  # the oldest uvicorns pass on cycle.body
                message["body"] = bytes(message["body"])
            cycle.body = received
            if message["more_body"] and cycle.flow.read_paused:
                read_into_buffer(cycle.transport.real)
                self._resume_reading()
        return message

    def end(self) -> None:
        """The app has returned, or was cancelled."""
        self._received.drop()


class _Buffered(asyncio.BufferedProtocol):
    """Adapts an asyncio.Protocol, whose data_received() must keep no reference to its argument."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        if not hasattr(_of_this_thread, "buffer"):
            _of_this_thread.buffer = memoryview(bytearray(READ_BYTES))
        self._buffer: memoryview = _of_this_thread.buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.protocol.data_received(cast("bytes", self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        return self.protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()


class _Discarding(_Buffered):
    """Lingering close: discards what comes, and closes its transport at the end of that."""

    def __init__(
        self,
        protocol: asyncio.Protocol,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(protocol)
        self._transport = transport
        self._loop = loop
        self.limits = Lingering(loop.time())
        self._timer = loop.call_at(self.limits.deadline, transport.close)

    def buffer_updated(self, nbytes: int) -> None:
        self._timer.cancel()
        if self.limits.goes_on(nbytes, self._loop.time()):
            self._timer = self._loop.call_at(self.limits.deadline, self._transport.close)
        else:
            self._transport.close()

    def eof_received(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)


def read_into_buffer(transport: asyncio.Transport) -> None:
    """Have a transport, whose reading is paused, read into the buffer from now on."""
    protocol = transport.get_protocol()
    if not isinstance(protocol, _Buffered):
        transport.set_protocol(_Buffered(cast("asyncio.Protocol", protocol)))


def read_plainly(transport: asyncio.Transport) -> None:
    """Undo :func:`read_into_buffer`, before the transport gets another protocol."""
    protocol = transport.get_protocol()
    if isinstance(protocol, _Buffered):
        transport.pause_reading()  # uvloop looks at a protocol's kind when reading begins
        transport.set_protocol(protocol.protocol)
        transport.resume_reading()


def linger(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close a transport behind what its client is sending; soon, if it is called once more."""
    protocol = transport.get_protocol()
    if isinstance(protocol, _Discarding):
        protocol.limits.hurry()
        return
    if isinstance(protocol, _Buffered):
        protocol = protocol.protocol
    if transport.can_write_eof():  # TLS has no half-closed connections
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection, which asyncio sees when it reads
            transport.abort()
            return
    transport.pause_reading()  # uvloop looks at a protocol's kind when reading begins
    transport.set_protocol(_Discarding(cast("asyncio.Protocol", protocol), transport, loop))
    transport.resume_reading()

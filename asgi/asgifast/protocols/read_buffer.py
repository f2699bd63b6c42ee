"""One read buffer for all connections of a thread that receive many bytes, or discard them."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

from wsgifast.sockets.closing import Lingering

# One read of the socket. A copy of it stays below the 128 KiB from which on glibc's malloc() maps
# fresh pages and unmaps them again (mallopt(3), M_MMAP_THRESHOLD).
READ_BYTES = 112 * 1024
# Bytes are read and parsed in one callback, so that one buffer serves all of a thread's loop.
_of_this_thread = threading.local()


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

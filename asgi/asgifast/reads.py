"""What a transport reads into one buffer, where many bytes come."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

__all__ = ["READ_BYTES", "read_into_buffer", "read_plainly"]

# One read of the socket. Whatever holds its bytes is smaller than what glibc's malloc() asks of the
# kernel, page by page, and gives back at once: 128 KiB (mallopt(3), M_MMAP_THRESHOLD).
READ_BYTES = 112 * 1024
# Read and parsed within one callback, so that one buffer is enough for all of a thread's loop.
_of_this_thread = threading.local()


class _Buffered(asyncio.BufferedProtocol):
    """An asyncio.Protocol, as a transport calls it that reads into a buffer of ours.

    The protocol must have done with the bytes when its data_received() returns.
    """

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


def read_into_buffer(transport: asyncio.Transport) -> None:
    """Have a transport whose reading is paused read into the buffer from now on."""
    protocol = transport.get_protocol()
    if not isinstance(protocol, _Buffered):
        transport.set_protocol(_Buffered(cast("asyncio.Protocol", protocol)))


def read_plainly(transport: asyncio.Transport) -> None:
    """End :func:`read_into_buffer`, before another protocol is set.

    uvloop looks at what kind a protocol is when reading begins.
    """
    protocol = transport.get_protocol()
    if isinstance(protocol, _Buffered):
        transport.pause_reading()
        transport.set_protocol(protocol.protocol)
        transport.resume_reading()

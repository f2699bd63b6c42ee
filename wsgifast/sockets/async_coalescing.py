"""The coalescing writer for asyncio: what one turn of the loop writes is sent together."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from .coalescing import MAX_BYTES, WINDOW_US, SendFailed, WriterClosed, check

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class AsyncCoalescingWriter:
    """Gathers messages for an asyncio stream or transport; for the loop's thread only.

    :param stream: a StreamWriter, or a transport whose protocol does its own flow control.
    :param window_us: microseconds after which a batch does not wait for the loop's next turn.
    :param max_bytes: the most that is gathered before it is passed to the transport.
    """

    def __init__(
        self,
        stream: asyncio.StreamWriter | asyncio.WriteTransport,
        *,
        window_us: float = WINDOW_US,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check(window_us=window_us, max_bytes=max_bytes)
        self._stream = stream if isinstance(stream, asyncio.StreamWriter) else None
        self._transport = stream.transport if isinstance(stream, asyncio.StreamWriter) else stream
        self._loop = asyncio.get_running_loop()
        self._window_ns = int(window_us * 1000)
        self._max_bytes = max_bytes
        self._buffers: list[bytes] = []
        self._size = 0
        self._due = 0
        self._turn_asked = False
        self._closed = False

    def write(self, data: ReadableBuffer) -> None:
        """Gather one message.

        Await drain() now and then, or the transport's buffer grows without bounds, as with any
        asyncio stream.

        :raises SendFailed: if the connection is lost.
        :raises WriterClosed: after close().
        """
        if self._closed:
            raise WriterClosed("the writer is closed")
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        buffers = self._buffers
        if not buffers:
            if self._transport.is_closing():
                raise SendFailed("the connection is closed")
            self._due = time.monotonic_ns() + self._window_ns
            if not self._turn_asked:
                self._turn_asked = True
                self._loop.call_soon(self._next_turn)
        buffers.append(data)
        self._size += len(data)
        if self._size >= self._max_bytes or time.monotonic_ns() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Pass what was gathered to the transport, which sends at once if it can."""
        if self._buffers:
            buffers, self._buffers, self._size = self._buffers, [], 0
            # Not writelines(): before Python 3.12 it joins too; since then it calls sendmsg with
            # a list, which is slower for small messages.
            self._transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))

    async def drain(self) -> None:
        """Flush, and wait until the transport has room again; with a bare transport, only flush.

        :raises OSError: if the connection is lost.
        """
        self.flush()
        if self._stream is not None:
            await self._stream.drain()

    async def close(self) -> None:
        """Flush, refuse further writes, wait as :meth:`drain` does; the stream stays open.

        :raises OSError: if the connection is lost.
        """
        self._closed = True
        await self.drain()

    def _next_turn(self) -> None:
        self._turn_asked = False
        self.flush()

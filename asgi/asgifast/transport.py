"""A transport between a protocol and asyncio's: coalesces small writes, sends files by sendfile.

Theory of operation. All calls are made in the event loop's thread.

- Coalescing: write() keeps small data until the end of the loop's turn, until COALESCED_BYTES are
  there, or until flush(): a head and its body leave in one packet, and no data waits for anything
  but code that is running already. The exception is what its sender will flush (`flush_follows`),
  as a head with the body: the turn's end is not waited for, and nothing is made for it.
- A file in flight (`_file` is set): what is written meanwhile stays behind it. Everything before it
  has left the real transport's buffer first, because sendfile goes past that buffer.
- A file ends by its last byte, by its own end coming too early (FileTruncated), by the loss of the
  connection (ConnectionResetError), which follows close() and abort() in the next turn, or by the
  cancellation of the sender. In all cases but the first the connection is closed: the body's
  promised length cannot be kept.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from wsgifast.sockets import FileSegment, limit_send_buffer
from wsgifast.sockets.options import FIRST_SEND_BUFFER_BYTES
from wsgifast.sockets.sendfile import SendfileUnavailable

from .coalescing import COALESCED_BYTES
from .room import CAN_WATCH
from .transfer import FileTransfer, Progress

__all__ = ["CoalescingTransport", "Rest"]

# What sends the rest of something begun; called once, or never.
Rest = Callable[[], Awaitable[None]]

# The first part of a large write that is copied behind coalesced data, to leave in one packet.
_LEAD_BYTES = 16 * 1024


class CoalescingTransport(asyncio.Transport):
    """Wraps an asyncio or uvloop transport; see the module's docstring.

    :param transport: the real one. Its protocol must call :meth:`drained` from resume_writing()
        and :meth:`lost` from connection_lost().
    """

    # Every connection has one, also when it only waits.
    __slots__ = (
        "_before_flush",
        "_drain_waiter",
        "_file",
        "_loop",
        "_pending",
        "_size",
        "_turn_scheduled",
        "can_sendfile",
        "flush_follows",
        "is_closing",
        "may_grow",
        "real",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        # asyncio.Transport.__init__ only stores extra info, which the real transport has.
        self.real = transport
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.can_sendfile = (
            CAN_WATCH and hasattr(os, "sendfile") and transport.get_extra_info("sslcontext") is None
        )
        self._loop = loop
        self._pending: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self._turn_scheduled = False
        # Whether whoever writes the next data will also flush it.
        self.flush_follows = False
        self._before_flush: Callable[[], None] | None = None
        self._file: FileTransfer | None = None
        self._drain_waiter: asyncio.Future[None] | None = None
        # Whether the send buffer is the small one; None before the first file.
        self.may_grow: bool | None = None

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        size = len(data)
        if not size:
            return
        if size >= COALESCED_BYTES and self._file is None:
            self._write_large(data)
            return
        self._pending.append(data)
        self._size += size
        if self._size >= COALESCED_BYTES:
            self.flush()
        elif self.flush_follows:
            self.flush_follows = False
        elif not self._turn_scheduled:
            self._schedule()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def call_before_flush(self, before_flush: Callable[[], None]) -> None:
        """Have a function called once, before the next flush: it writes what it has kept.

        Over HTTP/2 each stream has one; one that is there already is called at once.
        """
        self._call_back()
        self._before_flush = before_flush
        if not self._turn_scheduled:
            self._schedule()

    def flush(self) -> None:
        """Hand everything coalesced to the real transport, unless a file is in flight."""
        if self._before_flush is not None:
            self._call_back()
        if self._pending and self._file is None:
            self.real.write(self._take())

    def _call_back(self) -> None:
        """Have what is kept elsewhere written, behind what is pending here, and flushed next."""
        if self._before_flush is not None:
            before_flush, self._before_flush = self._before_flush, None
            is_followed, self.flush_follows = self.flush_follows, True
            try:
                before_flush()
            finally:
                self.flush_follows = is_followed

    def _schedule(self) -> None:
        self._turn_scheduled = True
        self._loop.call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._turn_scheduled = False
        if not self.real.is_closing():
            self.flush()

    def _take(self) -> bytes | bytearray | memoryview:
        pending = self._pending
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        pending.clear()
        self._size = 0
        return data

    def _write_large(self, data: bytes | bytearray | memoryview) -> None:
        if self._pending:
            view = memoryview(data)
            self._pending.append(view[:_LEAD_BYTES])
            data = view[_LEAD_BYTES:]
            self.real.write(self._take())
        self.real.write(data)

    # Files

    async def send_file(self, segment: FileSegment) -> None:
        """Send a run of a file's bytes behind everything written so far.

        :raises SendfileUnavailable: if the kernel cannot; nothing of the file was sent.
        :raises FileTruncated: if the file ends early; the connection is closed.
        :raises ConnectionError: if the connection is lost or closed meanwhile.
        """
        rest = self.begin_file(segment)
        if rest is not None:
            await rest()

    def begin_file(self, segment: FileSegment) -> Rest | None:
        """Begin :meth:`send_file`: send what the socket takes at once.

        :returns: what sends the rest, None if there is none.
        """
        if not self.can_sendfile:
            raise SendfileUnavailable
        self._call_back()
        if self.real.is_closing():
            raise ConnectionResetError("the connection was closed before the file was sent")
        if self.real.get_write_buffer_size():
            return partial(self._send_behind_buffer, segment)
        sock = self.real.get_extra_info("socket")
        if self.may_grow is None:
            self.may_grow = _limited(sock, FIRST_SEND_BUFFER_BYTES)
        head = bytes(self._take()) if self._pending else b""
        file = self._file = FileTransfer(self, self._loop, sock, head, segment)
        try:
            progress = file.step()
        except BaseException as error:
            self.file_ended(error)
            raise
        if progress is Progress.DONE:
            self.file_ended(None)
            return None
        return partial(file.send, progress)

    async def _send_behind_buffer(self, segment: FileSegment) -> None:
        await self._drain()
        await self.send_file(segment)

    def file_ended(self, error: BaseException | None) -> None:
        """Nothing may follow half a file; behind none of it the connection goes on."""
        self._file = None
        if error is not None and not isinstance(error, SendfileUnavailable):
            self._pending.clear()
            self._size = 0
            self.real.close()

    def grow_send_buffer(self) -> None:
        self.may_grow = False
        _limited(self.real.get_extra_info("socket"))

    async def _drain(self) -> None:
        """Wait until the real transport's buffer is empty."""
        self.real.set_write_buffer_limits(high=0)
        try:
            while self.real.get_write_buffer_size() and not self.real.is_closing():
                self._drain_waiter = self._loop.create_future()
                await self._drain_waiter
        finally:
            self._drain_waiter = None
            self.real.set_write_buffer_limits()

    def drained(self) -> None:
        """The real transport's buffer has fallen to its low-water mark."""
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)

    # The connection's end

    def lost(self) -> None:
        """The connection is gone, and its socket about to be closed: end what is under way."""
        self._before_flush = None
        self._pending.clear()
        self._size = 0
        self.drained()
        if self._file is not None:
            self._file.fail(ConnectionResetError("the connection was lost while a file was sent"))

    def close(self) -> None:
        if not self.real.is_closing():
            self.flush()
        self.real.close()

    # The rest is the real transport's.

    def abort(self) -> None:
        self.real.abort()

    @property
    def sends_file(self) -> bool:
        return self._file is not None

    @property
    def waits_for_client(self) -> bool:
        """Whether something has been handed over that the client's socket does not take yet."""
        return self._file is not None or self.real.get_write_buffer_size() > 0

    def get_write_buffer_size(self) -> int:
        return self._size + self.real.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.real.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.real.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.real.get_protocol()

    def is_reading(self) -> bool:
        return self.real.is_reading()

    def pause_reading(self) -> None:
        self.real.pause_reading()

    def resume_reading(self) -> None:
        self.real.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.real.set_write_buffer_limits(high, low)

    def write_eof(self) -> None:
        self.flush()
        self.real.write_eof()

    def can_write_eof(self) -> bool:
        return self.real.can_write_eof()


def _limited(sock: Any, *size: int) -> bool:
    """limit_send_buffer(), where it makes no difference if it is refused."""
    try:
        return limit_send_buffer(sock, *size)
    except OSError:
        return False  # the peer has gone; sending will tell

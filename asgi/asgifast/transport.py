"""A transport between a protocol and asyncio's: gathers small writes, sends files by sendfile.

Theory of operation. All calls are made in the event loop's thread.

- Gathering: write() keeps small data until the end of the loop's turn, until GATHER_BYTES are
  there, or until flush(): a head and its body leave in one packet, and no data waits for anything
  but code that is running already.
- A file in flight (`_file` is set): what is written meanwhile stays behind it. Everything before it
  has left the real transport's buffer first, because sendfile goes past that buffer. The first
  sendfile call is made at once; when the socket is full, a dup of its descriptor is watched (event
  loops refuse to watch a transport's own), and each time the socket has room one more call is made
  from the loop's callback, at most WINDOW_BYTES, so that other connections have their turns.
- The send buffer of a near client starts small and grows when the client is quick: what slow
  clients leave lying there comes out of the memory that the kernel has for all TCP connections.
  When that is gone, a socket is writable and takes nothing; to wait for writability again would
  spin, so a timer waits instead.
- A file ends by its last byte, by its own end coming too early (FileTruncated), by the loss of the
  connection (ConnectionResetError), which follows close() and abort() in the next turn, or by the
  cancellation of the sender. In all cases but the first the connection is closed: the body's
  promised length cannot be kept.
"""

from __future__ import annotations

import asyncio
import enum
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from wsgifast.sockets import FileSegment, FileTruncated, limit_send_buffer
from wsgifast.sockets.options import FIRST_SEND_BUFFER_BYTES, QUICK_S
from wsgifast.sockets.sendfile import MSG_MORE, NO_SENDFILE

from .loops import in_thread
from .pages import BLOCK_BYTES, is_cached

__all__ = ["GATHER_BYTES", "GatheringTransport", "Rest", "SendfileUnavailable"]

# What sends the rest of something begun; called once, or never.
Rest = Callable[[], Awaitable[None]]

# Small writes are gathered up to here; the real transport's own high-water mark is the same.
GATHER_BYTES = 64 * 1024
# The first part of a large write that is copied behind gathered data, to leave in one packet.
_LEAD_BYTES = 16 * 1024
# One sendfile call: more than the send buffer of a near peer, so that it ends by itself, and less
# than a millisecond of copying where a far peer's buffer was grown to megabytes.
WINDOW_BYTES = 1024 * 1024
# Between two attempts while the kernel has no memory for TCP: nothing tells when it has again.
_STARVED_S = 0.1


class _Progress(enum.Enum):
    DONE = "the last byte is with the kernel"
    FULL = "the socket takes no more now, or other connections have their turn"
    COLD = "the next page must come from the disk"


class SendfileUnavailable(Exception):
    """Nothing was sent: this file or this connection needs reads and writes."""


class GatheringTransport(asyncio.Transport):
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
        "_may_grow",
        "_pending",
        "_size",
        "_socket",
        "_turn_scheduled",
        "can_sendfile",
        "is_closing",
        "real",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        # asyncio.Transport.__init__ only stores extra info, which the real transport has.
        self.real = transport
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.can_sendfile = (
            hasattr(os, "sendfile") and transport.get_extra_info("sslcontext") is None
        )
        self._loop = loop
        self._pending: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self._turn_scheduled = False
        self._before_flush: Callable[[], None] | None = None
        self._file: _FileInFlight | None = None
        self._drain_waiter: asyncio.Future[None] | None = None
        self._socket: socket.socket | None = None
        # Whether the send buffer is the small one.
        self._may_grow = False

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        size = len(data)
        if not size:
            return
        if size >= GATHER_BYTES and self._file is None:
            self._write_large(data)
            return
        self._pending.append(data)
        self._size += size
        if self._size >= GATHER_BYTES:
            self.flush()
        elif not self._turn_scheduled:
            self._schedule()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def gather(self, before_flush: Callable[[], None]) -> None:
        """Have a function called once, before the next flush: it writes what it has gathered."""
        self._before_flush = before_flush
        if not self._turn_scheduled:
            self._schedule()

    def flush(self) -> None:
        """Hand everything gathered to the real transport, unless a file is in flight."""
        if self._before_flush is not None:
            self._write_gathered()
        if self._pending and self._file is None:
            self.real.write(self._take())

    def _write_gathered(self) -> None:
        """Have what is gathered elsewhere written, behind what is pending here."""
        if self._before_flush is not None:
            before_flush, self._before_flush = self._before_flush, None
            before_flush()

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
        self._write_gathered()
        if self.real.is_closing():
            raise ConnectionResetError("the connection was closed before the file was sent")
        if self.real.get_write_buffer_size():
            return partial(self._send_behind_buffer, segment)
        sock = self._socket or self._own_socket()
        head = bytes(self._take()) if self._pending else b""
        file = self._file = _FileInFlight(self, sock, head, segment)
        try:
            progress = file.step()
        except BaseException as error:
            self._end_file(error)
            raise
        if progress is _Progress.DONE:
            self._file = None
            return None
        return partial(self._send_rest, file, progress)

    async def _send_behind_buffer(self, segment: FileSegment) -> None:
        await self._drain()
        await self.send_file(segment)

    async def _send_rest(self, file: _FileInFlight, progress: _Progress) -> None:
        try:
            await file.send(progress)
        except BaseException as error:
            self._end_file(error)
            raise
        self._file = None

    def _end_file(self, error: BaseException) -> None:
        """Nothing may follow half a file; behind none of it the connection goes on."""
        self._file = None
        if not isinstance(error, SendfileUnavailable):
            self._pending.clear()
            self._size = 0
            self.real.close()

    def _own_socket(self) -> socket.socket:
        """A dup of the connection's socket: to watch it, and to send the head with MSG_MORE."""
        theirs = self.real.get_extra_info("socket")
        sock = socket.socket(
            theirs.family, theirs.type, theirs.proto, fileno=os.dup(theirs.fileno())
        )
        self._socket = sock
        try:
            self._may_grow = limit_send_buffer(theirs, FIRST_SEND_BUFFER_BYTES)
        except OSError:
            pass  # the peer has gone; sending will tell
        return sock

    def _grow_send_buffer(self) -> None:
        self._may_grow = False
        if self._socket is not None:
            try:
                limit_send_buffer(self._socket)
            except OSError:
                pass  # as above

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
        """The connection is gone: end what is under way, free the descriptor."""
        self._before_flush = None
        self._pending.clear()
        self._size = 0
        self.drained()
        if self._file is not None:
            self._file.fail(ConnectionResetError("the connection was lost while a file was sent"))
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        if not self.real.is_closing():
            self.flush()
        self.real.close()

    # The rest is the real transport's.

    def abort(self) -> None:
        self.real.abort()

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


class _FileInFlight:
    """One file on its way; made, sent and dropped by GatheringTransport.send_file()."""

    __slots__ = (
        "_end",
        "_error",
        "_fd",
        "_head",
        "_loop",
        "_offset",
        "_out",
        "_owner",
        # Up to here the file was brought into memory for this sending; 0: it was there already.
        "_read_to",
        "_segment",
        "_sock",
        "_timer",
        "_waiter",
        "_waiting_since",
        "_watching",
    )

    def __init__(
        self,
        owner: GatheringTransport,
        sock: socket.socket,
        head: bytes,
        segment: FileSegment,
    ) -> None:
        self._owner = owner
        self._loop = owner._loop
        self._sock = sock
        self._out = sock.fileno()
        self._head = head
        self._segment = segment
        self._fd, self._offset, size = segment
        self._end = self._offset + size
        self._read_to = 0
        self._waiter: asyncio.Future[_Progress] | None = None
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._watching = False

    async def send(self, progress: _Progress) -> None:
        """Go on to the end from where :meth:`step` came to."""
        if self._error is not None:
            raise self._error  # the connection was lost since then
        while progress is not _Progress.DONE:
            if progress is _Progress.COLD:
                read_to = min(self._end, self._offset + WINDOW_BYTES)
                await in_thread(_warm, self._fd, self._offset, read_to)
                self._read_to = read_to
                progress = self.step()
            else:
                # Callbacks go on, until something else than room is needed.
                self._waiter = self._loop.create_future()
                self._watch()
                try:
                    progress = await self._waiter
                finally:
                    self._waiter = None
                    self._unwatch()

    def fail(self, error: Exception) -> None:
        """Stop at once; send() raises the error. The socket is not touched after this."""
        self._error = error
        self._unwatch()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _watch(self) -> None:
        self._timer = None
        self._watching = True
        self._waiting_since = time.monotonic()
        self._loop.add_writer(self._out, self._on_writable)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Before the descriptor is closed, always: its number may be another connection's next.
        if self._watching:
            self._watching = False
            self._loop.remove_writer(self._out)

    def _on_writable(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._owner._may_grow:
            now = time.monotonic()
            if now - self._waiting_since < QUICK_S:
                self._owner._grow_send_buffer()
            self._waiting_since = now
        before = len(self._head), self._offset
        try:
            progress = self.step()
        except Exception as error:  # noqa: BLE001 - send() raises it
            self._unwatch()
            waiter.set_exception(error)
            return
        if progress is not _Progress.FULL:
            self._unwatch()
            waiter.set_result(progress)
        elif (len(self._head), self._offset) == before:
            self._unwatch()
            self._timer = self._loop.call_later(_STARVED_S, self._watch)

    def step(self) -> _Progress:
        """Send what the socket takes now, up to one window."""
        if self._error is not None:
            raise self._error
        try:
            while self._head:
                # MSG_MORE: the head waits for the file's first bytes, and leaves with them.
                self._head = self._head[self._sock.send(self._head, MSG_MORE) :]
            stop = min(self._end, self._offset + WINDOW_BYTES)
            if self._offset < self._read_to:
                stop = min(stop, self._read_to)
            elif not is_cached(self._fd, stop - 1):
                return _Progress.COLD  # read ahead: sendfile would wait where the cache ends
            if not is_cached(self._fd, self._offset):
                return _Progress.COLD
            sent = os.sendfile(self._out, self._fd, self._offset, stop - self._offset)
        except BlockingIOError:
            return _Progress.FULL
        except OSError as error:
            if error.errno in NO_SENDFILE and self._offset == self._segment.offset:
                raise SendfileUnavailable from error
            raise
        if sent == 0:
            raise FileTruncated(self._end - self._offset, self._segment.size)
        self._offset += sent
        return _Progress.DONE if self._offset == self._end else _Progress.FULL


def _warm(fd: int, offset: int, stop: int) -> None:
    """Bring a window into memory; in a thread."""
    while offset < stop:
        block = os.pread(fd, min(BLOCK_BYTES, stop - offset), offset)
        if not block:
            return
        offset += len(block)

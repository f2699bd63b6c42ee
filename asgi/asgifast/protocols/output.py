"""The output queue of a connection: gathers small writes, sends bytes and files in their order.

Theory of operation. All calls are made in the event loop's thread. The queue stands between a
protocol and the event loop's transport, which owns the socket. It knows nothing of responses. A
file's descriptor is its sender's.

- Gathering: write() delays small data until the end of the loop's turn, until COALESCED_BYTES are
  there, or until flush(), so that headers and body leave in one packet. A sender that is about to
  flush sets `flush_follows` meanwhile, and no callback is scheduled for the turn's end.
- A response that delays small messages requests a call at the turn's end (`delay`). It writes them
  then, or delays them for another turn. They are also sent by close(), and by any other write at a
  turn's end. They are not sent by flush(), since over HTTP/2 other responses write to the same
  queue.
- While a file is sent (`_file` is set), later writes wait after it. So they do while write_bytes()
  hands a large body to the transport.
- Both send as much as the socket accepts at once. Of the rest their sender hears by `on_sent`:
  after the last byte, or after one of these ends, which also close the connection, because the
  declared length cannot be reached:

  - the file's own end, if that comes too early (FileTruncated)
  - the loss of the connection (ConnectionResetError), which follows abort() in the next turn
  - close() (ConnectionResetError)
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any

from wsgifast.sockets import FileSegment, limit_send_buffer, release_send_buffer
from wsgifast.sockets.options import FIRST_SEND_BUFFER_BYTES, QUICK_S
from wsgifast.sockets.sending import SendfileUnavailable

from ..messages import COALESCED_BYTES
from ..wire import DelayedOutput
from .file_transfer import HAS_EPOLL, FileOutput, FileOwner, FileReader, FileTransfer, OnSent
from .large_bodies import BytesWriter
from .receiving import linger

# This much of a large write is copied behind coalesced data, so that both leave in one packet.
_LEAD_BYTES = 16 * 1024
# A client that reads this much within QUICK_S gets a large send buffer again.
_QUICK_BYTES = 512 * 1024


class OutputQueue(FileOwner):
    """Wraps the event loop's transport. See the module's docstring.

    :param transport: its protocol must set `is_paused` in pause_writing(), and call :meth:`drained`
        from resume_writing() and :meth:`lost` from connection_lost().
    :ivar flush_follows: the current writer will also flush.
    :ivar is_receiving: whether the client is still sending a request, if the protocol knows that.
    """

    # Every connection has one, idle or not.
    __slots__ = (
        "_delayed", "_file", "_free_bytes", "_loop", "_pending", "_size", "_turn_scheduled",
        "can_sendfile", "flush_follows", "is_closing", "is_receiving",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.real = transport
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.is_receiving: Callable[[], bool] | None = None
        self.can_sendfile = HAS_EPOLL and transport.get_extra_info("sslcontext") is None
        self._loop = loop
        self._pending: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self._turn_scheduled = False
        self.flush_follows = False
        # Over HTTP/1 one at most.
        self._delayed: tuple[DelayedOutput, ...] = ()
        self._file: FileOutput | None = None
        self.is_paused = False
        self.may_grow = None
        # The bytes to write before the socket's send buffer is limited.
        self._free_bytes = FIRST_SEND_BUFFER_BYTES

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if type(data) is not bytes and not isinstance(data, (bytes, bytearray, memoryview)):
            data = bytes(memoryview(data))  # now, as at the turn's end nobody could raise it
        size = len(data)
        if not size or self.is_closing is _lingers:
            return
        if size >= COALESCED_BYTES and self._file is None:
            self._write_large(data)
            return
        self._pending.append(data)
        self._size += size
        if self._size >= COALESCED_BYTES:
            self.flush()
        elif not (self._turn_scheduled or self.flush_follows):
            self._schedule()

    def write_now(self, data: bytes) -> None:
        """Write, and flush."""
        if self._pending or self._file is not None:
            self.write(data)
            self.flush()
        elif data and self.is_closing is not _lingers:
            self._free_bytes -= len(data)
            self.real.write(data)

    def delay(self, output: DelayedOutput) -> None:
        """Call an output when the loop's turn ends."""
        if output not in self._delayed:
            self._delayed += (output,)
        if not self._turn_scheduled:
            self._schedule()

    def flush(self) -> None:
        """Hand everything coalesced to the loop's transport, unless a file is being sent."""
        if self._pending and self._file is None:
            self._free_bytes -= self._size
            if self._free_bytes < 0:
                self._limit_send_buffer()
            self.real.write(self._take())

    def _release_delayed(self) -> None:
        """Have all delayed messages written. A flush follows."""
        delayed, self._delayed = self._delayed, ()
        self.flush_follows = True
        try:
            for output in delayed:
                output.release()
        finally:
            self.flush_follows = False

    def _schedule(self) -> None:
        self._turn_scheduled = True
        self._loop.call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        self._turn_scheduled = False
        if self.is_closing():
            return
        if self._delayed:
            is_over = bool(self._pending)
            for output in self._delayed:
                if not output.end_turn():
                    is_over = True
            if not is_over:
                self._schedule()
                return
            self._release_delayed()
        self.flush()

    def _take(self) -> bytes | bytearray | memoryview:
        pending = self._pending
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        pending.clear()
        self._size = 0
        return data

    def _write_large(self, data: bytes | bytearray | memoryview) -> None:
        if self._pending:
            self._free_bytes -= self._size
            view = memoryview(data)
            self._pending.append(view[:_LEAD_BYTES])
            data = view[_LEAD_BYTES:]
            self.real.write(self._take())
        self.write_block(data)

    def write_block(self, data: bytes | bytearray | memoryview) -> None:
        self._free_bytes -= len(data)
        if self._free_bytes < 0:
            self._limit_send_buffer()
        self.real.write(data)
        if self.may_grow and (waiting := self.real.get_write_buffer_size()) >= _QUICK_BYTES:
            self._loop.call_later(QUICK_S, self._release_if_quick, waiting - _QUICK_BYTES)

    # The socket's send buffer. Unsent bytes of slow clients count against the memory that the
    # kernel has for all TCP connections.

    def _limit_send_buffer(self) -> None:
        """Limit it, once, because more is written than most responses have."""
        self._free_bytes = sys.maxsize
        if self.may_grow is None:
            sock = self.real.get_extra_info("socket")
            self.may_grow = sock is not None and limit_send_buffer(sock)

    def _release_if_quick(self, most_waiting: int) -> None:
        """Give a client that has read much in a short time a large buffer again."""
        if self.may_grow and self.real.get_write_buffer_size() <= most_waiting:
            self.may_grow = False
            with contextlib.suppress(OSError):  # the client has left: the next write fails
                release_send_buffer(self.real.get_extra_info("socket"))

    # Files

    def write_file(self, segment: FileSegment, on_sent: OnSent) -> bool:
        """Send a range of a file after everything that was written before. One at a time.

        :param segment: its file stays open until the range is sent, or an error is raised.
        :param on_sent: called with the number of unsent bytes, and the error or None.
        :returns: True if all was sent at once. If not, on_sent() is called later.
        :raises FileTruncated: if the file ends early. The connection is closed.
        :raises ConnectionError: if the connection is lost or closed.
        """
        if not segment.size:
            return True
        kind = FileTransfer if self.can_sendfile else FileReader
        return self._send(kind(self, self._loop, segment, on_sent))

    def write_bytes(self, data: bytes, on_sent: OnSent, may_spill: bool) -> bool:
        """Send a large body as :meth:`write_file` sends a file: block by block.

        :param may_spill: see BytesWriter.
        """
        return self._send(BytesWriter(self, self._loop, data, on_sent, may_spill))

    def _send(self, file: FileOutput) -> bool:
        if self.is_closing():
            raise ConnectionResetError("the connection was closed before the file was sent")
        headers = bytes(self._take()) if self._pending else b""
        self._file = file
        try:
            try:
                is_sent = file.begin(headers)
            except SendfileUnavailable:
                self._file = file = FileReader(self, self._loop, file.segment, file.on_sent)
                is_sent = file.begin(b"")
        except BaseException:
            self._end_file(is_cut_off=True)
            raise
        if is_sent:
            self._end_file()
        return is_sent

    def file_ended(self, error: Exception | None) -> None:
        file = self._file
        assert file is not None
        if isinstance(error, SendfileUnavailable):
            self._file = file = FileReader(self, self._loop, file.segment, file.on_sent)
            file.drained()
            return
        self._end_file(is_cut_off=error is not None)
        file.on_sent(file.unsent, error)

    def _end_file(self, *, is_cut_off: bool = False) -> None:
        """Go on with the writes after a file. Nothing may follow a part of it."""
        self._file = None
        if not is_cut_off:
            self.flush()
            return
        self._pending.clear()
        self._size = 0
        if not self.real.is_closing():
            self.real.close()

    def drained(self) -> None:
        """The protocol's resume_writing() was called."""
        self.is_paused = False
        if self._file is not None:
            self._file.drained()

    # The connection's end

    def lost(self) -> None:
        """The protocol's connection_lost() was called: the socket is about to be closed."""
        self._delayed = ()
        self.may_grow = False  # a timer may still want to release the socket's send buffer
        self.is_receiving = None
        self._pending.clear()
        self._size = 0
        if self._file is not None:
            self._file.fail(ConnectionResetError("the connection was lost while a file was sent"))

    def close(self) -> None:
        """Close after all written bytes, and after the client's input.

        A second call comes from the server, which is about to end.
        """
        if self.is_closing is _lingers:
            if not self.real.is_closing():
                linger(self.real, self._loop)
            return
        if self.is_closing():
            return  # asyncio's TLS transport breaks at a second close()
        self._release_delayed()
        self.flush()
        if self._must_linger():
            self.is_closing = _lingers  # type: ignore[method-assign]
            linger(self.real, self._loop)
            return
        self.real.close()
        if self._file is not None:
            self._file.fail(ConnectionResetError("the connection was closed while a file was sent"))
        if self.real.get_extra_info("sslcontext") is not None:
            # asyncio's TLS transport takes no close() while it is paused and its client has left
            # without a close_notify: it would stay open for ever.
            self.real.resume_reading()

    def _must_linger(self) -> bool:
        """Return whether the client may be sending: then the kernel would reset the connection."""
        if self._file is not None:
            return False
        if not self.real.is_reading():
            return True
        return self.is_receiving is not None and self.is_receiving()

    @property
    def sends_file(self) -> bool:
        """Whether a file is sent by sendfile."""
        return type(self._file) is FileTransfer

    @property
    def waits_for_client(self) -> bool:
        """Whether output waits until the socket has room."""
        return self._file is not None or self.real.get_write_buffer_size() > 0

    def get_write_buffer_size(self) -> int:
        return self._size + self.real.get_write_buffer_size()

    # What else uvicorn calls is the real transport's. Not by __getattr__(), which slows every
    # attribute down.

    def abort(self) -> None:
        self.real.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.real.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self.real.pause_reading()

    def resume_reading(self) -> None:
        self.real.resume_reading()


def _lingers() -> bool:
    """The is_closing() of a transport that discards its client's input."""
    return True

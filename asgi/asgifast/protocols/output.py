"""The output queue of a connection: joins small writes, and sends bytes and files in order.

Theory of operation. All methods are called in the event loop's thread. The queue is between a
protocol and the event loop's transport, which owns the socket. The queue does not know what a
response is. The sender of a file closes its descriptor.

- Coalescing: write() delays small data until the event loop iteration ends, until there are
  COALESCED_BYTES, or until flush(). So headers and body are sent in one packet. A caller of write()
  that will call flush() sets `flush_follows`. Then no callback is scheduled for the end of the
  iteration.
- Delayed messages: a response that delays small messages passes itself to delay(). When the
  iteration ends, the queue calls the response, which writes its messages or delays them for one
  more iteration. The messages are also written by close(), and before coalesced data that is
  flushed when an iteration ends. flush() does not write them, because over HTTP/2 other responses
  use the same queue.
- Files: while a file is being sent (`_file` is set), later writes wait until the file has been
  sent. They also wait while write_bytes() writes a large body to the transport in blocks.
- write_file() and write_bytes() send as much as the socket accepts at once. If bytes remain,
  `on_sent` is called after the last byte, or after one of these failures. Each failure closes the
  connection, because the response cannot reach its declared length:

  - the file ends too early (FileTruncated)
  - the connection is lost (ConnectionResetError). After abort(), `on_sent` is called in the next
    iteration.
  - close() is called (ConnectionResetError)
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

# This many bytes of a large write are joined to the coalesced data before them, to be sent in one
# packet.
_JOINED_BYTES = 16 * 1024
# If a client reads this many bytes within QUICK_S, its send buffer is enlarged again.
_QUICK_BYTES = 512 * 1024


class OutputQueue(FileOwner):
    """Wraps the event loop's transport. See the module's docstring.

    :param transport: the event loop's transport. Its protocol must set `is_paused` in
        pause_writing(), and call :meth:`on_writing_resumed` from resume_writing() and
        :meth:`on_connection_lost` from connection_lost().
    :ivar flush_follows: whether the current writer will also call flush().
    :ivar is_receiving: returns whether the client is still sending a request. None if unknown.
    """

    # Slots, because every connection has an OutputQueue, even while it is idle.
    __slots__ = (
        "_bytes_before_limit", "_delayed", "_file", "_is_scheduled", "_loop", "_pending", "_size",
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
        self._is_scheduled = False
        self.flush_follows = False
        # The outputs to call when the iteration ends. Over HTTP/1 there is at most one.
        self._delayed: tuple[DelayedOutput, ...] = ()
        self._file: FileOutput | None = None
        self.is_paused = False
        self.may_grow = None
        # The bytes to write before the socket's send buffer is limited.
        self._bytes_before_limit = FIRST_SEND_BUFFER_BYTES

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if type(data) is not bytes and not isinstance(data, (bytes, bytearray, memoryview)):
            data = bytes(memoryview(data))  # an invalid type raises the error here, in write()
        size = len(data)
        if not size or self.is_closing is _is_lingering:
            return
        if size >= COALESCED_BYTES and self._file is None:
            self._write_large(data)
            return
        self._pending.append(data)
        self._size += size
        if self._size >= COALESCED_BYTES:
            self.flush()
        elif not (self._is_scheduled or self.flush_follows):
            self._schedule()

    def write_now(self, data: bytes) -> None:
        """Write data, and flush."""
        if self._pending or self._file is not None:
            self.write(data)
            self.flush()
        elif data and self.is_closing is not _is_lingering:
            self._bytes_before_limit -= len(data)
            self.real.write(data)

    def delay(self, output: DelayedOutput) -> None:
        """Call end_iteration() of an output when the event loop iteration ends."""
        if output not in self._delayed:
            self._delayed += (output,)
        if not self._is_scheduled:
            self._schedule()

    def flush(self) -> None:
        """Write the coalesced data to the loop's transport, unless a file is being sent."""
        if self._pending and self._file is None:
            self._bytes_before_limit -= self._size
            if self._bytes_before_limit < 0:
                self._limit_send_buffer()
            self.real.write(self._pop_pending())

    def _release_delayed(self) -> None:
        """Have all delayed messages written. The caller calls flush() after this."""
        delayed, self._delayed = self._delayed, ()
        self.flush_follows = True
        try:
            for output in delayed:
                output.release()
        finally:
            self.flush_follows = False

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._loop.call_soon(self._on_iteration_end)

    def _on_iteration_end(self) -> None:
        self._is_scheduled = False
        if self.is_closing():
            return
        if self._delayed:
            must_flush = bool(self._pending)
            for output in self._delayed:
                if not output.end_iteration():
                    must_flush = True
            if not must_flush:
                self._schedule()
                return
            self._release_delayed()
        self.flush()

    def _pop_pending(self) -> bytes | bytearray | memoryview:
        pending = self._pending
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        pending.clear()
        self._size = 0
        return data

    def _write_large(self, data: bytes | bytearray | memoryview) -> None:
        if self._pending:
            self._bytes_before_limit -= self._size
            view = memoryview(data)
            self._pending.append(view[:_JOINED_BYTES])
            data = view[_JOINED_BYTES:]
            self.real.write(self._pop_pending())
        self.write_block(data)

    def write_block(self, data: bytes | bytearray | memoryview) -> None:
        self._bytes_before_limit -= len(data)
        if self._bytes_before_limit < 0:
            self._limit_send_buffer()
        self.real.write(data)
        if self.may_grow and (waiting := self.real.get_write_buffer_size()) >= _QUICK_BYTES:
            self._loop.call_later(QUICK_S, self._release_if_quick, waiting - _QUICK_BYTES)

    # The socket's send buffer. Unsent bytes of slow clients count against the memory that the
    # kernel has for all TCP connections.

    def _limit_send_buffer(self) -> None:
        """Limit the send buffer. This is called once, when a connection has written many bytes."""
        self._bytes_before_limit = sys.maxsize
        if self.may_grow is None:
            sock = self.real.get_extra_info("socket")
            self.may_grow = sock is not None and limit_send_buffer(sock)

    def _release_if_quick(self, waiting_limit: int) -> None:
        """Enlarge the send buffer again if the client has read _QUICK_BYTES within QUICK_S."""
        if self.may_grow and self.real.get_write_buffer_size() <= waiting_limit:
            self.may_grow = False
            with contextlib.suppress(OSError):  # the client has left: the next write fails
                release_send_buffer(self.real.get_extra_info("socket"))

    # Files

    def write_file(self, segment: FileSegment, on_sent: OnSent) -> bool:
        """Send a range of a file after all earlier writes. Only one file may be sent at a time.

        :param segment: the range. Its file must stay open until it is sent or an error is raised.
        :param on_sent: called with the number of unsent bytes, and an error or None.
        :returns: True if the whole range was sent at once. If not, on_sent() is called later.
        :raises FileTruncated: if the file ends early. The connection is closed.
        :raises ConnectionError: if the connection is lost or closed.
        """
        if not segment.size:
            return True
        kind = FileTransfer if self.can_sendfile else FileReader
        return self._send(kind(self, self._loop, segment, on_sent))

    def write_bytes(self, data: bytes, on_sent: OnSent, may_spill: bool) -> bool:
        """Send a large body in blocks. The interface is that of :meth:`write_file`.

        :param may_spill: see BytesWriter.
        """
        return self._send(BytesWriter(self, self._loop, data, on_sent, may_spill))

    def _send(self, file: FileOutput) -> bool:
        if self.is_closing():
            raise ConnectionResetError("the connection was closed before the file was sent")
        headers = bytes(self._pop_pending()) if self._pending else b""
        self._file = file
        try:
            try:
                is_sent = file.begin(headers)
            except SendfileUnavailable:
                self._file = file = FileReader(self, self._loop, file.segment, file.on_sent)
                is_sent = file.begin(b"")
        except BaseException:
            self._end_file(is_incomplete=True)
            raise
        if is_sent:
            self._end_file()
        return is_sent

    def file_ended(self, error: Exception | None) -> None:
        file = self._file
        assert file is not None
        if isinstance(error, SendfileUnavailable):
            self._file = file = FileReader(self, self._loop, file.segment, file.on_sent)
            file.resume()
            return
        self._end_file(is_incomplete=error is not None)
        file.on_sent(file.unsent, error)

    def _end_file(self, *, is_incomplete: bool = False) -> None:
        """Flush the writes that follow a file. After an incomplete file, close instead."""
        self._file = None
        if not is_incomplete:
            self.flush()
            return
        self._pending.clear()
        self._size = 0
        if not self.real.is_closing():
            self.real.close()

    def on_writing_resumed(self) -> None:
        """Continue the file after the protocol's resume_writing() was called."""
        self.is_paused = False
        if self._file is not None:
            self._file.resume()

    # End of the connection

    def on_connection_lost(self) -> None:
        """Stop all output after the protocol's connection_lost() was called."""
        self._delayed = ()
        self.may_grow = False  # so that a pending timer does not access the socket
        self.is_receiving = None
        self._pending.clear()
        self._size = 0
        if self._file is not None:
            self._file.fail(ConnectionResetError("the connection was lost while a file was sent"))

    def close(self) -> None:
        """Close the connection when all bytes are written and the client's request has arrived.

        The server calls this a second time when it is about to end. The second call shortens the
        wait for the request.
        """
        if self.is_closing is _is_lingering:
            if not self.real.is_closing():
                linger(self.real, self._loop)
            return
        if self.is_closing():
            return  # asyncio's TLS transport fails at a second close()
        self._release_delayed()
        self.flush()
        if self._must_linger():
            self.is_closing = _is_lingering  # type: ignore[method-assign]
            linger(self.real, self._loop)
            return
        self.real.close()
        if self._file is not None:
            self._file.fail(ConnectionResetError("the connection was closed while a file was sent"))
        if self.real.get_extra_info("sslcontext") is not None:
            # If reading is paused and the client has left without a close_notify, asyncio's TLS
            # transport would ignore close() and stay open forever.
            self.real.resume_reading()

    def _must_linger(self) -> bool:
        """Return whether the client may still send. If so, a close would reset the connection."""
        if self._file is not None:
            return False
        if not self.real.is_reading():
            return True
        return self.is_receiving is not None and self.is_receiving()

    @property
    def sends_file(self) -> bool:
        """Whether a file is being sent by sendfile."""
        return type(self._file) is FileTransfer

    @property
    def waits_for_client(self) -> bool:
        """Whether output waits until the socket is writable."""
        return self._file is not None or self.real.get_write_buffer_size() > 0

    def get_write_buffer_size(self) -> int:
        return self._size + self.real.get_write_buffer_size()

    # The other methods that uvicorn uses call those of the real transport. A __getattr__() would
    # slow down every attribute.

    def abort(self) -> None:
        self.real.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.real.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self.real.pause_reading()

    def resume_reading(self) -> None:
        self.real.resume_reading()


def _is_lingering() -> bool:
    """Return True, as is_closing() of a queue that discards its client's input."""
    return True

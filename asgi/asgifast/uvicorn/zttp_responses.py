"""The wires of asgifast's zttp protocols. zttp frames the bodies.

Over HTTP/2, zttp puts all bytes into frames, so sendfile cannot be used. Files are read, in a
thread if they are not in the page cache. Bytes that exceed the client's flow-control window would
wait in zttp's memory. So files and large bodies are not read or written faster than the client
opens its window.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from wsgifast.files import ByteRange
from wsgifast.files.temporary import Reservation
from wsgifast.http.framing import has_body
from wsgifast.sockets import FileSegment
from wsgifast.sockets.sending import BLOCK_BYTES

from ..access_line import note_cut_off
from ..file_blocks import send_segment
from ..messages import Message, copied_start, declared_length, response_body
from ..protocols.large_bodies import memory, write_to_file
from ..protocols.queue_wire import (
    LARGE_BYTES,
    SMALL_FILE_BYTES,
    FileBody,
    QueueWire,
    count,
    size_of,
)

# The most bytes of a frame's payload by default (SETTINGS_MAX_FRAME_SIZE, RFC 9113 section 6.5.2).
_FRAME_BYTES = 16 * 1024
# If more body bytes of a stream than this wait for the client's window, the app's send() waits.
_QUEUED_BYTES = 64 * 1024
# The names of the framing headers, and the list of them if there is only a Content-Length.
_FRAMING, _LENGTH = {b"content-length", b"transfer-encoding"}, [b"content-length"]


class _UncountedBody:
    """Replaces the connection object of zttp during a response whose body bypasses zttp.

    zttp counts the bytes of a body with a Content-Length, but does not see the bytes that sendfile
    sends. So zttp is given the headers of a chunked body, and in the encoded headers Content-Length
    is restored. uvicorn still counts the bytes.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._output = b""
        self.should_close = connection.should_close

    def send_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        length = b"%d" % (declared_length(headers) or 0)
        others = [header for header in headers if header[0].lower() != b"content-length"]
        self._connection.send_response(status, [*others, (b"transfer-encoding", b"chunked")])
        self._output = self._connection.data_to_send().replace(
            b"\r\ntransfer-encoding: chunked\r\n", b"\r\ncontent-length: %b\r\n" % length, 1
        )

    def send_data(self, data: bytes) -> None:
        self._output += data

    def end_message(self) -> None:
        self._connection.end_message()
        self._connection.data_to_send()

    def data_to_send(self) -> bytes:
        output, self._output = self._output, b""
        return output


class ZttpWire(QueueWire):
    """The wire for HTTP/1.1. Like with httptools, uvicorn counts and frames the bytes."""

    __slots__ = ()

    async def _send_start(self, message: Message) -> None:
        cycle = self.cycle
        if not cycle.response_started:
            message, headers, _ = copied_start(message)
            if (
                declared_length(headers)
                and has_body(cycle.scope["method"], message["status"])
                and [name.lower() for name, _ in headers if name.lower() in _FRAMING] == _LENGTH
            ):
                cycle.conn = _UncountedBody(cycle.conn)
        await super()._send_start(message)

    def frame(self, data: bytes) -> bytes:
        cycle = self.cycle
        if cycle.chunked_encoding or type(cycle.conn) is _UncountedBody:
            return super().frame(data)
        count(cycle, len(data))
        cycle.conn.send_data(data)
        framed: bytes = cycle.conn.data_to_send()
        return framed


class _WindowedBody(FileBody):
    """Sends a file or a large body as fast as the client opens its flow-control window."""

    __slots__ = ()

    _wire: ZttpH2Wire

    async def _begin(self, part: bytes | ByteRange) -> bool:
        self._unsent = size_of(part)
        if self._unsent <= SMALL_FILE_BYTES:
            await self._read([part])
            return True
        self.body_sent = asyncio.get_running_loop().create_task(self._read([part], self._is_last))
        self.body_sent.add_done_callback(self._on_read)
        return False

    async def wait_until_sent(self) -> None:
        assert self.body_sent is not None
        await self.body_sent

    async def _read(self, parts: list[bytes | ByteRange], is_last: bool = False) -> None:
        """Send the only element of a list. No variable of this function may refer to its bytes."""
        if isinstance(parts[0], bytes):
            await self._send_bytes(cast("bytes", parts.pop()))
        else:
            await self._send_range(FileSegment(self._fd, *parts[0]))
        if is_last:
            await self._wire.finish()

    def _on_read(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._wire.cut_off(error)
        self._end_file()

    async def _send_block(self, message: Message) -> None:
        await self._wire.cycle.send(message)
        self._unsent -= len(message["body"])

    def _is_disconnected(self) -> bool:
        return bool(self._wire.cycle.disconnected)

    async def _send_range(self, segment: FileSegment) -> None:
        await send_segment(
            self._send_block, segment, more_body=True, is_disconnected=self._is_disconnected,
            wait_for_room=self._wait_for_room,
        )  # fmt: skip

    async def _send_bytes(self, data: bytes) -> None:
        if len(data) <= LARGE_BYTES:
            await self._send_block(response_body(data, more_body=True))
            return
        reserved = Reservation(memory)
        if self._is_last and not reserved.grow_to(len(data)):
            loop = asyncio.get_running_loop()
            written = await loop.run_in_executor(None, write_to_file, memoryview(data))
            if written is not None:
                del data
                file, segment = written
                with file:
                    await self._send_range(segment)
                return
        try:
            remaining = memoryview(data)
            while remaining and not self._is_disconnected():
                size = min(await self._wait_for_room(), BLOCK_BYTES)
                await self._send_block(response_body(bytes(remaining[:size]), more_body=True))
                remaining = remaining[size:]
        finally:
            reserved.release()

    async def _wait_for_room(self) -> int:
        await self._wire.drain(0)
        cycle = self._wire.cycle
        window: int = min(cycle.stream.send_window or 0, cycle.conn.send_window)
        return max(window, _FRAME_BYTES)


class ZttpH2Wire(QueueWire):
    """The wire for HTTP/2. send() waits while too many bytes wait for the client's window."""

    __slots__ = ("_is_sending", "_window_updated")

    _body_class = _WindowedBody
    _is_http1 = False

    def __init__(self, window_updated: asyncio.Event) -> None:
        self._window_updated = window_updated
        self._is_sending = False

    async def send(self, message: Message) -> None:
        self._is_sending = True
        try:
            await super().send(message)
            if message.get("more_body"):
                await self.drain(_QUEUED_BYTES)
        finally:
            self._is_sending = False

    async def send_file(self, *args: Any, **options: Any) -> None:
        self._is_sending = True
        try:
            await super().send_file(*args, **options)
        finally:
            self._is_sending = False

    def can_write_body(self) -> bool:
        return super().can_write_body() and (self.cycle.stream.pending_bytes or 0) <= _QUEUED_BYTES

    async def drain(self, queued: int) -> None:
        """Wait until at most `queued` bytes of the stream wait for the client's window."""
        cycle = self.cycle
        while not cycle.disconnected and (cycle.stream.pending_bytes or 0) > queued:
            self._window_updated.clear()
            await self._window_updated.wait()

    def waits_for_client(self) -> bool:
        pending_bytes: int = self.cycle.stream.pending_bytes or 0
        return (
            pending_bytes > (0 if self._is_sending else _QUEUED_BYTES) or super().waits_for_client()
        )

    def cut_off(self, error: BaseException | None = None) -> None:
        """Reset the stream. Other streams of the connection continue."""
        if not isinstance(error, ConnectionError):
            note_cut_off(self.cycle)
        self.cycle.abort_stream()

    def declared(self) -> int | None:
        declared: int | None = self.cycle.expected_content_length
        return declared

    def frame(self, data: bytes) -> bytes:
        cycle = self.cycle
        if cycle.expected_content_length is not None:
            count(cycle, len(data))
        cycle.stream.send_data(data)
        framed: bytes = cycle.conn.data_to_send()  # zttp makes the frames
        return framed

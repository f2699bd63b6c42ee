"""One response under uvicorn: what the app sends, on its way to uvicorn's RequestResponseCycle."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from wsgifast.files import ByteRange
from wsgifast.http import chunk_size_line
from wsgifast.sockets import FileSegment, FileTruncated
from wsgifast.sockets.page_cache import read_cached
from wsgifast.sockets.sendfile import BLOCK_BYTES, SendfileUnavailable

from .coalescing import COALESCED_BYTES, SMALL_MESSAGE_BYTES
from .loops import next_turn
from .messages import PATHSEND, ZEROCOPYSEND, Message, response_body
from .pages import read_block
from .sending import PLANNED, PlannedBody, send_run, send_unsized
from .to_send import PathToSend, declared_length, file_to_send, open_for_pathsend, path_to_send
from .transport import CoalescingTransport, Rest

__all__ = ["UNKNOWN_PATHSEND", "H11Response", "HttpToolsResponse", "Response", "logger"]

logger = logging.getLogger("uvicorn.error")
# The way out for apps whose middleware breaks their files, on every server with the extension.
UNKNOWN_PATHSEND = (
    "a middleware does not know http.response.pathsend; if it is one that changes bodies, "
    "ASGIFast(app, pathsend=False) around the app has files sent to it as bytes"
)

# A file up to this size is read and leaves in one write with the head; a larger one goes by
# sendfile, whose own system calls cost less than the copy that they spare from about here on.
SMALL_FILE_BYTES = 64 * 1024


class Response:
    """One response: what the app sends, on its way to uvicorn's RequestResponseCycle.

    Small body messages wait in `_chunks` until the end of the loop's turn, COALESCED_BYTES, or any
    other message; together they make one chunk of the chunked coding.

    A large file that is the whole rest of the body is handed over: send() opens it and returns, a
    task (`handed_over`) sends it, and the app with all that it holds is gone long before the client
    has the last byte. Its place in uvicorn, run_asgi(), waits for the task.
    """

    # A response lives as long as its slowest download, and thousands may be under way.
    __slots__ = (
        "_chunks",
        "_cycle",
        "_error",
        "_headers",
        "_size",
        "_transport",
        "handed_over",
    )

    def __init__(self, cycle: Any, transport: CoalescingTransport) -> None:
        self._cycle = cycle
        self.handed_over: asyncio.Task[None] | None = None
        self._transport = transport
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: Exception | None = None

    async def send(self, message: Message) -> None:
        if self.handed_over is not None:
            await self.sent()
        kind = message["type"]
        cycle = self._cycle
        if kind == "http.response.body":
            body = message.get("body", b"")
            if message.get("more_body"):
                if (
                    type(body) is bytes
                    and len(body) <= SMALL_MESSAGE_BYTES
                    and cycle.response_started
                    and not cycle.flow.write_paused
                    and self._error is None
                    and not cycle.response_complete
                    and not cycle.disconnected
                    and not self._is_bodyless()
                ):
                    if not self._chunks:
                        self._transport.call_before_flush(self._write_chunks)
                    self._chunks.append(body)
                    self._size += len(body)
                    if self._size >= COALESCED_BYTES:
                        self._transport.flush()
                    return
                self._settle()
                await cycle.send(message)
                if type(body) is not bytes:
                    self._transport.flush()  # its owner may change it in this very turn
                return
            if self._chunks and type(body) is bytes:
                self._chunks.append(body)
                message = {**message, "body": b"".join(self._chunks)}
                self._chunks.clear()
                self._size = 0
            if self._chunks or self._error is not None:
                self._settle()
            # Where it has to wait, others of the connection may write meanwhile.
            self._transport.flush_follows = not cycle.flow.write_paused
            try:
                await cycle.send(message)
            finally:
                self._transport.flush_follows = False
                self._transport.flush()
        elif kind == "http.response.start":
            headers = message.get("headers", ())
            if type(headers) is not list:
                headers = list(headers)
                message = {**message, "headers": headers}
            self._headers = headers
            for name, _ in headers:
                if name == b"content-length":
                    self._transport.flush_follows = not cycle.flow.write_paused
                    break
            try:
                await cycle.send(message)
            finally:
                self._transport.flush_follows = False
        elif kind in (PATHSEND, ZEROCOPYSEND) and cycle.response_started:
            self._settle()
            if cycle.response_complete or cycle.disconnected:
                if PLANNED in message:
                    message[PLANNED].file.close()
                await cycle.send(message)  # uvicorn says what is wrong with that
            elif PLANNED in message:
                await self._send_planned(message[PLANNED])
            elif kind == PATHSEND:
                await self._send_path(path_to_send(message))
            else:
                await self._send_zero_copy(message)
        else:
            self._settle()
            await cycle.send(message)

    async def sent(self) -> None:
        """Wait until a file that was handed over is sent."""
        if self.handed_over is not None:
            try:
                await self.handed_over
            finally:
                self.handed_over = None

    def _is_bodyless(self) -> bool:
        """Whether no body byte may be sent, whatever the app sends."""
        return bool(self._cycle.scope["method"] == "HEAD")

    # Coalesced messages

    def _settle(self) -> None:
        """Write what was coalesced, before anything else is sent."""
        if self._chunks:
            self._write_chunks()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write_chunks(self) -> None:
        if not self._chunks:
            return
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if not data or self._cycle.disconnected:
            return
        try:
            framed = self._frame(data)
        except Exception as error:  # noqa: BLE001 - raised by the app's next send()
            self._error = error
            return
        self._transport.write(framed)

    def _frame(self, data: bytes) -> bytes:
        """Have uvicorn count body bytes; return them as they are sent."""
        before, after = self._announce(len(data))
        return before + data + after if before else data

    def _announce(self, size: int) -> tuple[bytes, bytes]:
        """Have uvicorn count `size` body bytes; return what is to be sent before and after them."""
        raise NotImplementedError

    # Files

    async def _send_path(self, asked: PathToSend) -> None:
        if self._is_bodyless():
            await self._finish()
            return
        declared = declared_length(self._headers or ())
        self._headers = None
        fd, size = open_for_pathsend(asked.path)
        run = asked.run(size, declared)
        if run.offset + run.size > size:
            logger.error(
                "%s has %d bytes where its head says %d: it has shrunk, or %s",
                asked.path, size, run.offset + run.size, UNKNOWN_PATHSEND,
            )  # fmt: skip
        await self._send_body(fd, (run,), partial(os.close, fd))

    async def _send_planned(self, planned: PlannedBody) -> None:
        segments = () if self._is_bodyless() else planned.segments
        await self._send_body(planned.file.fileno(), segments, planned.file.close)

    async def _send_body(
        self, fd: int, segments: Sequence[bytes | ByteRange], close: Callable[[], None]
    ) -> None:
        """Send the whole rest of the body; what must wait for the client goes on without the app.

        :param close: called when the file is no longer needed.
        """
        try:
            if len(segments) == 1 and (data := _at_hand(fd, segments[0])) is not None:
                await self._finish(data)
                return
            left = iter(segments)
            for segment in left:
                if isinstance(segment, bytes):
                    await self._send_bytes(segment)
                    continue
                rest = await self._begin_run(FileSegment(fd, segment.offset, segment.size))
                if rest is not None:
                    self._hand_over(self._send_rest(rest, fd, left), close)
                    return
            await self._finish()
        finally:
            if self.handed_over is None:
                close()

    def _hand_over(self, coro: Coroutine[Any, Any, None], close: Callable[[], None]) -> None:
        self.handed_over = asyncio.get_running_loop().create_task(coro)
        # Not by the task itself, which may be cancelled before its first step.
        self.handed_over.add_done_callback(partial(_call, close))

    async def _send_rest(self, rest: Rest, fd: int, segments: Iterator[bytes | ByteRange]) -> None:
        sending = rest()
        del rest  # which would be kept for as long as the client reads
        await sending
        for segment in segments:
            if isinstance(segment, bytes):
                await self._send_bytes(segment)
            else:
                await self._send_run(FileSegment(fd, segment.offset, segment.size))
        await self._finish()

    async def _send_bytes(self, data: bytes) -> None:
        await self._send_part(response_body(data, more_body=True))

    async def _send_part(self, message: Message) -> None:
        """Send a body message of a file."""
        await self._cycle.send(message)

    async def _send_zero_copy(self, message: Message) -> None:
        if not self._is_bodyless():
            file = file_to_send(message)
            if file.segment is None:
                await send_unsized(self._send_part, file.fd, message.get("count"))
            else:
                await self._send_run(file.segment)
                file.advance()
        if not message.get("more_body", False):
            await self._finish()

    async def _send_run(self, segment: FileSegment) -> None:
        rest = await self._begin_run(segment)
        if rest is not None:
            await rest()

    async def _begin_run(self, segment: FileSegment) -> Rest | None:
        """Send the first bytes of a run, and return what sends the others, if there are any."""
        if segment.size <= SMALL_FILE_BYTES or not self._transport.can_sendfile:
            first = min(BLOCK_BYTES, segment.size)
            await self._read_run(FileSegment(segment.fd, segment.offset, first))
            if first == segment.size:
                return None
            return partial(
                self._read_run,
                FileSegment(segment.fd, segment.offset + first, segment.size - first),
            )
        before, after = self._announce(segment.size)
        self._transport.write(before)
        rest: Rest | None
        try:
            rest = self._transport.begin_file(segment)
        except SendfileUnavailable:
            rest = partial(self._write_run, segment)
        except ConnectionError:
            return None  # the client has gone: uvicorn ignores what is sent after that, too
        if rest is None:
            self._transport.write(after)
            return None
        return partial(self._finish_run, rest, segment, after)

    async def _finish_run(self, rest: Rest, segment: FileSegment, after: bytes) -> None:
        try:
            try:
                sending = rest()
                del rest  # as above
                await sending
            except SendfileUnavailable:
                await self._write_run(segment)
        except ConnectionError:
            return  # as in _begin_run()
        except BaseException:
            self._cut_off()
            raise
        self._transport.write(after)

    async def _read_run(self, segment: FileSegment) -> None:
        try:
            await send_run(self._cycle.send, segment, more_body=True, stop=self._has_left)
        except FileTruncated:
            self._cut_off()
            raise

    def _has_left(self) -> bool:
        return bool(self._cycle.disconnected)

    async def _write_run(self, segment: FileSegment) -> None:
        """The bytes of an announced run, through the transport."""
        fd, offset, size = segment
        end = offset + size
        while offset < end and not self._has_left():
            block = await read_block(fd, offset, min(BLOCK_BYTES, end - offset))
            if not block:
                raise FileTruncated(end - offset, size)
            offset += len(block)
            self._transport.write(block)
            if self._cycle.flow.write_paused:
                await self._cycle.flow.drain()
            elif offset < end:
                await next_turn()

    def _cut_off(self) -> None:
        """Close, and have uvicorn ignore what an app that goes on sends: it would be taken for the
        bytes that are missing, or for the end of the whole body."""
        self._transport.close()
        self._cycle.disconnected = True

    async def _finish(self, data: bytes = b"") -> None:
        await self._cycle.send(response_body(data))
        self._transport.flush()


def _call(function: Callable[[], None], task: object) -> None:
    function()


def _at_hand(fd: int, segment: bytes | ByteRange) -> bytes | None:
    """A small file's bytes, if all of them can be had without waiting."""
    if isinstance(segment, bytes) or segment.size > SMALL_FILE_BYTES:
        return None
    data = read_cached(fd, segment.offset, segment.size)
    return None if data is None or len(data) < segment.size else data


class HttpToolsResponse(Response):
    __slots__ = ()

    def _announce(self, size: int) -> tuple[bytes, bytes]:
        cycle = self._cycle
        if cycle.chunked_encoding:
            return chunk_size_line(size), b"\r\n"
        if size > cycle.expected_content_length:
            raise RuntimeError("Response content longer than Content-Length")
        cycle.expected_content_length -= size
        return b"", b""


class _Bytes:
    """Stands for body bytes that h11 counts and frames but does not see."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class H11Response(Response):
    __slots__ = ()

    def _announce(self, size: int) -> tuple[bytes, bytes]:
        import h11

        stand_in: Any = _Bytes(size)
        parts = self._cycle.conn.send_with_data_passthrough(h11.Data(data=stand_in))
        place = parts.index(stand_in)
        return b"".join(parts[:place]), b"".join(parts[place + 1 :])

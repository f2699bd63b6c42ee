"""The body of a response from an open file, under uvicorn's protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from wsgifast.files import ByteRange
from wsgifast.http.framing import chunk_size_line
from wsgifast.sockets import FileSegment, FileTruncated
from wsgifast.sockets.sending import BLOCK_BYTES, SendfileUnavailable, read_cached

from ..files import send_segment
from ..messages import Message, response_body
from .transport import DelayedOutput, Rest

if TYPE_CHECKING:
    from ..instrumented import Request

# A file up to this size is read, and leaves in one write with the headers. For a larger one
# sendfile's own system calls cost less than the copy that they save.
SMALL_FILE_BYTES = 64 * 1024


class BodyOutput(DelayedOutput):
    """The framing and the end of a body, over httptools and zttp.

    There uvicorn's RequestResponseCycle counts and frames the body itself.

    :ivar cycle: uvicorn's. Its send() gets whole messages.
    """

    __slots__ = ()

    cycle: Any

    async def send_part(self, message: Message) -> None:
        """Send a body message that is a part of a file's body."""
        await self.cycle.send(message)

    async def finish(self, data: bytes = b"") -> None:
        """Send the end of the body."""
        await self.cycle.send(response_body(data))
        self.cycle.transport.flush()

    def cut_off(self) -> None:
        """Close the connection, and have uvicorn ignore later messages of the app.

        The client would take them for the missing bytes, or for the end of the body.
        """
        self.cycle.transport.close()
        self.cycle.disconnected = True

    def frame_for(self, size: int) -> tuple[bytes, bytes]:
        """Have the server count body bytes. Return the framing before and after them."""
        if self.cycle.chunked_encoding:
            return chunk_size_line(size), b"\r\n"
        count(self.cycle, size)
        return b"", b""


def count(cycle: Any, size: int) -> None:
    """Count body bytes of a response with a Content-Length."""
    if size > cycle.expected_content_length:
        raise RuntimeError("Response content longer than Content-Length")
    cycle.expected_content_length -= size


class FileBody:
    """A body of bytes, and ranges of one open file.

    :meth:`begin` sends as much as the socket accepts now, so that the app can end and free its
    memory long before the client has the last byte. The caller of the app sends the remaining bytes
    (:meth:`sent`) if the app returns in the same turn of the loop, as most do. Otherwise a task
    does, which costs more memory.

    :param response: has the framing, and sends the body's end.
    :param close: called once, when the file is no longer needed.
    :param recording: records the body's end.
    """

    # Lives as long as the slowest download, of which there may be thousands.
    __slots__ = (
        "_close", "_fd", "_left", "_recording", "_response", "_rest", "_segments", "_sent_by",
    )  # fmt: skip

    # As for send_segment().
    _room: Callable[[], Awaitable[int]] | None = None

    def __init__(
        self,
        response: BodyOutput,
        fd: int,
        close: Callable[[], object] | None = None,
        recording: Request | None = None,
    ) -> None:
        self._response = response
        self._fd = fd
        self._close = close
        self._recording = recording
        # What follows in the body.
        self._segments: Iterator[bytes | ByteRange] = iter(())
        # Sends the rest of the range that is being sent.
        self._rest: Rest | None = None
        # Bytes of that range that were not sent.
        self._left = 0
        # The task that sends the rest.
        self._sent_by: asyncio.Task[Any] | None = None

    async def begin(self, segments: Sequence[bytes | ByteRange]) -> bool:
        """Send as much as the socket accepts now. Return whether bytes remain."""
        self._segments = iter(segments)
        try:
            if len(segments) == 1 and (data := self._read_small(segments[0])) is not None:
                next(self._segments)
                await self._response.finish(data)
            else:
                await self._send_until_full()
        finally:
            if self._rest is None:
                self._end()
        if self._rest is None:
            return False
        if self._recording is not None:
            self._recording.is_handed_over = True
        asyncio.get_running_loop().call_soon(self.start_task)
        return True

    def sent(self) -> Awaitable[Any]:
        """Await this until the body is sent: by the caller, if no task sends it."""
        if self._sent_by is not None:
            return self._sent_by
        self._sent_by = asyncio.current_task()
        return self._send_rest()

    async def send(self, segment: FileSegment) -> None:
        """Send a range of the file as a part of the body."""
        rest = await self._begin_segment(segment)
        if rest is not None:
            await rest()

    def _read_small(self, segment: bytes | ByteRange) -> bytes | None:
        """A small segment's bytes, if all of them are in the page cache."""
        if isinstance(segment, bytes) or segment.size > SMALL_FILE_BYTES:
            return None
        data = read_cached(self._fd, segment.offset, segment.size)
        return None if data is None or len(data) < segment.size else data

    async def _send_until_full(self) -> None:
        """Send segments and the body's end, up to a range that takes long, which has a rest."""
        for segment in self._segments:
            if isinstance(segment, bytes):
                await self._response.send_part(response_body(segment, more_body=True))
            else:
                self._rest = await self._begin_segment(FileSegment(self._fd, *segment))
                if self._rest is not None:
                    return
        await self._response.finish()

    def start_task(self) -> None:
        """Have a task send the rest, if the app's caller does not."""
        if self._sent_by is None:
            task = self._sent_by = asyncio.get_running_loop().create_task(self._send_rest())
            # The task may be cancelled before its first step.
            task.add_done_callback(lambda task: self._end())

    async def _send_rest(self) -> None:
        try:
            while self._rest is not None:
                sending = self._rest()
                self._rest = None  # otherwise it lives as long as the client reads
                await sending
                await self._send_until_full()
        finally:
            self._end()

    def _end(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()
            if self._recording is not None:
                following = (len(s) if isinstance(s, bytes) else s.size for s in self._segments)
                self._recording.ended(self._left + sum(following))

    # A range

    async def _begin_segment(self, segment: FileSegment) -> Rest | None:
        """Send the first bytes of a range. Return the sender of the others, if there are any."""
        response = self._response
        transport = response.cycle.transport
        self._left = segment.size
        if segment.size <= SMALL_FILE_BYTES or not transport.can_sendfile:
            first = min(BLOCK_BYTES, segment.size)
            await self._send_by_reads(segment._replace(size=first))
            if first == segment.size:
                return None
            following = FileSegment(segment.fd, segment.offset + first, segment.size - first)
            return partial(self._send_by_reads, following)
        before, after = response.frame_for(segment.size)
        transport.write(before)
        rest: Rest | None
        try:
            rest = transport.begin_file(segment)
        except SendfileUnavailable:
            rest = partial(self._send_by_reads, segment, is_framed=True)
        except ConnectionError:
            return None  # the client has gone: uvicorn ignores later messages, too
        if rest is None:
            self._left = 0
            transport.write(after)
            return None
        return partial(self._finish_segment, rest, segment, after)

    async def _finish_segment(self, rest: Rest, segment: FileSegment, after: bytes) -> None:
        response = self._response
        transport = response.cycle.transport
        try:
            try:
                sending = rest()
                del rest  # as above
                await sending
            except SendfileUnavailable:
                await self._send_by_reads(segment, is_framed=True)
        except ConnectionError:
            return  # as above
        except BaseException:
            response.cut_off()
            raise
        finally:
            self._left = transport.unsent
        transport.write(after)

    async def _send_by_reads(self, segment: FileSegment, *, is_framed: bool = False) -> None:
        """Send a range in blocks.

        :param is_framed: its framing is written already. Otherwise the server frames each block.
        """
        cycle = self._response.cycle
        try:
            await send_segment(
                self._write_block if is_framed else self._send_block,
                segment,
                more_body=True,
                is_disconnected=lambda: bool(cycle.disconnected),
                room=self._room,
            )
        except FileTruncated:
            self._response.cut_off()
            raise

    async def _send_block(self, message: Message) -> None:
        await self._response.cycle.send(message)
        self._left -= len(message["body"])

    async def _write_block(self, message: Message) -> None:
        cycle = self._response.cycle
        cycle.transport.write(message["body"])
        cycle.transport.unsent -= len(message["body"])
        if cycle.flow.write_paused:
            await cycle.flow.drain()

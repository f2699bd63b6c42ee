"""The part of a response that sends files: by sendfile or by reads, with the app or without it.

A large file at the end of the body is handed over: send() opens it, sends what the socket takes and
returns, so that the app and all it holds may be gone long before the client has the last byte. The
caller of the app sends the rest (:meth:`FileBody.sent`) if the app returns in the same turn of the
loop, as most do; otherwise a task does, which costs more memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from wsgifast.files import ByteRange
from wsgifast.sockets import FileSegment, FileTruncated
from wsgifast.sockets.sending import BLOCK_BYTES, SendfileUnavailable, read_cached

from ..files import (
    RequestedFile,
    RequestedPath,
    open_for_pathsend,
    parse_pathsend,
    send_segment,
    send_unsized,
)
from ..messages import Message, PlannedBody, declared_length, response_body
from .transport import CoalescingTransport, Rest

if TYPE_CHECKING:
    from ..instrumented import Request

logger = logging.getLogger("uvicorn.error")
# What an app whose middleware breaks its files can do, on every server with the extension.
UNKNOWN_PATHSEND = (
    "a middleware does not know http.response.pathsend; if it is one that changes bodies, "
    "ASGIFast(app, pathsend=False) around the app has files sent to it as bytes"
)

# A file up to this size is read, and leaves in one write with the head; for a larger one sendfile's
# own system calls cost less than the copy that they save.
SMALL_FILE_BYTES = 64 * 1024


class HandedOver(NamedTuple):
    """The rest of a body, before anyone sends it."""

    rest: Rest
    fd: int
    # What follows in the body, of the same file.
    segments: Iterator[bytes | ByteRange]
    close: Callable[[], object]


class FileBody(ABC):
    """Sends files and ranges of them, as a body or as a part of one.

    Subclasses set the attributes.

    :ivar handed_over: the rest of the body, or the task that sends it.
    """

    # Lives as long as the slowest download, of which there may be thousands.
    __slots__ = ("_cycle", "_headers", "_left", "_transport", "handed_over")

    # uvicorn's RequestResponseCycle.
    _cycle: Any
    _headers: list[tuple[bytes, bytes]] | None
    # Bytes of the range being sent that were not sent.
    _left: int
    _transport: CoalescingTransport
    handed_over: HandedOver | asyncio.Task[Any] | None

    def sent(self) -> Awaitable[Any]:
        """Awaited by the app's caller when the app has returned: until the body is sent."""
        if isinstance(self.handed_over, HandedOver):
            handed_over, self.handed_over = self.handed_over, asyncio.current_task()
            return self._send_rest(*handed_over)
        return self._sent_by_task()

    def _is_bodyless(self) -> bool:
        """Whether no body bytes may be sent, whatever the app sends."""
        return bool(self._cycle.scope["method"] == "HEAD")

    @abstractmethod
    def _frame_for(self, size: int) -> tuple[bytes, bytes]:
        """Have the server count `size` body bytes; return the framing before and after them."""

    # Messages

    async def _send_path(self, opened: OpenedPath, recording: Request | None) -> None:
        asked, fd, size = opened
        declared = declared_length(self._headers or ())
        self._headers = None
        run = asked.byte_range(size, declared)
        if run.offset + run.size > size:
            logger.error(
                "%s has %d bytes where its head says %d: it has shrunk, or %s",
                asked.path, size, run.offset + run.size, UNKNOWN_PATHSEND,
            )  # fmt: skip
        await self._send_body(fd, (run,), partial(os.close, fd), recording)

    async def _send_planned(self, planned: PlannedBody, recording: Request | None) -> None:
        segments = () if self._is_bodyless() else planned.segments
        await self._send_body(planned.file.fileno(), segments, planned.file.close, recording)

    async def _send_zero_copy(self, message: Message, file: RequestedFile | None) -> None:
        """Send a part of a file, which is None if the request is a HEAD."""
        if file is not None and not self._is_bodyless():
            if file.segment is None:
                await send_unsized(self._send_part, file.fd, message.get("count"))
            else:
                rest = await self._begin_segment(file.segment)
                if rest is not None:
                    await rest()
                file.advance()
        if not message.get("more_body", False):
            await self._finish()

    # Bodies

    async def _send_body(
        self,
        fd: int,
        segments: Sequence[bytes | ByteRange],
        close: Callable[[], None],
        recording: Request | None,
    ) -> None:
        """Send the rest of the body, or hand over what the socket does not take now.

        :param close: called when the file is no longer needed.
        :param recording: records the body's end.
        """
        self._left = 0
        following = iter(segments)
        if recording is not None:
            close = partial(self._close_and_record, close, recording, following)
        try:
            if len(segments) == 1 and (data := _read_small(fd, segments[0])) is not None:
                next(following)
                await self._finish(data)
                return
            rest = await self._send_until_full(fd, following)
            if rest is not None:
                if recording is not None:
                    recording.handed_over()
                self.handed_over = HandedOver(rest, fd, following, close)
                asyncio.get_running_loop().call_soon(self._start_task)
        finally:
            if self.handed_over is None:
                close()

    def _close_and_record(
        self,
        close: Callable[[], None],
        recording: Request,
        following: Iterator[bytes | ByteRange],
    ) -> None:
        close()
        left = (each.size if isinstance(each, ByteRange) else len(each) for each in following)
        recording.ended(self._left + sum(left))

    async def _send_until_full(self, fd: int, segments: Iterator[bytes | ByteRange]) -> Rest | None:
        """Send segments and the body's end; or return what sends the rest of one, if it takes long.

        The segments behind that are not taken then.
        """
        for segment in segments:
            if isinstance(segment, bytes):
                await self._send_part(response_body(segment, more_body=True))
            else:
                file = FileSegment(fd, segment.offset, segment.size)
                if (rest := await self._begin_segment(file)) is not None:
                    return rest
        await self._finish()
        return None

    def _start_task(self) -> None:
        """Have a task send what was handed over, if the app's caller does not."""
        if isinstance(self.handed_over, HandedOver):
            rest, fd, segments, close = self.handed_over
            task = asyncio.get_running_loop().create_task(self._send_rest(rest, fd, segments))
            # Not by the task itself, which may be cancelled before its first step.
            task.add_done_callback(lambda task: close())
            self.handed_over = task

    async def _sent_by_task(self) -> None:
        self._start_task()
        if isinstance(self.handed_over, asyncio.Task):
            try:
                await self.handed_over
            finally:
                self.handed_over = None

    async def _send_rest(
        self,
        rest: Rest | None,
        fd: int,
        segments: Iterator[bytes | ByteRange],
        close: Callable[[], object] = lambda: None,
    ) -> None:
        try:
            while rest is not None:
                sending = rest()
                rest = None  # else it is kept for as long as the client reads
                await sending
                rest = await self._send_until_full(fd, segments)
        finally:
            close()

    async def _send_part(self, message: Message) -> None:
        """Send a body message that is a part of a file's body."""
        await self._cycle.send(message)

    async def _finish(self, data: bytes = b"") -> None:
        await self._cycle.send(response_body(data))
        self._transport.flush()

    # Segments

    async def _begin_segment(self, segment: FileSegment) -> Rest | None:
        """Send the first bytes of a segment; return what sends the others, if there are any."""
        self._left = segment.size
        if segment.size <= SMALL_FILE_BYTES or not self._transport.can_sendfile:
            first = min(BLOCK_BYTES, segment.size)
            await self._send_by_reads(segment._replace(size=first))
            if first == segment.size:
                return None
            following = FileSegment(segment.fd, segment.offset + first, segment.size - first)
            return partial(self._send_by_reads, following)
        before, after = self._frame_for(segment.size)
        self._transport.write(before)
        rest: Rest | None
        by_sendfile = True
        try:
            rest = self._transport.begin_file(segment)
        except SendfileUnavailable:
            by_sendfile = False
            rest = partial(self._write_by_reads, segment)
        except ConnectionError:
            return None  # the client has gone: uvicorn ignores what is sent after that, too
        if rest is None:
            self._left = 0
            self._transport.write(after)
            return None
        return partial(self._finish_segment, rest, segment, after, by_sendfile)

    async def _finish_segment(
        self, rest: Rest, segment: FileSegment, after: bytes, by_sendfile: bool
    ) -> None:
        try:
            try:
                sending = rest()
                del rest  # as above
                await sending
            except SendfileUnavailable:
                by_sendfile = False
                await self._write_by_reads(segment)
        except ConnectionError:
            return  # as above
        except BaseException:
            self._cut_off()
            raise
        finally:
            if by_sendfile:
                self._left = self._transport.unsent
        self._transport.write(after)

    async def _send_by_reads(self, segment: FileSegment) -> None:
        """Send a segment as body messages, which the server frames."""
        try:
            await send_segment(
                self._send_block, segment, more_body=True, is_disconnected=self._is_disconnected
            )
        except FileTruncated:
            self._cut_off()
            raise

    async def _send_block(self, message: Message) -> None:
        await self._cycle.send(message)
        self._left -= len(message["body"])

    async def _write_by_reads(self, segment: FileSegment) -> None:
        """Write a segment whose framing is written already."""
        await send_segment(
            self._write_block, segment, more_body=True, is_disconnected=self._is_disconnected
        )

    async def _write_block(self, message: Message) -> None:
        self._transport.write(message["body"])
        self._left -= len(message["body"])
        if self._cycle.flow.write_paused:
            await self._cycle.flow.drain()

    def _is_disconnected(self) -> bool:
        return bool(self._cycle.disconnected)

    def _cut_off(self) -> None:
        """Close the connection, and have uvicorn ignore what the app sends from now on.

        It would be taken for the missing bytes, or for the end of the body.
        """
        self._transport.close()
        self._cycle.disconnected = True


class OpenedPath(NamedTuple):
    """The file of a pathsend message."""

    asked: RequestedPath
    # Whoever sends it closes it.
    fd: int
    size: int


def open_path(message: Message) -> OpenedPath:
    """Open the file of a pathsend message.

    :raises OSError: if that is not possible.
    """
    asked = parse_pathsend(message)
    return OpenedPath(asked, *open_for_pathsend(asked.path))


def _read_small(fd: int, segment: bytes | ByteRange) -> bytes | None:
    """A small segment's bytes, if all of them are in the page cache."""
    if isinstance(segment, bytes) or segment.size > SMALL_FILE_BYTES:
        return None
    data = read_cached(fd, segment.offset, segment.size)
    return None if data is None or len(data) < segment.size else data

"""The part of a response that sends files: by sendfile, by reads, beside the app.

A large file that is the whole rest of the body is handed over: send() opens it and returns, and the
app with all that it holds is gone long before the client has the last byte. Whoever called the app
sends the rest, if the app returns in the same turn of the loop, as most do; else a task does.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from wsgifast.files import ByteRange
from wsgifast.sockets import FileSegment, FileTruncated
from wsgifast.sockets.page_cache import read_cached
from wsgifast.sockets.sendfile import BLOCK_BYTES, SendfileUnavailable

from .loops import next_turn
from .messages import Message, response_body
from .pages import read_block
from .sending import PlannedBody, send_run, send_unsized
from .to_send import PathToSend, declared_length, file_to_send, open_for_pathsend
from .transport import CoalescingTransport, Rest

__all__ = ["SMALL_FILE_BYTES", "UNKNOWN_PATHSEND", "FileBody", "HandedOver", "logger"]

logger = logging.getLogger("uvicorn.error")
# The way out for apps whose middleware breaks their files, on every server with the extension.
UNKNOWN_PATHSEND = (
    "a middleware does not know http.response.pathsend; if it is one that changes bodies, "
    "ASGIFast(app, pathsend=False) around the app has files sent to it as bytes"
)

# A file up to this size is read and leaves in one write with the head; a larger one goes by
# sendfile, whose own system calls cost less than the copy that they spare from about here on.
SMALL_FILE_BYTES = 64 * 1024


class HandedOver(NamedTuple):
    """A file whose rest nobody sends yet."""

    rest: Rest
    fd: int
    # What follows it in the body, of the same file.
    segments: Sequence[bytes | ByteRange]
    close: Callable[[], object]


class FileBody:
    """Files and runs of them, as a body or as parts of one.

    Its subclasses set the attributes.

    :ivar handed_over: what is to be sent beside the app, or who sends it.
    """

    # As long as the slowest download lives, and thousands may be under way.
    __slots__ = ("_cycle", "_headers", "_transport", "handed_over")

    # uvicorn's RequestResponseCycle, or what stands for it.
    _cycle: Any
    _headers: list[tuple[bytes, bytes]] | None
    _transport: CoalescingTransport
    handed_over: HandedOver | asyncio.Task[Any] | None

    def sent(self) -> Awaitable[Any]:
        """What whoever called the app awaits once it is over: a file that was handed over."""
        if isinstance(self.handed_over, HandedOver):
            handed_over, self.handed_over = self.handed_over, asyncio.current_task()
            return self._send_rest(*handed_over)
        return self._sent_beside()

    def _is_bodyless(self) -> bool:
        """Whether no body byte may be sent, whatever the app sends."""
        return bool(self._cycle.scope["method"] == "HEAD")

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
            for index, segment in enumerate(segments):
                if isinstance(segment, bytes):
                    await self._send_bytes(segment)
                    continue
                rest = await self._begin_run(FileSegment(fd, segment.offset, segment.size))
                if rest is not None:
                    self.handed_over = HandedOver(rest, fd, segments[index + 1 :], close)
                    asyncio.get_running_loop().call_soon(self._send_beside)
                    return
            await self._finish()
        finally:
            if self.handed_over is None:
                close()

    def _send_beside(self) -> None:
        """Have a task send what was handed over, unless it is being sent."""
        if isinstance(self.handed_over, HandedOver):
            rest, fd, segments, close = self.handed_over
            task = asyncio.get_running_loop().create_task(self._send_rest(rest, fd, segments))
            # Not by the task itself, which may be cancelled before its first step.
            task.add_done_callback(lambda task: close())
            self.handed_over = task

    async def _sent_beside(self) -> None:
        self._send_beside()
        if isinstance(self.handed_over, asyncio.Task):
            try:
                await self.handed_over
            finally:
                self.handed_over = None

    async def _send_rest(
        self,
        rest: Rest,
        fd: int,
        segments: Sequence[bytes | ByteRange],
        close: Callable[[], object] = lambda: None,
    ) -> None:
        try:
            sending = rest()
            del rest  # which would be kept for as long as the client reads
            await sending
            for segment in segments:
                if isinstance(segment, bytes):
                    await self._send_bytes(segment)
                else:
                    await self._send_run(FileSegment(fd, segment.offset, segment.size))
            await self._finish()
        finally:
            close()

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


def _at_hand(fd: int, segment: bytes | ByteRange) -> bytes | None:
    """A small file's bytes, if all of them can be had without waiting."""
    if isinstance(segment, bytes) or segment.size > SMALL_FILE_BYTES:
        return None
    data = read_cached(fd, segment.offset, segment.size)
    return None if data is None or len(data) < segment.size else data

"""One response under uvicorn's protocols: the app's messages on their way to uvicorn.

send() opens a large file at the end of the body, sends what the socket takes, and hands the rest
over, so that the app can end and free its memory long before the client has the last byte. The
caller of the app sends the rest (:meth:`Response.sent`) if the app returns in the same turn of the
loop, as most do; otherwise a task does, which costs more memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from wsgifast.files import ByteRange
from wsgifast.http.framing import chunk, chunk_size_line
from wsgifast.sockets import FileSegment, FileTruncated
from wsgifast.sockets.sending import BLOCK_BYTES, SendfileUnavailable

from ..coalescing import COALESCED_BYTES, SMALL_MESSAGE_BYTES, Held
from ..files import (
    SMALL_FILE_BYTES,
    RequestedFile,
    RequestedPath,
    open_for_pathsend,
    parse_pathsend,
    parse_zerocopysend,
    read_small,
    send_segment,
    send_unsized,
)
from ..messages import (
    PATHSEND,
    PLANNED,
    RECORDING,
    UNKNOWN_PATHSEND,
    ZEROCOPYSEND,
    Message,
    PlannedBody,
    SendOrder,
    copied_head,
    declared_length,
    forward_start,
    response_body,
)
from .transport import CoalescingTransport, Rest

if TYPE_CHECKING:
    from ..instrumented import Request

logger = logging.getLogger("uvicorn.error")


class HandedOver(NamedTuple):
    """The rest of a body, before anyone sends it."""

    rest: Rest
    fd: int
    # What follows in the body, of the same file.
    segments: Iterator[bytes | ByteRange]
    close: Callable[[], object]


class Response:
    """The send() of one request: coalesces small body messages, sends files, passes on the rest.

    Small body messages are held until the end of the loop's turn or a little longer (see Held),
    and until any other message. In the chunked coding they become one chunk.

    While a send() waits, for the client or for a file, the others wait behind it, and no message is
    held.

    :param cycle: uvicorn's RequestResponseCycle, whose send() gets the other messages.
    :ivar start: a head that is to be sent before the next message.
    :ivar handed_over: the rest of the body, or the task that sends it.
    """

    # Lives as long as the slowest download, of which there may be thousands.
    __slots__ = (
        "_cycle", "_error", "_headers", "_held", "_left", "_order", "_transport", "end_turn",
        "handed_over", "start",
    )  # fmt: skip

    # Held's, for the transport.
    end_turn: Callable[[], bool]

    def __init__(self, cycle: Any, transport: CoalescingTransport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._headers: list[tuple[bytes, bytes]] | None = None
        self.handed_over: HandedOver | asyncio.Task[Any] | None = None
        # None until the first message that may be held, and again behind the last one.
        self._held: Held | None = None
        self._order = SendOrder()
        self.start: Message | None = None
        # Bytes of the range being sent that were not sent.
        self._left = 0
        # uvicorn's error for held messages, which the next send() raises.
        self._error: Exception | None = None

    async def send(self, message: Message) -> None:
        """The send() that the app is given."""
        order = self._order
        cycle = self._cycle
        if order.is_taken:
            await order.wait()
        elif (
            "more_body" in message
            and message["more_body"]
            and message["type"] == "http.response.body"
            and type(body := message.get("body", b"")) is bytes
            and len(body) <= SMALL_MESSAGE_BYTES
            and not cycle.flow.write_paused
            and (held := self._held or self._begin_to_hold()) is not None
        ):
            if held.to_pass_on:
                held.to_pass_on -= 1
                if body and not cycle.disconnected:
                    self._transport.write_now(self._frame(body))
                return
            if not held.chunks:
                self._transport.keep(self)
            held.chunks.append(body)
            held.size += len(body)
            if held.size >= COALESCED_BYTES:
                self.release()
                self._transport.flush()
            return
        order.is_taken = True
        try:
            await self._send_next(message)
        finally:
            order.release()

    def _begin_to_hold(self) -> Held | None:
        cycle = self._cycle
        if (
            not cycle.response_started
            or cycle.response_complete
            or cycle.disconnected
            or self.handed_over is not None
            or self._error is not None
            or self._is_bodyless()
        ):
            return None
        held = self._held = Held()
        self.end_turn = held.end_turn
        return held

    async def _send_next(self, message: Message) -> None:
        """Send a message; those behind it wait."""
        if self.handed_over is not None:
            await self._sent_by_task()
        kind = message["type"]
        if kind in (PATHSEND, ZEROCOPYSEND):
            await self._send_file(message)
            return
        if self.start is not None:
            await self.send_start()
        cycle = self._cycle
        if kind == "http.response.body":
            body = message.get("body", b"")
            if message.get("more_body"):
                self.write_held()
                await cycle.send(message)
                if type(body) is not bytes:
                    self._transport.flush()  # its owner may change it in this very turn
                return
            held = self._held
            # A waiting send() may be cancelled; held messages are not lost then.
            waits = cycle.flow.write_paused
            if held is not None and held.chunks and type(body) is bytes and not waits:
                message = {**message, "body": held.take(body)}
            self.write_held()
            self._held = None
            # If it has to wait, others on the connection may write meanwhile.
            self._transport.flush_follows = not waits
            try:
                await cycle.send(message)
            finally:
                self._transport.flush_follows = False
                self._transport.flush()
        elif kind == "http.response.start":
            await self._send_start(message)
        else:
            self.write_held()
            await cycle.send(message)

    async def _send_file(self, message: Message) -> None:
        """Send a pathsend or zerocopysend message, if it may come here."""
        cycle = self._cycle
        planned: PlannedBody | None = message.get(PLANNED)
        recording: Request | None = message.get(RECORDING)
        is_path = message["type"] == PATHSEND
        is_over = cycle.response_complete or cycle.disconnected
        file = close = asked = None
        fd = size = 0
        segments: Sequence[bytes | ByteRange] = ()
        # Before the head: if it fails, uvicorn answers with a 500.
        if planned is not None:
            fd, segments, close = planned.file.fileno(), planned.segments, planned.file.close
        elif is_over or cycle.scope["method"] == "HEAD":
            pass
        elif not is_path:
            file = parse_zerocopysend(message)
        elif self.start is not None or cycle.response_started:
            asked = parse_pathsend(message)
            fd, size = open_for_pathsend(asked.path)
            close = partial(os.close, fd)
        try:
            if self.start is not None:
                await self.send_start()
            self.write_held()
            self._held = None
            if cycle.response_complete or cycle.disconnected or not cycle.response_started:
                if recording is not None:
                    recording.ended(None)
                await cycle.send(message)  # uvicorn raises, or ignores it
            elif not is_path:
                await self._send_zero_copy(message, file)
            elif close is None:
                await self._finish()
            else:
                if self._is_bodyless():
                    segments = ()
                elif asked is not None:
                    segments = (self._range_of(asked, size),)
                closed_by_it, close = close, None
                await self._send_body(fd, segments, closed_by_it, recording)
        finally:
            if close is not None:
                close()

    def _range_of(self, asked: RequestedPath, size: int) -> ByteRange:
        """The range to send of a file of `size` bytes."""
        declared = declared_length(self._headers or ())
        self._headers = None
        run = asked.byte_range(size, declared)
        if run.offset + run.size > size:
            logger.error(
                "%s has %d bytes where its head says %d: it has shrunk, or %s",
                asked.path, size, run.offset + run.size, UNKNOWN_PATHSEND,
            )  # fmt: skip
        return run

    async def send_start(self) -> None:
        """Send the head that the app has sent before; it is kept if this is cancelled."""
        await forward_start(self, self._send_start)

    @property
    def response_started(self) -> bool:
        return bool(self._cycle.response_started)

    async def _send_start(self, message: Message) -> None:
        message, self._headers, is_declared = copied_head(message)
        cycle = self._cycle
        if is_declared:
            self._transport.flush_follows = not cycle.flow.write_paused
        try:
            await cycle.send(message)
        finally:
            self._transport.flush_follows = False

    def write_held(self) -> None:
        """Write what is held, before anything else is sent and when the app has returned.

        :raises Exception: uvicorn's error.
        """
        if self._held is not None and self._held.chunks:
            self.release()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def failed(self) -> None:
        """The app has raised: send what it sent before."""
        if self._held is not None and self._held.chunks:
            self.release()
            self._transport.flush()
        await self.sent()

    def release(self) -> None:
        """Write what is held; called by the transport, too. The next send() raises its error."""
        data = self._held.take() if self._held is not None else b""
        if not data or self._cycle.disconnected:
            return
        try:
            framed = self._frame(data)
        except Exception as error:  # noqa: BLE001 - raised by write_held()
            self._error = error
            self._held = None
            return
        self._transport.write(framed)

    # Files

    def sent(self) -> Awaitable[Any]:
        """Awaited by the app's caller when the app has returned: until the body is sent."""
        if isinstance(self.handed_over, HandedOver):
            handed_over, self.handed_over = self.handed_over, asyncio.current_task()
            return self._send_rest(*handed_over)
        return self._sent_by_task()

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
            if len(segments) == 1 and (data := read_small(fd, segments[0])) is not None:
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
        try:
            rest = self._transport.begin_file(segment)
        except SendfileUnavailable:
            rest = partial(self._send_by_reads, segment, is_framed=True)
        except ConnectionError:
            return None  # the client has gone: uvicorn ignores what is sent after that, too
        if rest is None:
            self._left = 0
            self._transport.write(after)
            return None
        return partial(self._finish_segment, rest, segment, after)

    async def _finish_segment(self, rest: Rest, segment: FileSegment, after: bytes) -> None:
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
            self._cut_off()
            raise
        finally:
            self._left = self._transport.unsent
        self._transport.write(after)

    async def _send_by_reads(self, segment: FileSegment, *, is_framed: bool = False) -> None:
        """Send a segment in blocks.

        :param is_framed: its framing is written already; else the server frames each block.
        """
        try:
            await send_segment(
                self._write_block if is_framed else self._send_block,
                segment,
                more_body=True,
                is_disconnected=lambda: bool(self._cycle.disconnected),
            )
        except FileTruncated:
            self._cut_off()
            raise

    async def _send_block(self, message: Message) -> None:
        await self._cycle.send(message)
        self._left -= len(message["body"])

    async def _write_block(self, message: Message) -> None:
        self._transport.write(message["body"])
        self._transport.unsent -= len(message["body"])
        if self._cycle.flow.write_paused:
            await self._cycle.flow.drain()

    def _cut_off(self) -> None:
        """Close the connection, and have uvicorn ignore what the app sends from now on.

        It would be taken for the missing bytes, or for the end of the body.
        """
        self._transport.close()
        self._cycle.disconnected = True

    def _is_bodyless(self) -> bool:
        """Whether the response may have no body; body bytes of the app are then dropped."""
        return bool(self._cycle.scope["method"] == "HEAD")

    # Framing: as over httptools and zttp, where uvicorn's cycle counts and frames the body itself.

    def _frame(self, data: bytes) -> bytes:
        """Have the server count body bytes; return them in their framing."""
        if self._cycle.chunked_encoding:
            return chunk(data)
        count(self._cycle, len(data))
        return data

    def _frame_for(self, size: int) -> tuple[bytes, bytes]:
        cycle = self._cycle
        if cycle.chunked_encoding:
            return chunk_size_line(size), b"\r\n"
        count(cycle, size)
        return b"", b""


def count(cycle: Any, size: int) -> None:
    """Count body bytes of a response with a Content-Length."""
    if size > cycle.expected_content_length:
        raise RuntimeError("Response content longer than Content-Length")
    cycle.expected_content_length -= size

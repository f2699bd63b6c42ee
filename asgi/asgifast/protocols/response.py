"""One response under uvicorn's protocols: the app's messages on their way to uvicorn."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from wsgifast.http.framing import chunk, chunk_size_line

from ..coalescing import COALESCED_BYTES, SMALL_MESSAGE_BYTES, Held, SendOrder
from ..files import parse_zerocopysend
from ..messages import PATHSEND, PLANNED, RECORDING, ZEROCOPYSEND, Message, copied_head
from .file_body import FileBody, open_path
from .transport import CoalescingTransport


class Response(FileBody):
    """The send() of one request: coalesces small body messages, sends files, passes on the rest.

    Small body messages are held until the end of the loop's turn or a little longer (see Held),
    and until any other message. In the chunked coding they become one chunk.

    While a send() waits, for the client or for a file, the others wait behind it; nothing is held
    then.

    :param cycle: uvicorn's RequestResponseCycle, whose send() gets the other messages.
    :ivar start: a head that is to be sent before the next message.
    """

    __slots__ = ("_error", "_held", "_order", "end_turn", "start")

    # Held's, for the transport.
    end_turn: Callable[[], bool]

    def __init__(self, cycle: Any, transport: CoalescingTransport) -> None:
        self._cycle = cycle
        self.handed_over = None
        self._transport = transport
        self._headers = None
        # None until the first message that may be held, and again behind the last one.
        self._held: Held | None = None
        self._order = SendOrder()
        self.start: Message | None = None
        self._left = 0
        # What uvicorn said of held messages, for the next send() to raise.
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
            # A send() that has to wait may be given up, and what is held is not lost by that.
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
        planned, recording = message.get(PLANNED), message.get(RECORDING)
        opened = file = None
        is_over = cycle.response_complete or cycle.disconnected
        if planned is None and not is_over and cycle.scope["method"] != "HEAD":
            # Before the head, in place of which uvicorn answers with a 500 if it fails.
            if message["type"] == ZEROCOPYSEND:
                file = parse_zerocopysend(message)
            elif self.start is not None or cycle.response_started:
                opened = open_path(message)
        try:
            if self.start is not None:
                await self.send_start()
            self.write_held()
            self._held = None
            if cycle.response_complete or cycle.disconnected or not cycle.response_started:
                if recording is not None:
                    recording.ended(None)
                await cycle.send(message)  # uvicorn raises, or ignores it
            elif planned is not None:
                body, planned = planned, None
                await self._send_planned(body, recording)
            elif message["type"] == ZEROCOPYSEND:
                await self._send_zero_copy(message, file)
            elif opened is None or self._is_bodyless():
                await self._finish()
            else:
                path, opened = opened, None
                await self._send_path(path, recording)
        finally:
            if planned is not None:
                planned.file.close()
            if opened is not None:
                os.close(opened.fd)

    async def send_start(self) -> None:
        """Send the head that the app has sent before; if this is given up, it is kept."""
        start, self.start = self.start, None
        if start is None:
            return
        try:
            await self._send_start(start)
        except Exception:
            raise
        except BaseException:
            if not self._cycle.response_started:
                self.start = start
            raise

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

        :raises Exception: what uvicorn says of it.
        """
        if self._held is not None and self._held.chunks:
            self.release()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def failed(self) -> None:
        """The app has raised: what it sent before is sent nevertheless."""
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

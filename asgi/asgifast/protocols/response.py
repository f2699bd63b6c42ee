"""One response under uvicorn's protocols: the app's messages on their way to uvicorn."""

from __future__ import annotations

from typing import Any

from ..coalescing import COALESCED_BYTES, LONE_TURNS, PASSED_ON, SMALL_MESSAGE_BYTES
from ..extensions import PLANNED
from ..files.parsing import parse_pathsend
from ..messages import PATHSEND, ZEROCOPYSEND, Message
from .file_body import FileBody
from .transport import CoalescingTransport


class Response(FileBody):
    """The send() of one request: coalesces small body messages, sends files, passes on the rest.

    Small body messages wait in `_chunks` until the end of the loop's turn, until COALESCED_BYTES
    are there, or until any other message; not if they have come one to a turn (LONE_TURNS). In the
    chunked coding they become one chunk.

    :param cycle: uvicorn's RequestResponseCycle, whose send() gets the other messages.
    """

    __slots__ = ("_chunks", "_error", "_lone", "_passes", "_size")

    def __init__(self, cycle: Any, transport: CoalescingTransport) -> None:
        self._cycle = cycle
        self.handed_over = None
        self._transport = transport
        self._headers = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._lone = 0
        self._passes = 0
        # What uvicorn said of coalesced messages, for the next send() to raise.
        self._error: Exception | None = None

    async def send(self, message: Message) -> None:
        """The send() that the app is given."""
        if self.handed_over is not None:
            await self._sent_by_task()
        kind = message["type"]
        cycle = self._cycle
        if kind == "http.response.body":
            body = message.get("body", b"")
            if message.get("more_body"):
                if (
                    type(body) is bytes
                    and len(body) <= SMALL_MESSAGE_BYTES
                    and not cycle.flow.write_paused
                    and self._error is None
                    and not cycle.response_complete
                    and not cycle.disconnected
                    and (self._passes or (cycle.response_started and not self._is_bodyless()))
                ):
                    if self._passes:
                        self._passes -= 1
                        if body:
                            self._transport.write_now(self._frame(body))
                        return
                    if not self._chunks:
                        self._transport.call_before_flush(self._write_chunks)
                    self._chunks.append(body)
                    self._size += len(body)
                    if self._size >= COALESCED_BYTES:
                        self._transport.flush()
                    return
                self._write_coalesced()
                await cycle.send(message)
                if type(body) is not bytes:
                    self._transport.flush()  # its owner may change it in this very turn
                return
            if self._chunks and type(body) is bytes:
                message = {**message, "body": self._take(body)}
            if self._chunks or self._error is not None:
                self._write_coalesced()
            # If it has to wait, others on the connection may write meanwhile.
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
        elif kind in (PATHSEND, ZEROCOPYSEND) and (cycle.response_started or cycle.disconnected):
            self._write_coalesced()
            if cycle.response_complete or cycle.disconnected:
                if PLANNED in message:
                    message[PLANNED].file.close()
                await cycle.send(message)  # uvicorn raises, or ignores it
            elif PLANNED in message:
                await self._send_planned(message[PLANNED])
            elif kind == PATHSEND:
                await self._send_path(parse_pathsend(message))
            else:
                await self._send_zero_copy(message)
        else:
            self._write_coalesced()
            await cycle.send(message)

    def _write_coalesced(self) -> None:
        """Write what is coalesced, before anything else is sent."""
        if self._chunks:
            self._write_chunks()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write_chunks(self) -> None:
        if not self._chunks:
            return
        self._lone = self._lone + 1 if len(self._chunks) == 1 else 0
        if self._lone == LONE_TURNS:
            self._lone -= 1
            self._passes = PASSED_ON
        data = self._take()
        if not data or self._cycle.disconnected:
            return
        try:
            framed = self._frame(data)
        except Exception as error:  # noqa: BLE001 - raised by the app's next send()
            self._error = error
            return
        self._transport.write(framed)

    def _take(self, last: bytes = b"") -> bytes:
        self._chunks.append(last)
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return data

    def _frame(self, data: bytes) -> bytes:
        """Have the server count body bytes; return them in their framing."""
        before, after = self._frame_for(len(data))
        return before + data + after if before else data

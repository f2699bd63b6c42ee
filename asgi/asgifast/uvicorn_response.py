"""One response under uvicorn: what the app sends, on its way to uvicorn's RequestResponseCycle."""

from __future__ import annotations

from typing import Any

from wsgifast.http import chunk_size_line

from .coalescing import COALESCED_BYTES, SMALL_MESSAGE_BYTES
from .file_body import FileBody
from .messages import PATHSEND, ZEROCOPYSEND, Message
from .sending import PLANNED
from .to_send import path_to_send
from .transport import CoalescingTransport

__all__ = ["H11Response", "HttpToolsResponse", "Response"]


class Response(FileBody):
    """One response: what the app sends, on its way to uvicorn's RequestResponseCycle.

    Small body messages wait in `_chunks` until the end of the loop's turn, COALESCED_BYTES, or any
    other message; together they make one chunk of the chunked coding.
    """

    __slots__ = ("_chunks", "_error", "_size")

    def __init__(self, cycle: Any, transport: CoalescingTransport) -> None:
        self._cycle = cycle
        self.handed_over = None
        self._transport = transport
        self._headers = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: Exception | None = None

    async def send(self, message: Message) -> None:
        if self.handed_over is not None:
            await self._sent_beside()
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

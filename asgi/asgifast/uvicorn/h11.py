"""uvicorn's H11Protocol with sendfile."""

from __future__ import annotations

from typing import Any

from wsgifast.checks import needs

from ..messages import Message, copied_start, declared_length
from ..protocols.queue_wire import QueueWire
from .protocol import FileSending, check

with needs("asgifast.uvicorn.H11Protocol", "h11", "asgi"):
    import h11
from uvicorn.protocols.http import h11_impl

check("h11")


class H11Wire(QueueWire):
    __slots__ = ("_content_length",)

    async def _send_start(self, message: Message) -> None:
        message, headers, _ = copied_start(message)
        self._content_length = declared_length(headers)
        await super()._send_start(message)

    def declared(self) -> int | None:
        return self._content_length

    def frame(self, data: bytes) -> bytes:
        before, after = self.framing_for(len(data))
        return before + data + after if before else data

    def framing_for(self, size: int) -> tuple[bytes, bytes]:
        placeholder: Any = range(size)  # h11 uses its length, and returns it
        parts = self.cycle.conn.send_with_data_passthrough(h11.Data(data=placeholder))
        index = parts.index(placeholder)
        return b"".join(parts[:index]), b"".join(parts[index + 1 :])


class H11Protocol(FileSending, h11_impl.H11Protocol):
    """uvicorn's H11Protocol with sendfile."""

    _wire_class = H11Wire

    def _is_over_limit(self, error: BaseException | None) -> bool:
        return isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431

    def _has_begun_headers(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def handle_websocket_upgrade(self, *args: Any, remaining: bytes = b"") -> None:
        super().handle_websocket_upgrade(*args, remaining=remaining or self.conn.trailing_data[0])

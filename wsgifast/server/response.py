"""FastWorker's response to one request: what loggers and hooks read of it, and its head."""

from __future__ import annotations

from typing import Any, Protocol

from ..bodies.response_writer import ResponseWriter
from ..http.framing import Framing
from ..http.head import ResponseHead, check_field
from .header_lines import header_lines
from .output import OutputQueue

__all__ = ["Response", "ResponseSettings"]

_VERSIONS = {(1, 0): "1.0", (1, 1): "1.1"}


class ResponseSettings(Protocol):
    """What a worker's responses have in common.

    :ivar server_name: for the Server header.
    :ivar sends_chunks: False: who is between the server and its clients knows no chunks.
    """

    server_name: str
    sends_chunks: bool


class Response(ResponseWriter):
    """The response to one request on an HTTP/1 connection.

    :param req: the request: its method, version and should_close() count.
    """

    def __init__(self, req: Any, output: OutputQueue, settings: ResponseSettings) -> None:
        # As the base class does, without a call.
        self.status = None
        self.must_close = self.headers_sent = False
        self._output = output
        self.req = req
        self.cfg = settings

    # What loggers and hooks read.

    @property
    def version(self) -> str:
        return self.cfg.server_name

    @property
    def headers(self) -> list[tuple[str, str]]:
        """As they are sent, without the server's own."""
        if self._head is None:
            return []
        length = self._framing.length
        return self._head.headers + ([] if length is None else [("Content-Length", str(length))])

    @property
    def response_length(self) -> int | None:
        return self._framing.length

    @property
    def chunked(self) -> bool:
        return self._framing.chunked

    @property
    def upgrade(self) -> bool:
        return self._head is not None and self._head.upgrades

    @property
    def sent(self) -> int:
        """Body bytes handed over so far, without framing; corrected to what was sent at the end."""
        return self.counter.sent

    @sent.setter
    def sent(self, size: int) -> None:
        if self._head is not None:
            self.counter.sent = size

    def force_close(self) -> None:
        self.must_close = True

    def should_close(self) -> bool:
        return self.must_close or self._closes or bool(self.req.should_close())

    # The app's side.

    def offer(self, environ: dict[str, Any]) -> None:
        """Put into an environ what the app may ask of its response."""
        environ["wsgi.early_hints"] = self.early_hints

    def early_hints(self, headers: list[tuple[str | bytes, str | bytes]]) -> None:
        """Send a 103 response (RFC 8297); ignored once the head is sent, and for HTTP/1.0."""
        if self.headers_sent or self.req.version < (1, 1):
            return
        fields = []
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1") if isinstance(raw_name, bytes) else raw_name
            value = raw_value.decode("latin-1") if isinstance(raw_value, bytes) else raw_value
            fields.append(check_field(name, value))
        self._send_hints(fields)

    # How HTTP/1 says it.

    def _frame(self, head: ResponseHead) -> Framing:
        req = self.req
        # Only a body of unknown length asks for them.
        chunks = head.content_length is None and req.version > (1, 0) and self.cfg.sends_chunks
        return head.frame(req.method, chunks=chunks)

    def _send_hints(self, fields: list[tuple[str, str]]) -> None:
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
        self._output.write(f"HTTP/1.1 103 Early Hints\r\n{lines}\r\n".encode("latin-1"))

    def _encoded_head(self) -> bytes:
        head = self._checked_head()
        if head.upgrades:
            connection = "upgrade"
        elif self.should_close():
            connection = "close"
        else:
            connection = "keep-alive"
        version = self.req.version
        http_version = _VERSIONS.get(version) or f"{version[0]}.{version[1]}"
        server_name = None if head.has_server else self.cfg.server_name
        own = header_lines.get(server_name, connection, dates=not head.has_date)
        return head.encode(http_version, self._framing, own)

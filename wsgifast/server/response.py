"""FastWorker's response: its HTTP/1 headers, and attributes for loggers and hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..bodies.writer import NOT_STARTED, Output, ResponseWriter
from ..files import http_date
from ..http.fields import interim_fields

_VERSIONS = {(1, 0): "1.0", (1, 1): "1.1"}


class ResponseSettings(Protocol):
    """The settings of all responses of a worker.

    :ivar server_name: the value of the Server header, or None to send no such header.
    :ivar sends_chunks: False if the proxy before the server does not understand chunks.
    """

    server_name: str | None
    sends_chunks: bool


class HeaderLines:
    """The lines of the headers that the server adds.

    Date (RFC 9110 section 6.6.1) changes once a second.

    All values for one second are in one attribute. So a thread sees either all values of the old
    second or all of the new second.
    """

    def __init__(self) -> None:
        self._now: tuple[int, str, dict[tuple[str | None, str, bool], str]] = (0, "", {})

    def date(self) -> str:
        return self._at(time.time())[1]

    def get(self, server_name: str | None, connection: str, *, dates: bool) -> str:
        """Return the lines of Server, Date and Connection.

        For a second, equal lines are the same object.

        :param server_name: None if the app has set Server.
        :param dates: False if the app has set Date.
        """
        now = self._now
        seconds = time.time()
        if int(seconds) != now[0]:
            now = self._at(seconds)
        _, date, made = now
        key = server_name, connection, dates
        lines = made.get(key)
        if lines is None:
            lines = f"Connection: {connection}\r\n"
            if dates:
                lines = f"Date: {date}\r\n{lines}"
            if server_name is not None:
                lines = f"Server: {server_name}\r\n{lines}"
            lines = made.setdefault(key, lines)
        return lines

    def _at(self, seconds: float) -> tuple[int, str, dict[tuple[str | None, str, bool], str]]:
        second = int(seconds)
        now = self._now
        if second != now[0]:
            self._now = now = second, http_date(second), {}
        return now


header_lines = HeaderLines()


class Response(ResponseWriter):
    """The response to one request on an HTTP/1 connection.

    :param req: the parser's request. The response uses its method, version and should_close().
    :ivar is_cut_off: whether the app has failed, or the body was shorter than its declared length.
    :ivar close_body: close() of the body, whose bytes may not be sent yet. None if another object
        is responsible for the close().
    """

    close_body: Callable[[], object] | None = None
    is_cut_off = False

    def __init__(self, req: Any, output: Output, settings: ResponseSettings) -> None:
        # This repeats the code of the base classes' __init__ to save calls, because it runs for
        # each request.
        self.length = None
        self.sent = self.dropped = 0
        self.status = None
        self.must_close = self.headers_sent = False
        self._output = output
        self._framing = NOT_STARTED
        self._method = req.method
        self._chunks = req.version > (1, 0) and settings.sends_chunks
        self.req = req
        self.cfg = settings

    # For loggers and hooks.

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The app's headers, and the Content-Length that the server adds."""
        if self._start is None:
            return []
        length = self._framing.length
        return self._start.headers + ([] if length is None else [("Content-Length", str(length))])

    @property
    def response_length(self) -> int | None:
        return self._framing.length

    @property
    def chunked(self) -> bool:
        return self._framing.chunked

    def is_chunked(self) -> bool:
        return self._framing.chunked

    @property
    def upgrade(self) -> bool:
        return self._start is not None and self._start.upgrades

    @property
    def version(self) -> str | None:
        """The value of the Server header. gunicorn's response has the same attribute."""
        return self.cfg.server_name

    def force_close(self) -> None:
        self.must_close = True

    def should_close(self) -> bool:
        return self.must_close or self.closes or bool(self.req.should_close())

    # For the app.

    def offer(self, environ: dict[str, Any]) -> None:
        """Add the response's callables to an environ."""
        environ["wsgi.early_hints"] = self.early_hints

    def early_hints(self, headers: Iterable[Any]) -> None:
        """Send a 103 response (RFC 8297). Do nothing for HTTP/1.0, or after the headers were sent.

        :param headers: pairs of str or bytes. Headers about framing and connection are left out.
        :raises BodyError: if a header is malformed.
        """
        if self.headers_sent or self.req.version < (1, 1):
            return
        fields = interim_fields(headers)
        if fields:
            self._send_hints(fields)

    def _end_body(self, close: Callable[[], object]) -> None:
        self.close_body = close

    # These methods are for HTTP/1. HTTP2Response overrides them.

    def _send_hints(self, fields: list[tuple[str, str]]) -> None:
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
        self._output.write(f"HTTP/1.1 103 Early Hints\r\n{lines}\r\n".encode("latin-1"))

    def _encoded_headers(self) -> bytes:
        start = self._start or self._checked_start()
        self.closes = closes = self.must_close or self.closes or bool(self.req.should_close())
        connection = "close" if closes else "keep-alive"
        if start.upgrades:
            connection = "upgrade"
        version = self.req.version
        http_version = _VERSIONS.get(version) or f"{version[0]}.{version[1]}"
        server_name = None if start.has_server else self.cfg.server_name
        server_lines = header_lines.get(server_name, connection, dates=not start.has_date)
        return start.encode(http_version, self._framing, server_lines)

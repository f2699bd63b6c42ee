"""uvicorn's HttpToolsProtocol with sendfile."""

from __future__ import annotations

import contextlib
from typing import Any

from wsgifast.checks import needs

from ..protocols.response import Response
from .protocol import FileSending, check

with needs("asgifast.uvicorn.HttpToolsProtocol", "httptools", "asgi"):
    import httptools
from uvicorn.protocols.http import httptools_impl

_STATE = {"chunked_encoding", "expected_content_length"}
_METHODS = {
    "_should_upgrade", "_unset_keepalive_if_required", "handle_websocket_upgrade", "on_body",
    "_unsupported_upgrade_warning", "on_header", "on_headers_complete", "on_message_begin",
    "on_message_complete", "on_url", "send_400_response",
}  # fmt: skip
check(httptools_impl, "HttpToolsProtocol", _STATE, *_METHODS)


class HttpToolsProtocol(FileSending, httptools_impl.HttpToolsProtocol):
    """uvicorn's HttpToolsProtocol with sendfile."""

    _response_class = Response

    def _has_begun_head(self) -> bool:
        return self.scope is not None and "method" not in self.scope

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, which drops what comes behind the head of a request to upgrade."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            msg = "Invalid HTTP request received."
            self.logger.warning(msg)
            self.send_400_response(msg)
        except httptools.HttpParserUpgrade as upgrade:
            rest = bytes(data[upgrade.args[0] :])
            if self._should_upgrade():
                self.handle_websocket_upgrade(rest=rest)
                return
            self._unsupported_upgrade_warning()
            if self.scope["method"] != "CONNECT":  # what follows that one is no HTTP
                self._read_on(rest)

    def _read_on(self, rest: bytes) -> None:
        """The request asks for another protocol, such as h2c, which a server may ignore.

        httptools has taken it for one without a body, and would parse its body as the next request.
        So a parser that has not seen the Upgrade header (RFC 9110, section 7.8) goes on behind it.
        """
        scope, cycle = self.scope, self.cycle
        cycle.more_body = True
        cycle.message_event.clear()
        version = scope["http_version"].encode()
        head = [scope["method"].encode(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += name, b": ", value, b"\r\n"
        head.append(b"\r\n")
        self.parser = httptools.HttpRequestParser(_BehindHead(self))
        with contextlib.suppress(AttributeError):  # httptools before 0.6.3, as in uvicorn
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"".join(head))
        if rest and self.parser is not None:
            self.data_received(rest)


class _BehindHead:
    """Callbacks for a parser whose first head the protocol has had already."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._in_head = True
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self._in_head:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._in_head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._in_head:
            self._in_head = False
        else:
            self._protocol.on_headers_complete()

"""uvicorn's HttpToolsProtocol with sendfile."""

from __future__ import annotations

from wsgifast.checks import needs

from ..protocols.queue_wire import QueueWire
from ..whole_responses import digest_of_send
from .protocol import FileSending, check

with needs("asgifast.uvicorn.HttpToolsProtocol", "httptools", "asgi"):
    import httptools
from uvicorn.protocols.http import httptools_impl

check("httptools")
digest_of_send(httptools_impl)  # reads a file now, and not on the event loop

# uvicorn's words, which its users may search for.
_NO_WEBSOCKETS = (
    "No supported WebSocket library detected. Please use \"pip install 'uvicorn[standard]'\", or "
    "install 'websockets' or 'wsproto' manually."
)


class HttpToolsProtocol(FileSending, httptools_impl.HttpToolsProtocol):
    """uvicorn's HttpToolsProtocol with sendfile."""

    _wire_class = QueueWire

    def _has_begun_headers(self) -> bool:
        return self.scope is not None and "method" not in self.scope

    def _parse(self, data: bytes) -> None:
        """Parse bytes like uvicorn, but do not discard the bytes after a request with Upgrade."""
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    remaining = bytes(data[upgrade.args[0] :])
                if super()._should_upgrade():
                    self.handle_websocket_upgrade(remaining=remaining)
                    return
                self.logger.warning("Unsupported upgrade request.")
                if self.ws_protocol_class is None:
                    self.logger.warning(_NO_WEBSOCKETS)
                if self.scope["method"] == "CONNECT":  # the next bytes are not HTTP
                    return
                data = self._parse_again() + remaining
        except httptools.HttpParserError:
            msg = "Invalid HTTP request received."
            self.logger.warning(msg)
            self.send_400_response(msg)

    def _should_upgrade(self) -> bool:
        """Return whether uvicorn must skip a request with Upgrade, which :meth:`_parse` handles."""
        return self.scope["method"] != "CONNECT" or super()._should_upgrade()

    def _parse_again(self) -> bytes:
        """Parse a request with an unsupported Upgrade, such as h2c, again without Upgrade.

        httptools assumes that such a request has no body, and would parse its body as the next
        request. A server may ignore Upgrade (RFC 9110, section 7.8). So a new parser gets the
        headers without Upgrade.

        :returns: the bytes of the headers, to be parsed before the next bytes.
        """
        scope, headers = self.scope, self.headers
        request_line = scope["method"].encode(), self.url, scope["http_version"].encode()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"%b %b HTTP/%b\r\n" % request_line)
        self.scope["headers"] = headers  # the app still gets Upgrade
        lines = [b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"]
        return b"".join(lines) + b"\r\n"

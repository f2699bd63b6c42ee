"""One WSGI response: start_response's rules, the head, and the body's way to the output queue.

The checks and the framing are gunicorn's (its Response class), and so are the attributes that its
loggers and hooks read. What differs is where the bytes go: to an output queue, the head together
with the first bytes, a list as a whole in one call, a file by sendfile.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gunicorn import SERVER, util
from gunicorn.http import errors
from gunicorn.http.message import TOKEN_RE

from ..bodies.files import FileSlice, SegmentedBody, read_whole
from ..errors import BodyError
from ..sockets.sendfile import SMALL_FILE_BYTES, FileSegment, file_segment

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["Response"]

log = logging.getLogger("gunicorn.http.wsgi")  # gunicorn's own, so that its level and place apply

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType]

# Below it, joining costs less than handing several buffers to the kernel.
_JOIN_BYTES = 64 * 1024

# RFC 9110 section 5.5: field-vchar, SP and HTAB.
_VALUE = re.compile(r"[ \t\x21-\x7e\x80-\xff]*")
# RFC 9112 section 4: three digits; PEP 3333: one space and a reason phrase.
_STATUS = re.compile(r"[0-9]{3}(?: [ \t\x21-\x7e\x80-\xff]*)?")
_DIGITS = re.compile(r"[0-9]+")

# The app's fault, so a 500. Older versions have one class for what clients and apps did wrong, and
# answer it 400: there it is a plain error.
InvalidResponseHeader = getattr(errors, "InvalidResponseHeader", ValueError)
InvalidResponseHeaderName = getattr(errors, "InvalidResponseHeaderName", ValueError)

# Header names that were checked and are not hop-by-hop: name -> lower case. Apps choose them from
# a few; one that makes names up is checked each time.
_names: dict[str, str] = {}
_MAX_NAMES = 500


class Response:
    """The response to one request on an HTTP/1 connection."""

    # Until start_response is called.
    status: str | None = None
    status_code: int = 0
    response_length: int | None = None
    chunked = False
    must_close = False
    headers_sent = False
    upgrade = False
    # Body bytes handed over so far, without framing; corrected to what was sent at the end.
    sent = 0
    _omits_body = False
    _warned = False

    def __init__(self, req: Any, connection: Connection, settings: Any) -> None:
        self.req = req
        self.sock = connection.error_socket
        self.version = SERVER
        self.cfg = settings
        self.headers: list[tuple[str, str]] = []
        self._connection = connection
        self._output = connection.output

    def force_close(self) -> None:
        self.must_close = True

    def should_close(self) -> bool:
        if self.must_close or self.req.should_close():
            return True
        if self.response_length is not None or self.chunked:
            return False
        return not self._omits_body

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: _ExcInfo | None = None,
    ) -> Callable[[bytes], object]:
        if exc_info:
            try:
                if self.status and self.headers_sent:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # or the frame and the traceback would keep each other alive
        elif self.status is not None:
            raise BodyError("the app called start_response twice without exc_info (PEP 3333)")
        if not isinstance(status, str) or not _STATUS.fullmatch(status):
            raise BodyError(
                f"the app called start_response with the status {status!r}; "
                "give a str such as '200 OK'"
            )
        self.status = status
        self.status_code = code = int(status[:3])
        self.response_length = None
        self.upgrade = False
        self.headers = []
        self._process_headers(headers)
        # RFC 9110 sections 9.3.2, 15.2, 15.3.5, 15.4.5.
        self._omits_body = self.req.method == "HEAD" or code in (204, 304) or code < 200
        if code == 204 or code < 200:
            # Section 8.6: no Content-Length here, whatever the app says.
            self.headers = [h for h in self.headers if h[0].lower() != "content-length"]
        self.chunked = (
            self.response_length is None
            and not self._omits_body
            and self.req.version > (1, 0)
            and not self.cfg.uses_uwsgi
        )
        return self.write

    def early_hints(self, headers: list[tuple[str | bytes, str | bytes]]) -> None:
        """Send a 103 response (RFC 8297); ignored once the head is sent, and for HTTP/1.0."""
        if self.headers_sent or self.req.version < (1, 1):
            return
        lines = ["HTTP/1.1 103 Early Hints\r\n"]
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1") if isinstance(raw_name, bytes) else raw_name
            value = raw_value.decode("latin-1") if isinstance(raw_value, bytes) else raw_value
            if not TOKEN_RE.fullmatch(name):
                raise InvalidResponseHeaderName(repr(name))
            if not _VALUE.fullmatch(value):
                raise InvalidResponseHeader(repr(name))
            value = value.strip(" \t")
            lines.append(f"{name}: {value}\r\n")
        lines.append("\r\n")
        self._output.write("".join(lines).encode("latin-1"))

    def write(self, data: bytes) -> None:
        """Send a block of the body, or have it sent while the app works on (PEP 3333)."""
        if self.status is None:
            if data == b"":
                return  # start_response may come as late as the first byte (PEP 3333)
            raise BodyError("the app sent a body before it called start_response")
        block = self._framed(data)
        if not block and (self.headers_sent or not data):
            return  # no head before the first byte of the body, or the end (PEP 3333)
        if not self.headers_sent:
            self.headers_sent = True
            block = self._head() + block
        # Once the promised length is reached nothing can follow that would be worth waiting for.
        if self.response_length is not None and self.sent >= self.response_length:
            self._output.write(block)
        else:
            self._connection.write_more(block)

    def write_all(self, blocks: list[bytes] | tuple[bytes, ...]) -> None:
        """Send a whole body that exists already, with the head and what ends it."""
        if self.status is None:
            raise BodyError("the app returned a body without calling start_response")
        parts = [] if self.headers_sent else [self._head()]
        for data in blocks:
            block = self._framed(data)
            if block:
                parts.append(block)
        self.headers_sent = True
        if self.chunked:
            parts.append(b"0\r\n\r\n")
        if len(parts) == 1:
            self._output.write(parts[0])
        elif sum(map(len, parts)) <= _JOIN_BYTES:
            self._output.write(b"".join(parts))
        else:
            self._output.write_all(parts)

    def write_file(self, wrapper: Any) -> None:
        """Send what `wsgi.file_wrapper` wraps: by sendfile, or block by block."""
        file = getattr(wrapper, "filelike", None)
        segment = None
        if self.cfg.sendfile is not False:
            segment = file.rest() if isinstance(file, FileSlice) else file_segment(file)
        if segment is None:
            for block in wrapper:
                self.write(block)
            self.close()
            return
        self._write_segments([segment])

    def write_segments(self, body: SegmentedBody) -> None:
        """Send byte strings and runs of files in their order."""
        self._write_segments(list(body.segments))

    def close(self) -> None:
        """End the response after its last block."""
        if self.status is None:
            raise BodyError("the app ended without calling start_response")
        end = b"" if self.headers_sent else self._head()
        self.headers_sent = True
        if self.chunked:
            end += b"0\r\n\r\n"
        if end:
            self._output.write(end, coalesce=self._output.bytes_queued > 0)

    def missing(self) -> int:
        """Body bytes that Content-Length has promised and the app has not delivered."""
        if self.response_length is None or self._omits_body:
            return 0
        return self.response_length - self.sent

    def _write_segments(self, segments: list[bytes | FileSegment]) -> None:
        if self.status is None:
            raise BodyError("the app returned a body without calling start_response")
        head = b"" if self.headers_sent else self._head()
        self.headers_sent = True
        output = self._output
        for segment in segments:
            if isinstance(segment, FileSegment):
                fd, offset, size = segment
                size = self._admitted(size)
                if size == 0:
                    continue
                if size <= SMALL_FILE_BYTES:
                    head += self._framed(read_whole(FileSegment(fd, offset, size)))
                    continue
                if self.chunked:
                    output.write_file(head + b"%x\r\n" % size, fd, offset, size)
                    head = b"\r\n"
                else:
                    output.write_file(head, fd, offset, size)
                    head = b""
                self.sent += size
            else:
                head += self._framed(segment)
        if self.chunked:
            head += b"0\r\n\r\n"
        if head:
            output.write_all([head])

    def _admitted(self, size: int) -> int:
        """How many of so many further body bytes may be sent."""
        if self._omits_body:
            if size and not self._warned:
                log.warning(
                    "WSGI app sent body bytes on a no-body response (method=%s status=%s); "
                    "dropping per RFC 9110.",
                    self.req.method,
                    self.status_code,
                )
                self._warned = True
            return 0
        if self.response_length is not None:
            return min(size, self.response_length - self.sent)
        return size

    def _framed(self, data: bytes) -> bytes:
        if not isinstance(data, bytes):
            raise BodyError(
                f"the app returned a body with a {type(data).__name__} in it: yield bytes, or wrap "
                "the app with wsgifast.WSGIFast"
            )
        size = self._admitted(len(data))
        if size < len(data):
            data = data[:size]
        self.sent += size
        if self.chunked and size:
            return b"%x\r\n%b\r\n" % (size, data)
        return data

    def _process_headers(self, headers: list[tuple[str, str]]) -> None:
        for name, value in headers:
            if not isinstance(name, str):
                raise BodyError(f"the app sent a header whose name is {name!r}: give a str")
            lower = _names.get(name)
            if lower is None:
                if not TOKEN_RE.fullmatch(name):
                    raise InvalidResponseHeaderName(repr(name))
                lower = name.lower()
                if util.is_hoppish(name):
                    self._process_hop_by_hop(lower, name, value)
                    continue
                if len(_names) < _MAX_NAMES:
                    _names[name] = lower
            if not isinstance(value, str):
                raise _bad_value_type(name, value)
            if not (value.isascii() and value.isprintable()) and not _VALUE.fullmatch(value):
                raise InvalidResponseHeader(repr(name))  # the value may be a secret
            value = value.strip(" \t")
            if lower == "content-length":
                # int() would take "+5", "1_0" and other scripts' digits (RFC 9110 section 8.6).
                if not _DIGITS.fullmatch(value):
                    raise BodyError(
                        f"the app set Content-Length to {value!r}; give a number of bytes, in "
                        "digits, or leave it out"
                    )
                self.response_length = int(value)
            self.headers.append((name, value))

    def _process_hop_by_hop(self, lower: str, name: str, value: str) -> None:
        """They are the server's to set; a WebSocket handshake is let through."""
        if not isinstance(value, str):
            raise _bad_value_type(name, value)
        if not _VALUE.fullmatch(value):
            raise InvalidResponseHeader(repr(name))
        value = value.strip(" \t").lower()
        if lower == "connection" and value == "upgrade":
            self.upgrade = True
        elif lower == "upgrade" and value == "websocket":
            self.headers.append((name, value))

    def _head(self) -> bytes:
        if self.upgrade:
            connection = "upgrade"
        elif self.should_close():
            connection = "close"
        else:
            connection = "keep-alive"
        fields = "".join([f"{name}: {value}\r\n" for name, value in self.headers])
        major, minor = self.req.version
        coding = "Transfer-Encoding: chunked\r\n" if self.chunked else ""
        return (
            f"HTTP/{major}.{minor} {self.status}\r\nServer: {SERVER}\r\nDate: {_clock.now()}\r\n"
            f"Connection: {connection}\r\n{coding}{fields}\r\n"
        ).encode("latin-1")


class _Clock:
    """The Date header's value, made once a second (RFC 9110 section 6.6.1)."""

    second = 0
    date = ""

    def now(self) -> str:
        second = int(time.time())
        if second != self.second:
            self.date = util.http_date(second)
            self.second = second
        return self.date


_clock = _Clock()


def _bad_value_type(name: str, value: object) -> BodyError:
    # Its type alone: the value may be a secret.
    return BodyError(
        f"the app sent the header {name} with a value of type {type(value).__name__}: give a str"
    )

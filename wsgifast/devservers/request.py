"""A request of a development server: checks of its headers, and its body as `wsgi.input`.

`http.server` parses a request as if the connection ended after it. On a persistent connection, any
doubt about where a request ends allows request smuggling (RFC 9112, 11.2). So its parser reads
through :class:`CheckedLines`, :func:`check_headers` decides how the body is framed, and
:class:`RequestBody` ends where the request ends.
"""

from __future__ import annotations

import io
import re
from email.message import Message
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from ..errors import ClientGone, MalformedRequest, RequestError
from ..http.chunked import BodyDecoder
from ..http.fields import TOKEN, parse_length
from ..http.request_headers import check_host

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# RFC 9112, 3: single spaces. http.server splits at any white space.
_REQUEST_LINE = re.compile(rf"{TOKEN} [!-~\x80-\xff]+ HTTP/1\.[0-9]")
# RFC 9112, 5: a token, a colon at once, a value. Or the empty line that ends the headers.
_HEADER_LINE = re.compile(rb"(?:%b:[^\r\n\0]*)?\r?\n" % TOKEN.encode())
_SCRATCH_BYTES = 64 * 1024
_LEFT = "the client left before it had sent the whole request body"


class CheckedLines:
    """The lines of a request's headers, checked before the standard library's parser gets them.

    That parser was made for mail. It ends a line at a bare CR, unfolds lines that begin with white
    space, stops at a line that is not a header, accepts an envelope ("From ..."), and takes the end
    of the connection for the end of the headers.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self, limit: int = -1) -> bytes:
        """:raises RequestError: for a line that RFC 9112 forbids.

        :raises EOFError: if the connection ends here.
        """
        line = self._stream.readline(limit)
        if not line.endswith(b"\n"):
            if len(line) == limit:
                return line  # too long: the parser answers that
            raise EOFError("the client left in the middle of a request's headers")
        if not _HEADER_LINE.fullmatch(line):
            raise MalformedRequest("A line that is no header")
        return line.rstrip(b" \t\r\n") + b"\r\n"  # 5.1: white space ends no value


def check_headers(request_line: str, headers: Message) -> int | None:
    """Check parsed request headers, and return where the body ends (RFC 9112, 6.3).

    Headers with an underscore in their name are removed. In a WSGI environ they look like the same
    name with a hyphen, which a proxy in front may have set or removed. Transfer-Encoding is removed
    because the application reads the decoded body (RFC 9112, 7.1.3).

    :param request_line: without its line end.
    :returns: the body's length in bytes, or None if it is chunked.
    :raises RequestError: if the headers are malformed or ambiguous.
    """
    if not _REQUEST_LINE.fullmatch(request_line):
        raise MalformedRequest("Bad request line")
    target = request_line.split(" ")[1]
    if not target.startswith("/"):
        try:  # 3.2.2: an absolute URI, which has to be parsed for the environ and the log
            _ = urlsplit(target).port
        except ValueError as error:
            raise MalformedRequest(f"Bad request target: {error}") from None
    for name in [name for name in headers if "_" in name]:
        del headers[name]
    http11 = not request_line.endswith("HTTP/1.0")
    check_host(headers.get_all("Host", []), http11=http11)
    lengths: list[str] = headers.get_all("Content-Length", [])
    codings = ",".join(headers.get_all("Transfer-Encoding", [])).lower()
    if "Transfer-Encoding" in headers:
        # 6.1 and 6.3: both at once, and a coding from an HTTP/1.0 client, allow request smuggling.
        if lengths or not http11:
            raise MalformedRequest("Transfer-Encoding where it may not stand")
        if codings.strip(" \t,") != "chunked":
            raise RequestError(HTTPStatus.NOT_IMPLEMENTED, "A transfer coding other than chunked")
        del headers["Transfer-Encoding"]
        return None
    if not lengths:
        return 0
    length = parse_length(lengths[0]) if len(lengths) == 1 else None
    if length is None:
        raise MalformedRequest("Content-Length is not one number")
    return length


class RequestBody(io.RawIOBase):
    """The raw stream under `wsgi.input`. Wrap it in an io.BufferedReader.

    States: unread, reading, at its end, or ended by :meth:`finish`. After `finish` an application
    that still refers to the stream cannot read the connection's next request.

    :param stream: the connection's buffered input, at the end of the request's headers.
    :param decoder: finds the end of the body.
    """

    def __init__(self, stream: io.BufferedReader, decoder: BodyDecoder) -> None:
        self._stream = stream
        self._decoder = decoder
        self._content = memoryview(b"")  # decoded, and not read yet
        self._over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """:raises ClientGone: if the connection ends before the body does.

        :raises RequestError: if the chunks are malformed, or the client sends nothing for longer
            than the socket's timeout.
        :raises ValueError: if the request has been answered.
        """
        if self._over:
            raise ValueError("this request is over: read its body before the response ends")
        return self._receive(buffer)

    @property
    def at_end(self) -> bool:
        """Whether the connection's input is at the end of this request."""
        return self._decoder.done and not self._content

    def exceeds(self, limit: int) -> bool:
        """Whether more than `limit` bytes are known to be unread."""
        return (self._decoder.left or 0) > limit

    def skip(self, limit: int) -> bool:
        """Discard the rest of the body, up to a limit.

        :param limit: bytes.
        :returns: whether the end was reached.
        :raises OSError: as :meth:`readinto`.
        """
        scratch = memoryview(bytearray(min(limit, _SCRATCH_BYTES)))
        while not self.at_end and limit > 0 and not self.exceeds(limit):
            limit -= self._receive(scratch[:limit])
        return self.at_end

    def finish(self) -> None:
        """End the stream: the connection's next bytes belong to another request."""
        self._over = True

    def _receive(self, buffer: WriteableBuffer) -> int:
        if self.at_end:
            return 0
        while not self._content and not self._decoder.done:
            received = self._received()
            content, used = self._decoder.decode(received)
            self._stream.read(used)
            self._content = memoryview(content)
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._content))
        view[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def _received(self) -> bytes:
        """Wait for input, and return it. It stays in the stream."""
        try:
            if received := self._stream.peek(1):
                return received
        except TimeoutError as error:
            status = HTTPStatus.REQUEST_TIMEOUT
            raise RequestError(status, "The request body stopped coming") from error
        except OSError as error:
            raise ClientGone(_LEFT) from error
        raise ClientGone(_LEFT)

"""The request of a development server: checks of its headers, and its body as `wsgi.input`.

`http.server` was made for one request per connection. On a persistent connection, an ambiguous end
of a request allows request smuggling (RFC 9112, 11.2). So three parts define that end:

- :class:`CheckedLines` checks the header lines before http.server's parser reads them.
- :func:`check_headers` decides about the framing of the body.
- :class:`RequestBody` ends exactly at the end of the request.

Section numbers are those of RFC 9112.
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

# Section 3: single spaces separate the parts. http.server allows any white space.
_REQUEST_LINE = re.compile(rf"{TOKEN} [!-~\x80-\xff]+ HTTP/1\.[0-9]")
# Section 5: a token, a colon without a space before it, and a value. Or the empty line after the
# headers.
_HEADER_LINE = re.compile(rb"(?:%b:[^\r\n\0]*)?\r?\n" % TOKEN.encode())
_SCRATCH_BYTES = 64 * 1024
_CLIENT_LEFT = "the client left before it had sent the whole request body"


class CheckedLines:
    """Checks the header lines of a request before the standard library's parser reads them.

    That parser was made for mail, and is too lenient for HTTP:

    - It ends a line at a bare CR.
    - It unfolds lines that begin with white space.
    - It stops at a line that is not a header.
    - It accepts the envelope line of a mail ("From ...").
    - If the connection ends, it assumes that the headers are complete.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self, limit: int = -1) -> bytes:
        """Read and check one line.

        :raises RequestError: if RFC 9112 forbids the line.
        :raises EOFError: if the connection ends within the line.
        """
        line = self._stream.readline(limit)
        if not line.endswith(b"\n"):
            if len(line) == limit:
                return line  # the line is too long, and the parser raises an error for it
            raise EOFError("the client left in the middle of a request's headers")
        if not _HEADER_LINE.fullmatch(line):
            raise MalformedRequest("A header line is malformed")
        return line.rstrip(b" \t\r\n") + b"\r\n"  # 5.1: trailing white space is not in the value


def check_headers(request_line: str, headers: Message) -> int | None:
    """Check parsed request headers, and return the length of the body (section 6.3).

    Headers with an underscore in their name are removed. X_User and X-User have the same key in a
    WSGI environ, and a proxy may set or remove only X-User. So a client could forge its value.
    Transfer-Encoding is removed because the application reads the decoded body (section 7.1.3).

    :param request_line: the request line without its line end.
    :returns: the length of the body in bytes. None if the body is chunked.
    :raises RequestError: if the headers are malformed or ambiguous.
    """
    if not _REQUEST_LINE.fullmatch(request_line):
        raise MalformedRequest("Bad request line")
    target = request_line.split(" ")[1]
    if not target.startswith("/"):
        try:  # 3.2.2: an absolute URI. The environ and the log need its parts.
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
        # 6.1 and 6.3: Transfer-Encoding together with Content-Length, or from an HTTP/1.0 client,
        # allows request smuggling.
        if lengths or not http11:
            raise MalformedRequest("Transfer-Encoding with Content-Length or in HTTP/1.0")
        if codings.strip(" \t,") != "chunked":
            raise RequestError(HTTPStatus.NOT_IMPLEMENTED, "The transfer coding is not chunked")
        del headers["Transfer-Encoding"]
        return None
    if not lengths:
        return 0
    length = parse_length(lengths[0]) if len(lengths) == 1 else None
    if length is None:
        raise MalformedRequest("Content-Length is not one number")
    return length


class RequestBody(io.RawIOBase):
    """The raw stream of `wsgi.input`. Wrap it in an io.BufferedReader.

    After :meth:`finish`, reading raises an error. So an application that still has the stream
    cannot read the next request of the connection.

    :param stream: the buffered input of the connection, after the headers of the request.
    :param decoder: finds the end of the body.
    """

    def __init__(self, stream: io.BufferedReader, decoder: BodyDecoder) -> None:
        self._stream = stream
        self._decoder = decoder
        self._content = memoryview(b"")  # decoded bytes that were not read
        self._is_finished = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read decoded bytes of the body.

        :raises ClientGone: if the connection ends before the body.
        :raises RequestError: if the chunks are malformed, or the client sends nothing for longer
            than the socket's timeout.
        :raises ValueError: after :meth:`finish`.
        """
        if self._is_finished:
            raise ValueError("this request is over: read its body before the response ends")
        return self._receive(buffer)

    @property
    def at_end(self) -> bool:
        """Whether the whole body was read, so that the next bytes belong to the next request."""
        return self._decoder.done and not self._content

    def exceeds(self, limit: int) -> bool:
        """Return whether more than `limit` bytes are certainly unread.

        The number of unread bytes of a chunked body is not known.
        """
        return (self._decoder.left or 0) > limit

    def skip(self, limit: int) -> bool:
        """Discard the unread bytes of the body.

        :param limit: the most bytes to discard.
        :returns: whether the whole body was read.
        :raises ClientGone: see :meth:`readinto`.
        :raises RequestError: see :meth:`readinto`.
        """
        scratch = memoryview(bytearray(min(limit, _SCRATCH_BYTES)))
        while not self.at_end and limit > 0 and not self.exceeds(limit):
            limit -= self._receive(scratch[:limit])
        return self.at_end

    def finish(self) -> None:
        """Prevent further reads: the next bytes of the connection belong to another request."""
        self._is_finished = True

    def _receive(self, buffer: WriteableBuffer) -> int:
        if self.at_end:
            return 0
        while not self._content and not self._decoder.done:
            received = self._peek()
            content, used = self._decoder.decode(received)
            self._stream.read(used)
            self._content = memoryview(content)
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._content))
        view[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def _peek(self) -> bytes:
        """Wait for input, and return it without removing it from the stream."""
        try:
            if received := self._stream.peek(1):
                return received
        except TimeoutError as error:
            status = HTTPStatus.REQUEST_TIMEOUT
            raise RequestError(status, "The request body did not arrive in time") from error
        except OSError as error:
            raise ClientGone(_CLIENT_LEFT) from error
        raise ClientGone(_CLIENT_LEFT)

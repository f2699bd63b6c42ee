"""Checks of request heads that http.server does not make and a persistent connection needs.

`http.server` parses a request as if the connection ended after it. On a persistent connection, any
doubt about where a request ends allows request smuggling (RFC 9112, 11.2). So its parser reads
through :class:`CheckedLines`, and :func:`check_head` decides how the body is framed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import BinaryIO
from urllib.parse import urlsplit

from ..errors import MalformedRequest, RequestError
from ..http.head import TOKEN, parse_length
from ..http.request_head import check_host

# RFC 9112, 3: single spaces. http.server splits at any white space.
_REQUEST_LINE = re.compile(rf"{TOKEN} [!-~\x80-\xff]+ HTTP/1\.[0-9]")
# RFC 9112, 5: a token, a colon at once, a value; or the empty line that ends the head.
_HEADER_LINE = re.compile(rb"(?:%b:[^\r\n\0]*)?\r?\n" % TOKEN.encode())


@dataclass(frozen=True)
class BodyFraming:
    """Where a request's body ends (RFC 9112, 6.3).

    :ivar length: bytes; None for a chunked body.
    :ivar expects_continue: whether the client waits for 100 (Continue) before it sends the body.
    """

    length: int | None
    expects_continue: bool


class CheckedLines:
    """The lines of a request's head, checked before the standard library's parser gets them.

    That parser was made for mail: it ends a line at a bare CR, unfolds lines that begin with white
    space, stops at a line that is no header, accepts an envelope ("From ..."), and takes the end of
    the connection for the end of the head.
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
            raise EOFError("the client left in the middle of a request's head")
        if not _HEADER_LINE.fullmatch(line):
            raise MalformedRequest("A line that is no header")
        return line


def check_head(request_line: str, headers: Message) -> BodyFraming:
    """Check a parsed head, and return how the body is framed.

    Headers with an underscore in their name are removed: in a WSGI environ they look like the same
    name with a hyphen, which a proxy in front may have set or removed. Transfer-Encoding is removed
    because the application reads the decoded body (RFC 9112, 7.1.3).

    :param request_line: without its line end.
    :raises RequestError: if the head is malformed or ambiguous.
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
    check_host([host.strip(" \t") for host in headers.get_all("Host", [])], http11=http11)
    length = _body_length(headers, http11)
    expectation = ",".join(headers.get_all("Expect", [])).strip().lower()
    if not http11 or not expectation:  # RFC 9110, 10.1.1: 1.0 clients do not mean it
        return BodyFraming(length, expects_continue=False)
    if expectation != "100-continue":
        raise RequestError(HTTPStatus.EXPECTATION_FAILED, "Only 100-continue can be expected")
    return BodyFraming(length, expects_continue=length != 0)


def _body_length(headers: Message, http11: bool) -> int | None:
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
    length = parse_length(lengths[0].strip(" \t")) if len(lengths) == 1 else None
    if length is None:
        raise MalformedRequest("Content-Length is not one number")
    return length

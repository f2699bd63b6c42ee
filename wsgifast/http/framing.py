"""Response framing: how a client finds the end of a body (RFC 9112 6, RFC 9110 6.4.1 and 8.6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# The end of a chunked body without trailers (RFC 9112 7.1).
LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class Framing:
    """How a client finds the end of a response (RFC 9112 6.3). Treat it as immutable.

    :ivar has_body: whether a body may follow the headers.
    :ivar length: the Content-Length to send. None to send no such header.
    :ivar chunked: whether the body is sent in chunks.
    """

    has_body: bool
    length: int | None
    chunked: bool

    @property
    def has_known_end(self) -> bool:
        """Whether the client can find the end although the connection stays open."""
        return self.chunked or not self.has_body or self.length is not None


_NO_BODY = Framing(False, None, False)
_CHUNKED = Framing(True, None, True)
_UNTIL_CLOSE = Framing(True, None, False)


def has_body(method: str, code: int) -> bool:
    """Return whether a response may have content.

    :param method: the method of the request, in upper case. Responses to HEAD have no content (RFC
        9110 9.3.2). Successful responses to CONNECT, which start a tunnel, have none either
        (9.3.6).
    :param code: the status code. 1xx, 204 (15.3.5), 205 (15.3.6) and 304 (15.4.5) have no content.
    """
    if code >= 200 and code != 204 and code != 304 and code != 205:
        return method != "HEAD" and (method != "CONNECT" or code >= 300)
    return False


def frame_response(
    method: str, code: int, length: int | None, *, size: int | None = None, chunks: bool = True
) -> Framing:
    """Decide how a response is framed.

    :param length: the app's Content-Length, in bytes. None if the app has not set it.
    :param size: the bytes of the whole body. None if the number is unknown.
    :param chunks: whether the client understands chunks, which HTTP/1.1 requires (RFC 9112 6.1).
    """
    if has_body(method, code):
        if length is None:
            length = size
        if length is not None:
            return Framing(True, length, False)
        return _CHUNKED if chunks else _UNTIL_CLOSE
    if code == 205:
        # Clients expect a body after 205, but not after 204. So a Content-Length of 0 declares an
        # empty body (RFC 9110 15.3.6).
        return Framing(False, 0, False)
    if code < 200 or code == 204 or (method == "CONNECT" and code < 300):
        return _NO_BODY  # no Content-Length (RFC 9110 8.6), no chunks (RFC 9112 6.1)
    # For HEAD and 304, Content-Length must be that of the response to GET, or missing (RFC 9110
    # 8.6). An app may return an empty body for HEAD although the body for GET is not empty.
    if length is None and code != 304 and size:
        length = size
    return Framing(False, length, False)


class BodyCounter:
    """Counts the bytes of a body, and limits them to the length that its framing declares.

    :ivar length: the most bytes of the body. None for no limit.
    :ivar sent: the number of admitted bytes.
    :ivar dropped: the number of bytes beyond `length`.
    """

    __slots__ = ("_has_body", "dropped", "length", "sent")

    def __init__(self, framing: Framing) -> None:
        self._has_body = framing.has_body
        self.length = framing.length if framing.has_body else 0
        self.sent = 0
        self.dropped = 0

    def admit(self, size: int) -> int:
        """Return how many of the next `size` bytes to send, and count them as sent."""
        length = self.length
        if length is not None and size > length - self.sent:
            admitted = length - self.sent
            self.dropped += size - admitted
            size = admitted
        self.sent += size
        return size

    @property
    def missing(self) -> int:
        """The number of declared bytes that were not sent.

        If it is not 0 at the end of the body, the server must close the connection.
        """
        return 0 if self.length is None else self.length - self.sent

    @property
    def complete(self) -> bool:
        """Whether as many bytes as declared have been admitted."""
        return self.length is not None and self.sent >= self.length

    @property
    def is_cut(self) -> bool:
        """Whether the body was longer than its Content-Length."""
        return self.dropped > 0 and self._has_body

    def is_as_declared(self) -> bool:
        """Return whether the body has the declared length. Without a declared length, return True.

        If a response must not have a body, the declared length is 0.
        """
        length = self.length
        return not self.dropped and (length is None or length == self.sent)

    def complaint(self, method: str, code: int) -> str:
        """Describe the mistake in the app's body. Return "" if there is none.

        :param method: the method of the request. A body after HEAD is dropped without a complaint.
        :param code: the status code of the response.
        """
        if self.missing:
            return f"the body has {self.sent} bytes, and its Content-Length is {self.length}"
        if self.is_cut:
            return f"the body is longer than its Content-Length, {self.length}: it is cut"
        if self.dropped and method != "HEAD":
            return f"the body is dropped: {code} responses have none (RFC 9110 6.4.1)"
        return ""


def chunk(data: bytes) -> bytes:
    """Return data as one chunk (RFC 9112 7.1).

    :param data: not empty, because an empty chunk ends the body.
    """
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk_size_line(size: int) -> bytes:
    """Return the line before a chunk's data (RFC 9112 7.1). The caller adds CR LF after the data.

    :param size: the bytes of the data, 1 or more.
    """
    return b"%x\r\n" % size


def list_members(value: str) -> list[str]:
    """Return the members of a header that is a list of tokens, in lower case.

    Empty members are omitted (RFC 9110 5.6.1.2).
    """
    return [name for member in value.lower().split(",") if (name := member.strip(" \t"))]


def wants_to_persist(connection: Iterable[str], *, http11: bool) -> bool:
    """Return whether a client wants a persistent connection (RFC 9112 9.3).

    :param connection: the values of the Connection headers, each a list (RFC 9110 7.6.1).
    :param http11: whether the request is HTTP/1.1, whose connection persists unless the client
        sends "close". With HTTP/1.0, the connection persists only if the client sends "keep-alive".
    """
    options = {option for value in connection for option in list_members(value)}
    return "close" not in options and (http11 or "keep-alive" in options)

"""Response framing: where a body ends (RFC 9112 6, RFC 9110 6.4.1 and 8.6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# The end of a chunked body without trailers (RFC 9112 7.1).
LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class Framing:
    """How a client finds the end of a response (RFC 9112 6.3). Never changed.

    :ivar has_body: whether a body may follow the headers.
    :ivar length: the Content-Length to send. None for no such header.
    :ivar chunked: whether the body is sent in chunks.
    """

    has_body: bool
    length: int | None
    chunked: bool

    @property
    def ends_itself(self) -> bool:
        """Whether the client finds the end without the connection being closed."""
        return self.chunked or not self.has_body or self.length is not None


_TO_HEAD = Framing(False, None, False)
_CHUNKED = Framing(True, None, True)
_AT_CLOSE = Framing(True, None, False)


def has_body(method: str, code: int) -> bool:
    """Return whether a response may have content.

    :param method: of the request, in upper case. There is none after HEAD (RFC 9110 9.3.2), nor
        after a successful CONNECT, which starts a tunnel (9.3.6).
    :param code: there is none with 1xx, 204 (15.3.5), 205 (15.3.6) and 304 (15.4.5).
    """
    if code >= 200 and code != 204 and code != 304 and code != 205:
        return method != "HEAD" and (method != "CONNECT" or code >= 300)
    return False


def frame_response(
    method: str, code: int, length: int | None, *, size: int | None = None, chunks: bool = True
) -> Framing:
    """Decide how a response is framed.

    :param length: the app's Content-Length, in bytes. None without one.
    :param size: of the whole body, in bytes. None if it is not known.
    :param chunks: whether the client understands chunks: HTTP/1.1 (RFC 9112 6.1).
    """
    if has_body(method, code):
        if length is None:
            length = size
        if length is not None:
            return Framing(True, length, False)
        return _CHUNKED if chunks else _AT_CLOSE
    if code == 205:
        # RFC 9110 15.3.6. Unlike with 204, clients expect a body here: it is empty.
        return Framing(False, 0, False)
    if code < 200 or code == 204 or (method == "CONNECT" and code < 300):
        return _TO_HEAD  # RFC 9110 8.6, RFC 9112 6.1: neither header
    # For HEAD and 304, the length that GET would have, or none (RFC 9110 8.6). An empty body for
    # HEAD does not mean that it would be empty for GET.
    if length is None and code != 304 and size:
        length = size
    return Framing(False, length, False)


class BodyCounter:
    """Enforces a body's framing: never a byte more than its length.

    :ivar length: the most bytes. None for any number.
    :ivar sent: bytes admitted so far.
    :ivar dropped: bytes that were not admitted.
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
        """Bytes left to send. If there are any at the end, the connection must be closed."""
        return 0 if self.length is None else self.length - self.sent

    @property
    def complete(self) -> bool:
        """Whether nothing more can be admitted."""
        return self.length is not None and self.sent >= self.length

    @property
    def is_cut(self) -> bool:
        """Whether the body was longer than its Content-Length."""
        return self.dropped > 0 and self._has_body

    def is_as_declared(self) -> bool:
        """Whether the body was as long as its Content-Length, and allowed at all."""
        length = self.length
        return not self.dropped and (length is None or length == self.sent)

    def complaint(self, method: str, code: int) -> str:
        """Describe the mistake in the app's body. Return "" without one.

        :param method: of the request: for HEAD an app may return the body of a GET.
        :param code: the response's.
        """
        if self.missing:
            return f"the body has {self.sent} bytes, and its Content-Length is {self.length}"
        if self.is_cut:
            return f"the body is longer than its Content-Length, {self.length}: it is cut"
        if self.dropped and method != "HEAD":
            return f"the body is dropped: {code} has none (RFC 9110 6.4.1)"
        return ""


def chunk(data: bytes) -> bytes:
    """Return data as one chunk (RFC 9112 7.1).

    :param data: not empty, because an empty chunk ends the body.
    """
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk_size_line(size: int) -> bytes:
    """Return the line before a chunk's data (RFC 9112 7.1). CR LF follows the data.

    :param size: of the data in bytes, 1 or more.
    """
    return b"%x\r\n" % size


def list_members(value: str) -> list[str]:
    """Return the members of a header that is a list of tokens, in lower case.

    Empty members are left out (RFC 9110 5.6.1.2).
    """
    return [name for member in value.lower().split(",") if (name := member.strip(" \t"))]


def wants_to_persist(connection: Iterable[str], *, http11: bool) -> bool:
    """Return whether a client wants a persistent connection (RFC 9112 9.3).

    :param connection: the values of its Connection headers, which are lists (RFC 9110 7.6.1).
    :param http11: with HTTP/1.1 a connection persists unless there is "close". With HTTP/1.0, only
        if there is "keep-alive".
    """
    options = {option for value in connection for option in list_members(value)}
    return "close" not in options and (http11 or "keep-alive" in options)

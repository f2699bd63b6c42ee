"""Where a response's body ends: RFC 9112 6, RFC 9110 6.4.1 and 8.6."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "LAST_CHUNK",
    "BodyCounter",
    "Framing",
    "chunk",
    "chunk_size_line",
    "frame_response",
    "has_body",
    "wants_to_persist",
]

# RFC 9112 7.1: what ends a body in chunks, without trailers.
LAST_CHUNK = b"0\r\n\r\n"


class Framing(NamedTuple):
    """How the end of a response is told (RFC 9112 6.3).

    :ivar has_body: False: not a byte may follow the head.
    :ivar length: the Content-Length to send; None for no such header.
    :ivar chunked: whether the body goes out in chunks.
    """

    has_body: bool
    length: int | None
    chunked: bool

    @property
    def ends_itself(self) -> bool:
        """Whether the client sees the end although the connection stays open."""
        return self.chunked or not self.has_body or self.length is not None


_AT_HEAD = Framing(False, None, False)
_CHUNKED = Framing(True, None, True)
_AT_CLOSE = Framing(True, None, False)


def has_body(method: str, code: int) -> bool:
    """Whether a response may have content.

    :param method: of the request, in upper case: HEAD asks for the head alone (RFC 9110 9.3.2), and
        behind the head of a successful CONNECT there is a tunnel (9.3.6).
    :param code: 1xx, 204 (15.3.5), 205 (15.3.6) and 304 (15.4.5) have none.
    """
    if code >= 200 and code != 204 and code != 304 and code != 205:
        return method != "HEAD" and (method != "CONNECT" or code >= 300)
    return False


def frame_response(
    method: str, code: int, length: int | None, *, size: int | None = None, chunks: bool = True
) -> Framing:
    """Decide how a response is framed.

    :param length: bytes: the Content-Length that the app declared, if it did.
    :param size: of the whole body in bytes, where it is known without the app's word.
    :param chunks: whether the client understands chunks: HTTP/1.1 (RFC 9112 6.1).
    """
    if has_body(method, code):
        if length is None:
            length = size
        if length is not None:
            return Framing(True, length, False)
        return _CHUNKED if chunks else _AT_CLOSE
    if code == 205:
        # RFC 9110 15.3.6. Unlike after 204, clients look for a body here, and are told of none.
        return Framing(False, 0, False)
    if code < 200 or code == 204 or (method == "CONNECT" and code < 300):
        return _AT_HEAD  # RFC 9110 8.6, RFC 9112 6.1: neither header
    # To HEAD and with 304: what GET would have said, or nothing (RFC 9110 8.6). An app that returns
    # an empty body to HEAD has not said that its GET has none.
    if length is None and code != 304 and size:
        length = size
    return Framing(False, length, False)


class BodyCounter:
    """Holds a body to its framing: never a byte more than it promised.

    :ivar length: bytes that may be sent in all; None for any number.
    :ivar sent: body bytes admitted so far.
    :ivar dropped: body bytes that had no place any more.
    """

    __slots__ = ("dropped", "length", "sent")

    def __init__(self, framing: Framing) -> None:
        self.length = framing.length if framing.has_body else 0
        self.sent = 0
        self.dropped = 0

    def admit(self, size: int) -> int:
        """How many of the next `size` bytes are to be sent; they are counted as such."""
        length = self.length
        if length is not None and size > length - self.sent:
            admitted = length - self.sent
            self.dropped += size - admitted
            size = admitted
        self.sent += size
        return size

    @property
    def missing(self) -> int:
        """Promised bytes that have not come: if any at the end, only closing tells the client."""
        return 0 if self.length is None else self.length - self.sent

    @property
    def complete(self) -> bool:
        """Whether nothing that still comes could be sent."""
        return self.length is not None and self.sent >= self.length


def chunk(data: bytes) -> bytes:
    """Data as one chunk (RFC 9112 7.1).

    :param data: not empty: an empty chunk would be the last one.
    """
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk_size_line(size: int) -> bytes:
    """What precedes a chunk's data (RFC 9112 7.1); CR LF follows it.

    :param size: bytes, 1 or more: an empty chunk would be the last one.
    """
    return b"%x\r\n" % size


def wants_to_persist(connection: Iterable[str], *, http11: bool) -> bool:
    """Whether a client wants the connection to go on after its request (RFC 9112 9.3).

    :param connection: the values of its Connection headers: lists of options (RFC 9110 7.6.1).
    :param http11: it speaks HTTP/1.1, and stays unless it says "close"; an older one leaves unless
        it says "keep-alive".
    """
    options = {option.strip(" \t").lower() for value in connection for option in value.split(",")}
    return "close" not in options and (http11 or "keep-alive" in options)

"""A request's body as `wsgi.input`: it ends where the request ends, and not a byte later."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from ..errors import WSGIFastError
from .requesthead import BodyFraming, RequestError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["ClientGone", "RequestBody"]

# RFC 9112, 7.1. A size of 15 hex digits is beyond any disk; extensions are ignored (7.1.1).
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
# What a chunk's size line with its extensions, or one trailer line, may measure.
_LINE_BYTES = 4096
# Trailers are read and dropped; more lines than this are an attack.
_TRAILER_LINES = 100
_SCRATCH_BYTES = 64 * 1024


class ClientGone(WSGIFastError, ConnectionAbortedError):
    """The client has closed the connection, or stalled for longer than the server waits."""


class RequestBody(io.RawIOBase):
    """The raw stream under `wsgi.input`; wrap it in an io.BufferedReader.

    States: unread, reading, at its end, or ended by :meth:`finish`. Once `finish` was called, an
    application that has kept the stream can no longer reach the next request on the connection.

    :param stream: the connection's buffered input, placed behind the request's head.
    :param framing: where the body ends.
    :param send_continue: sends "100 Continue"; called at the first read, if the client waits
        for it and the response has not begun.
    """

    def __init__(
        self,
        stream: io.BufferedReader,
        framing: BodyFraming,
        send_continue: Callable[[], object],
    ) -> None:
        self._stream = stream
        self._chunked = framing.length is None
        # Bytes left in the body, or in the present chunk.
        self._left = framing.length or 0
        self._at_end = framing.length == 0
        self._between_chunks = False
        self._over = False
        self._send_continue = send_continue
        # True as long as the client may still hold the body back.
        self.awaits_continue = framing.expects_continue

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """:raises ClientGone: if the connection ends before the body does.

        :raises RequestError: if the chunks are malformed.
        :raises ValueError: if the request has been answered.
        :raises TimeoutError: if the client sends nothing for longer than the socket's timeout.
        """
        if self._over:
            raise ValueError("this request is over: read its body before the response ends")
        return self._receive(buffer)

    @property
    def at_end(self) -> bool:
        """Whether the connection's input stands behind this request."""
        return self._at_end

    def drain(self, limit: int) -> bool:
        """Read what the application has left, up to a limit.

        :param limit: bytes.
        :returns: whether the end was reached.
        :raises OSError: as :meth:`readinto`.
        """
        scratch = memoryview(bytearray(min(limit, _SCRATCH_BYTES)))
        while not self._at_end and limit > 0 and (self._chunked or self._left <= limit):
            limit -= self._receive(scratch[:limit])
        return self._at_end

    def finish(self) -> None:
        """Cut the application off: the connection's next bytes are another request's."""
        self._over = True

    def _receive(self, buffer: WriteableBuffer) -> int:
        if self._at_end:
            return 0
        if self.awaits_continue:
            self.awaits_continue = False
            self._send_continue()
        if self._chunked and self._left == 0 and not self._next_chunk():
            return 0
        view = memoryview(buffer).cast("B")
        size = self._stream.readinto1(view[: self._left])
        if not size:
            raise ClientGone("the client left before it had sent the whole request body")
        self._left -= size
        if self._left == 0 and not self._chunked:
            self._at_end = True
        return size

    def _next_chunk(self) -> bool:
        """Read to the next chunk's data; False at the end of the body."""
        if self._between_chunks and self._line() != b"\r\n":
            raise self._malformed()
        size = _CHUNK_SIZE.fullmatch(self._line())
        if size is None:
            raise self._malformed()
        self._between_chunks = True
        self._left = int(size[1], 16)
        if self._left:
            return True
        for _ in range(_TRAILER_LINES):
            if self._line() == b"\r\n":
                self._at_end = True
                return False
        raise self._malformed()

    def _line(self) -> bytes:
        line = self._stream.readline(_LINE_BYTES)
        if not line.endswith(b"\r\n"):
            if len(line) < _LINE_BYTES and not line.endswith(b"\n"):
                raise ClientGone("the client left before it had sent the whole request body")
            raise self._malformed()
        return line

    @staticmethod
    def _malformed() -> RequestError:
        return RequestError(HTTPStatus.BAD_REQUEST, "The chunks of the request body are malformed")

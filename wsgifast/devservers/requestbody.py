"""A request's body as `wsgi.input`, which ends where the request ends."""

from __future__ import annotations

import io
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from ..errors import ClientGone, RequestError
from ..http.chunked import ChunkDecoder
from .requesthead import BodyFraming

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The longest line of a chunk size with its extensions, or of a trailer.
_LINE_BYTES = 4096
_SCRATCH_BYTES = 64 * 1024


class RequestBody(io.RawIOBase):
    """The raw stream under `wsgi.input`; wrap it in an io.BufferedReader.

    States: unread, reading, at its end, or ended by :meth:`finish`. After `finish` an application
    that has kept the stream cannot read the connection's next request.

    :param stream: the connection's buffered input, at the end of the request's head.
    :param framing: where the body ends.
    :param send_continue: sends "100 Continue"; called at the first read if the client waits for it.
    """

    def __init__(
        self,
        stream: io.BufferedReader,
        framing: BodyFraming,
        send_continue: Callable[[], object],
    ) -> None:
        self._stream = stream
        self._decoder = ChunkDecoder(line_limit=_LINE_BYTES) if framing.length is None else None
        # The bytes left of a body of known length; those decoded from chunks and not read yet.
        self._left = framing.length or 0
        self._decoded = memoryview(b"")
        self._over = False
        self._send_continue = send_continue
        # True as long as the client may still hold the body back.
        self.awaits_continue = framing.expects_continue

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
        if self._decoder is not None:
            return self._decoder.done and not self._decoded
        return self._left == 0

    def exceeds(self, limit: int) -> bool:
        """Whether more than `limit` bytes are known to be unread."""
        return self._left > limit

    def drain(self, limit: int) -> bool:
        """Read the rest of the body, up to a limit.

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
        if self.awaits_continue:
            self.awaits_continue = False
            self._send_continue()
        view = memoryview(buffer).cast("B")
        try:
            if self._decoder is not None:
                return self._decode(view, self._decoder)
            size = self._stream.readinto1(view[: self._left])
        except RequestError:
            raise
        except OSError as error:
            raise _failed(error) from error
        if not size:
            raise _gone()
        self._left -= size
        return size

    def _decode(self, view: memoryview, decoder: ChunkDecoder) -> int:
        while not self._decoded and not decoder.done:
            received = self._stream.peek(1)
            if not received:
                raise _gone()
            content, used = decoder.decode(received)
            self._stream.read(used)
            self._decoded = memoryview(content)
        size = min(len(view), len(self._decoded))
        view[:size] = self._decoded[:size]
        self._decoded = self._decoded[size:]
        return size


def _failed(error: OSError) -> OSError:
    if isinstance(error, TimeoutError):
        return RequestError(HTTPStatus.REQUEST_TIMEOUT, "The request body stopped coming")
    return _gone()


def _gone() -> ClientGone:
    return ClientGone("the client left before it had sent the whole request body")

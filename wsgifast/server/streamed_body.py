"""Request bodies that are not buffered. The app's thread reads them from the socket."""

from __future__ import annotations

import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BodyTooLarge, ClientGone, RequestError, without_frames
from ..http.chunked import BodyDecoder
from ..sockets.client_limits import ClientWait
from ..sockets.closing import UNREAD_BODY_BYTES
from .poller import WOULD_BLOCK

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The minimum and maximum number of bytes of one receive, whatever number of bytes the app reads.
_MIN_BYTES = 16 * 1024
_MAX_BYTES = 256 * 1024
# The maximum time of one poll(2), whose timeout in milliseconds has 31 bits.
_LONGEST_WAIT_S = 3600.0


class RawBody(io.RawIOBase):
    """The raw stream of `wsgi.input`, which is an io.BufferedReader.

    :ivar failure: the reason why the body cannot be read to its end, or None.
    """

    failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if self.failure is not None:
            without_frames(self.failure)
        super().close()


@dataclass(eq=False, repr=False)
class StreamedBody(RawBody):
    """The body of an HTTP/1 request. After a failure, the connection cannot serve another request.

    Its attributes are private, because apps get this object.
    """

    _sock: socket.socket  # non-blocking
    _lock: threading.Lock | threading.RLock  # the output queue's, since both use one TLS object
    _decoder: BodyDecoder
    _add_trailers: Callable[[Sequence[bytes]], None]  # called with the body's trailers at its end
    _undecoded: bytes  # received bytes that are not decoded
    _wait: ClientWait
    _content: bytes | memoryview = b""  # decoded bytes that the app has not read
    _is_over: bool = False
    _skipped: int = 0  # the number of received bytes that the app has not read

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read bytes of the body into a buffer, and wait for them if necessary.

        :raises RequestError: if the client is too slow, or its chunks are malformed.
        :raises ClientGone: if the connection ends before the body.
        :raises ValueError: after the response has ended.
        """
        if self._is_over:
            raise ValueError("this request is over: read its body before the response ends")
        if self.failure is not None:
            raise self.failure
        view = memoryview(buffer).cast("B")
        try:
            while not self._content and not self._decoder.done and view:
                self._decode(self._undecoded or self._receive(len(view)))
        except Exception as error:
            self.failure = error
            raise
        size = min(len(view), len(self._content))
        view[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def skip(self) -> bytes | None:
        """End the app's access to the body, and discard received bytes of the body.

        :returns: the bytes received after the body. None if the body is incomplete: call this again
            when more bytes arrive, unless :attr:`failure` is set.
        """
        self._is_over = True
        if self.failure is not None:
            return None
        self._skipped += len(self._content)
        self._content = memoryview(b"")
        try:
            while not self._decoder.done:
                if self._skipped + (self._decoder.left or 0) > UNREAD_BODY_BYTES:
                    raise BodyTooLarge(UNREAD_BODY_BYTES)
                data = self._undecoded or self._sock.recv(self._receive_size(_MAX_BYTES))
                self._skipped += len(data)
                self._decode(data)
                self._content = memoryview(b"")
            return self._undecoded
        except WOULD_BLOCK:
            pass
        except Exception as error:  # noqa: BLE001 - no request can follow after any error
            self.failure = error
        return None

    def _decode(self, data: bytes) -> None:
        """Decode received bytes. b"" means the end of the connection."""
        if not data:
            raise ClientGone("the client has left in the middle of its request body")
        decoder = self._decoder
        content, at = decoder.decode(data)
        if decoder.done:
            self._add_trailers(decoder.trailers)
        self._content = memoryview(content)
        self._undecoded = data[at:]

    def _receive(self, size: int) -> bytes:
        deadline = self._wait.begin()
        data = receive_blocking(self._sock, self._lock, self._receive_size(size), deadline)
        self._wait.end()
        self._wait.moved += len(data)
        return data

    def _receive_size(self, size: int) -> int:
        size = max(_MIN_BYTES, min(size, _MAX_BYTES))
        return min(size, self._decoder.left or size)


def receive_blocking(
    sock: socket.socket, lock: threading.Lock | threading.RLock, size: int, deadline: float
) -> bytes:
    """Wait until a non-blocking socket has data, and receive once.

    :param lock: acquired for each receive, but not while this function waits.
    :param size: the maximum number of bytes.
    :param deadline: the monotonic time until which to wait.
    :returns: b"" at the end of the connection.
    :raises RequestError: if no data arrives in time.
    :raises ClientGone: if the connection is lost.
    """
    while True:
        awaited = select.POLLIN
        try:
            with lock:
                return sock.recv(size)
        except ssl.SSLWantWriteError:  # TLS must send something first
            awaited = select.POLLOUT
        except WOULD_BLOCK:
            pass
        except OSError as error:
            raise ClientGone(str(error)) from error
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise RequestError(408, "The request body did not arrive in time")
        poller = select.poll()
        poller.register(sock.fileno(), awaited)
        poller.poll(min(remaining, _LONGEST_WAIT_S) * 1000)

"""Request bodies that are not buffered: the app's thread reads them from the socket."""

from __future__ import annotations

import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import BodyTooLarge, ClientGone, RequestError, without_frames
from ..http.chunked import BodyDecoder
from ..server_options import LEAST_BYTES_PER_S
from ..sockets.client_limits import ClientWait
from ..sockets.closing import UNREAD_BODY_BYTES
from .poller import WOULD_BLOCK

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The least and the most bytes of one receive. The app's read size does not change them.
_LEAST_BYTES = 16 * 1024
_MOST_BYTES = 256 * 1024
# Of one call: poll(2) takes milliseconds of 31 bits.
_LONGEST_WAIT_S = 3600.0


class RawBody(io.RawIOBase):
    """The raw stream under `wsgi.input`. Wrap it in an io.BufferedReader.

    :ivar failure: why the body cannot be read to its end.
    """

    failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if self.failure is not None:
            without_frames(self.failure)
        super().close()


class StreamedBody(RawBody):
    """The body of an HTTP/1 request. After a failure no other request can follow it.

    :param sock: non-blocking.
    :param lock: the output queue's, because both directions share one TLS object.
    :param take_trailers: called with its trailers at the end of the body.
    :param data: bytes that were received with the headers.
    :param timeout_s: see :func:`~wsgifast.sockets.client_limits.time_left_s`.
    """

    def __init__(
        self,
        sock: socket.socket,
        lock: threading.Lock | threading.RLock,
        *,
        decoder: BodyDecoder,
        take_trailers: Callable[[Sequence[bytes]], None],
        data: bytes,
        timeout_s: float,
    ) -> None:
        self._sock = sock
        self._lock = lock
        self._decoder = decoder
        self._take_trailers = take_trailers
        self._wait = ClientWait(timeout_s, LEAST_BYTES_PER_S)
        self._content = memoryview(b"")  # decoded, and not read yet
        self._rest = data  # received, and not decoded yet
        self._is_over = False
        self._skipped = 0  # bytes received that the app has not read

    def readinto(self, buffer: WriteableBuffer) -> int:
        """:raises RequestError: if the client is too slow, or its chunks are malformed.

        :raises ClientGone: if the connection ends before the body does.
        :raises ValueError: after the response has ended.
        """
        if self._is_over:
            raise ValueError("this request is over: read its body before the response ends")
        if self.failure is not None:
            raise self.failure
        view = memoryview(buffer).cast("B")
        try:
            while not self._content and not self._decoder.done and view:
                self._take(self._rest or self._receive(len(view)))
        except Exception as error:
            self.failure = error
            raise
        size = min(len(view), len(self._content))
        view[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def skip(self) -> bytes | None:
        """End the app's access, and discard the unread bytes that were received.

        :returns: the bytes received after the body. None if the body has not ended: call this again
            when more arrives, unless :attr:`failure` is set.
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
                data = self._rest or self._sock.recv(self._wanted(_MOST_BYTES))
                self._skipped += len(data)
                self._take(data)
                self._content = memoryview(b"")
            return self._rest
        except WOULD_BLOCK:
            pass
        except Exception as error:  # noqa: BLE001 - lost or malformed: there is no next request
            self.failure = error
        return None

    def _take(self, data: bytes) -> None:
        """Decode received bytes. b"" is the end of the connection."""
        if not data:
            raise ClientGone("the client has left in the middle of its request body")
        decoder = self._decoder
        content, at = decoder.decode(data)
        if decoder.done:
            self._take_trailers(decoder.trailers)
        self._content = memoryview(content)
        self._rest = data[at:]

    def _receive(self, wanted: int) -> bytes:
        deadline = self._wait.begin()
        data = receive_blocking(self._sock, self._lock, self._wanted(wanted), deadline)
        self._wait.end()
        self._wait.moved += len(data)
        return data

    def _wanted(self, size: int) -> int:
        size = max(_LEAST_BYTES, min(size, _MOST_BYTES))
        return min(size, self._decoder.left or size)


def receive_blocking(
    sock: socket.socket, lock: threading.Lock | threading.RLock, size: int, deadline: float
) -> bytes:
    """Wait until a non-blocking socket has data, and receive once.

    :param lock: taken to receive, not to wait.
    :param size: the most bytes.
    :param deadline: monotonic.
    :returns: b"" at the end of the connection.
    :raises RequestError: if nothing arrives in time.
    :raises ClientGone: if the connection is lost.
    """
    poller = None
    while True:
        awaited = select.POLLIN
        try:
            with lock:
                return sock.recv(size)
        except ssl.SSLWantWriteError:  # TLS has to send something first
            awaited = select.POLLOUT
        except WOULD_BLOCK:
            pass
        except OSError as error:
            raise ClientGone(str(error)) from error
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise RequestError(408, "The request body did not come in time")
        if poller is None:
            poller = select.poll()
            poller.register(sock.fileno(), awaited)
        poller.modify(sock.fileno(), awaited)
        poller.poll(min(remaining, _LONGEST_WAIT_S) * 1000)

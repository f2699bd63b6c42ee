"""The response of a development server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

from ..bodies.chunks import excerpt, few_chunks
from ..bodies.classify import can_be_iterated
from ..bodies.files import Segment
from ..bodies.writer import ResponseWriter, not_bytes
from ..errors import BodyError, BodyTooShort, ClientGone
from ..http.framing import BodyCounter, frame_response
from ..sockets.sending import (
    MSG_MORE,
    FileSegment,
    FileTruncated,
    send_file_segment,
    send_some,
)


class Response(ResponseWriter):
    """Sends one response on a connection.

    If the size of the body is known before its first byte is sent, the response gets a
    Content-Length. wsgiref's and Werkzeug's servers do the same.

    :param handler: the handler of the request. It provides Server and Date if the app does not set
        them.
    :param http11: whether the request is HTTP/1.1.
    :param may_stay: a function that returns whether the connection may stay open. It is called when
        the headers are sent.
    :ivar keep_alive: whether the connection can stay open after this response.
    """

    def __init__(
        self,
        outlet: Outlet,
        handler: BaseHTTPRequestHandler,
        *,
        http11: bool,
        may_stay: Callable[[], bool],
    ) -> None:
        super().__init__(outlet)
        self._outlet = outlet
        self._handler = handler
        self._method = handler.command
        self._chunks = http11
        self._may_stay = may_stay
        self.keep_alive = False

    @property
    def body_bytes(self) -> int:
        """The number of sent bytes of the body, without chunk sizes."""
        return max(0, self.sent - self._outlet.unsent)

    def write_all(self, blocks: list[Any] | tuple[Any, ...]) -> None:
        chunks, size = few_chunks(blocks, _checked)
        self._frame_by_size(size)
        if isinstance(chunks, (list, tuple)):
            super().write_all(chunks)
        else:
            super().write_stream(chunks)

    def write_segments(self, segments: Sequence[Segment]) -> None:
        size = sum(s.size if isinstance(s, FileSegment) else len(s) for s in segments)
        self._frame_by_size(size)
        super().write_segments(segments)

    def write_stream(self, body: Iterable[Any]) -> None:
        """Send a body block by block.

        :raises BodyError: if the body is not an iterable of bytes.
        """
        if not can_be_iterated(type(body)):
            advice = "return environ['wsgi.file_wrapper'](file) or a list of bytes"
            self.write_unsuited(body, advice)
        super().write_stream(body)

    def write_unsuited(self, body: Any, advice: str) -> None:
        """Report an unsupported body.

        :raises BodyError: always.
        """
        kind = type(body).__name__
        raise BodyError(f"the app returned {kind} as its body: {excerpt(body)}; {advice}")

    def close(self) -> None:
        self._frame_by_size(0)
        super().close()

    def _frame_by_size(self, size: int) -> None:
        """Choose the framing for a body of this size, unless the headers were sent."""
        start = self._start
        if start is None or self.headers_sent:
            return
        self._framing = framing = frame_response(
            self._method, start.code, start.content_length, size=size, chunks=self._chunks
        )
        self.closes = start.closes or not framing.has_known_end
        BodyCounter.__init__(self, framing)
        # If the body is shorter than the app's Content-Length, the client notices the missing bytes
        # only if the connection is closed.
        length = self.length
        self.must_close = length is not None and size < length

    def _encoded_headers(self) -> bytes:
        start = self._checked_start()
        ends = self.must_close or self.closes or start.code == 101
        self.keep_alive = not ends and self._may_stay()
        names = {name.lower() for name, _ in start.headers}
        handler = self._handler
        defaults = ("Server", handler.version_string()), ("Date", handler.date_time_string())
        own = [(name, value) for name, value in defaults if name.lower() not in names]
        if start.upgrades:
            own.append(("Connection", "upgrade"))
        elif not self.keep_alive:
            own.append(("Connection", "close"))
        elif not self._chunks:
            own.append(("Connection", "keep-alive"))
        lines = "".join([f"{name}: {value}\r\n" for name, value in own])
        return start.encode("1.1", self._framing, lines)


def _checked(block: object) -> bytes:
    if isinstance(block, bytes):
        return block
    raise not_bytes(block)


class Outlet:
    """An :class:`~..bodies.writer.Output` that sends buffers and files on a blocking socket.

    All methods that send raise ClientGone if the client has left, or receives nothing for the
    timeout of the socket.

    :param kernel_sends_files: False to read files and send their bytes.
    :ivar unsent: after an error, the number of bytes that the kernel has not accepted.
    """

    def __init__(self, sock: socket.socket, *, kernel_sends_files: bool = True) -> None:
        self._sock = sock
        self._kernel_sends_files = kernel_sends_files
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.write_buffers([data])

    def begin_stream(
        self, data: bytes, *, frame: Callable[[bytes], bytes] | None, **_of_queues: bool
    ) -> Callable[[bytes], None]:
        self.write_buffers([data])
        return self.write if frame is None else lambda block: self.write(frame(block))

    def end_stream(self, end: Callable[[], bytes]) -> None:
        self.write(end())

    def write_buffers(
        self, buffers: Sequence[bytes | memoryview], *, more_follows: bool = False
    ) -> None:
        """Send all buffers.

        :param more_follows: whether the caller will send more bytes immediately. The kernel may
            then delay the last TCP segment.
        """
        try:
            # The timeout of sendall() would be for all bytes together.
            while buffers:
                buffers = send_some(self._sock, buffers, MSG_MORE if more_follows else 0)
        except OSError as error:
            raise _gone(error) from error
        finally:
            self.unsent = sum(map(len, buffers))

    def write_file(self, headers: bytes, fd: int, offset: int, size: int) -> None:
        """Send headers and a part of a file.

        :raises FileTruncated: if the file is shorter than expected.
        :raises BodyTooShort: if the file cannot be read.
        """
        if headers:
            self.write_buffers([headers], more_follows=True)
        self.unsent = size
        try:
            segment = FileSegment(fd, offset, size)
            by_kernel = self._kernel_sends_files
            send_file_segment(self._sock, segment, self._count, by_kernel=by_kernel)
        except FileTruncated:
            raise
        except (ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise _gone(error) from error
        except OSError as error:
            raise BodyTooShort(self.unsent) from error

    def _count(self, sent: int) -> None:
        self.unsent -= sent


def _gone(error: OSError) -> ClientGone:
    return ClientGone(f"the client no longer receives: {error}")

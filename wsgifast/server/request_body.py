"""Request bodies: received without a thread, then read by the app as a file.

What a connection has received and nobody has read yet is in its :class:`Received`, which is what
gunicorn calls an unreader: its parsers read from it. A parser that needs more than is there is
stopped by :class:`NeedMoreData` and asked again when more has come; only an app that reads its
body as a stream is made to wait instead.

A collector takes a body in as it comes, without blocking, whichever thread receives it: into
memory up to a limit, into a temporary file beyond it.
"""

from __future__ import annotations

import io
import socket
import ssl
import tempfile
from collections.abc import Callable
from typing import BinaryIO, Protocol, cast

from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import ChunkMissingTerminator

__all__ = [
    "BodyTooLarge",
    "Collector",
    "NeedMoreData",
    "Received",
    "collector_for",
    "receive_available",
]

# A buffer is allocated in full up to here, and grows by doubling above: a head that only promises
# a large body must not cost its memory.
_FIRST_BUFFER_BYTES = 64 * 1024
# One receive: of what goes to a file, and of what the decoder cuts into pieces first.
_RECEIVE_BYTES = 256 * 1024
_RECEIVE_CHUNKED_BYTES = 64 * 1024
# No honest size line or trailer section is longer. Today's gunicorn has a lower limit of its own;
# its older versions wait for the end of the line for ever.
_FRAMING_BYTES = 1024 * 1024


class NeedMoreData(Exception):
    """A parser wants bytes that have not come yet."""


class BodyTooLarge(Exception):
    """The body is over the limit (RFC 9110 section 15.5.14)."""


class Received:
    """Bytes that have come and have not been read; gunicorn's parsers read from it.

    :ivar wait: returns more bytes, b"" at the end of the connection; None: do not wait.
    """

    __slots__ = ("data", "wait")

    def __init__(self) -> None:
        self.data = b""
        self.wait: Callable[[int], bytes] | None = None

    def read(self, size: int | None = None, read_ahead: int | None = None) -> bytes:
        if size is None or size < 0:
            if self.data:
                data, self.data = self.data, b""
                return data
            return self._more(read_ahead or 0)
        parts = [self.data]
        have = len(self.data)
        self.data = b""
        try:
            while have < size:
                more = self._more(max(size, read_ahead or 0) - have)
                if not more:
                    break
                parts.append(more)
                have += len(more)
        except BaseException:
            self.data = b"".join(parts)  # nothing is lost: it will be asked for again
            raise
        data = b"".join(parts) if len(parts) > 1 else parts[0]
        self.data = data[size:]
        return data[:size]

    def unread(self, data: bytes) -> None:
        self.data = bytes(data) + self.data

    def take_buffered(self) -> bytes:
        data, self.data = self.data, b""
        return data

    def _more(self, wanted: int) -> bytes:
        if self.wait is None:
            raise NeedMoreData
        return self.wait(wanted)


class Collector(Protocol):
    """A body on its way in."""

    received: int  # bytes, framing included

    def begin(self) -> bool:
        """Take what has come with the head; True if that was all.

        :raises: as :meth:`receive`.
        """

    def receive(self, sock: socket.socket) -> bool:
        """Receive once from a non-blocking socket; True if the body is whole.

        :raises EOFError: if the client has closed the connection.
        :raises BodyTooLarge: if the body goes over its limit.
        :raises OSError: as the socket does; also if the temporary file cannot be written.
        """

    def open(self) -> BinaryIO:
        """The whole body as a file for `wsgi.input`."""

    def close(self) -> None:
        """Give up what has come."""


def collector_for(
    reader: ChunkedReader | LengthReader, source: Received, in_memory: int, limit: int
) -> Collector:
    """Return what collects a body.

    :param reader: gunicorn's reader of the body; requests have these two kinds, uwsgi's too.
    :param in_memory: bytes; a larger body goes to a temporary file.
    :raises BodyTooLarge: if the head says so already.
    """
    if isinstance(reader, ChunkedReader):
        return Chunked(source, reader, in_memory, limit)
    if reader.length > limit:
        raise BodyTooLarge
    return KnownLength(source, reader.length, in_memory)


def receive_available(collector: Collector, sock: socket.socket) -> bool:
    """Receive once, and what TLS has decrypted beyond that: no event would tell of it.

    :returns, :raises: as :meth:`Collector.receive`.
    """
    whole = collector.receive(sock)
    while not whole and isinstance(sock, ssl.SSLSocket) and sock.pending():
        whole = collector.receive(sock)
    return whole


class KnownLength:
    """A body with a Content-Length (RFC 9112 section 6.2)."""

    __slots__ = ("_buffer", "_filled", "_length", "_source", "_store", "received")

    def __init__(self, source: Received, length: int, in_memory: int) -> None:
        self._source = source
        self._length = length
        self.received = 0
        self._filled = 0
        self._buffer = bytearray(min(length, _FIRST_BUFFER_BYTES)) if length <= in_memory else None
        self._store = None if self._buffer is not None else _Store(0)

    def begin(self) -> bool:
        source = self._source
        data = source.data[: self._length]
        source.data = source.data[self._length :]
        if data:
            self._take(data)
        return self.received == self._length

    def receive(self, sock: socket.socket) -> bool:
        if self._buffer is None:
            data = sock.recv(min(self._length - self.received, _RECEIVE_BYTES))
            if not data:
                raise EOFError
            self._take(data)
        else:
            if self._filled == len(self._buffer):
                self._grow(self._filled * 2)
            # Not recv_exactly_into(): that waits until the buffer is full, and one thread receives
            # the bodies of all connections here; nor is the buffer as large as the length says
            # before so much has come.
            with memoryview(self._buffer) as view:
                count = sock.recv_into(view[self._filled :])
            if not count:
                raise EOFError
            self._filled += count
            self.received += count
        return self.received == self._length

    def open(self) -> BinaryIO:
        if self._store is not None:
            return self._store.open()
        assert self._buffer is not None
        return io.BytesIO(self._buffer)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _take(self, data: bytes) -> None:
        if self._store is not None:
            self._store.write(data)
        else:
            assert self._buffer is not None
            # What goes beyond the buffer makes it longer.
            self._buffer[self._filled : self._filled + len(data)] = data
            self._filled += len(data)
        self.received += len(data)

    def _grow(self, size: int) -> None:
        assert self._buffer is not None
        self._buffer.extend(bytes(min(size, self._length) - len(self._buffer)))


class Chunked:
    """A chunked body (RFC 9112 section 7.1); gunicorn's own parser reads the size lines.

    :param reader: the request's reader, for its limits and its parse of sizes and trailers.
    :param limit: the most bytes of the decoded body.
    """

    __slots__ = ("_limit", "_reader", "_rest", "_source", "_store", "_undecoded", "received")

    def __init__(self, source: Received, reader: ChunkedReader, in_memory: int, limit: int) -> None:
        self._source = source
        self._reader = reader
        self._limit = limit
        self._store = _Store(in_memory)
        # Bytes of the chunk to come; 0: at the CRLF that ends a chunk; None: at a size line.
        self._rest: int | None = None
        self._undecoded = b""
        self.received = 0

    def begin(self) -> bool:
        self._undecoded, self._source.data = self._source.data, b""
        return self._decode()

    def receive(self, sock: socket.socket) -> bool:
        data = sock.recv(_RECEIVE_CHUNKED_BYTES)
        if not data:
            raise EOFError
        self.received += len(data)
        self._undecoded = self._undecoded + data if self._undecoded else data
        return self._decode()

    def open(self) -> BinaryIO:
        return self._store.open()

    def close(self) -> None:
        self._store.close()

    def _decode(self) -> bool:
        """Decode what there is; when the body is whole, what follows goes back to the source.

        :raises BodyTooLarge: at the size line that goes over the limit.
        :raises gunicorn's parse errors: for anything malformed.
        """
        data = self._undecoded
        while True:
            if self._rest is None:
                try:
                    size, rest = self._reader.parse_chunk_size(self._source, data=data)
                except NeedMoreData:
                    if len(data) > _FRAMING_BYTES:
                        raise BodyTooLarge from None
                    break
                if size == 0:  # the trailers are read, and what follows is back in the source
                    return True
                if self._store.size + size > self._limit:
                    raise BodyTooLarge
                self._rest, data = size, rest
            if self._rest > 0:
                part = data[: self._rest]
                if not part:
                    break
                self._store.write(part)
                data = data[len(part) :]
                self._rest -= len(part)
                if self._rest:
                    break
            if len(data) < 2:
                if data[:1] not in (b"", b"\r"):
                    raise ChunkMissingTerminator(data)
                break
            if data[:2] != b"\r\n":
                raise ChunkMissingTerminator(data[:2])
            data = data[2:]
            self._rest = None
        self._undecoded = data
        return False


class _Store:
    """Bytes in memory, or in a temporary file once there are more than `in_memory`."""

    __slots__ = ("_file", "_in_memory", "_parts", "size")

    def __init__(self, in_memory: int) -> None:
        self.size = 0
        self._in_memory = in_memory
        self._parts: list[bytes] = []
        self._file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self._file is None:
            self._parts.append(data)
            if self.size <= self._in_memory:
                return
            # Unbuffered: what comes is written on in large blocks already.
            self._file = cast(BinaryIO, tempfile.TemporaryFile(buffering=0))
            data = b"".join(self._parts)
            self._parts = []
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def open(self) -> BinaryIO:
        if self._file is None:
            return io.BytesIO(b"".join(self._parts))
        self._file.seek(0)
        # Buffered for readline and small reads.
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, self._file)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

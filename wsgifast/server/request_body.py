"""Request bodies that are received before the app runs, and then read by it as a file.

A collector is given what comes, by whichever thread receives it; nothing here waits. The body is
kept in memory up to a limit, in a temporary file beyond it.
"""

from __future__ import annotations

import io
import tempfile
from typing import BinaryIO, Protocol, cast

from ..errors import BodyTooLarge, RequestError
from ..http.chunked import ChunkDecoder
from .disk_budget import DiskBudget

__all__ = ["ChunkedBody", "Collector", "KnownLength", "Spool"]

# One receive, at most; of chunks at first, and at least.
_RECEIVE_BYTES = 256 * 1024
_FIRST_CHUNKS_BYTES = 4 * 1024
_LEAST_CHUNKS_BYTES = 1024
# Decoded in one turn: far less than a millisecond, whatever their size.
_CHUNKS_A_TURN = 500


class Collector(Protocol):
    """A body on its way in."""

    @property
    def received(self) -> int:
        """Bytes so far, framing included."""

    @property
    def wanted(self) -> int:
        """How many bytes the next receive may bring."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here."""

    @property
    def has_more_to_do(self) -> bool:
        """Whether :meth:`go_on` comes next, in another turn, and no receive."""

    @property
    def rest(self) -> bytes:
        """What has come behind the whole body."""

    def take(self, data: bytes) -> None:
        """Take in what has come.

        :raises RequestError: for a body that is malformed, or that there is no room for.
        :raises OSError: if the temporary file cannot be written.
        """

    def go_on(self) -> None:
        """Go on with what has been taken in. Raises as :meth:`take`."""

    def open(self) -> BinaryIO:
        """The whole body as a file for `wsgi.input`; who closes it need not close this."""

    def close(self) -> None:
        """Give up what has come."""


class KnownLength:
    """A body with a Content-Length (RFC 9112 section 6.2)."""

    __slots__ = ("_length", "_spool", "received", "rest")

    has_more_to_do = False

    def __init__(self, length: int, spool: Spool) -> None:
        self._length = length
        self._spool = spool
        self.received = 0
        self.rest = b""

    @property
    def wanted(self) -> int:
        return min(self._length - self.received, _RECEIVE_BYTES)

    @property
    def is_whole(self) -> bool:
        return self.received == self._length

    def take(self, data: bytes) -> None:
        missing = self._length - self.received
        if len(data) > missing:
            self.rest = data[missing:]
            data = data[:missing]
        self.received += len(data)
        self._spool.write(data)

    def go_on(self) -> None:
        """Nothing is ever left to do."""

    def open(self) -> BinaryIO:
        return self._spool.open()

    def close(self) -> None:
        self._spool.close()


class ChunkedBody:
    """A chunked body (RFC 9112 section 7.1).

    Many small chunks take longer to decode than to receive: no turn decodes more than so many of
    them, and one that did makes the next receive smaller.
    """

    __slots__ = (
        "_at",
        "_data",
        "_spool",
        "decoder",
        "has_more_to_do",
        "received",
        "rest",
        "wanted",
    )

    def __init__(self, decoder: ChunkDecoder, spool: Spool) -> None:
        self.decoder = decoder
        self.received = 0
        self.wanted = _FIRST_CHUNKS_BYTES
        self.has_more_to_do = False
        self.rest = b""
        self._spool = spool
        self._data = b""  # what has been taken in
        self._at = 0  # how far it is decoded

    @property
    def is_whole(self) -> bool:
        return self.decoder.done

    def take(self, data: bytes) -> None:
        self.received += len(data)
        self._data = data
        self._at = 0
        self.go_on()

    def go_on(self) -> None:
        data, start = self._data, self._at
        content, at = self.decoder.decode(data, start, chunks=_CHUNKS_A_TURN)
        if content:
            self._spool.write(content)
        self.has_more_to_do = at < len(data) and not self.decoder.done
        if self.has_more_to_do:
            self._at = at
            self.wanted = max(at - start, _LEAST_CHUNKS_BYTES)
            return
        self.wanted = min(self.wanted * 4, _RECEIVE_BYTES)
        self._data = b""
        self.rest = data[at:]

    def open(self) -> BinaryIO:
        return self._spool.open()

    def close(self) -> None:
        self._spool.close()


class Spool:
    """Bytes in memory, or in a temporary file once there are more than `in_memory`.

    :param limit: the most bytes.
    :param disk: where the file's bytes are counted.
    """

    __slots__ = ("_disk", "_file", "_in_memory", "_limit", "_memory", "size")

    def __init__(self, in_memory: int, limit: int, disk: DiskBudget) -> None:
        self.size = 0
        self._in_memory = in_memory
        self._limit = limit
        self._disk = disk
        self._memory = bytearray()
        self._file: _TemporaryFile | None = None

    def write(self, data: bytes) -> None:
        """Keep bytes.

        :raises BodyTooLarge: over the limit.
        :raises RequestError: if the disk's budget has no room.
        :raises OSError: as writing the file does.
        """
        self.size += len(data)
        if self.size > self._limit:
            raise BodyTooLarge(f"The request body is longer than {self._limit} bytes")
        if self._file is None:
            if self.size <= self._in_memory:
                self._memory += data
                return
            self._file = _TemporaryFile(self._disk)
            if self._memory:
                self._file.write_all(self._memory)
                self._memory = bytearray()
        self._file.write_all(data)

    def open(self) -> BinaryIO:
        """All of it as a file; it is the caller's to close."""
        if self._file is None:
            return io.BytesIO(self._memory)
        file, self._file = self._file, None
        file.seek(0)
        return cast(BinaryIO, file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _TemporaryFile(io.BufferedReader):
    """A temporary file, written in large blocks and read in small ones."""

    def __init__(self, disk: DiskBudget) -> None:
        self._disk = disk
        self._size = 0
        super().__init__(cast(io.RawIOBase, tempfile.TemporaryFile(buffering=0)))

    def write_all(self, data: bytes | bytearray) -> None:
        if not self._disk.take(len(data)):
            raise RequestError(503, "There is no room for the request body at the moment")
        self._size += len(data)
        with memoryview(data) as view:
            written = 0
            while written < len(view):
                written += cast(io.RawIOBase, self.raw).write(view[written:]) or 0

    def close(self) -> None:
        if not self.closed:
            self._disk.give_back(self._size)
        super().close()

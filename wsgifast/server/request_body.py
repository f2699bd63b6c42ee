"""Request bodies that are buffered before the app runs, which then reads them from a file.

The collector is fed by whichever thread receives; nothing here waits. A body is kept in memory up
to a limit, and in a temporary file beyond it.
"""

from __future__ import annotations

import errno
import io
import tempfile
from typing import BinaryIO, cast

from ..errors import BodyTooLarge, RequestError
from ..http.chunked import BodyDecoder
from .limits import Budget

# Bytes of one receive: at most; and of a chunked body, at first and at least.
_RECEIVE_BYTES = 256 * 1024
_FIRST_CHUNKS_BYTES = 4 * 1024
_LEAST_CHUNKS_BYTES = 1024
# Chunks decoded in one turn: far less than a millisecond of work, whatever their size.
_CHUNKS_A_TURN = 500
# A full disk, or as much of it as this user, or a file, may take.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class BodyCollector:
    """Collects a body as it is received.

    Many small chunks take longer to decode than to receive. So one turn decodes a limited number of
    chunks, and the next receive shrinks to what a turn can decode.

    :ivar received: bytes received so far, framing included.
    :ivar wanted: how many bytes the next receive may return.
    :ivar has_more_to_do: call :meth:`take` again, without data, before receiving more.
    :ivar rest: what came after the body.
    """

    __slots__ = (
        "_at", "_data", "decoder", "has_more_to_do", "received", "rest", "spool", "wanted",
    )  # fmt: skip

    def __init__(self, decoder: BodyDecoder, spool: Spool) -> None:
        self.spool = spool
        self.decoder = decoder
        self.received = 0
        self.wanted = min(decoder.left or _FIRST_CHUNKS_BYTES, _RECEIVE_BYTES)
        self.has_more_to_do = False
        self.rest = b""
        self._data = b""  # received, and decoded up to `_at`
        self._at = 0

    def take(self, data: bytes) -> None:
        """Add what was received; b"" to go on with what is left of it.

        :raises RequestError: if it is malformed, or there is no room for it.
        :raises OSError: if the temporary file cannot be written.
        """
        if data:
            self.received += len(data)
            self._data, self._at = data, 0
        data, start = self._data, self._at
        decoder = self.decoder
        content, at = decoder.decode(data, start, chunks=_CHUNKS_A_TURN)
        if content:
            self.spool.write(content)
        self.has_more_to_do = at < len(data) and not decoder.done
        if self.has_more_to_do:
            self._at = at
            self.wanted = max(at - start, _LEAST_CHUNKS_BYTES)
            return
        self.wanted = min(decoder.left or self.wanted * 4, _RECEIVE_BYTES)
        self._data = b""
        self.rest = data[at:]


class Spool:
    """Bytes in memory, or in a temporary file once there are more than `in_memory`.

    :param limit: the most bytes.
    :param disk: where the file's bytes are counted.
    """

    __slots__ = ("_disk", "_file", "_in_memory", "_limit", "_memory", "size")

    def __init__(self, in_memory: int, limit: int, disk: Budget) -> None:
        self.size = 0
        self._in_memory = in_memory
        self._limit = limit
        self._disk = disk
        self._memory = bytearray()
        self._file: _TemporaryFile | None = None

    def may_need_disk(self, size: int) -> bool:
        """Whether the next `size` bytes, or fewer, may have to be written to a file."""
        return self.size + size > self._in_memory

    def write(self, data: bytes) -> None:
        """Append bytes.

        :raises BodyTooLarge: over the limit.
        :raises RequestError: if the disk, or its budget, is used up.
        :raises OSError: if the temporary file cannot be written.
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
        """Return everything as a file, which the caller closes in place of this object."""
        if self._file is None:
            return io.BytesIO(self._memory)
        file, self._file = self._file, None
        file.seek(0)
        return cast(BinaryIO, file)

    def close(self) -> None:
        """Drop everything."""
        if self._file is not None:
            self._file.close()


class _TemporaryFile(io.BufferedReader):
    """An unnamed temporary file: writes go straight to it, reads are buffered."""

    def __init__(self, disk: Budget) -> None:
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
                try:
                    written += cast(io.RawIOBase, self.raw).write(view[written:]) or 0
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        raise
                    text = f"There is no room for the request body: {error.strerror}"
                    raise RequestError(503, text) from error

    def close(self) -> None:
        if not self.closed:
            self._disk.count(-self._size)
        super().close()

"""Send large bodies of bytes to slow clients.

Theory of operation. The bytes are written to the transport in blocks, as fast as the client reads.
When the app has returned, only this module refers to the bytes. All waiting bodies together may use
MEMORY_BYTES. If a new body would exceed this limit, a thread writes its remaining bytes to an
unnamed file, and blocks are read from that file. If the file cannot be written, the bytes remain in
memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import cache

from wsgifast.files.temporary import Budget, Reservation, TemporaryFile
from wsgifast.sockets import FileSegment
from wsgifast.sockets.sending import BLOCK_BYTES

from .file_transfer import FileOwner, FileReader, OnSent

logger = logging.getLogger("uvicorn.error")

# Limits for a process
MEMORY_BYTES = 64 * 2**20
DISK_BYTES = 16 * 2**30
memory, disk = Budget(MEMORY_BYTES), Budget(DISK_BYTES)
# The free space that must remain on the file system of temporary files
_MIN_FREE_BYTES = 256 * 2**20


def write_to_file(data: memoryview) -> tuple[TemporaryFile, FileSegment] | None:
    """Write a body to an unnamed file. Call this in a thread.

    :returns: the file, and the range of it with the body. None if the disk has no room, which is
        logged once.
    """
    try:
        file = TemporaryFile(disk, min_free_bytes=_MIN_FREE_BYTES, buffer_bytes=1)
        return file, file.append(data)
    except OSError as error:
        _log_full_disk(str(error))
        return None


@cache
def _log_full_disk(text: str) -> None:
    logger.warning("Output stays in memory, because a temporary file cannot be written: %s", text)


class BytesWriter(FileReader):
    """Writes bytes to the loop's transport in blocks, like a FileReader.

    With TLS, one write of a large body would encrypt all of it at once. The transport would then
    have two copies of the bytes that a slow client has not read.

    :param may_spill: whether the bytes may be replaced by a file, because no other object refers to
        them.
    """

    __slots__ = ("_data", "_file", "_may_spill", "_reserved")

    def __init__(
        self,
        owner: FileOwner,
        loop: asyncio.AbstractEventLoop,
        data: bytes,
        on_sent: OnSent,
        may_spill: bool,
    ) -> None:
        super().__init__(owner, loop, FileSegment(-1, 0, len(data)), on_sent)
        self._data: memoryview | None = memoryview(data)
        self._file: TemporaryFile | None = None
        self._reserved = Reservation(memory)
        self._may_spill = may_spill

    def begin(self, headers: bytes) -> bool:
        if super().begin(headers):
            return True
        if self._may_spill and self._data is not None and not self._reserved.grow_to(self.unsent):
            self._call_in_thread(self._spilled, write_to_file, self._data[self._offset :])
        return False

    def _spilled(self, result: Callable[[], tuple[TemporaryFile, FileSegment] | None]) -> bool:
        written = result()
        if written is not None:
            self._file, (self._fd, self._offset, size) = written
            self._end = self._offset + size
            self._data = None
        return self._send_now()

    def _send_now(self) -> bool:
        data = self._data
        if data is None:
            return super()._send_now()
        # A slice of the memoryview makes no copy. With TLS, the transport encrypts the block at
        # once, and does not refer to the bytes afterwards.
        return self._write(lambda: data[self._offset :][:BLOCK_BYTES])

    def _stop_waiting(self) -> None:
        self._reserved.release()

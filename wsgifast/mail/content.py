"""The content of a received message: in memory, or in a temporary file if it is long."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tempfile
from typing import IO

__all__ = ["Content"]


class Content:
    """The content of a message, to which blocks are added; closed after the message's delivery.

    :param loop: its executor writes to the file.
    :param limit: the most octets in memory; None: any number.
    :param folder: of the file; None: the system's temporary folder.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: int | None,
        folder: str | os.PathLike[str] | None,
    ) -> None:
        self.size = 0
        self.file: IO[bytes] | None = None
        self._loop = loop
        self._limit = limit
        self._folder = folder
        # One buffer, so that joining many chunks does not need twice the memory.
        self._memory = io.BytesIO()
        self._closed = False

    def __enter__(self) -> Content:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def add(self, data: bytes) -> None:
        """Append a block; a thread writes to the file.

        :raises OSError: if the file cannot be written.
        """
        if self._memory.tell():
            self._memory.write(data)
        else:  # BytesIO shares the bytes until more is written
            self._memory = io.BytesIO(data)
            self._memory.seek(0, os.SEEK_END)
        self.size += len(data)
        if self._limit is not None and self.size > self._limit:
            memory, self._memory = self._memory, io.BytesIO()
            await self._loop.run_in_executor(None, self._write, memory.getvalue())

    def joined(self) -> bytes:
        """Return content that is not in a file; without a copy if it was one block."""
        return self._memory.getvalue()

    def close(self) -> None:
        """Drop the content."""
        self._closed = True
        self._memory = io.BytesIO()
        if self.file is not None:
            # After a full disk the file's buffer is not empty, and close() writes it: it raises,
            # but the descriptor is closed.
            with contextlib.suppress(OSError):
                self.file.close()

    def _write(self, data: bytes) -> None:
        if self.file is None:
            self.file = tempfile.TemporaryFile(dir=self._folder)  # closed by close()
        self.file.write(data)
        self.file.flush()
        if self._closed:  # the client left before the file was made
            self.close()

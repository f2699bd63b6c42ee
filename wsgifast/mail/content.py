"""A received message's content: in memory, or in a temporary file once it is long."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tempfile
from typing import IO

__all__ = ["Content"]


class Content:
    """What a message's data brings, block after block; closed when the message is done with.

    :param loop: whose threads write to the file.
    :param limit: the most octets in memory; None: any number.
    :param folder: where the file is made; None: the system's temporary folder.
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
        # One buffer: a message of many chunks is not held twice to be joined.
        self._memory = io.BytesIO()
        self._closed = False

    def __enter__(self) -> Content:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def add(self, data: bytes) -> None:
        """Append; a write to the file is done by a thread.

        :raises OSError: if the file cannot be written.
        """
        if self._memory.tell():
            self._memory.write(data)
        else:  # shares the bytes until more is written
            self._memory = io.BytesIO(data)
            self._memory.seek(0, os.SEEK_END)
        self.size += len(data)
        if self._limit is not None and self.size > self._limit:
            memory, self._memory = self._memory, io.BytesIO()
            await self._loop.run_in_executor(None, self._write, memory.getvalue())

    def joined(self) -> bytes:
        """The content of a message that is not in a file; without a copy if it came at once."""
        return self._memory.getvalue()

    def close(self) -> None:
        """Forget the content; what could not be written is no error any more."""
        self._closed = True
        self._memory = io.BytesIO()
        if self.file is not None:
            # What the full disk did not take is still in the file's buffer, and close() tries it
            # again: it raises, but the descriptor is closed.
            with contextlib.suppress(OSError):
                self.file.close()

    def _write(self, data: bytes) -> None:
        if self.file is None:
            self.file = tempfile.TemporaryFile(dir=self._folder)  # closed by close()
        self.file.write(data)
        self.file.flush()
        if self._closed:  # the client left meanwhile, before there was a file to close
            self.close()

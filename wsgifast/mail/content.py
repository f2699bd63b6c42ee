"""A received message's content: in memory, or in a temporary file once it is long."""

from __future__ import annotations

import asyncio
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
        self._blocks: list[bytes] = []

    def __enter__(self) -> Content:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def add(self, data: bytes) -> None:
        """Append; a write to the file is done by a thread.

        :raises OSError: if the file cannot be written.
        """
        self.size += len(data)
        self._blocks.append(data)
        if self._limit is not None and self.size > self._limit:
            blocks, self._blocks = self._blocks, []
            await self._loop.run_in_executor(None, self._write, blocks)

    def joined(self) -> bytes:
        """The content of a message that is not in a file; without a copy if it came at once."""
        return b"".join(self._blocks)

    def close(self) -> None:
        self._blocks.clear()
        if self.file is not None:
            self.file.close()

    def _write(self, blocks: list[bytes]) -> None:
        if self.file is None:
            self.file = tempfile.TemporaryFile(dir=self._folder)  # closed by close()
        self.file.writelines(blocks)
        self.file.flush()

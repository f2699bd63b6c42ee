"""Move a message's data from the transport, through its decoder, into memory or a file."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import tempfile
from typing import IO, Any

from .decoding import Decoder, Refusal

logger = logging.getLogger("mail.log")  # aiosmtpd's own

# Content is written to a file in blocks of this size: few calls in a thread, little in memory.
_SPOOL_BLOCK_BYTES = 1 << 20


class Content:
    """The content of a message, in memory, or in a temporary file if it is long.

    It is closed after the message's delivery.

    :param limit: octets; longer content goes to a file. None: any number is held in memory.
    :param folder: of the file; None: the system's temporary folder.
    """

    def __init__(self, limit: int | None, folder: str | os.PathLike[str] | None) -> None:
        self.size = 0
        self.file: IO[bytes] | None = None
        self._limit = limit
        self._folder = folder
        # One buffer in place of a list: many blocks do not need twice the memory to be joined, and
        # getvalue() makes no copy.
        self._memory = io.BytesIO()
        self._closed = False

    def __enter__(self) -> Content:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def add(self, data: bytes) -> None:
        """Append a block, in memory."""
        if not self._closed:
            self.size += len(data)
            self._memory.write(data)

    def is_to_spool(self) -> bool:
        """Whether a block is to be written before more is added."""
        return self._is_long() and self._memory.tell() >= _SPOOL_BLOCK_BYTES

    async def spool(self) -> None:
        """Write long content to the file, in a thread.

        :raises OSError: if it cannot be written.
        """
        if self._is_long():
            memory, self._memory = self._memory, io.BytesIO()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._write, memory.getvalue())

    def joined(self) -> bytes:
        """Return content that is not in a file, without a copy."""
        return self._memory.getvalue()

    def close(self) -> None:
        """Drop the content, and take no more."""
        self._closed = True
        self._memory = io.BytesIO()
        if self.file is not None:
            # After a full disk the file's buffer is not empty, and close() writes it: it raises,
            # but the descriptor is closed.
            with contextlib.suppress(OSError):
                self.file.close()

    def _is_long(self) -> bool:
        return self._limit is not None and self.size > self._limit and not self._closed

    def _write(self, data: bytes) -> None:
        if self.file is None:
            self.file = tempfile.TemporaryFile(dir=self._folder)  # closed by close()
        self.file.write(data)
        self.file.flush()
        if self._closed:  # the client left before the file was made
            self.close()


class Reception:
    """The data of one DATA or BDAT, fed by the protocol until the decoder has found its end.

    The transport is paused while a block is spooled, and at the end of the data.

    :param peer: the client, for the log.
    """

    def __init__(
        self, decoder: Decoder, content: Content, transport: asyncio.Transport, peer: Any
    ) -> None:
        self._decoder = decoder
        self._content = content
        self._transport = transport
        self._peer = peer
        self._is_paused = False
        # Set when the decoder has found the end, or there is a block to spool.
        self._ready: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        """Decode what the transport has received."""
        decoder = self._decoder
        if decoder.rest is not None:
            decoder.rest += data  # the transport could not pause at once
            return
        self._content.add(decoder.feed(data))
        if decoder.refusal is not None:
            self._content.close()
        if self._has_enough():
            self._transport.pause_reading()
            self._is_paused = True
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)

    async def to_the_end(self) -> None:
        """Wait until all data has come, and is in the content."""
        is_whole = False
        while not is_whole:
            if not self._has_enough():
                self._ready = asyncio.get_running_loop().create_future()
                await self._ready
            is_whole = self._decoder.rest is not None
            try:
                await self._content.spool()
            except OSError:
                # The rest of the data still has to be read: it is not commands.
                logger.exception("%r cannot spool a message", self._peer)
                self._decoder.refusal = Refusal.NO_STORAGE
                self._content.close()
            if self._is_paused:
                self._is_paused = False
                self._transport.resume_reading()

    def _has_enough(self) -> bool:
        return self._decoder.rest is not None or self._content.is_to_spool()

"""Move a message's data from the transport, through its decoder, into its content."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from .content import Content
from .decoding import Intake, Refusal

__all__ = ["Reception"]

logger = logging.getLogger("mail.log")  # aiosmtpd's own

# Spooled content is written in blocks of this size: few calls in a thread, little in memory.
_SPOOL_BLOCK_BYTES = 1 << 20


class Reception:
    """The data of one DATA or BDAT, fed by the protocol until the decoder has found its end.

    The transport is paused while a block is spooled, and at the end of the data.

    :param peer: the client, for the log.
    :param spools: whether the content may go to a file: then it gets blocks, otherwise the whole.
    """

    def __init__(
        self,
        decoder: Intake,
        content: Content,
        transport: asyncio.Transport,
        *,
        peer: Any,
        spools: bool,
    ) -> None:
        self._decoder = decoder
        self._content = content
        self._transport = transport
        self._peer = peer
        self._spools = spools
        self._is_paused = False
        # Set when the decoder has found the end, or holds a block to spool.
        self._ready: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        """Decode what the transport has received."""
        decoder = self._decoder
        if decoder.rest is not None:
            decoder.rest += data  # the transport could not pause at once
            return
        decoder.feed(data)
        if self._has_enough():
            self._transport.pause_reading()
            self._is_paused = True
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)

    async def to_the_end(self) -> None:
        """Wait until all data has come, and add it to the content."""
        is_whole = False
        while not is_whole:
            if not self._has_enough():
                self._ready = asyncio.get_running_loop().create_future()
                await self._ready
            is_whole = self._decoder.rest is not None
            await self._move()
            if self._is_paused:
                self._is_paused = False
                self._transport.resume_reading()

    def _has_enough(self) -> bool:
        decoder = self._decoder
        return decoder.rest is not None or (self._spools and decoder.held >= _SPOOL_BLOCK_BYTES)

    async def _move(self) -> None:
        decoder = self._decoder
        if decoder.refusal is not None:
            self._content.close()
            return
        try:
            await self._content.add(decoder.take())
        except OSError:
            # The rest of the data still has to be read: it is not commands.
            logger.exception("%r cannot spool a message", self._peer)
            decoder.refuse(Refusal.NO_STORAGE)

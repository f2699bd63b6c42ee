r"""Receive the data of DATA and BDAT: decode it, and store it in memory or in a file.

Theory of operation. The data is decoded in blocks of the size that the socket returns, and not line
by line. The decoder adds a virtual CR LF before the first block. So each line follows a CR LF, and
the data always ends with ``CR LF . CR LF``. If the last octets of a block may be the beginning of
that sequence, they are moved to the next block. So a block never splits a CR LF, or a CR LF and the
dot after it. Line ends and dots are found and replaced in whole blocks. The decoders do no I/O.

Only CR LF ends a line (RFC 5321, 2.3.8). Some servers treat a dot with a bare LF or CR before or
after it as the end of the data (SMTP smuggling). Here such a dot is content, or a reason to refuse
the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import io
import logging
import re
import tempfile
from typing import IO, Any

from .wire import CRLF, END_OF_DATA, find_end_of_data, find_line_dot, replace_in_block

logger = logging.getLogger("mail.log")  # aiosmtpd's logger

# The size of the blocks that are written to a file. A larger size needs fewer calls in a thread,
# and more memory.
_SPOOL_BLOCK_BYTES = 1 << 20
# A pattern for octets that another server may treat as the end of the data. A fast search for
# _BARE_PARTS precedes it. The parts also occur in a proper end (CR LF . CR LF), which only BDAT
# chunks can contain.
_BARE_AROUND_DOT = re.compile(rb"[^\r]\n\.[\r\n]|\r\.[\r\n]|\r\n\.(?:\n|\r[^\n])")
_BARE_PARTS = (b"\n.\n", b"\n.\r", b"\r.\n", b"\r.\r")
_BEFORE_LAST_OCTET = 4  # the most octets of a match that may be in an earlier block


class Content:
    """The content of a message, in memory or, if it is long, in a temporary file.

    The content is closed after the delivery of the message.

    :param limit: the most octets in memory. Longer content is written to a file. None: no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self.size = 0
        self.file: IO[bytes] | None = None
        self._limit = limit
        # One buffer, because to join a list of blocks would need twice the memory. getvalue() makes
        # no copy.
        self._memory = io.BytesIO()
        self._closed = False

    def add(self, data: bytes) -> None:
        """Append a block to the content in memory."""
        if not self._closed:
            self.size += len(data)
            self._memory.write(data)

    def must_spool(self) -> bool:
        """Return whether spool() must be called before the next add()."""
        return self._is_long() and self._memory.tell() >= _SPOOL_BLOCK_BYTES

    async def spool(self) -> None:
        """Write long content to the file, in a thread.

        :raises OSError: if the file cannot be written.
        """
        if self._is_long():
            memory, self._memory = self._memory, io.BytesIO()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._write, memory.getvalue())

    def joined(self) -> bytes:
        """Return the content in memory, without a copy."""
        return self._memory.getvalue()

    def close(self) -> None:
        """Drop the content, and ignore further blocks."""
        self._closed = True
        self._memory = io.BytesIO()
        if self.file is not None:
            # If the disk is full, close() fails to write the file's buffer, and raises an error.
            # But it has closed the descriptor.
            with contextlib.suppress(OSError):
                self.file.close()

    def _is_long(self) -> bool:
        return self._limit is not None and self.size > self._limit and not self._closed

    def _write(self, data: bytes) -> None:
        if self.file is None:
            self.file = tempfile.TemporaryFile()  # Content.close() closes it
        self.file.write(data)
        self.file.flush()
        if self._closed:  # the client left before the file was made
            self.close()


class Reception:
    """Receives the data of one DATA or BDAT from the protocol, until the decoder has found the end.

    The transport is paused while a block is spooled, and at the end of the data.

    :param peer: the client's address, for the log.
    """

    def __init__(
        self, decoder: Decoder, content: Content, transport: asyncio.Transport, peer: Any
    ) -> None:
        self._decoder = decoder
        self._content = content
        self._transport = transport
        self._peer = peer
        self._is_paused = False
        # Its result is set when the decoder has found the end, or when a block must be spooled.
        self._ready: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        """Decode the octets that the transport has received."""
        decoder = self._decoder
        if decoder.remaining is not None:
            decoder.remaining += data  # the transport delivers data although it is paused
            return
        self._content.add(decoder.feed(data))
        if decoder.refusal is not None:
            self._content.close()
        if self._has_enough():
            self._transport.pause_reading()
            self._is_paused = True
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)

    async def wait_until_received(self) -> None:
        """Wait until all data has arrived and is in the content."""
        is_complete = False
        while not is_complete:
            if not self._has_enough():
                self._ready = asyncio.get_running_loop().create_future()
                await self._ready
            is_complete = self._decoder.remaining is not None
            try:
                await self._content.spool()
            except OSError:
                # The remaining data must be read, because otherwise it would be treated as
                # commands.
                logger.exception("%r cannot spool a message", self._peer)
                self._decoder.refusal = Refusal.NO_STORAGE
                self._content.close()
            if self._is_paused:
                self._is_paused = False
                self._transport.resume_reading()

    def _has_enough(self) -> bool:
        return self._decoder.remaining is not None or self._content.must_spool()


class Refusal(enum.Enum):
    """The reply to a refused message. Some replies have an enhanced code (RFC 3463)."""

    LINE_TOO_LONG = "500 Line too long (see RFC5321 4.5.3.1.6)"
    TOO_MUCH = "552 Error: Too much mail data"
    NO_STORAGE = "452 4.3.1 Error: insufficient system storage"
    SMUGGLING = "554 5.6.0 Error: bare CR or LF around a dot (see RFC5321 2.3.8)"


class SmugglingCheck:
    """Finds a line that consists of a dot, with a line end other than CR LF before or after it."""

    def __init__(self) -> None:
        # The last octets of the earlier blocks. The start of a message is also the start of a line.
        self._before = CRLF

    def finds(self, block: bytes) -> bool:
        """Return whether such a line is in this block, or in this and earlier blocks together."""
        seam = self._before + block[:_BEFORE_LAST_OCTET]
        self._before = (self._before + block[-_BEFORE_LAST_OCTET:])[-_BEFORE_LAST_OCTET:]
        return self._is_in(seam) or self._is_in(block)

    @staticmethod
    def _is_in(data: bytes) -> bool:
        return (
            b"." in data
            and any(part in data for part in _BARE_PARTS)
            and _BARE_AROUND_DOT.search(data) is not None
        )


class Decoder:
    """Decodes a message's data, block by block.

    :ivar refusal: the reply if the message is refused. The remaining octets are then discarded.
    :ivar remaining: the octets after the end of the data. None until the end is found.
    """

    def __init__(self, smuggling_check: SmugglingCheck | None = None) -> None:
        self.refusal: Refusal | None = None
        self.remaining: bytes | None = None
        self._smuggling_check = smuggling_check

    def feed(self, data: bytes) -> bytes:
        """Return the content in a block. Do not call this method after `remaining` was set."""
        raise NotImplementedError

    def _is_smuggling(self, block: bytes) -> bool:
        return self._smuggling_check is not None and self._smuggling_check.finds(block)


class ChunkDecoder(Decoder):
    """Decodes one chunk of BDAT, which has a declared size (RFC 3030, 2).

    :param size: the octets of the chunk.
    :param smuggling_check: one object for all chunks of the message.
    """

    def __init__(self, size: int, smuggling_check: SmugglingCheck | None = None) -> None:
        super().__init__(smuggling_check)
        self._missing = size

    def feed(self, data: bytes) -> bytes:
        block = data[: self._missing]
        self._missing -= len(block)
        if not self._missing:
            self.remaining = data[len(block) :]
        if self.refusal is None and self._is_smuggling(block):
            self.refusal = Refusal.SMUGGLING
        return block if self.refusal is None else b""


class DataDecoder(Decoder):
    """Decodes the data of DATA.

    :param size_limit: the most octets of data, including added dots. None or 0: no limit.
    :param line_limit: the most octets in a line, including its CR LF (RFC 5321, 4.5.3.1.6).
    :param smuggling_check: an object for this message only.
    """

    def __init__(
        self,
        *,
        size_limit: int | None,
        line_limit: int,
        smuggling_check: SmugglingCheck | None = None,
    ) -> None:
        super().__init__(smuggling_check)
        self._size_limit = size_limit
        self._line_limit = line_limit
        self._carried = CRLF
        # The octets in all earlier blocks. The virtual CR LF is at offset -2.
        self._offset = -len(CRLF)
        # The octets from the last CR LF to the start of this block.
        self._partial_line_bytes = 0

    def feed(self, data: bytes) -> bytes:
        if self._carried:
            data = self._carried + data
        dot = find_line_dot(data)
        end = find_end_of_data(data, dot) if dot >= 0 else -1
        if end >= 0:
            self.remaining = data[end + len(END_OF_DATA) :]
            block = data[: end + len(CRLF)]
            self._carried = b""
        else:
            undecided = _could_become_end(data)
            block = data[: len(data) - undecided]
            self._carried = data[len(data) - undecided :]
        if self.refusal is None:
            self.refusal = self._checked(block)
        first = self._offset < 0
        self._offset += len(block)
        if self.refusal is not None:
            return b""
        if 0 <= dot < len(block):
            block = replace_in_block(block, b"\r\n.", CRLF)
        return block[len(CRLF) :] if first else block

    def _checked(self, block: bytes) -> Refusal | None:
        line_end, lines_fit = self._last_line_end(block)
        # The offset in the data of the line after the last line end.
        line_start = self._offset + line_end + len(CRLF)
        if self._size_limit and line_start > self._size_limit:
            return Refusal.TOO_MUCH
        if not lines_fit:
            return Refusal.LINE_TOO_LONG
        return Refusal.SMUGGLING if self._is_smuggling(block) else None

    def _last_line_end(self, block: bytes) -> tuple[int, bool]:
        """Return the offset of the last CR LF before a too long line, and whether all lines fit.

        A negative offset is in an earlier block. If all lines fit, the offset is that of the last
        CR LF. The search jumps from a line end to the last line end within the limit after it. So
        one short search is needed for about every thousand octets.
        """
        max_step = self._line_limit + len(CRLF)
        line_end = -self._partial_line_bytes
        while line_end + max_step <= len(block):
            found = block.rfind(CRLF, max(0, line_end + 1), line_end + max_step)
            if found < 0:
                return line_end, False
            line_end = found
        found = block.rfind(CRLF, max(0, line_end + 1))
        if found >= 0:
            line_end = found
        self._partial_line_bytes = len(block) - line_end
        return line_end, True


def _could_become_end(data: bytes) -> int:
    """Return how many octets at the end may be the beginning of END_OF_DATA."""
    for size in range(len(END_OF_DATA) - 1, 0, -1):
        if data.endswith(END_OF_DATA[:size]):
            return size
    return 0

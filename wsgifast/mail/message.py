"""A message to send, in any form that sendmail() accepts."""

from __future__ import annotations

import email.message
import os
from collections.abc import Iterable, Iterator
from typing import IO, Any, TypeAlias

from ..sockets import FileSegment, file_segment
from .wire import CRLF, with_crlf

Message: TypeAlias = "str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes | str]"
"""What :meth:`SMTP.sendmail` takes: see there."""

# The size of reads from a file, and of the blocks that are joined from an iterable.
_BLOCK_BYTES = 256 * 1024


class Body:
    """A message to send: in memory, in a file for sendfile, or in blocks."""

    def __init__(self, message: Message, *, wire_ready: bool = False) -> None:
        self.wire_ready = wire_ready
        self.data: bytes | None = None
        self.segment: FileSegment | None = None
        self._source: Any = None
        if isinstance(message, str):
            self.data = with_crlf(message.encode("ascii"))
        elif isinstance(message, (bytes, bytearray, memoryview)):
            self.data = bytes(message)
        elif isinstance(message, email.message.Message):  # an iterable of its headers' names
            raise TypeError("sendmail takes a message's bytes: use send_message for the object")
        elif hasattr(message, "read") or isinstance(message, Iterable):
            self.segment = file_segment(message)
            self._source = message
        else:
            raise TypeError(
                f"a message is a str, bytes, a binary file or an iterable of bytes or str, not "
                f"{type(message).__name__}"
            )

    @property
    def size(self) -> int | None:
        """The octets in the message, as for SIZE (RFC 1870, 3); None if not known."""
        if self.data is not None:
            return len(self.data)
        return None if self.segment is None else self.segment.size

    def as_last_chunk(self) -> bytes:
        """Return the command and data of the message as a single chunk."""
        data = (self.data or b"") + self.missing_line_end()
        return b"BDAT %d LAST\r\n" % len(data) + data

    def missing_line_end(self) -> bytes:
        """Return the line end that a message of known size lacks, if any."""
        if self.segment is not None:
            fd, offset, size = self.segment
            last = os.pread(fd, min(size, len(CRLF)), offset + max(0, size - len(CRLF)))
        else:
            last = self.data or b""
        return b"" if last.endswith(CRLF) else CRLF

    def blocks(self) -> Iterator[bytes | str]:
        """Yield the message in blocks: one is quoted while the server handles the one before."""
        if self.data is not None:
            for start in range(0, len(self.data), _BLOCK_BYTES):
                yield self.data[start : start + _BLOCK_BYTES]
            return
        if not hasattr(self._source, "read"):
            yield from self._source
            return
        while block := self._source.read(_BLOCK_BYTES):
            yield block


def gathered(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Join small blocks: each costs a send, and as a chunk of BDAT a reply."""
    held: list[bytes] = []
    size = 0
    for block in blocks:
        held.append(block)
        size += len(block)
        if size >= _BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if size:
        yield b"".join(held)

r"""The receiving side of DATA and BDAT: find the end, undo the dots, keep the limits. No I/O.

Theory of operation. The stream is looked at in blocks as large as the socket gave them, never line
by line. In front of the first block an imagined CR LF is put, so that every line starts after one,
and the end of the data is always ``CR LF . CR LF``, wherever the borders of the blocks fall: a
block's end that may still become that sequence is carried over into the next block. So no CR LF
and no line-starting dot is ever split, and both are searched for and replaced in whole blocks.

Only CR LF ends a line (RFC 5321, 2.3.8). A bare LF or bare CR beside a dot, which some servers take
for the end of the data (SMTP smuggling), is content here, or a reason to refuse the message.
"""

from __future__ import annotations

import enum
import io
import re

from .wire import CRLF, END_OF_DATA, find_end_of_data, find_line_dot, replace_in_block

__all__ = ["ChunkDecoder", "DataDecoder", "Intake", "Refusal", "SmugglingCheck"]

# What another server may take for the end of the data. A quick look for a part of it comes first:
# CR LF . CR LF has one too, but only in chunks.
_BARE_AROUND_DOT = re.compile(rb"[^\r]\n\.[\r\n]|\r\.[\r\n]|\r\n\.(?:\n|\r[^\n])")
_PARTS_OF_IT = (b"\n.\n", b"\n.\r", b"\r.\n", b"\r.\r")
_BEFORE_LAST_OCTET = 4  # octets of the longest match that may stand in an earlier block


class Refusal(enum.Enum):
    """Why a message will not be taken."""

    LINE_TOO_LONG = enum.auto()
    TOO_MUCH = enum.auto()
    SMUGGLING = enum.auto()
    NO_STORAGE = enum.auto()


class SmugglingCheck:
    """Looks for a dot on a line of its own whose line end, on either side, is not CR LF."""

    def __init__(self) -> None:
        self._before = CRLF  # the last octets so far; the start of a message starts a line

    def finds(self, block: bytes) -> bool:
        """Whether there is one in this block, or where it meets those before."""
        seam = self._before + block[:_BEFORE_LAST_OCTET]
        self._before = (self._before + block[-_BEFORE_LAST_OCTET:])[-_BEFORE_LAST_OCTET:]
        return self._is_in(seam) or self._is_in(block)

    @staticmethod
    def _is_in(data: bytes) -> bool:
        return (
            b"." in data
            and any(part in data for part in _PARTS_OF_IT)
            and _BARE_AROUND_DOT.search(data) is not None
        )


class Intake:
    """What a message's data goes through as it comes from the socket.

    ``refusal`` says whether a limit was broken: then the content is dropped and the rest only read
    through. ``rest`` is what followed the data; None until its end was seen.
    """

    def __init__(self, smuggling_check: SmugglingCheck | None = None) -> None:
        self.refusal: Refusal | None = None
        self._smuggling_check = smuggling_check
        self.rest: bytes | None = None
        # One buffer, and not a list of blocks: the memory of each block is free for the next one
        # while it is still in the cache, and getvalue() hands the buffer out without a copy.
        self._content = io.BytesIO()

    @property
    def held(self) -> int:
        """Octets of content that :meth:`take` would return."""
        return self._content.tell()

    def feed(self, data: bytes) -> None:
        """Take what came from the socket; not to be called once ``rest`` is set."""
        raise NotImplementedError

    def take(self) -> bytes:
        """Return the content that came since the last call."""
        content, self._content = self._content, io.BytesIO()
        return content.getvalue()

    def refuse(self, reason: Refusal) -> None:
        """Drop the content: a message that is refused must not hold memory."""
        self.refusal = reason
        self._content = io.BytesIO()


class ChunkDecoder(Intake):
    """One chunk of BDAT: so many octets, whatever they are (RFC 3030, 2).

    :param smuggling_check: what refuses the message; the same for all chunks of it.
    """

    def __init__(self, size: int, smuggling_check: SmugglingCheck | None = None) -> None:
        super().__init__(smuggling_check)
        self._missing = size

    def feed(self, data: bytes) -> None:
        block = data[: self._missing]
        self._missing -= len(block)
        if self.refusal is None:
            if self._smuggling_check is not None and self._smuggling_check.finds(block):
                self.refuse(Refusal.SMUGGLING)
            else:
                self._content.write(block)
        if not self._missing:
            self.rest = data[len(block) :]


class DataDecoder(Intake):
    """The data of DATA.

    :param size_limit: the most octets of data, dots that were doubled included; None or 0: any.
    :param line_limit: the most octets in one line, its CR LF included (RFC 5321, 4.5.3.1.6).
    :param smuggling_check: what refuses the message; its own.
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
        # Octets in the blocks before this one: so the imagined CR LF starts at -2 of the data.
        self._offset = -len(CRLF)
        # Octets before this block since the last CR LF began: none, as it begins the first block.
        self._since_line_end = 0

    def feed(self, data: bytes) -> None:
        if self._carried:
            data = self._carried + data
        dot = find_line_dot(data)
        end = find_end_of_data(data, dot) if dot >= 0 else -1
        if end >= 0:
            self.rest = data[end + len(END_OF_DATA) :]
            block = data[: end + len(CRLF)]
            self._carried = b""
        else:
            undecided = _could_become_end(data)
            block = data[: len(data) - undecided]
            self._carried = data[len(data) - undecided :]
        if self.refusal is None:
            self._check(block)
        first = self._offset < 0
        self._offset += len(block)
        if self.refusal is not None:
            return
        if 0 <= dot < len(block):
            block = replace_in_block(block, b"\r\n.", CRLF)
        if first:
            block = block[len(CRLF) :]
        self._content.write(block)

    def _check(self, block: bytes) -> None:
        line_end, whole = self._last_line_end(block)
        # Where the line after that line end starts in the data: so many octets are whole lines.
        line_start = self._offset + line_end + len(CRLF)
        if self._size_limit and line_start > self._size_limit:
            self.refuse(Refusal.TOO_MUCH)
        elif not whole:
            self.refuse(Refusal.LINE_TOO_LONG)
        elif self._smuggling_check is not None and self._smuggling_check.finds(block):
            self.refuse(Refusal.SMUGGLING)

    def _last_line_end(self, block: bytes) -> tuple[int, bool]:
        """Return where the last CR LF begins (negative: in a block before this one), and True;
        or the one before a line that is too long, and False.

        From each line end it leaps to the last one that the limit allows: about one search for
        a thousand octets, each over the little that follows the line end found.
        """
        reach = self._line_limit + len(CRLF)
        line_end = -self._since_line_end
        while line_end + reach <= len(block):
            found = block.rfind(CRLF, max(0, line_end + 1), line_end + reach)
            if found < 0:
                return line_end, False
            line_end = found
        found = block.rfind(CRLF, max(0, line_end + 1))
        if found >= 0:
            line_end = found
        self._since_line_end = len(block) - line_end
        return line_end, True


def _could_become_end(data: bytes) -> int:
    """How many octets at the end of the data may be the beginning of the end of the data."""
    for size in range(len(END_OF_DATA) - 1, 0, -1):
        if data.endswith(END_OF_DATA[:size]):
            return size
    return 0

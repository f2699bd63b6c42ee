"""The wire format of mail data (RFC 5321): line ends, and dots at the start of lines.

These are pure functions on bytes. Most messages need no change, so the searches for line ends and
dots must be fast. On base64, they are as fast as reads of memory. On text with many dots, they are
several times as fast as regular expressions.
"""

from __future__ import annotations

CRLF = b"\r\n"
# RFC 5321, 4.1.1.4. The first CR LF belongs to the last line.
END_OF_DATA = b"\r\n.\r\n"

# The number of dots that are found one by one, to check whether a line end precedes them. This is
# the fastest for a base64 message, whose dots are only in the headers. After these dots, line end
# and dot are searched together, which is faster for text with many dots.
_SEARCHED_DOTS = 1_000


def find_line_dot(data: bytes, line_end: bytes = CRLF) -> int:
    """Return the position of the first line end before a dot, or -1.

    The start of the data does not count as the start of a line.
    """
    size = len(line_end)
    position = -1
    for _ in range(_SEARCHED_DOTS):
        position = data.find(b".", position + 1)
        if position < 0:
            return -1
        if position >= size and data.startswith(line_end, position - size):
            return position - size
    line_dot, start = line_end + b".", max(0, position - size)
    return data.find(line_dot, start) if data.rfind(line_dot, start) >= 0 else -1


def find_end_of_data(data: bytes, start: int) -> int:
    """Return the position of the first END_OF_DATA, at or after `start`, or -1."""
    return data.find(END_OF_DATA, start) if data.rfind(END_OF_DATA, start) >= 0 else -1


def replace_in_block(block: bytes, old: bytes, new: bytes) -> bytes:
    """Replace `old` by `new`, like bytes.replace(), but faster. `old` must not overlap with itself.

    Use this function for blocks only, because it makes an object for each piece between two
    replacements.

    :returns: the same object if there is nothing to replace.
    """
    return new.join(block.rsplit(old))


def with_crlf(data: bytes) -> bytes:
    """Replace every bare CR and bare LF with CR LF.

    :returns: the same object if there is nothing to replace.
    """
    pairs = data.count(CRLF)
    if data.count(b"\n") == pairs == data.count(b"\r"):
        return data
    return data.replace(CRLF, b"\n").replace(b"\r", b"\n").replace(b"\n", CRLF)


class Quoter:
    """Doubles the dots at the start of lines, block by block (RFC 5321, 4.5.2)."""

    def __init__(self) -> None:
        self._last = b"\n"  # the start of the data is the start of a line

    def feed(self, block: bytes) -> bytes:
        """Return a block with doubled dots.

        :raises TypeError: for a str.
        """
        before, self._last = self._last, (self._last + block[-2:])[-2:]
        out = block
        if find_line_dot(block, b"\n") >= 0:
            out = replace_in_block(block, b"\n.", b"\n..")
        if before.endswith(b"\n") and block.startswith(b"."):
            out = b"." + out
        return out

    def finish(self) -> bytes:
        """Return CR LF if the data does not end with CR LF. Otherwise return b""."""
        return b"" if self._last == CRLF else CRLF

"""Finds the end of a head that arrives in pieces, without scanning any byte twice."""

from __future__ import annotations

_END = b"\r\n\r\n"
# The parser looks at an incomplete head for the first time when it has this many bytes.
_FIRST_LOOK_BYTES = 4 * 1024


class HeadScanner:
    """Collects an incomplete head, and says when the parser should look at it.

    The parser starts again each time. So it is called when the head is complete, and before that
    whenever the head has doubled: that keeps the work linear in the bytes, and a head that breaks a
    rule or a limit is still refused before its end.

    :param data: what was received so far, and the parser has found to be incomplete.
    :ivar data: everything received.
    """

    __slots__ = ("_searched", "_seen", "data")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self._searched = len(data)
        self._seen = len(data)  # bytes that the parser has looked at

    def add(self, data: bytes) -> bool:
        """Add received data.

        :returns: whether the parser should look: there is an empty line, or a bare LF, which does
            not end a line (RFC 9112 section 2.2), or the head has doubled.
        """
        whole = self.data
        at = self._searched
        whole += data
        self._searched = len(whole)
        # The empty line, or a CRLF, may have begun in the data before.
        shows = (
            whole.find(_END, max(at - len(_END) + 1, 0)) >= 0
            or whole.count(b"\n", at) != whole.count(b"\r\n", max(at - 1, 0))
            or len(whole) >= max(2 * self._seen, _FIRST_LOOK_BYTES)
        )
        if shows:
            self._seen = len(whole)
        return shows

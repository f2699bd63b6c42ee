"""Finding the end of a head that comes in pieces, without looking at any byte twice."""

from __future__ import annotations

__all__ = ["HeadScanner"]

_END = b"\r\n\r\n"
# An incomplete head is worth a look at least when so many bytes have come.
_FIRST_LOOK_BYTES = 4 * 1024


class HeadScanner:
    """Gathers an incomplete head, and says when a parser should look at it.

    A parser that is shown each piece begins again each time; one that is shown a head when it is
    complete, and before that whenever it has doubled, does work that is linear in the bytes, and
    still refuses one that is over the limits while it comes.

    :param data: what has come so far, and has not been found to be a head.
    :ivar data: all that has come.
    """

    __slots__ = ("_searched", "_seen", "data")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self._searched = len(data)
        self._seen = len(data)  # bytes that a parser has looked at, or need not

    def add(self, data: bytes) -> bool:
        """Take more of the head in.

        :returns: whether a parser should look: an empty line has come, or a bare LF, with which no
            line ends (RFC 9112 section 2.2), or as much again as at the last look.
        """
        whole = self.data
        at = self._searched
        whole += data
        self._searched = len(whole)
        # The end, and a CRLF, may have begun in what came before.
        shows = (
            whole.find(_END, max(at - len(_END) + 1, 0)) >= 0
            or whole.count(b"\n", at) != whole.count(b"\r\n", max(at - 1, 0))
            or len(whole) >= max(2 * self._seen, _FIRST_LOOK_BYTES)
        )
        if shows:
            self._seen = len(whole)
        return shows

"""The lingering close of a connection: discard the bytes that the peer still sends.

If a server closes a connection with unread received bytes, the kernel resets it. Then the client
loses the part of the response that it has not read (RFC 9112 section 9.6). So the server first
shuts down only its sending direction. Then it discards received bytes until the client closes the
connection too. This may take as long as the client's upload, since a client may read the response
only after its upload. Limits end the wait for a client that never stops sending.
"""

from __future__ import annotations

# A connection is closed after this time without bytes from the client (nginx: lingering_timeout).
LINGER_S = 2.0
# The longest time of a lingering close (nginx: lingering_time), and the most bytes to discard.
_MAX_LINGER_S = 30.0
_LINGER_BYTES = 1024 * 1024 * 1024
# The most bytes to discard of a request body that the app has not read, so that the connection can
# stay open. Without a limit, a client could keep the server busy.
UNREAD_BODY_BYTES = 1024 * 1024


class Lingering:
    """The limits of one connection's lingering close.

    :param now: the time in seconds. All calls must use the same clock.
    :ivar deadline: the time at which to close the connection.
    """

    __slots__ = ("_bytes", "_end", "deadline")

    def __init__(self, now: float) -> None:
        self.deadline = now + LINGER_S
        self._end = now + _MAX_LINGER_S
        self._bytes = _LINGER_BYTES

    def should_continue(self, size: int, now: float) -> bool:
        """Return whether to discard more, after `size` bytes.

        A size of 0 means that the client has closed.
        """
        self._bytes -= size
        self.deadline = min(now + LINGER_S, self._end)
        return size > 0 and self._bytes > 0

    def hurry(self) -> None:
        """Do not extend the deadline any more. This is for a server that is about to end."""
        self._end = self.deadline

"""The end of a connection: discard the bytes that the peer still sends.

The kernel resets a connection that is closed while received bytes are unread, and the client loses
the unread part of the response (RFC 9112 section 9.6). So a server ends only the sending side, and
discards further bytes until the client closes too. A client in the middle of an upload may read the
response only after that. Limits end the wait for a client that never stops sending.
"""

from __future__ import annotations

# A client that is silent for so long has nothing more to send: nginx's lingering_timeout.
LINGER_S = 2.0
# For so long, and so many bytes, a client may go on. The first is nginx's lingering_time.
_LINGERS_MOST_S = 30.0
_LINGER_BYTES = 1024 * 1024 * 1024
# The most that is discarded of a request body that the app has not read, in order to keep the
# connection: a client could otherwise keep the server busy for as long as it likes.
UNREAD_BODY_BYTES = 1024 * 1024


class Lingering:
    """The limits of one connection's lingering close.

    :param now: in seconds, by a clock that is the same for all calls.
    :ivar deadline: when to close.
    """

    __slots__ = ("_bytes", "_end", "deadline")

    def __init__(self, now: float) -> None:
        self.deadline = now + LINGER_S
        self._end = now + _LINGERS_MOST_S
        self._bytes = _LINGER_BYTES

    def goes_on(self, size: int, now: float) -> bool:
        """Whether to discard more, after `size` bytes: at the client's end there are none."""
        self._bytes -= size
        self.deadline = min(now + LINGER_S, self._end)
        return size > 0 and self._bytes > 0

    def hurry(self) -> None:
        """The server ends: wait no longer for a client that goes on than for a silent one."""
        self._end = self.deadline

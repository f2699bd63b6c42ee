"""Limits for both directions: how slow a client may be, how large all temporary files."""

from __future__ import annotations

import threading
import time

# The least average rate of a request body, as in Apache's mod_reqtimeout (MinRate).
BODY_BYTES_PER_S = 500.0


def time_left_s(timeout_s: float, least_bytes_per_s: float, moved: int, waited_s: float) -> float:
    """Return for how many more seconds to wait for a client.

    :param timeout_s: the longest wait for a single byte.
    :param least_bytes_per_s: the least average rate once `timeout_s` has passed; 0 for any.
    :param moved: bytes that the client has sent, or taken, since the wait began.
    :param waited_s: seconds since then.
    """
    if not least_bytes_per_s:
        return timeout_s
    return min(timeout_s, timeout_s + moved / least_bytes_per_s - waited_s)


class ClientWait:
    """Adds up how long a client was waited for while it took a response.

    For other parameters see :func:`time_left_s`.

    :ivar deadline: when to give up on the client; monotonic.
    :ivar taken: bytes that it has taken since this was made.
    """

    __slots__ = ("_least_bytes_per_s", "_since", "_timeout_s", "_waited_s", "deadline", "taken")

    def __init__(self, timeout_s: float, least_bytes_per_s: float) -> None:
        self._timeout_s = timeout_s
        self._least_bytes_per_s = least_bytes_per_s
        self._since: float | None = None
        self._waited_s = 0.0
        self.deadline = 0.0
        self.taken = 0

    def begin(self) -> float:
        """The client is waited for from now on, or still; returns the new deadline."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        waited_s = self._waited_s + now - self._since
        left_s = time_left_s(self._timeout_s, self._least_bytes_per_s, self.taken, waited_s)
        self.deadline = now + left_s
        return self.deadline

    def end(self) -> None:
        """The client is not waited for any more, at least for a while."""
        if self._since is not None:
            self._waited_s += time.monotonic() - self._since
            self._since = None

    def pace(self, now: float) -> tuple[float, int] | None:
        """See :meth:`~.sending.SenderLike.pace`."""
        since, waited_s = self._since, self._waited_s
        if since is not None:
            return waited_s + now - since, self.taken
        return (waited_s, self.taken) if waited_s else None


class UploadPace:
    """How fast a client sends the bodies on one connection; the connection's owner counts.

    While the client sends one body, the others may wait: it is given up only for being too slow
    with all of them. Otherwise a client with a slow line could not send two bodies in turn.

    :param timeout_s: see :func:`time_left_s`.
    :ivar received: bytes of all bodies.
    """

    __slots__ = ("_received_at", "_timeout_s", "received")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._received_at = 0.0
        self.received = 0

    def count(self, size: int) -> None:
        """A part of a body was received."""
        self._received_at = time.monotonic()
        self.received += size

    def deadline(self, began: float, received_before: int, waited_s: float = 0.0) -> float:
        """Return when to give up on one body (monotonic).

        :param began: when the client was first waited for; monotonic.
        :param received_before: :attr:`received` when its request came.
        :param waited_s: seconds for which it was waited for earlier.
        """
        at = max(began, self._received_at)
        received = self.received - received_before
        waited_s += at - began
        return at + time_left_s(self._timeout_s, BODY_BYTES_PER_S, received, waited_s)


class Budget:
    """Counts the bytes of all that is of one kind, such as temporary files; thread-safe.

    :param limit_bytes: the most in total.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Reserve `size` bytes; False, and nothing reserved, if they exceed the limit."""
        with self._lock:
            if self.used_bytes + size > self._limit_bytes:
                return False
            self.used_bytes += size
            return True

    def count(self, size: int) -> None:
        """Count `size` more bytes, whatever the limit, or fewer if it is negative."""
        with self._lock:
            self.used_bytes += size

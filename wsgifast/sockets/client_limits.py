"""The limits for clients: the slowest rate, the longest pause, and the number of connections.

wsgifast/server_options.py defines the options.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import Counter
from collections.abc import Callable

from ..server_options import MIN_BYTES_PER_S

# The minimum time between two warnings about too many connections.
_WARN_AGAIN_S = 60.0


def remaining_wait_s(
    timeout_s: float, min_bytes_per_s: float, moved: int, waited_s: float
) -> float:
    """Return how many more seconds a server waits for a client.

    :param timeout_s: the longest wait for a single byte.
    :param min_bytes_per_s: the minimum average rate after the first `timeout_s`. 0 allows any rate.
    :param moved: the bytes that the client has sent or received since the wait began.
    :param waited_s: the seconds since the wait began.
    """
    if not min_bytes_per_s:
        return timeout_s
    return min(timeout_s, timeout_s + moved / min_bytes_per_s - waited_s)


class ClientWait:
    """Adds up the time for which a server waits for one client to receive or to send.

    For the parameters see :func:`remaining_wait_s`.

    :ivar deadline: the monotonic time at which the server disconnects the client.
    :ivar moved: the bytes that the client has received or sent since this object was made.
    """

    __slots__ = ("_min_bytes_per_s", "_since", "_timeout_s", "_waited_s", "deadline", "moved")

    def __init__(self, timeout_s: float, min_bytes_per_s: float) -> None:
        self._timeout_s = timeout_s
        self._min_bytes_per_s = min_bytes_per_s
        self._since: float | None = None
        self._waited_s = 0.0
        self.deadline = 0.0
        self.moved = 0

    def begin(self) -> float:
        """Begin or continue to wait for the client. Return the new deadline."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        waited_s = self._waited_s + now - self._since
        remaining_s = remaining_wait_s(self._timeout_s, self._min_bytes_per_s, self.moved, waited_s)
        self.deadline = now + remaining_s
        return self.deadline

    def end(self) -> None:
        """End a wait for the client. Another one may follow."""
        if self._since is not None:
            self._waited_s += time.monotonic() - self._since
            self._since = None

    def pace(self, now: float) -> tuple[float, int] | None:
        """Return the seconds of all waits, and `moved`. None if there was no wait."""
        since, waited_s = self._since, self._waited_s
        if since is not None:
            return waited_s + now - since, self.moved
        return (waited_s, self.moved) if waited_s else None


class UploadPace:
    """Measures how fast a client sends all request bodies of one connection.

    HTTP/2 clients may send several bodies at once, or one after the other. So the server
    disconnects a client only if the rate of all bodies together is too low. Only the thread that
    owns the connection calls :meth:`count`.

    :param timeout_s: see :func:`remaining_wait_s`.
    :ivar received: the received bytes of all bodies.
    """

    __slots__ = ("_received_at", "_timeout_s", "received")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._received_at = 0.0
        self.received = 0

    def count(self, size: int) -> None:
        """Count `size` received bytes of a body."""
        self._received_at = time.monotonic()
        self.received += size

    def deadline(self, began: float, received_before: int, waited_s: float = 0.0) -> float:
        """Return the monotonic time at which the server stops waiting for one body.

        :param began: the monotonic time at which the current wait for the client began.
        :param received_before: :attr:`received` at the arrival of the request.
        :param waited_s: the seconds of earlier waits for this body.
        """
        at = max(began, self._received_at)
        received = self.received - received_before
        waited_s += at - began
        return at + remaining_wait_s(self._timeout_s, MIN_BYTES_PER_S, received, waited_s)


class ConnectionsByAddress:
    """Counts the open connections of each client's address. Thread-safe.

    All addresses of an IPv6 /64 network count as one address, because a /64 network usually belongs
    to one client.

    :param max_connections: the limit for one address.
    :param is_proxy: returns whether an IP address is a trusted proxy's. Connections of
        trusted proxies are not counted.
    :param warn: logs a warning, at most once a minute.
    """

    def __init__(
        self,
        max_connections: float,
        is_proxy: Callable[[str], bool],
        warn: Callable[[str, str, float], object],
    ) -> None:
        self._max_connections = max_connections
        self._is_proxy = is_proxy
        self._warn = warn
        self._warned_at = -math.inf
        self._open = Counter[str]()
        self._lock = threading.Lock()

    def open(self, peer: object) -> bool:
        """Count a connection. Return whether it is within the limit.

        A connection beyond the limit also counts until :meth:`close`.

        :param peer: the client's address, as accept() returns it. An address that is not a tuple,
            such as that of a Unix socket, counts as a proxy's.
        """
        address = self._address(peer)
        if address is None:
            return True
        with self._lock:
            self._open[address] += 1
            if self._open[address] <= self._max_connections:
                return True
            now = time.monotonic()
            warns = now - self._warned_at >= _WARN_AGAIN_S
            if warns:
                self._warned_at = now
        if warns:
            self._warn(
                "%s has %d connections: further ones are closed (connections_per_address)",
                address, self._max_connections,
            )  # fmt: skip
        return False

    def close(self, peer: object) -> None:
        """Stop counting a connection that :meth:`open` has counted."""
        address = self._address(peer)
        if address is not None:
            with self._lock:
                self._open[address] -= 1
                if not self._open[address]:
                    del self._open[address]

    def _address(self, peer: object) -> str | None:
        """Return the address or network to count a connection for. None if it does not count."""
        if self._max_connections == math.inf or not isinstance(peer, tuple):
            return None
        if self._is_proxy(peer[0]):
            return None
        text: str = peer[0]
        if ":" not in text:
            return text
        address = ipaddress.IPv6Address(text.partition("%")[0])
        if address.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((address, 64), strict=False))
        text = str(address.ipv4_mapped)  # an IPv4 client of an IPv6 listener
        return None if self._is_proxy(text) else text

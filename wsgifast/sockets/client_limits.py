"""How slowly a client may send and receive, and over how many connections: the rules.

The options are in wsgifast/server_options.py.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import Counter
from collections.abc import Callable

from ..server_options import LEAST_BYTES_PER_S

# After a warning that somebody has too many connections, none for so long.
_WARN_AGAIN_S = 60.0


def time_left_s(timeout_s: float, least_bytes_per_s: float, moved: int, waited_s: float) -> float:
    """Return for how many more seconds to wait for a client.

    :param timeout_s: the longest wait for a single byte.
    :param least_bytes_per_s: the least average rate once `timeout_s` has passed. 0 allows any rate.
    :param moved: bytes that the client has sent or received since the wait began.
    :param waited_s: seconds since then.
    """
    if not least_bytes_per_s:
        return timeout_s
    return min(timeout_s, timeout_s + moved / least_bytes_per_s - waited_s)


class ClientWait:
    """Adds up how long a server waited for a client to receive a response or to send a body.

    For its parameters see :func:`time_left_s`.

    :ivar deadline: when to give up on the client, as a monotonic time.
    :ivar taken: bytes that the client has received or sent since this object was made.
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
        """Begin or continue a wait for the client. Return the new deadline."""
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
        """Return the seconds of waiting and the bytes moved, or None without a wait."""
        since, waited_s = self._since, self._waited_s
        if since is not None:
            return waited_s + now - since, self.taken
        return (waited_s, self.taken) if waited_s else None


class UploadPace:
    """How fast a client sends the bodies on one connection. The connection's owner counts.

    While the client sends one body, the others may wait. The server gives up only if all of them
    together are too slow. Otherwise a client with a slow line could not send two bodies in turn.

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
        """Return when to give up on one body, as a monotonic time.

        :param began: when the first wait for the client began, as a monotonic time.
        :param received_before: :attr:`received` when its request arrived.
        :param waited_s: seconds of earlier waits for this body.
        """
        at = max(began, self._received_at)
        received = self.received - received_before
        waited_s += at - began
        return at + time_left_s(self._timeout_s, LEAST_BYTES_PER_S, received, waited_s)


class ConnectionsByAddress:
    """Counts the open connections of each client's address. Thread-safe.

    All addresses of an IPv6 /64 network count as one, because one client usually owns them all.

    :param most: the limit for one address.
    :param has_many_clients: returns whether an IP address belongs to a trusted proxy. The
        connections of a trusted proxy are not counted.
    :param warn: logs a warning, at most once a minute.
    """

    def __init__(
        self,
        most: float,
        has_many_clients: Callable[[str], bool],
        warn: Callable[[str, str, float], object],
    ) -> None:
        self._most = most
        self._has_many_clients = has_many_clients
        self._warn = warn
        self._warned_at = -math.inf
        self._open = Counter[str]()
        self._lock = threading.Lock()

    def open(self, peer: object) -> bool:
        """Count a connection. Return whether it is within the limit.

        A connection beyond the limit also counts until :meth:`close`.

        :param peer: its address as accept() returned it. An address that is not a tuple, such as
            that of a Unix socket, belongs to a proxy.
        """
        address = self._address(peer)
        if address is None:
            return True
        with self._lock:
            self._open[address] += 1
            if self._open[address] <= self._most:
                return True
            now = time.monotonic()
            warns = now - self._warned_at >= _WARN_AGAIN_S
            if warns:
                self._warned_at = now
        if warns:
            self._warn(
                "%s has %d connections: further ones are closed (connections_per_address)",
                address, self._most,
            )  # fmt: skip
        return False

    def close(self, peer: object) -> None:
        """A connection that was counted has closed."""
        address = self._address(peer)
        if address is not None:
            with self._lock:
                self._open[address] -= 1
                if not self._open[address]:
                    del self._open[address]

    def _address(self, peer: object) -> str | None:
        """The address or network that connections count for, or None if they do not count."""
        if not isinstance(peer, tuple) or self._has_many_clients(peer[0]):
            return None
        text: str = peer[0]
        if ":" not in text:
            return text
        address = ipaddress.IPv6Address(text.partition("%")[0])
        if address.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((address, 64), strict=False))
        text = str(address.ipv4_mapped)  # on a listener for both versions
        return None if self._has_many_clients(text) else text

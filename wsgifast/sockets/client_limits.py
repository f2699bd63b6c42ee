"""How much a client may send, how slowly, and over how many connections: options of all servers
here, and the rules.

FastWorker and asgifast's protocols have these options by the same names, with the same meaning. An
environment variable comes before what is configured there: WSGIFAST_BODY_LIMIT_BYTES and so on.
"""

from __future__ import annotations

import ipaddress
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ..checks import is_count, is_number
from ..errors import ConfigurationError

# For a request's head, from its first byte (or the connection's begin) on. It fits into a packet or
# two, also of slow clients.
HEAD_TIMEOUT_S = 20.0
# A request's line and headers: what browsers and proxies send is far below it.
HEAD_LIMIT_BYTES = 64 * 1024
# A client behind another's proxy shares its address with many.
CONNECTIONS_PER_ADDRESS = math.inf
# The least average rate of a request body, as in Apache's mod_reqtimeout (MinRate).
BODY_BYTES_PER_S = 500.0

# After a warning that somebody has too many connections, none for so long.
_WARN_AGAIN_S = 60.0

# What is expected of an option, as errors say it; and the rule.
Rule = tuple[str, Callable[[Any], bool]]

BYTES: Rule = "bytes, 0 or more", is_count
_HEAD_BYTES: Rule = "bytes, 1 or more", partial(is_count, least=1)
SECONDS: Rule = (
    "seconds above 0",
    lambda value: is_number(value, least=0, most=math.inf) and value > 0,
)
CONNECTIONS: Rule = (
    "a number of connections, 1 or more; math.inf for any number",
    lambda value: is_count(value, least=1) or value == math.inf,
)


class Limit(NamedTuple):
    """An option.

    :param help: for the command line.
    """

    rule: Rule
    help: str


LIMITS = {
    "body_limit_bytes": Limit(BYTES, "respond with 413 to a longer request body"),
    "head_limit_bytes": Limit(_HEAD_BYTES, "respond with 431 to a longer request line and headers"),
    "head_timeout_s": Limit(SECONDS, "respond with 408 if the headers of a request take longer"),
    "body_timeout_s": Limit(
        SECONDS,
        "respond with 408 if no byte of a request body arrives for this time, or after it below "
        f"{BODY_BYTES_PER_S:.0f} bytes/s on average",
    ),
    "connections_per_address": Limit(
        CONNECTIONS,
        "close further connections from one client address to a worker, except from trusted "
        "proxies",
    ),
}


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"WSGIFAST_{name.upper()}"


def parse_limit(name: str, text: str) -> float:
    """The value of an option from its text.

    :raises ConfigurationError: if it has no such value.
    """
    expected, is_allowed = LIMITS[name].rule
    value: float
    try:
        value = int(text) if text.isascii() and text.isdigit() else float(text)
    except ValueError:
        value = math.nan
    if not is_allowed(value):
        raise ConfigurationError(f"{text!r}: expected {expected}")
    return value


def limits_of_environment() -> dict[str, float]:
    """The options that environment variables set.

    :raises ConfigurationError: for a value that an option cannot have.
    """
    found = {}
    for name in LIMITS:
        if text := os.environ.get(variable(name)):
            try:
                found[name] = parse_limit(name, text)
            except ConfigurationError as error:
                raise ConfigurationError(f"{variable(name)}={error}") from None
    return found


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
    """Adds up how long a client was waited for while it took a response, or sent a body.

    For its parameters see :func:`time_left_s`.

    :ivar deadline: when to give up on the client; monotonic.
    :ivar taken: bytes that it has taken, or sent, since this was made.
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
        """Return for how long the client was waited for, and the bytes moved; None if never."""
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


class ConnectionsByAddress:
    """Counts the open connections of each client's address; thread-safe.

    The addresses of an IPv6 network of 64 bits count as one: a client has mostly all of them.

    :param most: of one address.
    :param has_many_clients: of an IP address: whether it is a trusted proxy's. Its connections are
        not counted.
    :param warn: logs, once a minute at most.
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
        """Count a connection; return whether it is within the limit.

        One that is not is counted, too, until :meth:`close`.

        :param peer: its address as accept() returned it. One that is no tuple, as of a Unix socket,
            is a proxy's.
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
        """What connections are counted by; None if they are not counted."""
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

"""How much a client may send, and how slowly: options of all servers here, and the rule.

FastWorker and asgifast's protocols have these options by the same names, with the same meaning. An
environment variable comes before what is configured there: WSGIFAST_BODY_LIMIT_BYTES and so on.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..checks import is_count, is_number
from ..errors import ConfigurationError

# For a request's head, from its first byte (or the connection's begin) on. It fits into a packet or
# two, also of slow clients.
HEAD_TIMEOUT_S = 20.0
# The least average rate of a request body, as in Apache's mod_reqtimeout (MinRate).
BODY_BYTES_PER_S = 500.0

# What is expected of an option, as errors say it; and the rule.
Rule = tuple[str, Callable[[Any], bool]]

BYTES: Rule = "bytes, 0 or more", is_count
SECONDS: Rule = (
    "seconds above 0",
    lambda value: is_number(value, least=0, most=math.inf) and value > 0,
)


class Limit(NamedTuple):
    """An option.

    :param help: for the command line.
    """

    rule: Rule
    help: str


LIMITS = {
    "body_limit_bytes": Limit(BYTES, "answer 413 to a longer request body"),
    "head_timeout_s": Limit(SECONDS, "answer 408 if a request's head takes longer"),
    "body_timeout_s": Limit(
        SECONDS,
        "answer 408 if no byte of a request's body comes for so long, or after it fewer than "
        f"{BODY_BYTES_PER_S:.0f} bytes/s on average",
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

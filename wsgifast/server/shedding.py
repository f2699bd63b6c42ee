"""Refuses requests that have waited too long for a thread: their clients are about to give up.

An overloaded server serves the oldest request first. So each request has waited for nearly as long
as its client waits, and most responses come too late. If it refuses those that have waited too long
at once, the threads work for clients that are still there.
"""

from __future__ import annotations

import time

from ..bodies.access_log import queue_seconds
from ..deadlines import QueueTimeout, QueueTimeouts
from ..sockets.options import last_received
from .channel import Channel
from .shared import Shared


class Shedding:
    """Knows how long requests have waited, and which of them are refused for it."""

    def __init__(self, shared: Shared) -> None:
        self._timeout_s = shared.options.queue_timeout_s
        self._shared = shared
        self._timeouts = QueueTimeouts("a thread")

    def is_overdue(self, channel: Channel) -> bool:
        """Return whether a request has waited longer than queue_timeout_s.

        The wait starts at the request's last byte, even if that byte waited in the kernel. With an
        X-Request-Start of a trusted proxy, it starts there.
        """
        exchange = channel.exchange
        if exchange is None:  # the client has reset its stream
            return False
        now = time.monotonic()
        queued = exchange.queued
        waited_s = now - queued if queued else 0.0
        start = exchange.fields.get("HTTP_X_REQUEST_START")
        if start is not None and exchange.req.cfg.trusts(exchange.req.peer_addr):
            arrived = time.time() - (now - exchange.started)
            waited_s += queue_seconds(start, arrived) or 0.0
        accepted = channel.connection()
        if isinstance(accepted.peer, tuple):  # TCP
            received = last_received(accepted.sock)
            if received is not None:
                # Not the sum: the proxy's time includes the wait in the kernel.
                waited_s = max(waited_s, received[0])
        return waited_s > self._timeout_s

    def error(self) -> QueueTimeout:
        """Count a request that is refused, and return the error to respond with."""
        self._shared.counters.shed["queue_timeout"] += 1
        return self._timeouts.error(self._timeout_s, self._shared.log.warning)

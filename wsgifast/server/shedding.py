"""Refuse requests that have waited too long for a thread, because their clients will soon give up.

An overloaded server serves the oldest request first. So each request waits until its client is
about to give up, and most responses arrive too late. If the server refuses overdue requests, its
threads can serve requests whose clients still wait.
"""

from __future__ import annotations

import time

from ..bodies.access_log import queue_seconds
from ..deadlines import QueueTimeout, QueueTimeouts
from ..sockets.options import last_received
from .channel import Channel
from .shared import Shared


class Shedding:
    """Decides which requests have waited too long."""

    def __init__(self, shared: Shared) -> None:
        self._timeout_s = shared.options.queue_timeout_s
        self._shared = shared
        self._timeouts = QueueTimeouts("a thread")

    def is_overdue(self, channel: Channel) -> bool:
        """Return whether a request has waited longer than queue_timeout_s.

        The time starts when the kernel has received the request's last byte. With an
        X-Request-Start header of a trusted proxy, the time starts there.
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
                # The two times are not added, because the proxy's time includes the time in the
                # kernel.
                waited_s = max(waited_s, received[0])
        return waited_s > self._timeout_s

    def error(self) -> QueueTimeout:
        """Count a refused request, and return the error to respond with."""
        self._shared.counters.shed["queue_timeout"] += 1
        return self._timeouts.error(self._timeout_s, self._shared.log.warning)

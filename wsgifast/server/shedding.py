"""Refuses requests that have waited too long for a thread: their clients are about to give up.

An overloaded server serves the oldest request first. So each request has waited for nearly as long
as its client waits, and most responses come too late. If it refuses those that have waited too long
at once, the threads work for clients that are still there.
"""

from __future__ import annotations

import math
import socket
import struct
import time

from ..bodies.access_log import queue_seconds
from ..errors import RequestError
from .channel import Channel
from .shared import Shared

# After a warning that requests are refused, none for so long.
_WARN_AGAIN_S = 60.0
# linux/tcp.h: tcpi_last_data_recv, the milliseconds since the last segment with data came.
_LAST_DATA_AT = 52
_TCP_INFO_BYTES = _LAST_DATA_AT + 4


class QueueTimeout(RequestError):
    """A request has waited too long for a thread (RFC 9110 sections 15.6.4 and 10.2.3)."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(503, "The server is busy: try again later")
        self.headers = (("Retry-After", str(max(1, math.ceil(timeout_s)))),)


class Shedding:
    """Knows how long requests have waited, and which of them are refused for it."""

    def __init__(self, shared: Shared) -> None:
        self._timeout_s = shared.options.queue_timeout_s
        self._shared = shared
        self._warned_at = -math.inf
        self._refused = 0

    def is_overdue(self, channel: Channel) -> bool:
        """Return whether a request has waited longer than queue_timeout_s.

        It counts from the request's last byte on, which may have waited in the kernel, or from the
        X-Request-Start of a trusted proxy.
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
            try:
                sock = accepted.sock
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                (silent_ms,) = struct.unpack_from("=I", info, _LAST_DATA_AT)
                # Not added: the proxy's time goes on while a request waits in the kernel.
                waited_s = max(waited_s, silent_ms / 1000)
            except (OSError, AttributeError, struct.error):  # closed, or not Linux
                pass
        return waited_s > self._timeout_s

    def error(self) -> QueueTimeout:
        """Count a request that is refused, and return the error to respond with."""
        shared = self._shared
        shared.counters.shed["queue_timeout"] += 1
        self._refused += 1
        now = time.monotonic()
        if now - self._warned_at >= _WARN_AGAIN_S:
            self._warned_at = now
            count, self._refused = self._refused, 0
            shared.log.warning(
                "Requests have waited longer than queue_timeout_s=%g for a thread: %d refused",
                self._timeout_s,
                count,
            )
        return QueueTimeout(self._timeout_s)

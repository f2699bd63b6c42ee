"""The server's end of one connection, whatever is spoken on it: how it waits, and how it ends."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .app_socket import AppSocket
from .channel import Channel
from .counters import Counters
from .exchange import Exchange
from .options import Options
from .output import OutputQueue
from .output_rules import OutputRules
from .parser import Parser
from .poller import READ, WRITE
from .registry import Registry
from .sending import Sender
from .states import (
    CLOSED,
    GONE,
    HANDSHAKE,
    IDLE,
    LEAVES,
    RUNNING,
    STREAMS,
    TRANSITIONS,
)
from .transport import discard, end_sending

__all__ = ["LINGER_S", "Core", "Endpoint", "Streams"]

# How long a client may send nothing after our last word until it closes the connection. A client
# in the middle of an upload may not look for an answer before its end: so long may it go on, and so
# much of it is read and thrown away (as by nginx's lingering_close, which has no limit of bytes).
LINGER_S = 2.0
_LINGERS_MOST_S = 30.0
_LINGER_BYTES = 1024 * 1024 * 1024
# In one turn, which is to be a short one.
_DISCARD_BYTES = 256 * 1024


class Core(Protocol):
    """What a connection asks of its server."""

    options: Options
    counters: Counters
    output_rules: OutputRules
    registry: Registry[Any]
    log: Any

    def keepalive_s(self) -> float:
        """Seconds that an idle connection may stay."""

    def resume(self, connection: Any) -> object:
        """Have a thread go on with a connection that has something to do already."""

    def refuse(self, channel: Channel, exchange: Exchange | None, error: Exception) -> object:
        """Answer an error, and log it; with the request, if there is one."""

    def on_sent(self, channel: Channel, exchange: Exchange, now: float) -> object:
        """The response to a request has been sent, as far as it ever will be.

        :param now: monotonic.
        """

    def run_soon(self, task: Callable[[], Channel | None]) -> object:
        """Have a thread do something, and run what it returns."""

    def is_ending(self) -> bool:
        """Whether clients should make their next requests elsewhere."""

    def begin_http2(self, connection: Endpoint, parser: Parser) -> Streams:
        """Make what speaks HTTP/2 on a connection that has agreed on it."""


class Streams(Protocol):
    """What speaks HTTP/2 on a connection; its output queue takes the place of the other one."""

    output: OutputQueue

    def begin(self, received: bytes, exchange: Exchange | None) -> Channel | None:
        """Begin, with what has come already, and perhaps with a request that has asked for it."""

    def on_event(self, event: int) -> Channel | None:
        """As :meth:`Endpoint.on_event`."""

    def on_overdue(self) -> None:
        """As :meth:`Endpoint.on_overdue`."""

    def retry(self) -> None:
        """As :meth:`Endpoint.retry`."""

    def let_go(self) -> bool:
        """The connection is to be closed: whether that can be now, since no app runs on it."""

    def is_sending(self) -> bool:
        """Whether something is on its way, and no app has to run for it."""

    def owes_goaway(self) -> bool:
        """Whether the client does not know yet that the server ends."""

    def channels(self) -> Sequence[Channel]:
        """The streams that are open; any thread may ask."""


class Endpoint:
    """An accepted socket, its output, and its state; who owns it is told of in connection.py.

    :ivar app_socket: see :class:`~.channel.Channel`, as for `proxy`.
    :ivar streams: what speaks HTTP/2 here, once that is agreed on.

    For `deadline`, `known`, `watched` and `retries` see :class:`~.registry.Waiting`.
    """

    __slots__ = (
        "_core",
        "_left_to_discard",
        "_lingers_until",
        "_tls",
        "address",
        "app_socket",
        "deadline",
        "fd",
        "known",
        "output",
        "peer",
        "proxy",
        "retries",
        "sock",
        "state",
        "streams",
        "watched",
    )

    def __init__(self, core: Core, sock: socket.socket, peer: Any, address: Any) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.address = address
        self.app_socket: AppSocket | None = None
        self.proxy: dict[str, Any] | None = None
        self.streams: Streams | None = None
        self.known = False
        self.watched = False
        self.retries = False
        self.deadline = time.monotonic() + core.options.head_timeout_s
        rules = core.output_rules
        self.output = OutputQueue(Sender(sock, rules), self, rules)
        self._core = core
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self.state = IDLE if self._tls is None else HANDSHAKE

    def begin(self) -> None:
        """Wait for the first event."""
        self.wait_for_more()

    def move(self, event: str) -> None:
        """Go on to the state that an event leads to."""
        self.state = TRANSITIONS[self.state][event]

    # Waiting

    def wait(self, events: int) -> None:
        """Give the connection up until an event; nothing of it may be touched afterwards."""
        try:
            self._core.registry.wait(self, events)
        except (OSError, ValueError) as error:
            self._cannot_wait(error)

    def wait_for_more(self) -> None:
        """As :meth:`wait`, until there is more to read; all that has come has been read.

        TLS reads from the socket by its records, not to its end.
        """
        if self._tls is not None:
            self.wait(READ)
            return
        try:
            self._core.registry.wait_for_more(self)
        except (OSError, ValueError) as error:
            self._cannot_wait(error)

    def _cannot_wait(self, error: Exception) -> None:
        self.output.fail(error)
        if self.state is not RUNNING:
            self.close()

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """Have the output queue go on when the socket is writable; see OutputOwner."""
        self.deadline = deadline
        self.retries = retry
        self._core.registry.wait(self, 0 if retry else WRITE)

    def resume_sending(self) -> None:
        """Have the output queue go on soon; see OutputOwner."""
        self._core.resume(self)

    def retry(self) -> None:
        """Wait for writability after all; the sweep owns it."""
        self.retries = False
        if self.streams is not None and self.state is STREAMS:
            self.streams.retry()
        else:
            self.wait(WRITE)

    def has_more_in_tls(self) -> bool:
        """Whether TLS has decrypted more than was received: no event would tell of it."""
        return self._tls is not None and self._tls.pending() > 0

    # Ends

    def leave(self) -> None:
        """Say goodbye, and let the client read all of it before the kernel may reset it.

        Closing a socket with unread data sends a reset, which may destroy the response on its way
        (RFC 9112 section 9.6).
        """
        if self.output.error is not None:
            self.close()
            return
        try:
            end_sending(self.sock)
        except (OSError, ValueError):
            self.close()
            return
        self.move(LEAVES)
        now = time.monotonic()
        self.deadline = now + LINGER_S
        self._lingers_until = now + _LINGERS_MOST_S
        self._left_to_discard = _LINGER_BYTES
        self._discard(READ)

    def _discard(self, events: int) -> None:
        size = discard(self.sock, _DISCARD_BYTES)
        if size is None or size >= self._left_to_discard:
            self.close()
            return
        if size and not self._core.is_ending():
            self._left_to_discard -= size
            self.deadline = min(time.monotonic() + LINGER_S, self._lingers_until)
        self.wait(READ)

    def close(self) -> None:
        """Close at once; only for the owner, and never while the app runs."""
        if self.state is CLOSED:
            return
        if self.streams is not None and not self.streams.let_go():
            return  # the last of its apps closes it
        self.move(GONE)
        registry = self._core.registry
        self._drop_request()
        self.output.close()
        self.app_socket = None
        registry.forget(self)
        try:
            self.sock.close()
        except OSError:
            pass
        registry.remove(self)

    def _drop_request(self) -> None:
        """Give up what has not come whole."""

"""An accepted socket: how a connection waits and ends, whichever version of HTTP it speaks."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ClientGone
from ..sockets.closing import Lingering
from .app_socket import AppSocket
from .channel import Channel
from .counters import Counters
from .exchange import Exchange
from .limits import Budget
from .options import HTTP2Options, Options
from .output import OutputQueue
from .output_rules import OutputRules
from .parser import Parser
from .poller import READ, WOULD_BLOCK, WRITE
from .registry import Registry
from .states import CLOSED, GONE, HANDSHAKE, IDLE, LEAVES, RUNNING, SKIPPING, TRANSITIONS

if TYPE_CHECKING:
    from .pool import Close

# Bytes discarded in one turn.
_DISCARD_BYTES = 256 * 1024


class Core(Protocol):
    """What a connection needs of its server.

    :ivar bodies_on_disk: counts request bodies in temporary files.
    :ivar http2: the settings sent to HTTP/2 clients.
    """

    options: Options
    counters: Counters
    output_rules: OutputRules
    bodies_on_disk: Budget
    http2: HTTP2Options
    registry: Registry[Any]
    log: Any

    def keepalive_s(self) -> float:
        """How long an idle connection is kept open."""

    def resume(self, connection: Any) -> object:
        """Have a thread of the pool call :meth:`Connection.on_event` without an event."""

    def refuse(self, channel: Channel, exchange: Exchange | None, error: Exception) -> object:
        """Answer an error, and log it, with the request if there is one."""

    def on_sent(
        self, channel: Channel, exchange: Exchange, now: float, error: BaseException | None
    ) -> object:
        """The response to a request has been sent, or never will be.

        :param now: monotonic.
        :param error: what ended it, if it was not sent whole.
        """

    def postpone(self, close: Callable[[], object], req: Any) -> Close:
        """Have this thread call the close() of a body, once :meth:`make_due` is called.

        :param req: the request, for the log.
        """

    def make_due(self, close: Close) -> object:
        """The last byte of a body has been sent, or never will be; never calls close() itself."""

    def run_soon(self, task: Callable[[], Channel | None]) -> object:
        """Have a thread of the pool call something, and run the app of what it returns."""

    def wait_for_disk(self, connection: Any, step: Callable[[], Channel | None]) -> bool:
        """Have a disk thread take a step that may write to a temporary file; False if it cannot.

        It owns the connection until then; if the step returns something, its app is run as usual.
        """

    def on_handshake_end(self, connection: Any) -> None:
        """A TLS handshake has succeeded or failed, or its connection is about to be closed."""

    def is_ending(self) -> bool:
        """Whether clients should make their next requests elsewhere."""

    def begin_http2(
        self, connection: Endpoint, parser: Parser, received: bytes, exchange: Exchange | None
    ) -> Channel | None:
        """Go on with HTTP/2 on the socket of a connection; its owner lets go of the old object.

        :param parser: for the requests of its client.
        :param received: what the client has sent already.
        :param exchange: the request that has asked for the upgrade.
        """


class Endpoint:
    """An accepted socket, its output queue and its state; connection.py says who owns it.

    For `deadline`, `known` and `retries` see :class:`~.registry.Waiting`; for
    `app_socket` and `proxy`, :class:`~.app_socket.Owner`.

    :param state: the first one.
    """

    __slots__ = (
        "_core", "_lingering", "_tls", "address", "app_socket", "deadline", "fd", "known", "output",
        "peer", "proxy", "retries", "sock", "state",
    )  # fmt: skip

    output: OutputQueue

    def __init__(
        self, core: Core, sock: socket.socket, peer: Any, address: Any, state: str
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.address = address
        self.app_socket: AppSocket | None = None
        self.proxy: dict[str, Any] | None = None
        self.known = False
        self.retries = False
        self.deadline = time.monotonic() + core.options.head_timeout_s
        self._core = core
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self.state = state

    def move(self, event: str) -> None:
        """Change to the state that an event leads to."""
        self.state = TRANSITIONS[self.state][event]

    # What each version of HTTP does in its own way

    def on_event(self, events: int) -> Channel | None:
        """Handle an event; the caller owns the connection.

        :param events: 0 to go on without one.
        :returns: what runs an app, if one is to run: the connection, or one of its streams.
        """
        raise NotImplementedError

    def on_overdue(self) -> None:
        """End what is overdue; called by the sweep, which owns the connection."""
        raise NotImplementedError

    def hijack(self) -> socket.socket:
        """Hand the socket to the app.

        :raises OSError: if other streams use it too.
        """
        raise NotImplementedError

    def channels(self) -> Sequence[Channel]:
        """Return what has, or gets, requests; for any thread."""
        raise NotImplementedError

    def is_sending(self) -> bool:
        """Whether a response is being sent whose app has returned."""
        raise NotImplementedError

    def is_idle(self) -> bool:
        """Whether it is before a request of HTTP/1, or in its TLS handshake."""
        return self.state is IDLE or self.state is SKIPPING or self.state is HANDSHAKE

    def owes_goaway(self) -> bool:
        """Whether it speaks HTTP/2 and its client has not been told that the server ends."""
        return False

    def _let_go(self) -> bool:
        """Drop all requests, before the socket is closed; False if that must wait for an app."""
        raise NotImplementedError

    # Waiting; for the output queue, see :class:`~.send_queue.OutputOwner`

    def begin(self) -> None:
        """Wait for the first event."""
        self.wait(READ)

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        self.deadline = deadline
        self.retries = retry
        self._core.registry.wait(self, 0 if retry else WRITE)

    def resume_sending(self) -> None:
        self._core.resume(self)

    def retry(self) -> None:
        """Wait for the socket after all; called by the sweep, which owns the connection."""
        self.retries = False
        self.wait(WRITE)

    def wait(self, events: int) -> None:
        """Give the connection up until an event; the caller must not touch it afterwards."""
        try:
            self._core.registry.wait(self, events)
        except (OSError, ValueError) as error:
            self._cannot_wait(error)

    def _cannot_wait(self, error: Exception) -> None:
        self.output.fail(error)
        if self.state is not RUNNING:
            self.close()

    def has_unread(self) -> bool:
        """Whether the socket has unread data, or is at its end; encrypted data with TLS."""
        try:
            return bool(socket.socket.recv(self.sock, 1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return False

    def has_more_in_tls(self) -> bool:
        """Whether TLS holds decrypted bytes, which no event would report."""
        return self._tls is not None and self._tls.pending() > 0

    # Ends

    def cut_off(self) -> None:
        """Give the client up; for any thread. The owner, or the next event, ends the connection."""
        self.output.fail(ClientGone("the server ends"))
        with contextlib.suppress(OSError):
            # Not SSLSocket's: another thread may use its TLS object.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def leave(self) -> None:
        """End the connection so that the client can read the whole response.

        Only the sending side is shut down, and what the client still sends is discarded until it
        closes: see :mod:`~wsgifast.sockets.closing`.
        """
        if self.output.error is not None:
            self.close()
            return
        try:
            self.sock.setblocking(False)
            if self._tls is not None:
                # It sends close_notify (RFC 8446 section 6.1); the client's is not waited for.
                with contextlib.suppress(OSError, ValueError):
                    self._tls.unwrap()
            self.sock.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            self.close()
            return
        self.move(LEAVES)
        self._lingering = Lingering(time.monotonic())
        self.deadline = self._lingering.deadline
        self._discard(READ)

    def _discard(self, events: int) -> None:
        try:
            size = len(socket.socket.recv(self.sock, _DISCARD_BYTES))  # without decrypting it
            if not self._lingering.goes_on(size, time.monotonic()):
                self.close()
                return
            if not self._core.is_ending():
                self.deadline = self._lingering.deadline
        except WOULD_BLOCK:
            pass
        except (OSError, ValueError):
            self.close()
            return
        self.wait(READ)

    def close(self) -> None:
        """Close at once; for the owner only, and never while the app runs."""
        if self.state is CLOSED:
            return
        if not self._let_go():
            return  # the thread of its last app closes it
        self.move(GONE)
        registry = self._core.registry
        self.output.close()
        self.app_socket = None
        registry.forget(self)
        try:
            self.sock.close()
        except OSError:
            pass
        registry.remove(self)

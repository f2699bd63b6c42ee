"""An accepted socket: its states, how it waits and how it ends, whatever HTTP it speaks.

Theory of operation
-------------------
A waiting connection is *published* in the registry under its descriptor and *armed* in the poller.
Either an event (:meth:`Registry.claim`) or the sweep (:meth:`Registry.sweep`) claims it, never
both. The thread that claims it owns it: no other thread touches it until it waits again or is
closed.

    owned --wait--> published and armed --event--> owned by the event's thread
                                        --sweep--> owned by the sweep's thread

Publishing comes first, because the event may arrive as soon as the descriptor is armed. But nobody
may claim the connection between the two steps: the sweep could close it, the kernel could reuse the
descriptor's number for a new connection, and the owner would then arm that one. So both steps
happen under one lock, which the sweep takes for each claim. An event needs no lock: it proves that
the connection is armed.

The sweep may claim a connection just before its event does. The event then finds no connection, and
is not lost: when the connection waits again it is armed, and the poller reports the event again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..errors import ClientGone
from ..sockets.closing import Lingering
from .poller import READ, WOULD_BLOCK, WRITE

if TYPE_CHECKING:
    from .application import AppSocket
    from .connection import Channel
    from .output import OutputQueue
    from .server import Server

# The states, and those that may follow; CLOSED follows every other one.
#
#     HANDSHAKE: IDLE, LINGERING                   SENDING: IDLE, SKIPPING, LINGERING
#     IDLE: RECEIVING, RUNNING, SENDING, STREAMS   SKIPPING: IDLE, LINGERING
#     RECEIVING: RUNNING, SENDING, STREAMS         STREAMS: LINGERING
#     RUNNING: SENDING, IDLE, SKIPPING, LINGERING
#
# Only the connection's owner changes its state. The metrics have the same names.
HANDSHAKE: Final = "handshake"  # TLS handshake
IDLE: Final = "idle"  # nothing of the next request has been received
RECEIVING: Final = "receiving"  # a part of a request has been received
RUNNING: Final = "running"  # the app runs, or waits for a thread
SENDING: Final = "sending"  # the app has returned, or was not called; the output queue has more
SKIPPING: Final = "body"  # all is sent; the rest of a body arrives that the app has not read
STREAMS: Final = "http2"  # HTTP/2 (http2/connection.py), whose streams have states of their own
LINGERING: Final = "closing"  # all is sent; the client closes first (RFC 9112 section 9.6)
CLOSED: Final = "closed"

# Bytes discarded in one turn.
_DISCARD_BYTES = 256 * 1024


class Registry:
    """Keeps a worker's connections; thread-safe."""

    def __init__(self, server: Server) -> None:
        self.connections: set[Endpoint] = set()
        self._server = server
        self._poller = server.poller
        self.log = server.log
        self.waiting: dict[int, Endpoint] = {}
        self._lock = threading.Lock()

    # Called by the owner of a connection.

    def wait(self, connection: Endpoint, events: int) -> None:
        """Give a connection up until an event; the caller must not touch it afterwards.

        :param events: as for :meth:`Poller.arm`.
        :raises OSError, ValueError: if the kernel cannot wait for the descriptor; the caller still
            owns the connection then.
        """
        arm = self._poller.arm if connection.known else self._poller.add
        connection.known = True
        fd = connection.fd
        other = self.waiting.get(fd)
        if other is not None and other is not connection:
            # The app of one of them has taken the socket over, and closed it.
            if connection.sock.fileno() != fd:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if self.claim(other):
                # Not here: the caller may have the lock of its own output.
                end = partial(self.attempt, other, other.on_overdue)
                self._server.pool.defer(end)
        with self._lock:
            self.waiting[fd] = connection
            try:
                arm(fd, events)
            except (OSError, ValueError) as error:
                # None: an event has claimed it even so.
                if self.waiting.pop(fd, None) is connection:
                    self.log.warning("cannot wait for a connection: %s", error)
                    raise

    def change(self, connection: Endpoint, events: int) -> None:
        """Change the events that a connection waits for, if it waits; for any thread.

        An event that is under way already may then be reported twice: the new owner must cope with
        finding nothing to do.

        :raises OSError, ValueError: as :meth:`wait`.
        """
        with self._lock:
            if self.waiting.get(connection.fd) is connection:
                self._poller.arm(connection.fd, events)

    def claim(self, connection: Endpoint, *, overdue_at: float | None = None) -> bool:
        """Become the owner of a connection without an event, or before it is closed.

        :param overdue_at: only if its deadline is before that, or it retries.
        :returns: False if it does not wait.
        """
        fd = connection.fd
        with self._lock:
            if self.waiting.get(fd) is not connection:
                return False
            if overdue_at is not None and not (
                connection.deadline < overdue_at or connection.retries
            ):
                return False
            # None: its event has come in between. No other connection can: that needs the lock.
            return self.waiting.pop(fd, None) is not None

    def replace(self, connection: Endpoint, other: Endpoint) -> None:
        """Another object goes on with the socket of a connection."""
        self.connections.add(other)
        self.connections.discard(connection)

    def remove(self, connection: Endpoint) -> None:
        """A connection has closed its descriptor."""
        self.connections.discard(connection)
        self._server.on_closed(connection)

    # Called by the threads of the pool.

    def sweep(self, now: float) -> None:
        """Claim the connections that are overdue, and have them end.

        :param now: the monotonic clock, in seconds.
        """
        for connection in list(self.waiting.values()):
            if not (connection.deadline < now or connection.retries):
                continue
            # An event may have been handled in between.
            if not self.claim(connection, overdue_at=now):
                continue
            if connection.deadline < now:
                self.attempt(connection, connection.on_overdue)
            else:
                self.attempt(connection, connection.retry)

    def cap_deadlines(self, deadline: float, applies: Callable[[Endpoint], bool]) -> None:
        """Have the waiting connections for which `applies` is true end by `deadline`."""
        for connection in list(self.waiting.values()):
            if applies(connection):
                connection.deadline = min(connection.deadline, deadline)

    def attempt(self, connection: Endpoint, step: Callable[[], Channel | None]) -> Channel | None:
        """Have the owner of a connection take a step; an error in it is logged, and closes it."""
        try:
            return step()
        except Exception:
            self.log.exception("Error in a connection")
            connection.close()
            return None


class Endpoint:
    """An accepted socket, its output queue and its state; connection.py describes who owns it.

    :param peer: the client's address as accept() returned it.
    :param address: the listener's.
    :param state: the first one.
    :ivar deadline: when the sweep claims it; monotonic, in seconds.
    :ivar known: whether the poller knows its descriptor.
    :ivar retries: whether the next sweep claims it in any case.
    :ivar app_socket: `gunicorn.socket` for its apps; None until it is made.
    :ivar hijacked: whether the app has taken the socket over.
    :ivar proxy: environ keys from its PROXY header.
    """

    __slots__ = (
        "_lingering", "_tls", "address", "app_socket", "core", "deadline", "fd", "known", "output",
        "peer", "proxy", "retries", "sock", "state",
    )  # fmt: skip

    output: OutputQueue
    hijacked = False

    def __init__(
        self, core: Server, sock: socket.socket, peer: Any, address: Any, state: str
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
        self.core = core
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self.state = state

    # What each version of HTTP does in its own way

    @property
    def receives_body(self) -> bool:
        """Whether the head of a request is complete, and its body is not."""
        return False

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
        """Whether it speaks HTTP/2 and its client has got no GOAWAY from a server that ends."""
        return False

    def _let_go(self) -> bool:
        """Drop all requests, before the socket is closed; False if that must wait for an app."""
        raise NotImplementedError

    # Waiting

    def begin(self) -> None:
        """Wait for the first event."""
        self.wait(READ)

    def wait_to_send(self, deadline: float, *, retry: bool) -> None:
        """Have :meth:`.OutputQueue.on_writable` called once the socket is writable.

        :param deadline: when to give up on the client; monotonic.
        :param retry: have it called some time later instead, writable or not.
        :raises OSError, ValueError: if the kernel cannot watch the socket; it ends the queue.
        """
        self.deadline = deadline
        self.retries = retry
        self.core.registry.wait(self, 0 if retry else WRITE)

    def resume_sending(self) -> None:
        """Have :meth:`.OutputQueue.on_writable` called soon."""
        self.core.resume(self)

    def retry(self) -> None:
        """Wait for the socket after all; called by the sweep, which owns the connection."""
        self.retries = False
        self.wait(WRITE)

    def wait(self, events: int) -> None:
        """Give the connection up until an event; the caller must not touch it afterwards."""
        try:
            self.core.registry.wait(self, events)
        except (OSError, ValueError) as error:
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

    def linger(self) -> None:
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
        self.state = LINGERING
        self._lingering = Lingering(time.monotonic())
        self.deadline = self._lingering.deadline
        self._discard(READ)

    def _discard(self, events: int) -> None:
        try:
            size = len(socket.socket.recv(self.sock, _DISCARD_BYTES))  # without decrypting it
            if not self._lingering.goes_on(size, time.monotonic()):
                self.close()
                return
            if not self.core.is_ending:
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
        self.state = CLOSED
        registry = self.core.registry
        self.output.close()
        self.app_socket = None
        registry.claim(self)
        try:
            self.sock.close()
        except OSError:
            pass
        registry.remove(self)

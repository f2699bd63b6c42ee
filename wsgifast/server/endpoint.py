"""An accepted socket: its states, how it waits and how it ends, in every version of HTTP.

Theory of operation
-------------------
A waiting connection is *published* in the registry under its descriptor and *armed* in the poller.
Either an event (:meth:`.Server.receive`) or the sweep (:meth:`Registry.sweep`) claims it, never
both. The thread that claims it owns it: no other thread touches it until it waits again or is
closed.

    owned --wait--> published and armed --event--> owned by the event's thread
                                        --sweep--> owned by the sweep's thread

Publishing comes first, because the event may arrive as soon as the descriptor is armed. No thread
may claim the connection between the two steps. The sweep could close it, the kernel could reuse the
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
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import ClientGone
from ..sockets.closing import Lingering
from .channel import (
    CLOSED,
    HANDSHAKE,
    IDLE,
    LINGERING,
    RUNNING,
    SKIPPING,
    AcceptedSocket,
    Channel,
)
from .output import OutputQueue
from .poller import READ, WOULD_BLOCK, WRITE, Poller
from .receiving import Exchange
from .sending import Owner
from .shared import Shared

# A step of a connection's owner. It returns a channel that is ready to run its app, or None.
Step = Callable[[], Channel | None]

# Bytes discarded in one turn.
_DISCARD_BYTES = 256 * 1024


class Registry:
    """Keeps a worker's connections. Thread-safe.

    :param defer: has a thread of the pool take a step, see :meth:`.Pool.defer`.
    :param push_first: the same before all other work, see :meth:`.Pool.push_first`.
    :param submit: has a disk thread run a function, see :meth:`.DiskThreads.submit_temporary`.
    :param on_closed: called when a connection has closed its descriptor.
    :ivar connections: the open ones.
    :ivar waiting: those that wait for an event, by their descriptors.
    """

    def __init__(
        self,
        shared: Shared,
        poller: Poller,
        *,
        defer: Callable[[Step], object],
        push_first: Callable[[Step], object],
        submit: Callable[[Callable[[], object]], object],
        on_closed: Callable[[Endpoint], object],
    ) -> None:
        self.connections: set[Endpoint] = set()
        self.shared = shared
        self.log = shared.log
        self._poller = poller
        self.defer, self.push_first, self._submit = defer, push_first, submit
        self._on_closed = on_closed
        self.waiting: dict[int, Endpoint] = {}
        self._lock = threading.Lock()

    # Called by the owner of a connection.

    def wait(self, connection: Endpoint, events: int) -> None:
        """Give a connection up until an event. The caller must not touch it afterwards.

        :param events: as for :meth:`Poller.arm`.
        :raises OSError, ValueError: if the kernel cannot wait for the descriptor. The caller then
            still owns the connection.
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
                self.defer(end)
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
        """Change the events that a connection waits for, if it waits. For any thread.

        An event that is under way already may then be reported twice: the new owner must cope with
        finding nothing to do.

        :raises OSError, ValueError: as :meth:`wait`.
        """
        with self._lock:
            if self.waiting.get(connection.fd) is connection:
                self._poller.arm(connection.fd, events)

    def claim(self, connection: Endpoint, *, overdue_at: float | None = None) -> bool:
        """Become the owner of a connection without an event, or before it is closed.

        :param overdue_at: only if its deadline is before that, or it waits_for_memory.
        :returns: False if it does not wait.
        """
        fd = connection.fd
        with self._lock:
            if self.waiting.get(fd) is not connection:
                return False
            if overdue_at is not None and not (
                connection.deadline < overdue_at or connection.waits_for_memory
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
        self._on_closed(connection)

    # Called by the threads of the pool.

    def sweep(self, now: float) -> None:
        """Claim the connections that are overdue, and have them end.

        :param now: the monotonic clock, in seconds.
        """
        for connection in list(self.waiting.values()):
            if not (connection.deadline < now or connection.waits_for_memory):
                continue
            # An event may have been handled in between.
            if not self.claim(connection, overdue_at=now):
                continue
            if connection.deadline < now:
                self.attempt(connection, connection.on_overdue)
            else:
                self.attempt(connection, connection.end_memory_wait)

    def cap_deadlines(self, deadline: float, applies: Callable[[Endpoint], bool]) -> None:
        """Have the waiting connections for which `applies` is true end by `deadline`."""
        for connection in list(self.waiting.values()):
            if applies(connection):
                connection.deadline = min(connection.deadline, deadline)

    def attempt(self, connection: Endpoint, step: Step) -> Channel | None:
        """Have the owner of a connection take a step. An error is logged, and closes it."""
        try:
            return step()
        except Exception:
            self.log.exception("Error in a connection")
            connection.close()
            return None

    def resume(self, connection: Endpoint) -> None:
        """Have a thread of the pool call :meth:`Endpoint.on_event` without an event."""
        self.defer(partial(self.attempt, connection, partial(connection.on_event, 0)))

    def wait_for_disk(self, connection: Endpoint, step: Step) -> bool:
        """Have a disk thread take a step that may write to a temporary file.

        It owns the connection until then. If the step returns a channel, its app is run as usual.

        :returns: False if there is no such thread.
        """

        def job() -> None:
            ready = self.attempt(connection, step)
            if ready is not None:
                self.defer(lambda: ready)

        try:
            self._submit(job)
        except OSError:
            return False
        return True


class Endpoint(AcceptedSocket, Owner):
    """An accepted socket, its output queue and its state. connection.py describes who owns it.

    :param peer: the client's address as accept() returned it.
    :param address: the listener's.
    :param state: the first one.
    :ivar deadline: when the sweep claims it, on the monotonic clock in seconds.
    :ivar known: whether the poller knows its descriptor.
    :ivar waits_for_memory: whether the next sweep claims it in any case.
    """

    __slots__ = (
        "_lingering",
        "_tls",
        "deadline",
        "fd",
        "known",
        "output",
        "registry",
        "shared",
        "state",
        "waits_for_memory",
    )  # fmt: skip

    output: OutputQueue

    def __init__(
        self, registry: Registry, sock: socket.socket, peer: Any, address: Any, state: str
    ) -> None:
        super().__init__(sock, peer, address)
        self.shared = shared = registry.shared
        self.registry = registry
        self.fd = sock.fileno()
        self.known = False
        self.waits_for_memory = False
        self.deadline = time.monotonic() + shared.options.head_timeout_s
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self.state = state

    # The methods that differ between the versions of HTTP

    @property
    def receives_body(self) -> bool:
        """Return whether the headers of a request are complete, and its body is not."""
        return False

    @abstractmethod
    def on_event(self, events: int) -> Channel | None:
        """Handle an event. The caller owns the connection.

        :param events: 0 to go on without one.
        :returns: the connection, or one of its streams, if it is ready to run its app.
        """

    @abstractmethod
    def on_overdue(self) -> None:
        """End an overdue connection or stream. Called by the sweep, which owns the connection."""

    @abstractmethod
    def outputs(self) -> list[tuple[OutputQueue, Exchange | None]]:
        """Return all output queues, each with the exchange that it is for. For any thread."""

    @abstractmethod
    def is_sending(self) -> bool:
        """Return whether a response is being sent after its app has returned."""

    def is_idle(self) -> bool:
        """Return whether it is before a request of HTTP/1, or in its TLS handshake."""
        return self.state is IDLE or self.state is SKIPPING or self.state is HANDSHAKE

    def needs_goaway(self) -> bool:
        """Whether it speaks HTTP/2 and its client has got no GOAWAY from a server that ends."""
        return False

    @abstractmethod
    def _drop_requests(self) -> bool:
        """Drop all requests before the socket is closed. Return False if an app still runs."""

    # Waiting

    def begin(self) -> None:
        """Wait for the first event."""
        self.wait(READ)

    def wait_to_send(self, deadline: float, *, no_memory: bool) -> None:
        self.deadline = deadline
        self.waits_for_memory = no_memory
        self.registry.wait(self, 0 if no_memory else WRITE)

    def resume_sending(self) -> None:
        self.registry.resume(self)

    def end_memory_wait(self) -> None:
        """Wait for the socket after all. Called by the sweep, which owns the connection."""
        self.waits_for_memory = False
        self.wait(WRITE)

    def wait(self, events: int) -> None:
        """Give the connection up until an event. The caller must not touch it afterwards."""
        try:
            self.registry.wait(self, events)
        except (OSError, ValueError) as error:
            self.output.fail(error)
            if self.state is not RUNNING:
                self.close()

    def has_unread(self) -> bool:
        """Return whether the socket has unread (perhaps encrypted) data."""
        try:
            return bool(socket.socket.recv(self.sock, 1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return False

    def has_more_in_tls(self) -> bool:
        """Return whether TLS holds decrypted bytes, which no event would report."""
        return self._tls is not None and self._tls.pending() > 0

    # Ends

    def cut_off(self) -> None:
        """Give the client up. The owner, or the next event, ends the connection. For any thread."""
        self.output.fail(ClientGone("the server ends"))
        with contextlib.suppress(OSError):
            # Not SSLSocket's: another thread may use its TLS object.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def linger(self) -> None:
        """End the connection so that the client can read the whole response.

        Only the sending side is shut down. Further bytes of the client are discarded until it
        closes: see :mod:`~wsgifast.sockets.closing`.
        """
        if self.output.error is not None:
            self.close()
            return
        try:
            self.sock.setblocking(False)
            if self._tls is not None:
                # It sends close_notify (RFC 8446 section 6.1), and does not wait for the client's.
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
            if not self._lingering.should_continue(size, time.monotonic()):
                self.close()
                return
            if not self.shared.is_ending:
                self.deadline = self._lingering.deadline
        except WOULD_BLOCK:
            pass
        except (OSError, ValueError):
            self.close()
            return
        self.wait(READ)

    def close(self) -> None:
        """Close at once. For the owner only, and never while the app runs."""
        if self.state is CLOSED:
            return
        if not self._drop_requests():
            return  # the thread of its last app closes it
        self.state = CLOSED
        self.output.close()
        self.app_socket = None
        self.registry.claim(self)
        try:
            self.sock.close()
        except OSError:
            pass
        self.registry.remove(self)

"""An accepted socket: its state, how it waits, and how it is closed, for all versions of HTTP.

Theory of operation
-------------------
A waiting connection is *published*, which means that the registry contains it under its descriptor.
The descriptor is *armed* in the poller, which will report one event of it. Either an event
(:meth:`.Server.receive`) or the sweep (:meth:`Registry.sweep`) claims the connection. The thread
that claims the connection owns it. No other thread uses the connection until it waits again or is
closed.

    owned --wait--> published and armed --event--> owned by the event's thread
                                        --sweep--> owned by the sweep's thread

A connection is published first, because the event may arrive as soon as the descriptor is armed.
The sweep must not claim the connection between the two steps. Otherwise the sweep could close it,
the kernel could reuse the descriptor's number, and the owner would arm a new connection's
descriptor. So both steps happen under one lock. The sweep acquires this lock for each claim. The
thread of an event needs no lock, because the event proves that both steps are done.

The sweep may claim a connection just before its event is handled. Then the event's thread finds no
connection. The event is not lost, because the poller reports it again when the connection waits
again.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import ssl
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ..errors import ClientGone
from ..sockets.closing import Lingering
from .output import OutputQueue
from .poller import READ, WOULD_BLOCK, WRITE, Poller
from .pool import Job, Task
from .receiving import Exchange, Parser
from .sending import Owner
from .shared import Shared

# The states of a connection, and their possible next states. Any state can change to CLOSED.
#
#     HANDSHAKE: IDLE, LINGERING                            SENDING: IDLE, SKIPPING, LINGERING
#     IDLE: RECEIVING_HEAD, RUNNING, SENDING, STREAMS       SKIPPING: IDLE, LINGERING
#     RECEIVING_HEAD: RECEIVING, RUNNING, SENDING, STREAMS  STREAMS: LINGERING
#     RECEIVING: RUNNING, SENDING                           RUNNING: SENDING, IDLE, SKIPPING,
#                                                               LINGERING
#
# Only the connection's owner changes its state. Metrics use the names of the states as labels. A
# stream has some of these states too (http2/stream.py).
HANDSHAKE: Final = "handshake"  # TLS handshake
IDLE: Final = "idle"  # no byte of the next request has been received
RECEIVING_HEAD: Final = "head"  # a part of the headers of a request has been received
RECEIVING: Final = "body"  # the headers have been received, and a part of the body is missing
RUNNING: Final = "running"  # the app runs, or the request waits for a thread
SENDING: Final = "sending"  # the app is not running, and the output queue is not empty
SKIPPING: Final = "unread body"  # the response was sent, and the unread body is being discarded
STREAMS: Final = "http2"  # HTTP/2 (http2/connection.py). Streams have their own states
LINGERING: Final = "closing"  # waits until the client closes (RFC 9112 section 9.6)
CLOSED: Final = "closed"

# The maximum number of bytes that a lingering connection discards in one step.
_DISCARD_BYTES = 256 * 1024


@dataclass(eq=False, repr=False, kw_only=True)
class Registry:
    """The connections of a worker. It is thread-safe.

    :param defer: makes a thread of the pool run a step, see :meth:`.Pool.defer`.
    :param push_first: makes a thread run a step before other work, see :meth:`.Pool.push`.
    :param submit: makes a disk thread run a function, see :meth:`.DiskThreads.submit_temporary`.
    :param on_closed: called after a connection has closed its descriptor.
    :param on_handshake_end: called when a TLS handshake succeeds or fails.
    :param begin_http2: replaces a connection by an HTTP/2 connection. Its arguments are the
        connection, its parser and the received bytes. It returns a channel whose app is ready to
        run, or None.
    :ivar connections: the open connections.
    :ivar waiting: the connections that wait for an event, by descriptor.
    """

    shared: Shared
    poller: Poller
    defer: Callable[[Task], object]
    push_first: Callable[[Task], object]
    submit: Callable[[Callable[[], object]], object]
    on_closed: Callable[[Endpoint], object]
    on_handshake_end: Callable[[Endpoint], object]
    begin_http2: Callable[[Endpoint, Parser, bytes], Job | None]
    connections: set[Endpoint] = field(default_factory=set)
    waiting: dict[int, Endpoint] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # The owner of a connection calls these methods.

    def wait(self, connection: Endpoint, events: int, *, is_new: bool = False) -> None:
        """Let a connection wait for an event. The caller must not use it afterwards.

        :param events: see :meth:`Poller.arm`.
        :param is_new: whether the poller does not know the descriptor yet.
        :raises OSError, ValueError: if the kernel cannot watch the descriptor. The caller then
            still owns the connection.
        """
        arm = self.poller.add if is_new else self.poller.arm
        fd = connection.fd
        other = self.waiting.get(fd)
        if other is not None and other is not connection:
            # Two connections have the same descriptor number, because an app took over one socket
            # and closed it.
            if connection.sock.fileno() != fd:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if self.claim(other):
                # This is deferred, because the caller may have acquired the lock of its own output.
                end = partial(self.attempt, other, other.on_overdue)
                self.defer(end)
        with self._lock:
            self.waiting[fd] = connection
            try:
                arm(fd, events)
            except (OSError, ValueError) as error:
                # If the connection is missing, an event has claimed it in spite of the error.
                if self.waiting.pop(fd, None) is connection:
                    self.shared.log.warning("cannot wait for a connection: %s", error)
                    raise

    def change(self, connection: Endpoint, events: int) -> None:
        """Change the events of a connection, if it waits. Any thread may call this.

        If an event is being reported at this time, it may be reported twice. So the owner must
        handle an event without data.

        :raises OSError, ValueError: see :meth:`wait`.
        """
        with self._lock:
            if self.waiting.get(connection.fd) is connection:
                self.poller.arm(connection.fd, events)

    def claim(self, connection: Endpoint, *, overdue_at: float | None = None) -> bool:
        """Make the caller the owner of a waiting connection, without an event.

        :param overdue_at: a monotonic time. The connection is then claimed only if its deadline is
            earlier.
        :returns: False if the connection does not wait.
        """
        fd = connection.fd
        with self._lock:
            if self.waiting.get(fd) is not connection:
                return False
            if overdue_at is not None and connection.deadline >= overdue_at:
                return False
            # None means that an event has claimed the connection. No other connection can have
            # replaced it, because that needs this lock.
            return self.waiting.pop(fd, None) is not None

    # The threads of the pool call these methods.

    def sweep(self, now: float) -> None:
        """Claim the overdue connections, and call their :meth:`Endpoint.on_overdue`.

        Connections that wait for memory try again.

        :param now: the monotonic time in seconds.
        """
        for connection in list(self.waiting.values()):
            if connection.waits_for_memory:
                try:
                    connection.end_memory_wait()
                except (OSError, ValueError):
                    connection.deadline = -math.inf  # the kernel cannot watch it
            # An event may have claimed the connection in the meantime.
            if connection.deadline < now and self.claim(connection, overdue_at=now):
                self.attempt(connection, connection.on_overdue)

    def cap_deadlines(self, deadline: float, applies: Callable[[Endpoint], bool]) -> None:
        """Limit the deadlines of the waiting connections for which `applies` returns True."""
        for connection in list(self.waiting.values()):
            if applies(connection):
                connection.deadline = min(connection.deadline, deadline)

    def attempt(self, connection: Any, step: Task) -> Job | None:
        """Run a step of a connection's owner. Log any error and close the connection."""
        try:
            return step()
        except Exception:
            self.shared.log.exception("Error in a connection")
            connection.close()
            return None

    def resume(self, connection: Endpoint) -> None:
        """Make a thread of the pool call :meth:`Endpoint.on_event` without an event."""
        self.defer(partial(self.attempt, connection, partial(connection.on_event, 0)))

    def wait_for_disk(self, connection: Endpoint, step: Task) -> bool:
        """Let a disk thread run a step that may write to a temporary file.

        The disk thread owns the connection during the step. If the step returns a channel, a thread
        of the pool runs its app.

        :returns: False if no disk thread can be started.
        """

        def job() -> None:
            ready = self.attempt(connection, step)
            if ready is not None:
                self.defer(lambda: ready)

        try:
            self.submit(job)
        except OSError:
            return False
        return True


class Endpoint(Owner):
    """An accepted socket, its output queue and its state. connection.py explains who owns it.

    :param peer: the client's address as returned by accept().
    :param address: the listener's address.
    :param state: the first state.
    :ivar app_socket: the value of `gunicorn.socket` in environs. None until it is needed.
    :ivar hijacked: whether an app has taken over the socket.
    :ivar proxy: environ keys from the PROXY header.
    :ivar deadline: the monotonic time after which the sweep claims the connection.
    :ivar waits_for_memory: whether the connection waits until the next sweep.
    """

    __slots__ = (
        "_lingering", "_tls", "address", "app_socket", "deadline", "fd", "output", "peer", "proxy",
        "registry", "shared", "sock", "state", "waits_for_memory",
    )  # fmt: skip

    output: OutputQueue
    hijacked = False

    def __init__(
        self, registry: Registry, sock: socket.socket, peer: Any, address: Any, state: str
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.address = address
        self.app_socket: Any = None
        self.proxy: dict[str, Any] | None = None
        self.shared = shared = registry.shared
        self.registry = registry
        self.fd = sock.fileno()
        self.waits_for_memory = False
        self.deadline = time.monotonic() + shared.options.head_timeout_s
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self.state = state

    # Methods that differ between the versions of HTTP.

    @abstractmethod
    def on_event(self, events: int) -> Job | None:
        """Handle an event. The caller owns the connection.

        :param events: 0 to continue without an event.
        :returns: the connection or one of its streams if its app is ready to run, else None.
        """

    @abstractmethod
    def on_overdue(self) -> None:
        """End an overdue connection or stream.

        Only the sweep calls this, and owns the connection.
        """

    @abstractmethod
    def outputs(self) -> list[tuple[OutputQueue, Exchange | None]]:
        """Return all output queues with their exchanges. Any thread may call this."""

    @abstractmethod
    def hijack(self) -> socket.socket:
        """Let the app take over the socket.

        :raises OSError: if other streams use the socket too.
        """

    def is_idle(self) -> bool:
        """Return whether the connection waits for an HTTP/1 request or a TLS handshake."""
        return self.state is IDLE or self.state is SKIPPING or self.state is HANDSHAKE

    def needs_goaway(self) -> bool:
        """Return whether the server ends, and this HTTP/2 connection has not sent GOAWAY yet."""
        return False

    @abstractmethod
    def _drop_requests(self) -> bool:
        """Drop all requests before the socket is closed. Return False if an app still runs."""

    # Waiting for events.

    def begin(self) -> None:
        """Wait for the first event."""
        self.wait(READ, is_new=True)

    def wait_to_send(self, deadline: float, *, no_memory: bool) -> None:
        self.deadline = deadline
        self.waits_for_memory = no_memory
        self.registry.wait(self, 0 if no_memory else WRITE)

    def resume_sending(self) -> None:
        self.registry.resume(self)

    def end_memory_wait(self) -> None:
        """Wait until the socket is writable. The sweep calls it without owning the connection."""
        self.waits_for_memory = False
        self.registry.change(self, WRITE)

    def wait(self, events: int, *, is_new: bool = False) -> None:
        """Let the connection wait for an event. The caller must not use it afterwards."""
        try:
            self.registry.wait(self, events, is_new=is_new)
        except (OSError, ValueError) as error:
            self.output.fail(error)
            if self.state is not RUNNING:
                self.close()

    def peek(self) -> bytes | None:
        """Return the first unread byte, encrypted with TLS. None if there is none yet.

        :returns: b"" if the client has closed the connection or its sending side.
        """
        try:
            return socket.socket.recv(self.sock, 1, socket.MSG_PEEK)
        except WOULD_BLOCK:
            return None
        except (OSError, ValueError):
            return b""

    def has_more_in_tls(self) -> bool:
        """Return whether the TLS object has decrypted bytes. No event reports them."""
        return self._tls is not None and self._tls.pending() > 0

    # The end of a connection.

    def cut_off(self) -> None:
        """Disconnect the client. Any thread may call this.

        The connection's owner, or the thread of the next event, closes the socket.
        """
        self.output.fail(ClientGone("the server ends"))
        with contextlib.suppress(OSError):
            # SSLSocket's own method is not thread-safe: another thread may use its TLS object.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def linger(self) -> None:
        """Shut down the sending direction, and wait until the client has read the whole response.

        Further bytes of the client are discarded until it closes the connection. See
        :mod:`~wsgifast.sockets.closing`.
        """
        if self.output.error is not None:
            self.close()
            return
        try:
            self.sock.setblocking(False)
            if self._tls is not None:
                # unwrap() sends a close_notify (RFC 8446 section 6.1), and does not wait for the
                # client's, because the socket is non-blocking.
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
            size = len(socket.socket.recv(self.sock, _DISCARD_BYTES))  # TLS bytes stay encrypted
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
        """Close at once. Only the owner may call this, and not while the app runs."""
        if self.state is CLOSED:
            return
        if not self._drop_requests():
            return  # the thread of the last running app closes the connection
        self.state = CLOSED
        self.output.close()
        self.app_socket = None
        self.registry.claim(self)
        with contextlib.suppress(OSError):
            self.sock.close()
        self.registry.connections.discard(self)
        self.registry.on_closed(self)

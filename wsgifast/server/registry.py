"""The open connections: which of them wait for an event, who may claim one, and which are overdue.

Theory of operation
-------------------
A waiting connection is *published* here under its descriptor and *armed* in the poller. Either an
event (:meth:`Registry.claim`) or the sweep (:meth:`Registry.sweep`) claims it, never both. The
thread that claims it owns it: no other thread touches it until it waits again or is closed.

    owned --wait--> published and armed --event--> owned by the event's thread
                                        --sweep--> owned by the sweep's thread

Publishing comes first, because the event may arrive as soon as the descriptor is armed. But nobody
may claim the connection between the two steps: the sweep could close it, the kernel could reuse the
descriptor's number for a new connection, and the owner would then arm that one. So both steps
happen under one lock, which the sweep takes for each claim. An event needs no lock: it proves that
the connection is armed.

Arming costs a system call for each request. Where the poller supports it, a connection that has
read everything is *watched* instead (edge-triggered), and waiting only publishes it. Its next event
may then arrive while it is still owned and find nobody to claim. Such an event is *missed*, and
recorded. The thread that publishes a connection checks for a missed event, and the thread that
records one checks again for a published connection, so that one of the two sees the other.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from .poller import Event, Poller


class Waiting(Protocol):
    """What the registry needs of a connection."""

    fd: int
    sock: socket.socket
    #: When the sweep claims it; monotonic, in seconds.
    deadline: float
    #: Whether the poller knows its descriptor, and whether it watches it.
    known: bool
    watched: bool
    #: Whether the next sweep claims it in any case.
    retries: bool

    def on_overdue(self) -> None:
        """The deadline has passed, or its app has closed its socket; the caller owns it."""

    def retry(self) -> None:
        """The sweep has claimed a connection with `retries`."""

    def close(self) -> None:
        """Close at once."""


C = TypeVar("C", bound=Waiting)


class Registry(Generic[C]):
    """Keeps a worker's connections; thread-safe.

    :param on_closed: called after each connection that has closed.
    :param push: has an event handled as if the poller had just returned it.
    """

    def __init__(
        self,
        poller: Poller,
        *,
        on_closed: Callable[[], object],
        push: Callable[[Event], object],
        log: Any,
    ) -> None:
        self.connections: set[C] = set()
        self._poller = poller
        self._on_closed = on_closed
        self._push = push
        self.log = log
        self.waiting: dict[int, C] = {}
        self._missed: dict[int, int] = {}  # events that found no connection, by descriptor
        self._lock = threading.Lock()

    # Called by the owner of a connection.

    def wait(self, connection: C, events: int) -> None:
        """Give a connection up until an event; the caller must not touch it afterwards.

        :param events: as for :meth:`Poller.arm`.
        :raises OSError, ValueError: if the kernel cannot wait for the descriptor; the caller still
            owns the connection then.
        """
        arm = self._poller.arm if connection.known else self._poller.add
        self._publish_armed(connection, arm, events, watched=False)

    def wait_for_more(self, connection: C) -> None:
        """As :meth:`wait`, to read, for a connection that has read everything."""
        if connection.watched:
            self.publish(connection)
            return
        watch = partial(self._poller.watch, known=connection.known)
        self._publish_armed(connection, watch, watched=self._poller.watches)

    def _publish_armed(
        self, connection: C, arm: Callable[..., object], *events: int, watched: bool
    ) -> None:
        connection.known, connection.watched = True, watched
        fd = connection.fd
        other = self.waiting.get(fd)
        if other is not None and other is not connection:
            # The app of one of them has taken the socket over, and closed it.
            if connection.sock.fileno() != fd:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if self._claim_if_waiting(other):
                if self._poller.must_forget:
                    self._poller.forget(fd)
                self._have_step(other, other.on_overdue)
        with self._lock:
            self._missed.pop(fd, None)  # arming reports it again
            self.waiting[fd] = connection
            try:
                arm(fd, *events)
            except (OSError, ValueError) as error:
                # None: an event has claimed it even so.
                if self.waiting.pop(fd, None) is connection:
                    self.log.warning("cannot wait for a connection: %s", error)
                    raise

    def publish(self, connection: C) -> None:
        """Let a connection wait that is armed or watched already and has read everything."""
        fd = connection.fd
        self.waiting[fd] = connection
        if fd in self._missed:
            events = self._missed.pop(fd, 0)
            if events:
                self._push((fd, events))

    def unwatch(self, connection: C) -> None:
        """The app reads from the socket from now on: report nothing any more."""
        if connection.watched:
            connection.known = connection.watched = False
            self._poller.forget(connection.fd)

    def change(self, connection: C, events: int) -> None:
        """Change the events that a connection waits for, if it waits; for any thread.

        An event that is under way already may then be reported twice: whoever claims a connection
        must cope with finding nothing to do.

        :raises OSError, ValueError: as :meth:`wait`.
        """
        with self._lock:
            if self.waiting.get(connection.fd) is connection:
                self._poller.arm(connection.fd, events)

    def forget(self, connection: C) -> None:
        """A connection is about to be closed.

        If the app has taken its socket over and closed it, another connection may have its
        descriptor's number by now.
        """
        fd = connection.fd
        self._claim_if_waiting(connection)
        if connection.sock.fileno() == fd:
            self._missed.pop(fd, None)
            if self._poller.must_forget:
                self._poller.forget(fd)

    def replace(self, connection: C, other: C) -> None:
        """Another object goes on with the socket of a connection."""
        self.connections.add(other)
        self.connections.discard(connection)

    def remove(self, connection: C) -> None:
        """A connection has closed its descriptor."""
        self.connections.discard(connection)
        self._on_closed()

    # Called by the threads of the pool.

    def claim(self, fd: int) -> C | None:
        """Become the owner of the connection that an event is for; None if none waits.

        The connection that the event was for may have closed, and a new one may have its number:
        whoever claims a connection must cope with finding nothing to do.
        """
        return self.waiting.pop(fd, None)

    def miss(self, fd: int, events: int) -> C | None:
        """Record an event for a descriptor on which no connection waits.

        :returns: the connection that has started to wait meanwhile, which is claimed by this.
        """
        missed = self._missed
        missed[fd] = missed.get(fd, 0) | events
        connection = self.waiting.pop(fd, None)
        if connection is not None:
            missed.pop(fd, None)
        return connection

    def sweep(self, now: float) -> None:
        """Claim the connections that are overdue, and have them end.

        :param now: the monotonic clock, in seconds.
        """
        for connection in list(self.waiting.values()):
            if not (connection.deadline < now or connection.retries):
                continue
            if not self._claim_if_waiting(connection):
                continue
            if connection.deadline < now:
                self._have_step(connection, connection.on_overdue)
            elif connection.retries:
                self._have_step(connection, connection.retry)
            else:
                self.publish(connection)  # an event has been handled in between

    def cap_deadlines(self, deadline: float, applies: Callable[[C], bool]) -> None:
        """Have the waiting connections for which `applies` is true end by `deadline`."""
        for connection in list(self.waiting.values()):
            if applies(connection):
                connection.deadline = min(connection.deadline, deadline)

    def _have_step(self, connection: C, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception:
            self.log.exception("Error in a connection")
            connection.close()

    def _claim_if_waiting(self, connection: C) -> bool:
        fd = connection.fd
        with self._lock:
            if self.waiting.get(fd) is not connection:
                return False
            claimed = self.waiting.pop(fd, None)
        if claimed is not None and claimed is not connection:
            self.publish(claimed)  # its event came in between, and the number is another one's
        return claimed is connection

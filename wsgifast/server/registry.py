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

An event that finds nobody to claim was that of a connection which the sweep has claimed first. It
is not lost: whoever lets the connection wait again arms it, and then it is reported again.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from .poller import Poller


class Waiting(Protocol):
    """What the registry needs of a connection."""

    fd: int
    sock: socket.socket
    #: When the sweep claims it; monotonic, in seconds.
    deadline: float
    #: Whether the poller knows its descriptor.
    known: bool
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
    """

    def __init__(
        self,
        poller: Poller,
        *,
        on_closed: Callable[[], object],
        log: Any,
    ) -> None:
        self.connections: set[C] = set()
        self._poller = poller
        self._on_closed = on_closed
        self.log = log
        self.waiting: dict[int, C] = {}
        self._lock = threading.Lock()

    # Called by the owner of a connection.

    def wait(self, connection: C, events: int) -> None:
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
            if self._claim_if_waiting(other):
                if self._poller.must_forget:
                    self._poller.forget(fd)
                self._have_step(other, other.on_overdue)
        with self._lock:
            self.waiting[fd] = connection
            try:
                arm(fd, events)
            except (OSError, ValueError) as error:
                # None: an event has claimed it even so.
                if self.waiting.pop(fd, None) is connection:
                    self.log.warning("cannot wait for a connection: %s", error)
                    raise

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
        if self._poller.must_forget and connection.sock.fileno() == fd:
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

    def sweep(self, now: float) -> None:
        """Claim the connections that are overdue, and have them end.

        :param now: the monotonic clock, in seconds.
        """
        for connection in list(self.waiting.values()):
            if not (connection.deadline < now or connection.retries):
                continue
            # An event may have been handled in between.
            if not self._claim_if_waiting(connection, overdue_at=now):
                continue
            if connection.deadline < now:
                self._have_step(connection, connection.on_overdue)
            else:
                self._have_step(connection, connection.retry)

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

    def _claim_if_waiting(self, connection: C, *, overdue_at: float | None = None) -> bool:
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

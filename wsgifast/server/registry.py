"""The open connections: which of them wait, who may take one up, and whose time is over.

Theory of operation
-------------------
A connection that waits is *published* here under its descriptor, and *armed* in the poller. It is
claimed by an event (:meth:`Registry.claim`) or by the sweep (:meth:`Registry.sweep`), never by
both. Whoever has claimed it owns it, and is the only one to touch it, until it waits again or is
closed.

    owned --wait--> published and armed --event--> owned by the event's thread
                                        --sweep--> owned by the sweep's thread

It is published first, since its event may come as soon as it is armed. But between the two it must
not be claimed: the sweep could close it, the kernel could give its descriptor's number to the next
connection, and the owner would then arm a stranger. So both happen under one lock, which the sweep
takes for each claim. An event needs no lock: it is a proof that the connection is armed.

To arm it is a call of the kernel for each request. A connection that has read all there was is
*watched* instead, where the poller can do that: then it is only published. But its next event may
come while it is owned, and find nobody. That event is *missed*, and noted; whoever publishes the
connection looks for it afterwards, and whoever has missed it looks once more who waits, so that one
of the two sees the other.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from .poller import Event, Poller

__all__ = ["Registry", "Waiting"]


class Waiting(Protocol):
    """What the registry knows of a connection."""

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
        """End; called by the sweep once the deadline is over."""

    def retry(self) -> None:
        """Go on; called by the sweep for a connection that asks for it."""

    def close(self) -> None:
        """Close at once."""


C = TypeVar("C", bound=Waiting)


class Registry(Generic[C]):
    """Keeps a worker's connections. Every method may be called from any thread.

    :param on_closed: called after each connection that has closed.
    :param push: has an event taken up as if it had come just now.
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
        # Events that have found nobody, by descriptor.
        self._missed: dict[int, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.connections)

    # What the owner of a connection calls.

    def wait(self, connection: C, events: int) -> None:
        """Give a connection up until an event; nothing of it may be touched afterwards.

        :param events: as for :meth:`Poller.arm`.
        :raises OSError, ValueError: if the kernel cannot wait for the descriptor; the connection is
            still the caller's then.
        """
        known, connection.known, connection.watched = connection.known, True, False
        fd = connection.fd
        with self._lock:
            self._missed.pop(fd, None)  # the kernel tells of it again
            self.waiting[fd] = connection
            try:
                if known:
                    self._poller.arm(fd, events)
                else:
                    self._poller.add(fd, events)
            except (OSError, ValueError) as error:
                if self._withdraw(connection, error):
                    raise

    def wait_for_more(self, connection: C) -> None:
        """As :meth:`wait`, to read, for a connection that has read all there was."""
        if connection.watched:
            self.publish(connection)
            return
        known, connection.known = connection.known, True
        connection.watched = self._poller.watches
        fd = connection.fd
        with self._lock:
            self._missed.pop(fd, None)
            self.waiting[fd] = connection
            try:
                self._poller.watch(fd, known=known)
            except (OSError, ValueError) as error:
                if self._withdraw(connection, error):
                    raise

    def publish(self, connection: C) -> None:
        """Let a connection wait that is armed or watched already, and has read all there was."""
        fd = connection.fd
        self.waiting[fd] = connection
        if fd in self._missed:
            events = self._missed.pop(fd, 0)
            if events:
                self._push((fd, events))

    def unwatch(self, connection: C) -> None:
        """Somebody else reads what comes from now on, and waits for it."""
        if connection.watched:
            connection.known = connection.watched = False
            self._poller.forget(connection.fd)

    def change(self, connection: C, events: int) -> None:
        """Let a connection wait for other events, if it waits; any thread may call it.

        An event that is under way already may then come a second time: it finds that nothing has
        happened, as whoever claims a connection must be able to.

        :raises OSError, ValueError: as :meth:`wait`.
        """
        with self._lock:
            if self.waiting.get(connection.fd) is connection:
                self._poller.arm(connection.fd, events)

    def forget(self, connection: C) -> None:
        """A connection is about to be closed.

        If the app has taken its socket over and closed it, its number may be another one's by now.
        """
        fd = connection.fd
        self._claim_if_waiting(connection)
        self._missed.pop(fd, None)
        if self._poller.must_forget and connection.sock.fileno() == fd:
            self._poller.forget(fd)

    def remove(self, connection: C) -> None:
        """A connection has closed, and given its descriptor back."""
        self.connections.discard(connection)
        self._on_closed()

    # What the threads of the pool call.

    def claim(self, fd: int) -> C | None:
        """Become the owner of the connection that an event is for; None if nobody waits there.

        The event may be for a connection that has closed since, and its number another one's by
        now: whoever claims a connection must be able to find that nothing has happened.
        """
        return self.waiting.pop(fd, None)

    def miss(self, fd: int, events: int) -> C | None:
        """Note an event for a descriptor where nobody waits.

        :returns: the connection that has begun to wait there meanwhile, and is claimed by it.
        """
        missed = self._missed
        missed[fd] = missed.get(fd, 0) | events
        connection = self.waiting.pop(fd, None)
        if connection is not None:
            missed.pop(fd, None)
        return connection

    def sweep(self, now: float) -> None:
        """Claim what is overdue, and let it end.

        :param now: the monotonic clock, in seconds.
        """
        for connection in list(self.waiting.values()):
            try:
                if not (connection.deadline < now or connection.retries):
                    continue
                if not self._claim_if_waiting(connection):
                    continue
                if connection.deadline < now:
                    connection.on_overdue()
                elif connection.retries:
                    connection.retry()
                else:
                    self.publish(connection)  # it has had a turn meanwhile
            except Exception:
                self.log.exception("Error in a connection")
                connection.close()

    def cap_deadlines(self, deadline: float, applies: Callable[[C], bool]) -> None:
        """Let the connections that wait, and to which it applies, end by a time at the latest."""
        for connection in list(self.waiting.values()):
            if applies(connection):
                connection.deadline = min(connection.deadline, deadline)

    def _withdraw(self, connection: C, error: Exception) -> bool:
        """Give a connection back to its owner; False if it has had an event even so."""
        if self.waiting.pop(connection.fd, None) is not connection:
            return False
        self.log.warning("cannot wait for a connection: %s", error)
        return True

    def _claim_if_waiting(self, connection: C) -> bool:
        fd = connection.fd
        with self._lock:
            if self.waiting.get(fd) is not connection:
                return False
            claimed = self.waiting.pop(fd, None)
        if claimed is not None and claimed is not connection:
            self.publish(claimed)  # its event has come in between, and its number is another's
        return claimed is connection

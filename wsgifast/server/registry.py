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
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from .poller import Poller

__all__ = ["Registry", "Waiting"]


class Waiting(Protocol):
    """What the registry knows of a connection."""

    fd: int
    sock: socket.socket
    #: When the sweep claims it; monotonic, in seconds.
    deadline: float
    #: Whether the poller knows its descriptor.
    known: bool
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
    """

    def __init__(self, poller: Poller, *, on_closed: Callable[[], object], log: Any) -> None:
        self.connections: set[C] = set()
        self._poller = poller
        self._on_closed = on_closed
        self.log = log
        self.waiting: dict[int, C] = {}
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
        fd = connection.fd
        with self._lock:
            self.waiting[fd] = connection
            try:
                if connection.known:
                    self._poller.arm(fd, events)
                else:
                    connection.known = True
                    self._poller.add(fd, events)
            except (OSError, ValueError) as error:
                if self.waiting.pop(fd, None) is connection:
                    self.log.warning("cannot wait for a connection: %s", error)
                    raise

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

    def sweep(self, now: float) -> None:
        """Claim what is overdue, and let it end.

        :param now: the monotonic clock, in seconds.
        """
        for connection in list(self.waiting.values()):
            try:
                if connection.deadline < now:
                    if self._claim_if_waiting(connection):
                        connection.on_overdue()
                elif connection.retries and self._claim_if_waiting(connection):
                    connection.retry()
            except Exception:
                self.log.exception("Error in a connection")
                connection.close()

    def cap_deadlines(self, deadline: float, applies: Callable[[C], bool]) -> None:
        """Let the connections that wait, and to which it applies, end by a time at the latest."""
        for connection in list(self.waiting.values()):
            if applies(connection):
                connection.deadline = min(connection.deadline, deadline)

    def _claim_if_waiting(self, connection: C) -> bool:
        fd = connection.fd
        with self._lock:
            # Between the two only an event may come, and claim it; nobody is published.
            return self.waiting.get(fd) is connection and self.waiting.pop(fd, None) is not None

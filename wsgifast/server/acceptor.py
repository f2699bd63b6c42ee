"""The listeners of a worker: accepting connections, while there is room for them.

Theory of operation
-------------------
The acceptor *listens* (its listeners are in the poller) or does not. What that depends on changes
in any thread: connections come and go, the pool is saturated or no more, descriptors run out, the
worker stops. Whoever changes it calls :meth:`Acceptor.update`, which decides by what is the case
then, under a lock; so the last change counts, in whichever order the threads come.

Where several workers wait for the same listener, the kernel tells one of them of a connection
(EPOLLEXCLUSIVE). So whoever is told accepts, even if it should not listen any more: nobody else
knows of that connection. After its turn it goes behind the others in the kernel's queue, or the
first one would get all the connections of a quiet hour.

A worker that ends closes the acceptor first. A thread may be in its turn at that moment, with a
connection in hand that nobody else knows yet: the worker must not end before that turn has.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .poller import Poller

__all__ = ["Acceptor"]

# Connections accepted in one turn: more would keep the others waiting, and other workers idle.
_ACCEPTS = 16
# Where that has not emptied a listener's queue: events of connections until the next such turn. The
# kernel reports a listener again only behind everything else that is ready.
_EVENTS_BETWEEN_TURNS = 32
# How long a connection without a free descriptor stays in the listener's queue.
_PAUSE_S = 0.2
# That descriptors are short is said again after so long.
_SAY_AGAIN_S = 10.0
# For a connection, or for a watch of a listener (epoll_ctl(2)).
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})
# A full worker is full until this share of its connections is left: it is told once for each time.
_FULL_UNTIL = 0.9


class Begins(Protocol):
    """What the acceptor knows of a connection."""

    def begin(self) -> None:
        """Wait for the first event."""


class Acceptor:
    """Accepts from the listeners; any thread of the worker may do each of it.

    :param listeners: non-blocking from now on; who made them closes them.
    :param connect: makes a connection of an accepted socket, its peer and the listener's address;
        None if it has failed at once.
    :param count: how many connections are open.
    :param limit: how many there may be.
    :param is_open: whether connections are wanted at all, now.
    """

    def __init__(
        self,
        listeners: Iterable[socket.socket],
        poller: Poller,
        *,
        connect: Callable[[socket.socket, Any, Any], Begins | None],
        count: Callable[[], int],
        limit: int,
        is_open: Callable[[], bool],
        log: Any,
    ) -> None:
        self._listeners = {sock.fileno(): (sock, sock.getsockname()) for sock in listeners}
        for sock, _ in self._listeners.values():
            sock.setblocking(False)
        self._poller = poller
        self._connect = connect
        self._count = count
        self._limit = limit
        self._is_open = is_open
        self._log = log
        self._lock = threading.Lock()
        self._resume_at = 0.0
        self._said_at = -_SAY_AGAIN_S
        self._full = False
        self.listening = False
        self._closed = False
        # Threads in a turn at a listener.
        self._accepting = 0
        # A listener whose queue was not emptied in its last turn.
        self.unfinished: int | None = None
        self._events = 0

    def listens_on(self, fd: int) -> bool:
        return fd in self._listeners

    @property
    def is_accepting(self) -> bool:
        """Whether a thread is in a turn: it may have accepted what is not counted yet."""
        return self._accepting > 0

    def close(self) -> None:
        """Begin no turn any more; those that have begun end soon, see :attr:`is_accepting`."""
        with self._lock:
            self._closed = True
        self.update()

    def update(self) -> None:
        """Listen or not, as things are now."""
        with self._lock:
            wanted = (
                not self._closed
                and self._count() < self._limit
                and self._is_open()
                and (not self._resume_at or time.monotonic() >= self._resume_at)
            )
            if wanted == self.listening:
                return
            self.listening = wanted
            try:
                for fd in self._listeners:
                    if wanted:
                        self._poller.listen(fd)
                    else:
                        self._poller.forget(fd)
            except OSError as error:
                self._listen_later(error)

    def on_closed(self) -> None:
        """A connection has closed, and given its descriptor back: no pause is needed any more."""
        if self._full and self._count() <= self._limit * _FULL_UNTIL:
            self._full = False
        if not self.listening:
            self._resume_at = 0.0
            self.update()

    def accept(self, fd: int) -> None:
        """Take a turn at a listener that is ready."""
        with self._lock:
            if self._closed:
                return
            self._accepting += 1
        try:
            self._accept(fd)
        finally:
            with self._lock:
                self._accepting -= 1

    def _accept(self, fd: int) -> None:
        listener, address = self._listeners[fd]
        self.unfinished = None
        for _ in range(_ACCEPTS):
            try:
                sock, peer = listener.accept()
            except ConnectionAbortedError:
                connection = None  # it has gone again
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._pause(error)
                    self.update()
                break
            else:
                connection = self._connect(sock, peer, address)
            if connection is not None:
                if self._count() >= self._limit:
                    # Before the connection may close in another thread, and make room again.
                    self.update()
                    self._tell_that_it_is_full()
                connection.begin()
            if not self.listening:
                return
        else:
            self.unfinished = fd
            self._events = 0
        with self._lock:
            if self.listening:
                try:
                    self._poller.queue_behind_others(fd)
                except OSError as error:
                    self._listen_later(error)

    def count_event(self) -> None:
        """Count an event of a connection while a turn is unfinished; now and then, the next one."""
        fd = self.unfinished
        self._events += 1
        if fd is not None and self._events >= _EVENTS_BETWEEN_TURNS:
            self.unfinished = None
            if self.listening:
                self.accept(fd)

    def _listen_later(self, error: OSError) -> None:
        """The kernel has no watch for a listener: an update, such as the sweep's, tries again.

        With the lock.
        """
        if error.errno not in _NO_ROOM:
            raise error
        self.listening = False
        for fd in self._listeners:
            self._poller.forget(fd)
        self._pause(error)

    def _pause(self, error: OSError) -> None:
        """Have nobody accepted for a moment."""
        now = time.monotonic()
        if now - self._said_at >= _SAY_AGAIN_S:
            self._said_at = now
            self._log.warning("Cannot accept: %s; trying again soon", error)
        self._resume_at = now + _PAUSE_S

    def _tell_that_it_is_full(self) -> None:
        if not self._full:
            self._full = True
            self._log.warning(
                "All %d worker_connections are taken: new ones wait until others close", self._limit
            )

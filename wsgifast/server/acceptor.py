"""Accepts connections from the listeners while there is room for them.

Theory of operation
-------------------
The acceptor *listens* (its listeners are in the poller) or it does not. The conditions for that
change in any thread: connections open and close, TLS handshakes begin and end, the pool becomes
saturated, descriptors run out, the worker stops. Each such thread calls :meth:`Acceptor.update`,
which decides under a lock by the state at that moment. So the last change counts, in any order of
calls.

Where several workers share a listener, the kernel reports a connection to one of them
(EPOLLEXCLUSIVE). That worker accepts it even if it should no longer listen: no other one knows of
it. After its turn it queues behind the others, or the first worker would get all connections while
there is little traffic.

A TLS handshake takes 47 kB of OpenSSL's memory until it ends. So there are at most
`MOST_HANDSHAKES` at once, 24 MB. Beyond that the acceptor accepts nothing, and each handshake has
only `SHORT_HANDSHAKE_S`. So clients that never finish theirs do not delay the others.

A worker that ends closes the acceptor first. A thread may have an event at that moment, of a
connection that the kernel has reported to no other process. So there is a last turn after the
poller has removed the listeners. A thread may also be in a turn, with an accepted connection that
is not counted yet. The worker must wait for the end of that turn.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sized
from typing import Any

from .channel import HANDSHAKE
from .poller import Poller
from .shared import Shared

# Most connections accepted in one turn. More would delay other events, and leave workers idle.
_ACCEPTS = 16
# If a turn has not emptied a listener's queue, this many other events until the next turn. The
# kernel would report the listener again only after everything else that is ready.
_EVENTS_BETWEEN_TURNS = 32
MOST_HANDSHAKES = 512
# From its begin on, in seconds: time for some round trips around the world.
SHORT_HANDSHAKE_S = 3.0
# How long to wait after running out of descriptors.
_PAUSE_S = 0.2
# The least time between two warnings about that, and between two that the worker is full.
_WARN_AGAIN_S = 60.0
_FULL = "All %d %s are taken: new ones wait until others close"
# The client, or the network, has disconnected already (accept(2)).
_GONE = frozenset(
    {
        errno.EPROTO, errno.ENETDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
    }
)  # fmt: skip
# No room for a connection, or for watching a listener (epoll_ctl(2)).
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})


class Acceptor:
    """Accepts from listeners, which the caller closes. Thread-safe.

    :param connections: those that are open.
    :param may_accept: returns whether new connections are wanted at this moment.
    :param connect: makes a connection of an accepted socket, the client's address and the
        listener's. Returns None if it has closed the socket.
    :ivar unfinished: a listener with connections left in its queue after a turn.
    """

    def __init__(
        self,
        shared: Shared,
        poller: Poller,
        listeners: Iterable[socket.socket],
        connections: Sized,
        *,
        may_accept: Callable[[], bool],
        connect: Callable[[socket.socket, Any, Any], Any],
    ) -> None:
        self._listeners = {sock.fileno(): (sock, sock.getsockname()) for sock in listeners}
        for sock, _ in self._listeners.values():
            sock.setblocking(False)
        self.log = shared.log
        self._poller = poller
        self._connections = connections
        self._may_accept, self._connect = may_accept, connect
        self._limit = shared.options.worker_connections
        self._lock = threading.Lock()
        self._resume_at = 0.0
        self._warned_at: dict[str, float] = {}  # of each message, monotonic
        self.listening = False
        self._closed = False
        self._accepting = 0  # threads in a turn
        self._handshakes: dict[Any, float] = {}  # when each began, monotonic
        self.unfinished: int | None = None
        self._events = 0

    @property
    def is_accepting(self) -> bool:
        """Whether a thread is in a turn, perhaps with a connection that is not counted yet."""
        return self._accepting > 0

    def close(self) -> None:
        """Take a last turn. :attr:`is_accepting` says whether another one is under way."""
        with self._lock:
            self._closed = True
        self.update()
        for fd in self._listeners:
            self._accept(fd)

    def update(self) -> None:
        """Start or stop listening, as the current state requires."""
        with self._lock:
            wanted = (
                not self._closed
                and len(self._connections) < self._limit
                and len(self._handshakes) < MOST_HANDSHAKES
                and self._may_accept()
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
        """A connection has closed its descriptor: there is room again."""
        if not self.listening:
            self._resume_at = 0.0
            self.update()

    def on_handshake_end(self, connection: Any) -> None:
        """A TLS handshake has succeeded, or its connection ends."""
        self._handshakes.pop(connection, None)
        if not self.listening:
            self.update()

    def shorten_handshakes(self) -> None:
        """If there are too many, shorten their deadlines. Called before each sweep."""
        if len(self._handshakes) >= MOST_HANDSHAKES:
            for connection, begun in list(self._handshakes.items()):
                connection.deadline = min(connection.deadline, begun + SHORT_HANDSHAKE_S)

    def accept(self, fd: int) -> None:
        """Take a turn at a listener that is readable. Ignore any other descriptor."""
        with self._lock:
            if self._closed or fd not in self._listeners:
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
            except BlockingIOError:
                break
            except OSError as error:
                if not isinstance(error, ConnectionAbortedError) and error.errno not in _GONE:
                    # Also if it is unknown: the listener would be reported again at once.
                    self._pause(error)
                    self.update()
                    break
                connection = None
            else:
                connection = self._connect(sock, peer, address)
            if connection is not None:
                if connection.state is HANDSHAKE:
                    self._handshakes[connection] = time.monotonic()
                # Before another thread may close the connection and make room again.
                if len(self._connections) >= self._limit:
                    self.update()
                    self._warn(_FULL, self._limit, "worker_connections")
                elif len(self._handshakes) >= MOST_HANDSHAKES:
                    self.update()
                    self._warn(_FULL, MOST_HANDSHAKES, "TLS handshakes")
                connection.begin()
            if not self.listening:
                return
        else:
            self.unfinished = fd
            self._events = 0
        with self._lock:
            if self.listening:
                try:
                    self._poller.requeue(fd)
                except OSError as error:
                    self._listen_later(error)

    def count_event(self) -> None:
        """Count an event while a listener's turn is unfinished. After some, take its next turn."""
        fd = self.unfinished
        self._events += 1
        if fd is not None and self._events >= _EVENTS_BETWEEN_TURNS:
            self.unfinished = None
            if self.listening:
                self.accept(fd)

    def _listen_later(self, error: OSError) -> None:
        """The kernel cannot watch a listener: the next update tries again. Needs the lock."""
        if error.errno not in _NO_ROOM:
            raise error
        self.listening = False
        for fd in self._listeners:
            self._poller.forget(fd)
        self._pause(error)

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment."""
        self._warn("Cannot accept: %s; trying again soon", error)
        self._resume_at = time.monotonic() + _PAUSE_S

    def _warn(self, text: str, *args: object) -> None:
        now = time.monotonic()
        message = text % args
        if now - self._warned_at.get(message, -_WARN_AGAIN_S) >= _WARN_AGAIN_S:
            self._warned_at[message] = now
            self.log.warning("%s", message)

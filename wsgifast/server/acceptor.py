"""Accept connections from the listeners while the worker is below its limits.

Theory of operation
-------------------
While the acceptor *listens*, its listeners are in the poller. Several conditions decide whether it
listens: the number of connections and TLS handshakes, the pool's saturation, free descriptors, and
whether the worker ends. Any thread may change a condition, and then calls :meth:`Acceptor.update`.
This method checks all conditions under a lock. So the result is correct in whatever order the
threads call it.

If several workers share a listener, the kernel reports a new connection to only one worker
(EPOLLEXCLUSIVE). That worker must accept the connection, even if its acceptor has just stopped
listening, because the kernel does not report the connection to another worker. A *turn* accepts
some connections from one listener. After each turn, the worker moves to the end of the kernel's
queue of workers. Otherwise the kernel would report all connections to the first worker while
traffic is low.

A TLS handshake uses 47 kB of OpenSSL's memory. So there are at most `MAX_HANDSHAKES` at once,
which use 24 MB. At this limit, the acceptor accepts no connections, and limits each handshake to
`SHORT_HANDSHAKE_S`. So clients that never finish their handshakes do not block other clients.

When a worker ends, it first closes the acceptor. The kernel may just have reported a new connection
to this worker and to no other. So after the poller has removed the listeners, the acceptor takes a
last turn. Another thread may also be in a turn, with an accepted connection that is not counted
yet. The worker must wait until this turn ends.
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

# The maximum number of connections accepted in one turn. More would delay other events, and leave
# other workers without work.
_ACCEPTS = 16
# If connections remain in a listener's queue after a turn, the next turn is taken after this many
# other events. The kernel itself would report the listener again only after all other ready
# descriptors.
_EVENTS_BETWEEN_TURNS = 32
MAX_HANDSHAKES = 512
# The maximum time from the start of a handshake. It allows some round trips around the world.
SHORT_HANDSHAKE_S = 3.0
# The acceptor pauses for this time if the process has no free descriptors.
_PAUSE_S = 0.2
# The minimum time between two equal warnings.
_WARN_AGAIN_S = 60.0
_FULL = "The limit of %d %s is reached: new connections wait until others close"
# The client or the network disconnected before accept() (accept(2)).
_GONE = frozenset(
    {
        errno.EPROTO, errno.ENETDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
    }
)  # fmt: skip
# The system cannot accept a connection, or cannot watch a listener (epoll_ctl(2)).
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})


class Acceptor:
    """Accepts connections from listeners, which the caller closes. It is thread-safe.

    :param connections: the open connections.
    :param may_accept: returns whether new connections are wanted now.
    :param connect: makes a connection from an accepted socket, the client's address and the
        listener's address. It returns None if it has closed the socket.
    :ivar unfinished: a listener whose queue was not empty after a turn, or None.
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
        self._warned_at: dict[str, float] = {}  # the monotonic time of each warning
        self.listening = False
        self._closed = False
        self._accepting = 0  # the number of threads in a turn
        self._handshakes: dict[Any, float] = {}  # the monotonic start time of each handshake
        self.unfinished: int | None = None
        self._events = 0

    @property
    def is_accepting(self) -> bool:
        """Whether a thread is in a turn. It may have a connection that is not counted yet."""
        return self._accepting > 0

    def close(self) -> None:
        """Stop listening, and take a last turn.

        Another thread may still be in a turn: see is_accepting.
        """
        with self._lock:
            self._closed = True
        self.update()
        for fd in self._listeners:
            self._accept(fd)

    def update(self) -> None:
        """Start or stop listening, depending on the current conditions."""
        with self._lock:
            wanted = (
                not self._closed
                and len(self._connections) < self._limit
                and len(self._handshakes) < MAX_HANDSHAKES
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
        """Listen again if necessary, after a connection has closed its descriptor."""
        if not self.listening:
            self._resume_at = 0.0
            self.update()

    def on_handshake_end(self, connection: Any) -> None:
        """Stop counting a TLS handshake that has succeeded or failed."""
        self._handshakes.pop(connection, None)
        if not self.listening:
            self.update()

    def shorten_handshakes(self) -> None:
        """Shorten the deadlines of all handshakes if MAX_HANDSHAKES are in progress.

        The server calls this before each sweep, which closes overdue connections.
        """
        if len(self._handshakes) >= MAX_HANDSHAKES:
            for connection, begun in list(self._handshakes.items()):
                connection.deadline = min(connection.deadline, begun + SHORT_HANDSHAKE_S)

    def accept(self, fd: int) -> None:
        """Accept connections from a readable listener. Ignore any other descriptor."""
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
                    # After any other error, even an unknown one, the acceptor pauses. Otherwise the
                    # poller would report the listener again at once, in a busy loop.
                    self._pause(error)
                    self.update()
                    break
                connection = None
            else:
                connection = self._connect(sock, peer, address)
            if connection is not None:
                if connection.state is HANDSHAKE:
                    self._handshakes[connection] = time.monotonic()
                # The limits are checked before `begin`. Afterwards, another thread may close the
                # connection at any time.
                if len(self._connections) >= self._limit:
                    self.update()
                    self._warn(_FULL, self._limit, "worker_connections")
                elif len(self._handshakes) >= MAX_HANDSHAKES:
                    self.update()
                    self._warn(_FULL, MAX_HANDSHAKES, "TLS handshakes")
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
        """Count an event after an unfinished turn. After some events, take the next turn."""
        fd = self.unfinished
        self._events += 1
        if fd is not None and self._events >= _EVENTS_BETWEEN_TURNS:
            self.unfinished = None
            if self.listening:
                self.accept(fd)

    def _listen_later(self, error: OSError) -> None:
        """Retry at the next update, because the kernel cannot watch a listener. Needs the lock."""
        if error.errno not in _NO_ROOM:
            raise error
        self.listening = False
        for fd in self._listeners:
            self._poller.forget(fd)
        self._pause(error)

    def _pause(self, error: OSError) -> None:
        """Accept no connections for a moment."""
        self._warn("Cannot accept connections: %s. The worker tries again soon", error)
        self._resume_at = time.monotonic() + _PAUSE_S

    def _warn(self, text: str, *args: object) -> None:
        now = time.monotonic()
        message = text % args
        if now - self._warned_at.get(message, -_WARN_AGAIN_S) >= _WARN_AGAIN_S:
            self._warned_at[message] = now
            self.log.warning("%s", message)

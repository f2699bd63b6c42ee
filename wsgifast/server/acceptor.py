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
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .endpoint import HANDSHAKE
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
_FULL = "The limit of %d %s is reached: new connections wait until others close"
# The client or the network disconnected before accept() (accept(2)).
_GONE = frozenset(
    {
        errno.EPROTO, errno.ENETDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
    }
)  # fmt: skip
# The system cannot accept a connection, or cannot watch a listener (epoll_ctl(2)).
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})


@dataclass(eq=False, repr=False, kw_only=True)
class Acceptor:
    """Accepts connections from listeners, which the caller closes. It is thread-safe.

    :param connections: the open connections.
    :param may_accept: returns whether new connections are wanted now.
    :param connect: makes a connection from an accepted socket, the client's address and the
        listener's address. It returns None if it has closed the socket.
    :ivar accepting: the number of threads in a turn. Each may have a connection that is not counted
        yet.
    :param push: lets a thread run a function after a number of other events.
    """

    shared: Shared
    poller: Poller
    listeners: Sequence[socket.socket]
    connections: Sized
    may_accept: Callable[[], bool]
    connect: Callable[[socket.socket, Any, Any], Any]
    push: Callable[..., object]
    listening: bool = False
    accepting: int = 0
    _closed: bool = False
    _resume_at: float = 0.0
    _is_pushed: bool = False  # whether the rest of an unfinished turn follows
    _handshakes: dict[Any, float] = field(default_factory=dict)  # with their start times
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._limit = self.shared.options.worker_connections
        self._by_fd = {sock.fileno(): (sock, sock.getsockname()) for sock in self.listeners}
        for sock in self.listeners:
            sock.setblocking(False)

    def close(self) -> None:
        """Stop listening, and take a last turn. Another turn may still run: see `accepting`."""
        with self._lock:
            self._closed = True
        self.update()
        for fd in self._by_fd:
            self._accept(fd)

    def update(self) -> None:
        """Start or stop listening, depending on the current conditions."""
        with self._lock:
            wanted = (
                not self._closed
                and len(self.connections) < self._limit
                and len(self._handshakes) < MAX_HANDSHAKES
                and self.may_accept()
                and (not self._resume_at or time.monotonic() >= self._resume_at)
            )
            if wanted == self.listening:
                return
            self.listening = wanted
            try:
                for fd in self._by_fd:
                    if wanted:
                        self.poller.listen(fd)
                    else:
                        self.poller.forget(fd)
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
            if self._closed or fd not in self._by_fd:
                return
            self.accepting += 1
        try:
            self._accept(fd)
        finally:
            with self._lock:
                self.accepting -= 1

    def _accept(self, fd: int) -> None:
        listener, address = self._by_fd[fd]
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
                connection = self.connect(sock, peer, address)
            if connection is not None:
                if connection.state is HANDSHAKE:
                    self._handshakes[connection] = time.monotonic()
                # The limits are checked before `begin`. Afterwards, another thread may close the
                # connection at any time.
                if len(self.connections) >= self._limit:
                    self.update()
                    self.shared.warn_seldom(_FULL, self._limit, "worker_connections")
                elif len(self._handshakes) >= MAX_HANDSHAKES:
                    self.update()
                    self.shared.warn_seldom(_FULL, MAX_HANDSHAKES, "TLS handshakes")
                connection.begin()
            if not self.listening:
                return
        else:
            if not self._is_pushed:
                self._is_pushed = True
                self.push(partial(self._continue, fd), after=_EVENTS_BETWEEN_TURNS)
        with self._lock:
            if self.listening:
                try:
                    self.poller.requeue(fd)
                except OSError as error:
                    self._listen_later(error)

    def _continue(self, fd: int) -> None:
        """Take the next turn after an unfinished one."""
        self._is_pushed = False
        if self.listening:
            self.accept(fd)

    def _listen_later(self, error: OSError) -> None:
        """Retry at the next update, because the kernel cannot watch a listener. Needs the lock."""
        if error.errno not in _NO_ROOM:
            raise error
        self.listening = False
        for fd in self._by_fd:
            self.poller.forget(fd)
        self._pause(error)

    def _pause(self, error: OSError) -> None:
        """Accept no connections for a moment."""
        self.shared.warn_seldom("Cannot accept connections: %s. The worker tries again soon", error)
        self._resume_at = time.monotonic() + _PAUSE_S

"""The listeners of a worker: accepting connections, while there is room for them."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .poller import Poller

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["Acceptor"]

# Connections accepted in one turn: more would keep the others waiting, and other workers idle.
_ACCEPTS = 8
# Where that has not emptied a listener's queue: events of connections until the next such turn. The
# kernel reports a listener again only behind everything else that is ready.
_EVENTS_BETWEEN_TURNS = 32
# How long a connection without a free descriptor stays in the listener's queue.
_PAUSE_S = 0.2
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts from the listeners; any thread of the worker may do each of it.

    :param listeners: non-blocking from now on; who made them closes them.
    :param connect: makes a connection of an accepted socket, its peer and the listener's address;
        None if it has failed at once.
    :param has_room: whether one more connection may be accepted.
    """

    def __init__(
        self,
        listeners: Iterable[socket.socket],
        poller: Poller,
        *,
        connect: Callable[[socket.socket, Any, Any], Connection | None],
        has_room: Callable[[], bool],
        log: Any,
    ) -> None:
        self._listeners = {sock.fileno(): (sock, sock.getsockname()) for sock in listeners}
        for sock, _ in self._listeners.values():
            sock.setblocking(False)
        self._poller = poller
        self._connect = connect
        self._has_room = has_room
        self._log = log
        self._lock = threading.Lock()
        self._enabled = False
        self._stopped = False
        self._resume_at = 0.0
        # A listener whose queue was not emptied in its last turn.
        self.unfinished: int | None = None
        self._events = 0

    def listens_on(self, fd: int) -> bool:
        return fd in self._listeners

    def resume(self) -> None:
        """Accept, if there is room and the time of a pause is over."""
        if not self._enabled and time.monotonic() >= self._resume_at and self._has_room():
            self._enable(True)

    def on_room(self) -> None:
        """A connection has closed, and given its descriptor back: no pause is needed any more."""
        if not self._enabled and self._has_room():
            self._resume_at = 0.0
            self._enable(True)

    def stop(self) -> None:
        """Accept nobody any more."""
        self._stopped = True
        self._enable(False)

    def accept(self, fd: int) -> None:
        """Take a turn at a listener that is ready."""
        listener, address = self._listeners[fd]
        self.unfinished = None
        for _ in range(_ACCEPTS):
            if not self._enabled:
                return
            try:
                sock, peer = listener.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self._log.warning("Cannot accept: %s; trying again soon", error)
                    self._resume_at = time.monotonic() + _PAUSE_S
                    self._enable(False)
                return
            connection = self._connect(sock, peer, address)
            if connection is None:
                continue
            if not self._has_room():
                # Before the connection may close in another thread, and make room again.
                self._enable(False)
            connection.begin()
        self.unfinished = fd
        self._events = 0

    def count_event(self) -> None:
        """Count an event of a connection while a listener is unfinished; now and then, a turn."""
        fd = self.unfinished
        self._events += 1
        if fd is not None and self._events >= _EVENTS_BETWEEN_TURNS:
            self.accept(fd)

    def _enable(self, enabled: bool) -> None:
        # One thread may accept the last connection allowed while another closes one: the flag and
        # the poller must not part, or nobody would be accepted ever again.
        with self._lock:
            if enabled == self._enabled or (enabled and self._stopped):
                return
            self._enabled = enabled
            for fd in self._listeners:
                if enabled:
                    self._poller.listen(fd)
                else:
                    self._poller.forget(fd)

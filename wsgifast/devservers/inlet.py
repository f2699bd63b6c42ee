"""The read side of a connection: its buffered input, and the wait for the next request."""

from __future__ import annotations

import io
import math
import select
import socket
import socketserver
import ssl
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# A forking server accepts within this time, unless it has reached its limit of processes: only then
# a waiting client is locked out.
_FORKING_GRACE_S = 0.05


class Inlet(io.RawIOBase):
    """The read side of a connection, which can tell whether input is buffered."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._is_peeking = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        if self._is_peeking:
            return None  # peek() is to return what is buffered
        return self._sock.recv_into(buffer)

    def holds_more(self, stream: io.BufferedReader) -> bool:
        """Whether there is input that was received and not read.

        :param stream: the buffer over this input.
        """
        self._is_peeking = True
        try:
            if stream.peek(1):
                return True
        finally:
            self._is_peeking = False
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0


class Waiting:
    """Waits for a connection's next request, unless the server stops or another client waits."""

    def __init__(self, connection: socket.socket, server: socketserver.TCPServer) -> None:
        self._server = server
        self._connection_fd = connection.fileno()
        # A server with one thread accepts no connection while it waits here.
        self.has_thread_of_its_own = isinstance(server, socketserver.ThreadingMixIn)
        self._grace_s = _FORKING_GRACE_S if _is_forking(server) else 0.0
        self._poll = select.poll()
        self._poll.register(self._connection_fd, select.POLLIN)
        self._connection_poll = select.poll()
        self._connection_poll.register(self._connection_fd, select.POLLIN)
        self._listener_poll = select.poll()
        if not self.has_thread_of_its_own and server.fileno() >= 0:
            self._poll.register(server.fileno(), select.POLLIN)
            self._listener_poll.register(server.fileno(), select.POLLIN)
        # Readable once the server stops; Werkzeug's servers have none.
        stop_fd: int = getattr(server, "stop_fd", -1)
        if stop_fd >= 0:
            self._poll.register(stop_fd, select.POLLIN)

    def for_request(self, patience_s: float | None, grace_s: float) -> bool:
        """Wait until the client sends something; return False if the connection is to be closed.

        :param patience_s: seconds; None for no limit.
        :param grace_s: seconds to wait for this client while others wait to be accepted.
        """
        deadline = math.inf if patience_s is None else time.monotonic() + patience_s
        while (left := deadline - time.monotonic()) > 0:
            ready = {fd for fd, _ in self._poll.poll(None if left == math.inf else left * 1e3)}
            if self._connection_fd in ready:
                return True
            if self.is_server_stopping():
                return False
            if ready and self.is_other_client_locked_out(grace_s):
                return bool(self._connection_poll.poll(0))
        return False

    def is_other_client_locked_out(self, grace_s: float = 0.0) -> bool:
        """Whether another client cannot be accepted until this connection ends.

        :param grace_s: seconds to wait for this client's request first.
        """
        if self.has_thread_of_its_own or not self._listener_poll.poll(0):
            return False
        grace_s = max(grace_s, self._grace_s)
        if not grace_s:
            return True
        return not self._connection_poll.poll(grace_s * 1e3) and bool(self._listener_poll.poll(0))

    def is_server_stopping(self) -> bool:
        return self._server.fileno() < 0 or bool(getattr(self._server, "is_stopping", False))


def _is_forking(server: socketserver.BaseServer) -> bool:
    forking = getattr(socketserver, "ForkingMixIn", None)
    return forking is not None and isinstance(server, forking)

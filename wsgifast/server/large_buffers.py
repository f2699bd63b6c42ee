"""Large send buffers, of which a worker has only few: a quick client has one while it is quick.

Under TLS every time that the buffer is full costs more than a larger one does. But a client that
has been quick may take nothing any more, and what lies in its buffer is the kernel's memory, which
nobody gets back from it: so it is the number of such buffers that is bounded.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import threading
from typing import cast

from ..sockets.options import SocketLike, limit_send_buffer

__all__ = ["LARGE_BYTES", "LargeBuffers"]

# The kernel counts up to twice as much, for its bookkeeping (socket(7)).
LARGE_BYTES = 4 * 1024 * 1024
_MOST_BUFFERS = 4
_INT = struct.Struct("i")


class LargeBuffers:
    """Who has one. Every method may be called from any thread.

    :param most: so many sockets at a time.
    """

    def __init__(self, most: int = _MOST_BUFFERS) -> None:
        self._most = most
        self._holders: dict[socket.socket, int] = {}  # and how large the buffer was before
        self._lock = threading.Lock()

    def lend(self, sock: socket.socket, usual: int) -> None:
        """Give a socket a large buffer, if it has none and there is one left.

        One that another socket has and does not need is left: it has sent all that it was given.

        :param usual: what it has in place of it; bytes.
        """
        if sock in self._holders:
            return
        with self._lock:
            if len(self._holders) >= self._most:
                idle = next((each for each in self._holders if _is_idle(each)), None)
                if idle is None:
                    return
                self._end(idle)
            self._holders[sock] = usual
            _resize(sock, LARGE_BYTES)

    def take_back(self, sock: socket.socket) -> None:
        """Take a socket's large buffer back, if it has one; what is in it already stays."""
        if sock in self._holders:
            with self._lock:
                self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        """With the lock."""
        usual = self._holders.pop(sock, None)
        if usual is not None:
            _resize(sock, usual)


def _is_idle(sock: socket.socket) -> bool:
    """Whether the client has taken all of its buffer, or the socket is closed."""
    try:
        waiting = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
    except (OSError, ValueError):
        return True
    return _INT.unpack(waiting) == (0,)


def _resize(sock: socket.socket, size: int) -> None:
    with contextlib.suppress(OSError):  # reset just now, or closed
        limit_send_buffer(cast(SocketLike, sock), size)

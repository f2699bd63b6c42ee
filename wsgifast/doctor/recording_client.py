"""The client of a recording server, over a real connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

__all__ = ["HELD_S", "RecordingClient"]

# How long a client does not read, to see whether it occupies the app's thread.
HELD_S = 0.3
# Its receive buffer: an app's thread that has more to hand over than this and the server's send
# buffer has to wait.
_SLOW_BUFFER_BYTES = 64 * 1024


class RecordingClient:
    """The other end of the connection: reads everything, at once or after a while.

    :param reads: False for a client that takes nothing until :meth:`read_on`.
    """

    def __init__(self, *, reads: bool = True) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
            self._sock = socket.socket()
            if not reads:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
            self._sock.connect(listener.getsockname())
            self.server_side, _ = listener.accept()
        if not reads:
            self.server_side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SLOW_BUFFER_BYTES)
        self.server_side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        #: The client's own CPU seconds; whole once it is closed.
        self.cpu_s = 0.0
        self._may_read = threading.Event()
        if reads:
            self._may_read.set()
        self._thread = threading.Thread(target=self._read, name="wsgifast-doctor-client")
        self._thread.start()

    def read_on(self) -> None:
        self._may_read.set()

    def close(self) -> None:
        """Close both sides; an app that is still sending gets an error."""
        self._may_read.set()
        with contextlib.suppress(OSError):
            self.server_side.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.server_side.close()
        self._sock.close()

    def _read(self) -> None:
        began = time.thread_time()
        self._may_read.wait()
        buffer = bytearray(1 << 20)
        with contextlib.suppress(OSError):
            while self._sock.recv_into(buffer):
                pass
        self.cpu_s = time.thread_time() - began

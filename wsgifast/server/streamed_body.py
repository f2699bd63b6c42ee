"""Request bodies that the app's thread reads from its client, where they are not buffered."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from typing import Any

from .request_body import Received
from .transport import WOULD_BLOCK

__all__ = ["DRAIN_BYTES", "drain", "receive_blocking"]

# One receive: at least, however little the app asks for, and at most.
_LEAST_BYTES = 16 * 1024
_MOST_BYTES = 256 * 1024
# The most that is thrown away of a body which the app has not read, to keep the connection: a
# client that sends as fast as it is read would otherwise hold the thread as long as it likes.
DRAIN_BYTES = 1024 * 1024
_DRAIN_STEP_BYTES = 64 * 1024


def receive_blocking(
    sock: socket.socket, lock: threading.Lock, wanted: int, timeout_s: float
) -> bytes:
    """Receive once from a non-blocking socket, and wait until something has come.

    :param lock: the output queue's, which may use the same TLS object.
    :returns: b"" at the end of the connection.
    :raises TimeoutError: if nothing has come in time.
    :raises OSError: if the connection is lost.
    """
    size = _receive_bytes(wanted)
    deadline = time.monotonic() + timeout_s
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)
    while True:
        awaited = select.POLLIN
        try:
            with lock:
                return sock.recv(size)
        except ssl.SSLWantWriteError:  # TLS has something of its own to send first
            awaited = select.POLLOUT
        except WOULD_BLOCK:
            pass
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the client has not sent its body in time")
        poller.modify(sock.fileno(), awaited)
        poller.poll(remaining * 1000)


def drain(body: Any, received: Received, sock: socket.socket) -> bool:
    """Throw away what the app has not read of its body, if it is all here.

    :param body: gunicorn's, over `received`.
    :returns: whether the next request's first byte comes next on the connection.
    """
    if getattr(body, "failed", False):
        return False
    received.wait = lambda wanted: sock.recv(_receive_bytes(wanted))  # non-blocking
    drained = 0
    try:
        while data := body.read(_DRAIN_STEP_BYTES):
            drained += len(data)
            if drained > DRAIN_BYTES:
                return False
    except Exception:  # noqa: BLE001 - not all here, or malformed: the next one's start is lost
        return False
    return True


def _receive_bytes(wanted: int) -> int:
    # 0 where the parser takes whatever comes, as of chunked bodies.
    return max(_LEAST_BYTES, min(wanted, _MOST_BYTES))

"""How a connection begins and ends on its socket, with TLS and without. Nothing here waits."""

from __future__ import annotations

import socket
import ssl

from .poller import READ, WRITE

__all__ = ["WOULD_BLOCK", "discard", "end_sending", "has_come", "shake_hands"]

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def shake_hands(sock: ssl.SSLSocket) -> int:
    """Go on with TLS's handshake; returns what to wait for, 0 once it is done.

    :raises OSError, ValueError: if it fails.
    """
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return READ
    except ssl.SSLWantWriteError:
        return WRITE
    return 0


def end_sending(sock: socket.socket) -> None:
    """Say that nothing more will be sent.

    :raises OSError, ValueError: if the client has gone.
    """
    sock.setblocking(False)
    if isinstance(sock, ssl.SSLSocket):
        try:  # the end is no truncation (RFC 8446 section 6.1); do not wait for theirs
            sock.unwrap()
        except (OSError, ValueError):
            pass
    sock.shutdown(socket.SHUT_WR)


def has_come(sock: socket.socket) -> bool:
    """Whether something has come that nobody has received; below TLS, if there is any."""
    try:
        return bool(socket.socket.recv(sock, 1, socket.MSG_PEEK))
    except (OSError, ValueError):
        return False


def discard(sock: socket.socket, most: int) -> int | None:
    """Throw away what has come.

    :param most: bytes.
    :returns: how many bytes that were; None at the end of the connection.
    """
    try:
        # Below TLS, if there is any: nobody looks at what comes now.
        return len(socket.socket.recv(sock, most)) or None
    except WOULD_BLOCK:
        return 0
    except (OSError, ValueError):
        return None

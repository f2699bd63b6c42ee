"""The start and end of a connection on its socket, with and without TLS. Nothing here waits."""

from __future__ import annotations

import socket
import ssl

from .poller import READ, WRITE

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def shake_hands(sock: ssl.SSLSocket) -> int:
    """Go on with a TLS handshake; returns the events to wait for, 0 when it is complete.

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
    """Shut down the sending side.

    :raises OSError, ValueError: if the client has gone.
    """
    sock.setblocking(False)
    if isinstance(sock, ssl.SSLSocket):
        try:  # sends close_notify (RFC 8446 section 6.1); the client's is not waited for
            sock.unwrap()
        except (OSError, ValueError):
            pass
    sock.shutdown(socket.SHUT_WR)


def has_come(sock: socket.socket) -> bool:
    """Whether the socket has unread data, or is at its end; encrypted data with TLS."""
    try:
        return bool(socket.socket.recv(sock, 1, socket.MSG_PEEK))
    except (OSError, ValueError):
        return False


def discard(sock: socket.socket, most: int) -> int | None:
    """Discard received data.

    :param most: bytes.
    :returns: the number of bytes; None at the end of the connection.
    """
    try:
        # Without decrypting it.
        return len(socket.socket.recv(sock, most)) or None
    except WOULD_BLOCK:
        return 0
    except (OSError, ValueError):
        return None

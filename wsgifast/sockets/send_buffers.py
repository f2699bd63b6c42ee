"""Sends several buffers in one system call."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from .options import is_tls_socket

# Below this average size, copying into one block is cheaper than a sendmsg with many buffers.
_JOIN_BELOW_BYTES = 4096
# TLS takes one buffer at a time: below this total, copying costs less than separate records.
_JOIN_FOR_TLS_BYTES = 256 * 1024
# More buffers than this in one sendmsg are an error (EMSGSIZE). 1024 on Linux and macOS.
_IOV_MAX = os.sysconf("SC_IOV_MAX")


def send_some(
    sock: socket.socket, buffers: Sequence[bytes | memoryview], flags: int = 0
) -> Sequence[bytes | memoryview]:
    """Send the beginning of some buffers, in one system call; return what is left.

    :param sock: blocking or not; TLS too.
    :param buffers: in order; views must be of bytes ("B").
    :param flags: as for socket.send(), e.g. MSG_MORE; ignored for TLS.
    :raises BlockingIOError: if a non-blocking socket takes nothing now.
    :raises OSError: as socket.send().
    """
    if not buffers:
        return ()
    # ssl's sockets do not support sendmsg.
    is_tls = type(sock) is not socket.socket and is_tls_socket(sock)
    if len(buffers) > 1:
        total = sum(map(len, buffers))
        if total < len(buffers) * _JOIN_BELOW_BYTES or (is_tls and total <= _JOIN_FOR_TLS_BYTES):
            buffers = (b"".join(buffers),)
        elif not is_tls:
            sent = sock.sendmsg(buffers[:_IOV_MAX], (), flags)
            return () if sent == total else _left(buffers, sent)
    sent = sock.send(buffers[0]) if is_tls else sock.send(buffers[0], flags)
    return () if len(buffers) == 1 and sent == len(buffers[0]) else _left(buffers, sent)


def send_all(sock: socket.socket, buffers: Sequence[bytes | memoryview]) -> None:
    """Send buffers in order on a blocking socket, or one with a timeout (for each call).

    :raises OSError: as socket.send(); how much was sent is not known then.
    """
    while buffers:
        buffers = send_some(sock, buffers)


def _left(buffers: Sequence[bytes | memoryview], sent: int) -> Sequence[bytes | memoryview]:
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return (memoryview(buffer)[sent:], *buffers[number + 1 :])
        sent -= len(buffer)
    return ()

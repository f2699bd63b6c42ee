"""What the kernel says of a socket's options."""

from __future__ import annotations

import socket
from typing import Any


def send_buffer_is_limited(sock: Any) -> bool:
    """Whether a program has set the size, so that the kernel does not (SOCK_SNDBUF_LOCK)."""
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, 72) & 1)  # SO_BUF_LOCK
    except OSError:  # a kernel before 5.14
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 1 << 18)

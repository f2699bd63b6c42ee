"""What the kernel says of a socket's options."""

from __future__ import annotations

import socket
from typing import Any

import pytest


def send_buffer_is_limited(sock: Any) -> bool:
    """Whether a program has set the size, so that the kernel does not (SOCK_SNDBUF_LOCK)."""
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, 72) & 1)  # SO_BUF_LOCK
    except OSError:  # a kernel before 5.14
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 1 << 18)


def congestion_control(sock: Any) -> bytes:
    """Its name, such as b"cubic"."""
    name: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0")


def use_bbr(sock: socket.socket) -> None:
    """:raises OSError: if the kernel does not have it, or not for everybody."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")


def _has_bbr() -> bool:
    with socket.socket() as sock:
        try:
            use_bbr(sock)
        except (AttributeError, OSError):
            return False
    return True


needs_bbr = pytest.mark.skipif(
    not _has_bbr(),
    reason="no BBR: modprobe tcp_bbr; then allow it in net.ipv4.tcp_allowed_congestion_control",
)

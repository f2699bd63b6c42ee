"""Chooses the receive call for a kind of socket and a time limit."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from .coalescing.flusher import flusher
from .options import is_plain_socket

__all__ = ["Receive", "ReceivingSocket", "receive_call"]

# One and a half segments over loopback.
_LOW_WATER_BYTES = 96 * 1024
# For smaller receives it saves too little.
_LARGE_BYTES = 512 * 1024
# Receives into a view; returns the number of bytes, 0 at the end of the connection.
Receive = Callable[[memoryview], int]


class ReceivingSocket(Protocol):
    """The part of a socket that is used here."""

    def fileno(self) -> int: ...
    def gettimeout(self) -> float | None: ...
    def settimeout(self, value: float | None, /) -> None: ...
    def recv_into(self, buffer: memoryview, nbytes: int = ..., flags: int = ..., /) -> int: ...


def receive_call(sock: ReceivingSocket, timeout: float | None) -> Receive:
    """Choose the receive call for a socket and a time limit."""
    own = sock.gettimeout()
    limit = own if timeout is None else timeout
    if own == 0 and timeout is None:
        raise ValueError("the socket is non-blocking: name a timeout, or use async_recv_exactly")
    deadline = None if limit is None else time.monotonic() + limit
    if not is_plain_socket(sock):
        return _by_the_sockets_own_timeout(sock, deadline)
    if deadline is not None:
        return _by_poll(sock, deadline)
    is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
    # The flusher does not count: it sleeps most of the time.
    is_alone = threading.active_count() - flusher.runs == 1
    if is_tcp and is_alone and sys.platform == "linux":
        return _in_large_steps(sock)
    return lambda rest: sock.recv_into(rest, 0, socket.MSG_WAITALL)


def _in_large_steps(sock: socket.socket) -> Receive:
    """For plain TCP sockets on Linux: sleep until a large amount has arrived.

    The kernel wakes a receiver of MSG_WAITALL for each segment, at a cost for both sides. With a
    low-water mark (SO_RCVLOWAT) it waits for a larger amount, and would never wake for a rest below
    the mark: so the rest is received by another call, without the mark. Not used if there are other
    threads: each call may have to wait for the GIL, and a thread that watches the socket would be
    affected by the mark.
    """

    def receive(rest: memoryview) -> int:
        size = len(rest) - _LOW_WATER_BYTES
        if size < _LARGE_BYTES:
            return sock.recv_into(rest, 0, socket.MSG_WAITALL)
        try:
            own = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _LOW_WATER_BYTES)
        except OSError:  # MPTCP sockets of older kernels
            return sock.recv_into(rest, 0, socket.MSG_WAITALL)
        try:
            return sock.recv_into(rest, size, socket.MSG_WAITALL)
        finally:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, own)

    return receive


def _by_poll(sock: socket.socket, deadline: float) -> Receive:
    """For plain sockets: receive what is there, and wait only if there is nothing."""
    if sock.gettimeout() is None:

        def attempt(rest: memoryview) -> int:
            return sock.recv_into(rest, 0, socket.MSG_DONTWAIT)

    else:
        # The descriptor is non-blocking. socket.recv_into would call poll() first each time.
        def attempt(rest: memoryview) -> int:
            return os.readv(sock.fileno(), [rest])

    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)

    def receive(rest: memoryview) -> int:
        while True:
            try:
                return attempt(rest)
            except BlockingIOError:
                left_ms = (deadline - time.monotonic()) * 1e3
                # poll() rounds up to milliseconds, but may still return a little early.
                if left_ms <= 0 or not poller.poll(left_ms):
                    raise TimeoutError from None

    return receive


def _by_the_sockets_own_timeout(sock: ReceivingSocket, deadline: float | None) -> Receive:
    """For sockets whose recv_into does more than the system call, such as TLS and gevent's."""
    if deadline is None:
        return sock.recv_into

    def receive(rest: memoryview) -> int:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        own = sock.gettimeout()
        sock.settimeout(left)
        try:
            return sock.recv_into(rest)
        finally:
            sock.settimeout(own)

    return receive

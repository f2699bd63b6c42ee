"""A non-blocking socket to send on: bytes, files, and how much of them the kernel may hold.

A file is sent only as far as it is in memory, unless the caller may wait for its disk.

The send buffer of a near client starts small and grows when the client is quick: what slow clients
leave lying there comes out of the memory that the kernel has for all TCP connections, and when
that is gone, every connection of the host stands still.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from collections.abc import Sequence
from typing import cast

from ..sockets.gathering import send_some
from ..sockets.options import FIRST_SEND_BUFFER_BYTES, QUICK_S, SocketLike, limit_send_buffer
from ..sockets.page_cache import cached_bytes, read_cached
from ..sockets.sendfile import (
    BLOCK_BYTES,
    MSG_MORE,
    FileSegment,
    FileTruncated,
    SendfileUnavailable,
    send_file_once,
)

__all__ = ["WOULD_BLOCK", "Transport"]

# As far ahead a file is looked for in memory: at first, and at most. It is twice as far each time
# that the client has taken all of it soon; a slow one takes less before it is looked for again.
_FIRST_LOOK_BYTES = 512 * 1024
_MOST_LOOK_BYTES = 4 * 1024 * 1024
# How long what was seen in memory is taken to be there: a slow client's file may be gone since.
_CACHED_FOR_S = 0.5
# What is read where memory is short: one TLS record (RFC 8446 section 5.1).
_SMALL_BLOCK_BYTES = 16 * 1024

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Transport:
    """Sends on one socket.

    :param sock: non-blocking, plain or TLS.
    :param sendfile: whether the kernel may send files by itself; with TLS it never does.
    :ivar sends_files: whether it does.
    :ivar is_full: whether the kernel has taken less than it was last given.
    """

    __slots__ = (
        "_cached_to",
        "_cached_until",
        "_full_since",
        "_look",
        "_may_grow",
        "_sized",
        "is_full",
        "is_tls",
        "sends_files",
        "sock",
    )

    def __init__(self, sock: socket.socket, *, sendfile: bool) -> None:
        self.sock = sock
        self.is_tls = isinstance(sock, ssl.SSLSocket)
        self.sends_files = sendfile and not self.is_tls and hasattr(os, "sendfile")
        self._sized = False  # whether the send buffer has been chosen
        self._may_grow = False  # it is the small one
        self._full_since = 0.0
        self.is_full = False
        self._cached_to = 0  # offset up to which the file in hand was seen in memory
        self._cached_until = 0.0
        self._look = 0  # bytes looked for last

    def send(
        self, buffers: Sequence[bytes | memoryview], *, file_follows: bool
    ) -> Sequence[bytes | memoryview]:
        """Send the beginning of some buffers; return what is left.

        :param file_follows: let the kernel put the file's first bytes into the same packet.
        """
        flags = MSG_MORE if file_follows and self.sends_files else 0
        left = send_some(self.sock, buffers, flags)
        self.is_full = bool(left)
        return left

    def send_file(
        self, segment: FileSegment, done: int, most: int, *, may_wait: bool, memory_is_short: bool
    ) -> int | bytes | None:
        """Send, or else read, the next bytes of a file.

        :param done: bytes of it that were sent or read before.
        :param most: bytes of it now.
        :param may_wait: for the disk.
        :returns: how many bytes the kernel has taken; where it cannot send files, what was read
            and is to be sent next; None if the disk must be waited for, or may have to be.
        :raises FileTruncated: if the file ends early.
        :raises BlockingIOError: if the kernel takes nothing now.
        :raises OSError: if the client has gone, or the file cannot be read.
        """
        fd, offset, whole = segment
        place = offset + done
        size = min(whole - done, most)
        result: int | bytes | None = None
        if self.sends_files:
            if not may_wait:
                cached = self._cached_bytes(fd, place, whole - done, begin=not done)
                if not cached:
                    return None
                size = min(size, cached)
            try:
                result = send_file_once(self.sock.fileno(), fd, place, size)
                self.is_full = result < size
            except SendfileUnavailable:
                self.sends_files = False
        if result is None:
            size = min(size, _SMALL_BLOCK_BYTES if memory_is_short else BLOCK_BYTES)
            result = os.pread(fd, size, place) if may_wait else read_cached(fd, place, size)
        if not result and result is not None:
            raise FileTruncated(whole - done, whole)
        return result

    def _cached_bytes(self, fd: int, place: int, left: int, *, begin: bool) -> int:
        """How far a file, of which so much is left, may be sent without waiting for its disk."""
        now = time.monotonic()
        forgets = begin or now > self._cached_until
        if forgets or self._cached_to <= place:
            look = _FIRST_LOOK_BYTES if forgets else min(2 * self._look, _MOST_LOOK_BYTES)
            self._look = look
            self._cached_to = place + cached_bytes(fd, place, min(left, look))
            self._cached_until = now + _CACHED_FOR_S
        return self._cached_to - place

    def limit_buffer(self) -> None:
        """Choose the send buffer, once: more is to be sent than an answer of the usual size."""
        if not self._sized:
            self._sized = True
            # Reset just now: the next send says so.
            with contextlib.suppress(OSError):
                self._may_grow = limit_send_buffer(
                    cast(SocketLike, self.sock), FIRST_SEND_BUFFER_BYTES
                )

    def note_full(self) -> None:
        """The kernel takes no more: from now on it is seen how soon the client makes room."""
        self.limit_buffer()
        if self._may_grow:
            self._full_since = time.monotonic()

    def note_writable(self) -> None:
        """The client has made room; a quick one is given a larger buffer."""
        if self._may_grow and time.monotonic() - self._full_since < QUICK_S:
            self._may_grow = False
            with contextlib.suppress(OSError):  # as above
                limit_send_buffer(cast(SocketLike, self.sock))

"""The write side of one connection: what belongs together leaves in one system call."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import cast

from ..bodies.segments import read_segment
from ..sockets.gathering import send_some
from ..sockets.options import SocketLike, limit_send_buffer
from ..sockets.sendfile import MSG_MORE, FileSegment, FileTruncated, send_file_segment
from .requestbody import ClientGone

__all__ = ["Outlet"]

# A file of this size is worth the two calls that size the send buffer.
_LARGE_BYTES = 1 << 19


class Outlet:
    """Sends buffers and files on a blocking socket, and counts what left.

    :param sock: its timeout is how long the client may take no byte at all.
    :param kernel_sends_files: False: read and send, for file systems on which sendfile fails.
    :ivar sent: bytes that the kernel has taken so far, right after a failure too.
    """

    def __init__(self, sock: socket.socket, *, kernel_sends_files: bool = True) -> None:
        self._sock = sock
        self._kernel_sends_files = kernel_sends_files
        self._sized = False
        self.sent = 0

    def send(self, buffers: Sequence[bytes], *, more_follows: bool = False) -> None:
        """Send buffers as one.

        :param more_follows: there is more to send at once: the last TCP segment may wait for it.

        :raises ClientGone: if the client has left, or takes nothing.
        """
        left: Sequence[bytes | memoryview] = buffers
        end = self.sent + sum(map(len, buffers))
        try:
            # Not sendall(): it would take the timeout for the whole; here it is for each step.
            while left:
                left = send_some(self._sock, left, MSG_MORE if more_follows else 0)
                self.sent = end - sum(map(len, left))
        except OSError as error:
            raise ClientGone(f"the client takes no more: {error}") from error

    def send_file(self, segment: FileSegment) -> None:
        """Send a run of a file.

        :raises ClientGone: if the client has left, or takes nothing.
        :raises FileTruncated: if the file ends early.
        :raises OSError: if the file cannot be read.
        """
        if not self._kernel_sends_files:
            for block in read_segment(segment):
                self.send([block])
            return
        try:
            if segment.size >= _LARGE_BYTES and not self._sized:
                self._sized = True
                limit_send_buffer(cast(SocketLike, self._sock))
            send_file_segment(self._sock, segment, self._count)
        except FileTruncated:
            raise
        except (ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise ClientGone(f"the client takes no more: {error}") from error

    def _count(self, sent: int) -> None:
        self.sent += sent

"""The write side of one connection: what belongs together leaves in one system call."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from typing import cast

from ..delivery import read_segment
from ..sockets.options import SocketLike, limit_send_buffer
from ..sockets.sendfile import FileSegment, FileTruncated, send_file_segment
from .requestbody import ClientGone

__all__ = ["Outlet"]

# Buffers that one sendmsg takes.
_MAX_BUFFERS: int = os.sysconf("SC_IOV_MAX")
# Tells the kernel that more follows at once, so that a head and a file share a segment. Linux only;
# elsewhere they are two segments, which TCP_NODELAY does not delay.
_MSG_MORE = getattr(socket, "MSG_MORE", 0)
# TLS takes one buffer at a time: below this size, copying costs less than a record of its own.
_JOIN_BYTES = 256 * 1024
# From this size on a transfer outlives the auto-tuning of the send buffer.
_LARGE_BYTES = 1 << 20


class Outlet:
    """Sends buffers and files on a blocking socket, and counts what left.

    :param sock: its timeout is how long the client may take no byte at all.
    :param kernel_sends_files: False: read and send, for file systems on which sendfile fails.
    :ivar sent: bytes that the kernel has taken so far, right after a failure too.
    """

    def __init__(self, sock: socket.socket, *, kernel_sends_files: bool = True) -> None:
        self._sock = sock
        self._gathers = not isinstance(sock, ssl.SSLSocket)
        self._kernel_sends_files = kernel_sends_files
        self._sized = False
        self.sent = 0

    def send(self, buffers: Sequence[bytes], *, more_follows: bool = False) -> None:
        """Send buffers as one.

        :param more_follows: there is more to send at once: the last TCP segment may wait for it.

        :raises ClientGone: if the client has left, or takes nothing.
        """
        try:
            if self._gathers:
                self._gather(buffers, _MSG_MORE if more_follows else 0)
            else:
                self._join(buffers)
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

    def _gather(self, buffers: Sequence[bytes], flags: int) -> None:
        views = [memoryview(buffer) for buffer in buffers]
        first = 0
        while first < len(views):
            batch = views[first : first + _MAX_BUFFERS]
            last = first + _MAX_BUFFERS >= len(views)
            # sendall() would take the timeout for the whole; here it is for each step.
            sent = self._sock.sendmsg(batch, (), flags if last else _MSG_MORE)
            self.sent += sent
            while first < len(views) and sent >= len(views[first]):
                sent -= len(views[first])
                first += 1
            if sent:
                views[first] = views[first][sent:]

    def _join(self, buffers: Sequence[bytes]) -> None:
        if len(buffers) > 1 and sum(map(len, buffers)) <= _JOIN_BYTES:
            buffers = [b"".join(buffers)]
        for buffer in buffers:
            rest = memoryview(buffer)
            while rest:
                sent = self._sock.send(rest)
                self.sent += sent
                rest = rest[sent:]

    def _count(self, sent: int) -> None:
        self.sent += sent

"""The write side of a connection, with as few system calls as possible."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import cast

from ..errors import BodyTooShort, ClientGone
from ..sockets.closing import has_hung_up
from ..sockets.options import SocketLike, avoid_pacing
from ..sockets.sending import MSG_MORE, FileSegment, FileTruncated, send_file_segment, send_some

# A file of this size is worth the calls that set the socket's options.
_LARGE_BYTES = 1 << 19


class Outlet:
    """Sends buffers and files on a blocking socket: an :class:`~..bodies.response_writer.Output`.

    :param sock: its timeout is how long the client may receive nothing.
    :param kernel_sends_files: False: read files and send what was read.
    :ivar unsent: after a failure, the number of bytes that the kernel has not taken.
    :raises ClientGone: (from all that send) if the client has left, or receives nothing.
    """

    def __init__(self, sock: socket.socket, *, kernel_sends_files: bool = True) -> None:
        self._sock = sock
        self._kernel_sends_files = kernel_sends_files
        self._prepared = False
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.write_all([data])

    def begin_stream(
        self, data: bytes, *, frame: Callable[[bytes], bytes] | None, may_run_ahead: bool
    ) -> Callable[[bytes], None]:
        self.write_all([data])
        return self.write if frame is None else lambda block: self.write(frame(block))

    def write_all(
        self, buffers: Sequence[bytes | memoryview], *, more_follows: bool = False
    ) -> None:
        """:param more_follows: more is sent at once, so that the last TCP segment may wait."""
        try:
            # Not sendall(), whose timeout is for all of it.
            while buffers:
                buffers = send_some(self._sock, buffers, MSG_MORE if more_follows else 0)
        except OSError as error:
            raise _gone(error) from error
        finally:
            self.unsent = sum(map(len, buffers))

    def check_client(self) -> None:
        if has_hung_up(self._sock):
            raise ClientGone("the client has hung up")

    def write_file(self, head: bytes, fd: int, offset: int, size: int) -> None:
        """:raises FileTruncated: if the file ends early.

        :raises BodyTooShort: if the file cannot be read.
        """
        if head:
            self.write_all([head], more_follows=True)
        self.unsent = size
        try:
            if size >= _LARGE_BYTES and not self._prepared:
                self._prepared = True
                avoid_pacing(cast(SocketLike, self._sock))
            segment = FileSegment(fd, offset, size)
            by_kernel = self._kernel_sends_files
            send_file_segment(self._sock, segment, self._count, by_kernel=by_kernel)
        except FileTruncated:
            raise
        except (ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise _gone(error) from error
        except OSError as error:
            raise BodyTooShort(self.unsent) from error

    def _count(self, sent: int) -> None:
        self.unsent -= sent


def _gone(error: OSError) -> ClientGone:
    return ClientGone(f"the client takes no more: {error}")

"""Sending bytes and ranges of files by the best way the server has."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence

from wsgifast.files import ByteRange
from wsgifast.sockets import FileSegment
from wsgifast.sockets.sendfile import BLOCK_BYTES

from ..extensions import PLANNED, PlannedBody
from ..loops import ended, in_asyncio, running_loop
from ..messages import PATHSEND, ZEROCOPYSEND, Message, Scope, Send, response_body
from ..receiver import Receiver
from .reading import send_segment

__all__ = ["Delivery"]

# Cannot be opened: a server that heeds the path alone would send the whole file for a part of it.
_NO_PATH = "/dev/null/asgifast.planned"
# From this size on the client's disconnect is listened for while a file is read and sent.
_WATCHED_FILE_BYTES = 4 * BLOCK_BYTES


class Delivery:
    """One request's send(), and the server's extensions for files.

    The ways, in this order: asgifast's own extension (PLANNED), pathsend or zerocopysend where the
    server has them, or body messages read from the page cache. Descriptors stay the caller's.

    :param receiver: by which a disconnect is noticed while a file is read and sent.
    """

    __slots__ = ("_receiver", "_scope", "_server_send")

    def __init__(self, scope: Scope, receiver: Receiver, send: Send) -> None:
        self._scope = scope
        self._receiver = receiver
        self._server_send = send

    def offers(self, name: str) -> bool:
        """Whether the server has an extension, such as http.response.pathsend."""
        extensions = self._scope.get("extensions")
        if not extensions or name not in extensions:
            return False
        return PLANNED in extensions or not _sendfile_is_broken()

    def offers_ranges(self) -> bool:
        """Whether the server's http.response.pathsend accepts an offset and a count."""
        if not self.offers(PATHSEND):
            return False
        options = self._scope["extensions"][PATHSEND]
        return isinstance(options, Mapping) and options.get("ranges") is True

    async def send_segments(
        self, segments: Sequence[bytes | ByteRange], fd: int | None, path: str | None = None
    ) -> None:
        """Send a plan's segments as the whole body.

        :param fd: the descriptor of the file that the ranges are of.
        :param path: the same file's absolute path, if the server may open it again.
        """
        if not segments:
            await self._server_send(response_body())
            return
        if fd is not None and self.offers(PLANNED):
            planned = PlannedBody(io.FileIO(os.dup(fd)), segments, path)
            await self._server_send({"type": PATHSEND, "path": _NO_PATH, PLANNED: planned})
            return
        last = len(segments) - 1
        if path is not None and not last and not self.offers(ZEROCOPYSEND) and self.offers_ranges():
            run = segments[0]
            if isinstance(run, ByteRange):
                await self.send_path(path, run.offset, run.size)
                return
        for index, segment in enumerate(segments):
            more = index < last
            if isinstance(segment, bytes):
                await self._server_send(response_body(segment, more_body=more))
            elif fd is not None:
                await self.send_file(fd, segment.offset, segment.size, more_body=more)

    async def send_path(self, path: str, offset: int = 0, count: int | None = None) -> None:
        """Send a file, or a range of it, as the whole body by the server's pathsend."""
        message: Message = {"type": PATHSEND, "path": path}
        if offset:
            message["offset"] = offset
        if count is not None:
            message["count"] = count
        await self._server_send(message)

    async def send_file(self, fd: int, offset: int, size: int, *, more_body: bool = False) -> None:
        """Send a range of a file by the server's zerocopysend, or read it."""
        if size and self.offers(ZEROCOPYSEND):
            await self._server_send(
                {
                    "type": ZEROCOPYSEND,
                    "file": fd if self.offers(PLANNED) else _Descriptor(fd),
                    "offset": offset,
                    "count": size,
                    "more_body": more_body,
                }
            )
            return
        send, segment, receiver = self._server_send, FileSegment(fd, offset, size), self._receiver
        if size < _WATCHED_FILE_BYTES or receiver.is_awaited:
            await send_segment(send, segment, more_body=more_body)
            return
        listener = running_loop().create_task(receiver.listen_for_disconnect())
        left = receiver.is_disconnected
        try:
            await send_segment(send, segment, more_body=more_body, is_disconnected=left)
            if listener.done():
                await listener  # raises what receive() has raised
        finally:
            await ended(listener)


class _Descriptor:
    """A descriptor as a file object: anycorn fails on an int."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd


def _sendfile_is_broken() -> bool:
    """Whether the server's sendfile stops where the send buffer is full.

    anycorn 0.20 on asyncio then waits for the socket in a way that asyncio refuses.
    """
    return "anycorn.sendfile" in sys.modules and in_asyncio()

"""Sending bytes and ranges of files by the best way the server has."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence

from wsgifast.files import ByteRange
from wsgifast.sockets import FileSegment
from wsgifast.sockets.sending import BLOCK_BYTES

from ..content_coding import ContentCoding
from ..extensions import PLANNED, PlannedBody
from ..loops import ended, running_loop
from ..messages import PATHSEND, ZEROCOPYSEND, Message, Receive, Scope, Send, response_body
from .reading import send_segment

# Cannot be opened: a server that heeds the path alone would send the whole file for a part of it.
_NO_PATH = "/dev/null/asgifast.planned"
# From this size on the client's disconnect is listened for while a file is read and sent.
_WATCHED_FILE_BYTES = 4 * BLOCK_BYTES
# How much of a request body is kept while a file is sent. Beyond it the disconnect is not noticed;
# to listen on would take an upload of any size into memory.
_KEPT_BYTES = 64 * 1024
_KEPT_MESSAGES = 64


class Delivery:
    """One request's receive() and send(), and the server's extensions for files.

    The ways, in this order: asgifast's own extension (PLANNED), pathsend or zerocopysend where the
    server has them, or body messages read from the page cache. Descriptors stay the caller's.

    While a file is read and sent, the client's disconnect is listened for: servers ignore what is
    sent after it, and the rest would be read for nobody. What else is received by that is `_kept`
    for the app.

    :ivar _is_awaited: the app is waiting for a message; two may not wait at once.
    """

    __slots__ = ("_coding", "_is_awaited", "_kept", "_scope", "_server_receive", "_server_send")

    _coding: ContentCoding | None
    _is_awaited: bool
    _kept: Sequence[Message]

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._server_receive = receive
        self._server_send = send
        self._kept = ()
        self._is_awaited = False
        self._coding = None

    async def receive(self) -> Message:
        """The receive() that the app is given."""
        if self._kept:
            message, *self._kept = self._kept
            return message
        self._is_awaited = True
        try:
            return await self._server_receive()
        finally:
            self._is_awaited = False

    def offers(self, name: str) -> bool:
        """Whether the server has an extension, such as http.response.pathsend."""
        if self._coding is not None and self._coding.compressor is not None:
            return False  # it is compressed, with the rest of the body
        return name in (self._scope.get("extensions") or ())

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
        send, segment = self._server_send, FileSegment(fd, offset, size)
        if size < _WATCHED_FILE_BYTES or self._is_awaited:
            await send_segment(send, segment, more_body=more_body)
            return
        listener = running_loop().create_task(self._listen_for_disconnect())
        left = self._has_disconnected
        try:
            await send_segment(send, segment, more_body=more_body, is_disconnected=left)
            if listener.done():
                await listener  # raises what receive() has raised
        finally:
            await ended(listener)

    def _has_disconnected(self) -> bool:
        return bool(self._kept) and self._kept[-1]["type"] == "http.disconnect"

    async def _listen_for_disconnect(self) -> None:
        """Receive until the client disconnects, or until the limits of what is kept."""
        while (
            not self._has_disconnected()
            and len(self._kept) < _KEPT_MESSAGES
            and sum(len(message.get("body", b"")) for message in self._kept) < _KEPT_BYTES
        ):
            message = await self._server_receive()
            self._kept = (*self._kept, message)  # the app may have taken some meanwhile


class _Descriptor:
    """A descriptor as a file object, as "Zero Copy Send" of the ASGI specification asks for."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

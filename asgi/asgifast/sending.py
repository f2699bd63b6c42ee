"""How this server can send a file: the extensions that it has, or body messages."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from wsgifast.files import ByteRange
from wsgifast.sockets import FileSegment, FileTruncated
from wsgifast.sockets.sendfile import BLOCK_BYTES

from .inbox import Inbox
from .loops import ended, in_asyncio, in_thread, next_turn, running_loop
from .messages import PATHSEND, ZEROCOPYSEND, Message, Scope, Send, response_body
from .pages import read_block

__all__ = [
    "COALESCING",
    "FILE_EXTENSIONS",
    "PLANNED",
    "PROTOCOL_EXTENSIONS",
    "Delivery",
    "PlannedBody",
    "send_run",
    "send_unsized",
]

# The extension by which asgifast's own protocols say that they coalesce small messages themselves.
COALESCING = "asgifast.coalescing"
# The extension by which asgifast's receivers say that a pathsend message may carry a PlannedBody
# under this key, which then counts in place of the path. Middleware between knows pathsend, and not
# zerocopysend: Starlette's BaseHTTPMiddleware fails at that, its GZipMiddleware swallows it.
PLANNED = "asgifast.planned"
# What apps are offered by everything here that takes their messages.
FILE_EXTENSIONS: dict[str, dict[str, Any]] = {
    PATHSEND: {"ranges": True},
    ZEROCOPYSEND: {},
    PLANNED: {},
}
# What asgifast's own protocols offer, to apps and to ASGIFast.
PROTOCOL_EXTENSIONS: dict[str, dict[str, Any]] = {**FILE_EXTENSIONS, COALESCING: {}}
# Cannot be opened: whoever heeds the path alone would send the whole file for a part of it.
_NO_PATH = "/dev/null/asgifast.planned"
# Files from this size on are watched over: reading on for a client that has left would cost time.
_WATCHED_FILE_BYTES = 4 * BLOCK_BYTES


class PlannedBody(NamedTuple):
    """A whole body: bytes, and runs of an open file that whoever sends the body closes.

    It may be sent when the message's sender has long gone on: BaseHTTPMiddleware passes messages on
    through a queue.
    """

    file: io.FileIO
    segments: Sequence[bytes | ByteRange]
    # Of the same file, absolute, if a server that wants one may open it.
    path: str | None = None


class Delivery:
    """How this server, for this request, sends the pieces of a body.

    :param inbox: where it is seen whether the client has left while a file is sent.
    """

    __slots__ = ("_inbox", "_scope", "_server_send")

    def __init__(self, scope: Scope, inbox: Inbox, send: Send) -> None:
        self._scope = scope
        self._inbox = inbox
        self._server_send = send

    def offers(self, name: str) -> bool:
        """Whether the server has an extension, such as http.response.pathsend."""
        extensions = self._scope.get("extensions")
        if not extensions or name not in extensions:
            return False
        return PLANNED in extensions or not _breaks_files_off()

    def offers_ranges(self) -> bool:
        """Whether the server's http.response.pathsend takes an offset and a count."""
        if not self.offers(PATHSEND):
            return False
        options = self._scope["extensions"][PATHSEND]
        return isinstance(options, Mapping) and options.get("ranges") is True

    async def send_segments(
        self, segments: Sequence[bytes | ByteRange], fd: int | None, path: str | None = None
    ) -> None:
        """Send a plan's segments as the whole body.

        :param fd: the descriptor that the runs are of.
        :param path: of the same file, absolute, if the server may open it once more.
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
        """Send a file, or a run of its bytes, as the whole body by the server's pathsend."""
        message: Message = {"type": PATHSEND, "path": path}
        if offset:
            message["offset"] = offset
        if count is not None:
            message["count"] = count
        await self._server_send(message)

    async def send_file(self, fd: int, offset: int, size: int, *, more_body: bool = False) -> None:
        """Send a run of a file's bytes, by the server's zerocopysend or by reads."""
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
        segment = FileSegment(fd, offset, size)
        inbox = self._inbox
        if size < _WATCHED_FILE_BYTES or inbox.is_awaited:
            await send_run(self._server_send, segment, more_body=more_body)
            return
        watch = running_loop().create_task(inbox.listen())
        try:
            await send_run(self._server_send, segment, more_body=more_body, stop=inbox.has_left)
            if watch.done():
                await watch  # raises what receive() has raised
        finally:
            await ended(watch)


class _Descriptor:
    """A descriptor as an object: of a number, anycorn makes an error."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd


def _breaks_files_off() -> bool:
    """Whether the server's sendfile ends where the send buffer is full.

    anycorn 0.20 on asyncio then waits for the socket in a way that asyncio refuses.
    """
    return "anycorn.sendfile" in sys.modules and in_asyncio()


async def send_run(
    send: Send,
    segment: FileSegment,
    *,
    more_body: bool,
    stop: Callable[[], bool] | None = None,
) -> None:
    """Send a run of a file's bytes as body messages.

    :param stop: asked before each block; True ends it early: the client has left.
    :raises FileTruncated: if the file ends early; the response is then short of its length.
    """
    fd, offset, size = segment
    end = offset + size
    while offset < end:
        if stop is not None and stop():
            return
        block = await read_block(fd, offset, min(BLOCK_BYTES, end - offset))
        if not block:
            raise FileTruncated(end - offset, size)
        offset += len(block)
        await send(response_body(block, more_body=more_body or offset < end))
        if offset < end:
            # Neither a read from memory nor a server's send() need have waited for anything: other
            # requests, and the news that the client has left, get their turn here.
            await next_turn()
    if size == 0 and not more_body:
        await send(response_body())


async def send_unsized(send: Send, fd: int, count: int | None) -> None:
    """Send what a pipe or a device gives, until its end or `count` bytes; more is to come."""
    while count is None or count > 0:
        wanted = BLOCK_BYTES if count is None else min(BLOCK_BYTES, count)
        block = await in_thread(os.read, fd, wanted)
        if not block:
            return
        if count is not None:
            count -= len(block)
        await send(response_body(block, more_body=True))

"""What a message, a head or a plan asks to be sent, and how this server can send it."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

from wsgifast.errors import BodyError
from wsgifast.files import ByteRange
from wsgifast.http import parse_length
from wsgifast.sockets import FileSegment, FileTruncated, file_segment
from wsgifast.sockets.sendfile import BLOCK_BYTES

from .loops import ended, in_thread, next_turn, running_loop
from .messages import (
    PATHSEND,
    ZEROCOPYSEND,
    Message,
    PathSend,
    Receive,
    Scope,
    Send,
    ZeroCopySend,
    response_body,
)
from .pages import open_regular, read_block

__all__ = [
    "COALESCING",
    "PLANNED",
    "Delivery",
    "FileToSend",
    "PlannedBody",
    "declared_length",
    "file_to_send",
    "open_for_pathsend",
    "path_to_send",
    "send_run",
    "send_unsized",
]

# The extension by which asgifast's own protocols say that they coalesce small messages themselves.
COALESCING = "asgifast.coalescing"
# The extension by which asgifast's receivers say that a pathsend message may carry a PlannedBody
# under this key, which then counts in place of the path. Middleware between knows pathsend, and not
# zerocopysend: Starlette's BaseHTTPMiddleware fails at that, its GZipMiddleware swallows it.
PLANNED = "asgifast.planned"
# Cannot be opened: whoever heeds the path alone would send the whole file for a part of it.
_NO_PATH = "/dev/null/asgifast.planned"
# Files from this size on are watched over: reading on for a client that has left would cost time.
_WATCHED_FILE_BYTES = 4 * BLOCK_BYTES
# What is kept of a request body while a file is sent. Behind it the disconnect is not heard; to go
# on listening would take an upload of any size into memory.
_KEPT_BYTES = 64 * 1024
_KEPT_MESSAGES = 64


class PlannedBody(NamedTuple):
    """A whole body: bytes, and runs of an open file that whoever sends the body closes.

    It may be sent when the message's sender has long gone on: BaseHTTPMiddleware passes messages on
    through a queue.
    """

    file: io.FileIO
    segments: Sequence[bytes | ByteRange]


class Delivery:
    """How this server, for this request, sends the pieces of a body.

    :meth:`receive` is the server's receive() for whoever else reads it: while a file is sent, a
    disconnect is listened for (servers ignore what is sent after it, and the file would be read to
    its end for nobody), and what comes meanwhile is kept.
    """

    __slots__ = ("_kept", "_receiving", "_scope", "_server_receive", "_server_send")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._server_receive = receive
        self._server_send = send
        # What came while a disconnect was listened for.
        self._kept: tuple[Message, ...] = ()
        self._receiving = False

    def offers(self, name: str) -> bool:
        """Whether the server has an extension, such as http.response.pathsend."""
        return name in (self._scope.get("extensions") or ())

    async def receive(self) -> Message:
        if self._kept:
            message, *kept = self._kept
            self._kept = tuple(kept)
            return message
        self._receiving = True
        try:
            return await self._server_receive()
        finally:
            self._receiving = False

    async def send_segments(self, segments: Sequence[bytes | ByteRange], fd: int | None) -> None:
        """Send a plan's segments as the whole body.

        :param fd: the descriptor that the runs are of.
        """
        if not segments:
            await self._server_send(response_body())
            return
        if fd is not None and self.offers(PLANNED):
            planned = PlannedBody(io.FileIO(os.dup(fd)), segments)
            await self._server_send({"type": PATHSEND, "path": _NO_PATH, PLANNED: planned})
            return
        last = len(segments) - 1
        for index, segment in enumerate(segments):
            more = index < last
            if isinstance(segment, bytes):
                await self._server_send(response_body(segment, more_body=more))
            elif fd is not None:
                await self.send_file(fd, segment.offset, segment.size, more_body=more)

    async def send_file(self, fd: int, offset: int, size: int, *, more_body: bool = False) -> None:
        """Send a run of a file's bytes, by the server's zerocopysend or by reads."""
        if self.offers(ZEROCOPYSEND) and size:
            await self._server_send(
                {
                    "type": ZEROCOPYSEND,
                    "file": fd,
                    "offset": offset,
                    "count": size,
                    "more_body": more_body,
                }
            )
            return
        segment = FileSegment(fd, offset, size)
        if size < _WATCHED_FILE_BYTES or self._receiving:
            await send_run(self._server_send, segment, more_body=more_body)
            return
        watch = running_loop().create_task(self._listen())
        try:
            await send_run(self._server_send, segment, more_body=more_body, stop=self._left)
            if watch.done():
                await watch  # raises what receive() has raised
        finally:
            await ended(watch)

    def _left(self) -> bool:
        """Whether the client is known to have left."""
        return bool(self._kept) and self._kept[-1]["type"] == "http.disconnect"

    async def _listen(self) -> None:
        """Keep what comes until the client leaves, or until it is too much to keep."""
        while (
            not self._left()
            and len(self._kept) < _KEPT_MESSAGES
            and sum(len(message.get("body", b"")) for message in self._kept) < _KEPT_BYTES
        ):
            self._kept += (await self._server_receive(),)


def declared_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The Content-Length of a response's head, None if it has none (or no valid one)."""
    for name, value in headers:
        if len(name) == 14 and name.lower() == b"content-length":
            return parse_length(value.decode("latin-1"))
    return None


class FileToSend(NamedTuple):
    """Where the bytes are that a zerocopysend message means."""

    fd: int
    # None for what has no size: a pipe, a device, a file of /proc.
    segment: FileSegment | None
    # The file whose position moves, where the message gave no offset.
    moving: Any = None

    def advance(self) -> None:
        """Move the file's position behind what was sent, as the message without offset asks."""
        if self.moving is None or self.segment is None:
            return
        position = self.segment.offset + self.segment.size
        if isinstance(self.moving, int):
            os.lseek(self.moving, position, os.SEEK_SET)
        else:
            self.moving.seek(position)


def file_to_send(message: Message) -> FileToSend:
    """Find out what a zerocopysend message means.

    :raises BodyError: if sendfile cannot send its file.
    """
    asked = cast("ZeroCopySend", message)
    file, offset, count = asked["file"], asked.get("offset"), asked.get("count")
    for name, value in (("offset", offset), ("count", count)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise BodyError(f"{ZEROCOPYSEND}: {name} is a number of bytes, not {value!r}")
    if isinstance(file, int):
        fd = file
    else:
        try:
            fd = file.fileno()
        except (AttributeError, OSError):
            raise BodyError(
                f"{ZEROCOPYSEND} needs a file with a descriptor, not {type(file).__name__}; "
                "send its bytes with http.response.body"
            ) from None
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        return FileToSend(fd, None)
    moving = None
    if offset is None:
        moving = file
        if isinstance(file, int):
            offset = os.lseek(fd, 0, os.SEEK_CUR)
        else:
            found = file_segment(file)
            if found is None and facts.st_size:
                raise BodyError(
                    f"{ZEROCOPYSEND}: the descriptor of a {type(file).__name__} has other bytes "
                    "than the file object; open it with open(path, 'rb')"
                )
            offset = found.offset if found is not None else 0
    left = max(0, facts.st_size - offset)
    return FileToSend(fd, FileSegment(fd, offset, left if count is None else count), moving)


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


def path_to_send(message: Message) -> str:
    """The absolute path of a pathsend message.

    That is what the extension asks for; Starlette's FileResponse hands on the path that it was
    made with, which may be relative to the working directory, as it is where Starlette opens it.
    """
    path = cast("PathSend", message).get("path")
    if not isinstance(path, (str, os.PathLike)):
        raise BodyError(f"{PATHSEND} needs a path, not {path!r}")
    path = os.fsdecode(path)
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def open_for_pathsend(path: str) -> tuple[int, int]:
    """Open the file of a pathsend message; return its descriptor and size in bytes."""
    # The app has just looked at the file (it knew the length), so that opening it waits for no
    # disk.
    fd, facts = open_regular(path)
    return fd, facts.st_size

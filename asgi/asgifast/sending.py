"""What a message, a head or a plan asks to be sent, and how this server can send it."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from wsgifast.errors import BodyError
from wsgifast.files import ByteRange
from wsgifast.http import parse_length
from wsgifast.sockets import FileSegment, FileTruncated, file_segment
from wsgifast.sockets.sendfile import BLOCK_BYTES

from .inbox import Inbox
from .loops import ended, in_asyncio, in_thread, next_turn, running_loop
from .messages import (
    PATHSEND,
    ZEROCOPYSEND,
    Message,
    PathSend,
    Scope,
    Send,
    ZeroCopySend,
    response_body,
)
from .pages import open_regular, read_block

__all__ = [
    "COALESCING",
    "FILE_EXTENSIONS",
    "PLANNED",
    "PROTOCOL_EXTENSIONS",
    "Delivery",
    "FileToSend",
    "PathToSend",
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
    _check_run(ZEROCOPYSEND, offset, count)
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


@dataclass(frozen=True)
class PathToSend:
    """What a pathsend message means."""

    path: str
    # Of the run of bytes; (0, None) is the whole file.
    offset: int
    count: int | None

    @property
    def is_whole(self) -> bool:
        return self.offset == 0 and self.count is None

    def run(self, size: int, declared: int | None) -> ByteRange:
        """The bytes to send of a file of a size: those that are asked for, or declared by the head.

        A file that has grown since the app looked has more, and one that has shrunk less.
        """
        count = declared if self.count is None else self.count
        if count is None:
            count = max(0, size - self.offset)
        elif declared is not None:
            count = min(count, declared)
        return ByteRange(self.offset, count)


def path_to_send(message: Message) -> PathToSend:
    """Find out what a pathsend message means; its path is made absolute.

    That is what the extension asks for; Starlette's FileResponse hands on the path that it was
    made with, which may be relative to the working directory, as it is where Starlette opens it.

    :raises BodyError: if it names no path, or an offset or a count that is none.
    """
    asked = cast("PathSend", message)
    path, offset, count = asked.get("path"), asked.get("offset"), asked.get("count")
    if not isinstance(path, (str, os.PathLike)):
        raise BodyError(f"{PATHSEND} needs a path, not {path!r}")
    _check_run(PATHSEND, offset, count)
    path = os.fsdecode(path)
    if not os.path.isabs(path):
        path = os.path.join(os.getcwd(), path)
    return PathToSend(path, offset or 0, count)


def _check_run(kind: str, offset: object, count: object) -> None:
    for name, value in (("offset", offset), ("count", count)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise BodyError(f"{kind}: {name} is a number of bytes, not {value!r}")


def open_for_pathsend(path: str) -> tuple[int, int]:
    """Open the file of a pathsend message; return its descriptor and size in bytes."""
    # The app has just looked at the file (it knew the length), so that opening it waits for no
    # disk.
    fd, facts = open_regular(path)
    return fd, facts.st_size

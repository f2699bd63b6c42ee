"""Files as ASGI messages: what an app or a request asks for, and how a file is sent on any server.

Reads happen on the event loop while the page cache has the bytes, else in a thread.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from wsgifast.compression.dictionaries import client_dictionary
from wsgifast.errors import BodyError
from wsgifast.files import ByteRange, RequestFacts
from wsgifast.sockets import FileSegment, FileTruncated, file_segment
from wsgifast.sockets.sending import BLOCK_BYTES, read_cached

from .loops import ended, in_thread, next_turn, running_loop
from .messages import (
    PATHSEND,
    PLANNED,
    ZEROCOPYSEND,
    Message,
    PathSend,
    PlannedBody,
    Receive,
    Scope,
    Send,
    ZeroCopySend,
    response_body,
)

if TYPE_CHECKING:
    from .content_coding import ContentCoding

# A file up to this size is read, and leaves in one write with the head; for a larger one sendfile's
# own system calls cost less than the copy that they save.
SMALL_FILE_BYTES = 64 * 1024
# Cannot be opened: a server that heeds the path alone would send the whole file for a part of it.
_NO_PATH = "/dev/null/asgifast.planned"
# From this size on the client's disconnect is listened for while a file is read and sent.
_WATCHED_FILE_BYTES = 4 * BLOCK_BYTES
# How much of a request body is kept while a file is sent. Beyond it the disconnect is not noticed;
# to listen on would take an upload of any size into memory.
_KEPT_BYTES = 64 * 1024
_KEPT_MESSAGES = 64


class Received:
    """A request's receive(), by which a file's sender hears of the client's disconnect, too.

    What the sender receives before that is kept for the app.

    :ivar is_awaited: the app is waiting for a message; two may not wait at once.
    """

    __slots__ = ("_kept", "_receive", "is_awaited")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: Sequence[Message] = ()
        self.is_awaited = False

    async def receive(self) -> Message:
        """The receive() that the app is given."""
        if self._kept:
            message, *self._kept = self._kept
            return message
        self.is_awaited = True
        try:
            return await self._receive()
        finally:
            self.is_awaited = False

    def has_disconnected(self) -> bool:
        return bool(self._kept) and self._kept[-1]["type"] == "http.disconnect"

    async def listen_for_disconnect(self) -> None:
        """Receive until the client disconnects, or until the limits of what is kept."""
        while (
            not self.has_disconnected()
            and len(self._kept) < _KEPT_MESSAGES
            and sum(len(message.get("body", b"")) for message in self._kept) < _KEPT_BYTES
        ):
            message = await self._receive()
            self._kept = (*self._kept, message)  # the app may have taken some meanwhile


class FileSender:
    """Sends the body of one response, or a part of it, from a file by the best way the server has.

    The ways, in this order: asgifast's own extension (PLANNED), pathsend or zerocopysend where the
    server has them, or body messages read from the page cache. Descriptors stay the caller's.

    :param received: listens for the client's disconnect while a file is read and sent: servers
        ignore what is sent after it, and the rest would be read for nobody.
    :param coding: of the response, if it may be compressed.
    """

    __slots__ = ("_coding", "_received", "_scope", "_send")

    def __init__(
        self, scope: Scope, received: Received, send: Send, coding: ContentCoding | None = None
    ) -> None:
        self._scope = scope
        self._received = received
        self._send = send
        self._coding = coding

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
            await self._send(response_body())
            return
        if fd is not None and self.offers(PLANNED):
            planned = PlannedBody(io.FileIO(os.dup(fd)), segments, path)
            await self._send({"type": PATHSEND, "path": _NO_PATH, PLANNED: planned})
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
                await self._send(response_body(segment, more_body=more))
            elif fd is not None:
                await self.send_file(fd, segment.offset, segment.size, more_body=more)

    async def send_path(self, path: str, offset: int = 0, count: int | None = None) -> None:
        """Send a file, or a range of it, as the whole body by the server's pathsend."""
        message: Message = {"type": PATHSEND, "path": path}
        if offset:
            message["offset"] = offset
        if count is not None:
            message["count"] = count
        await self._send(message)

    async def send_file(self, fd: int, offset: int, size: int, *, more_body: bool = False) -> None:
        """Send a range of a file by the server's zerocopysend, or read it."""
        if size and self.offers(ZEROCOPYSEND):
            await self._send(
                {
                    "type": ZEROCOPYSEND,
                    "file": fd if self.offers(PLANNED) else _Descriptor(fd),
                    "offset": offset,
                    "count": size,
                    "more_body": more_body,
                }
            )
            return
        send, segment = self._send, FileSegment(fd, offset, size)
        received = self._received
        if size < _WATCHED_FILE_BYTES or received.is_awaited:
            await send_segment(send, segment, more_body=more_body)
            return
        listener = running_loop().create_task(received.listen_for_disconnect())
        left = received.has_disconnected
        try:
            await send_segment(send, segment, more_body=more_body, is_disconnected=left)
            if listener.done():
                await listener  # raises what receive() has raised
        finally:
            await ended(listener)


class _Descriptor:
    """A descriptor as a file object, as "Zero Copy Send" of the ASGI specification asks for."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd


class RequestedFile(NamedTuple):
    """The file of a zerocopysend message, which stays the app's."""

    fd: int
    # None for what has no size: a pipe, a device.
    segment: FileSegment | None
    # The file whose position moves, where the message has no offset.
    moving: Any = None

    def advance(self) -> None:
        """Move the file's position behind what was sent, where the message has no offset."""
        if self.moving is None or self.segment is None:
            return
        position = self.segment.offset + self.segment.size
        if isinstance(self.moving, int):
            os.lseek(self.moving, position, os.SEEK_SET)
        else:
            self.moving.seek(position)


def parse_zerocopysend(message: Message) -> RequestedFile:
    """Return what a zerocopysend message asks for.

    :raises BodyError: if its file has no descriptor, or one whose bytes are others than the file's
        (a GzipFile, say), or if offset or count is no number of bytes.
    """
    asked = cast("ZeroCopySend", message)
    file, offset, count = asked["file"], asked.get("offset"), asked.get("count")
    _check_range(ZEROCOPYSEND, offset, count)
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
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return RequestedFile(fd, None)
    moving = None
    if offset is None:
        moving = file
        if isinstance(file, int):
            offset = os.lseek(fd, 0, os.SEEK_CUR)
        else:
            found = file_segment(file)
            if found is None and status.st_size:
                raise BodyError(
                    f"{ZEROCOPYSEND}: the descriptor of a {type(file).__name__} has other bytes "
                    "than the file object; open it with open(path, 'rb')"
                )
            offset = found.offset if found is not None else 0
    left = max(0, status.st_size - offset)
    return RequestedFile(fd, FileSegment(fd, offset, left if count is None else count), moving)


@dataclass(frozen=True, slots=True)
class RequestedPath:
    """The file of a pathsend message; offset 0 and count None are the whole file."""

    # Absolute.
    path: str
    offset: int
    count: int | None

    @property
    def is_whole(self) -> bool:
        return self.offset == 0 and self.count is None

    def byte_range(self, size: int, declared: int | None) -> ByteRange:
        """The range to send of a file of `size` bytes.

        :param declared: the response's Content-Length, which decides: since the app looked, the
            file may have grown or shrunk.
        """
        count = declared if self.count is None else self.count
        if count is None:
            count = max(0, size - self.offset)
        elif declared is not None:
            count = min(count, declared)
        return ByteRange(self.offset, count)


def parse_pathsend(message: Message) -> RequestedPath:
    """Return what a pathsend message asks for, with its path made absolute.

    The extension requires an absolute path. Starlette's FileResponse passes on the path that it was
    made with, which may be relative to the working directory.

    :raises BodyError: if it has no path, or if offset or count is no number of bytes.
    """
    asked = cast("PathSend", message)
    path, offset, count = asked.get("path"), asked.get("offset"), asked.get("count")
    if not isinstance(path, (str, os.PathLike)):
        raise BodyError(f"{PATHSEND} needs a path, not {path!r}")
    _check_range(PATHSEND, offset, count)
    path = os.fsdecode(path)
    if not os.path.isabs(path):
        path = os.path.join(os.getcwd(), path)
    return RequestedPath(path, offset or 0, count)


def _check_range(kind: str, offset: object, count: object) -> None:
    for name, value in (("offset", offset), ("count", count)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise BodyError(f"{kind}: {name} is a number of bytes, not {value!r}")


def open_for_pathsend(path: str) -> tuple[int, int]:
    """Open the file of a pathsend message; return its descriptor, the caller's, and its size."""
    # On the event loop: the app has just had its size, so that its inode is in memory.
    fd, status = open_regular(path)
    return fd, status.st_size


_FIELDS = {
    name.replace("_", "-").encode(): name
    for name in RequestFacts._fields
    if name not in ("method", "dictionary")
} | {b"available-dictionary": "dictionary"}


def request_facts(scope: Scope) -> RequestFacts:
    """Return the method, Range, preconditions and dictionary of an http scope.

    Headers of the same name are joined (RFC 9110, section 5.3).
    """
    found: dict[str, Any] = {}
    for name, value in scope["headers"]:
        field = _FIELDS.get(name)
        if field is not None:
            text = value.decode("latin-1")
            found[field] = f"{found[field]}, {text}" if field in found else text
    available = found.pop("dictionary", None)
    if available is None:
        return RequestFacts(scope["method"], **found)
    headers: dict[bytes, bytes] = dict(scope["headers"])

    def header(name: str) -> str | None:
        value = headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    return RequestFacts(scope["method"], **found, dictionary=client_dictionary(available, header))


class NotAFile(OSError):
    """A path leads to a directory, a device, a socket or a FIFO."""


def open_regular(path: str | os.PathLike[str]) -> tuple[int, os.stat_result]:
    """Open a regular file; return its descriptor, which the caller closes, and its status.

    :raises NotAFile: if it is not a regular file.
    :raises OSError: if it cannot be opened.
    """
    # O_NONBLOCK: opening a FIFO would wait for its other end.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a Unix socket, or a device without a driver
            raise NotAFile(errno.EINVAL, "not a regular file", os.fspath(path)) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFile(errno.EINVAL, "not a regular file", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def read_small(fd: int, segment: bytes | ByteRange) -> bytes | None:
    """A small segment's bytes, if all of them are in the page cache."""
    if isinstance(segment, bytes) or segment.size > SMALL_FILE_BYTES:
        return None
    data = read_cached(fd, segment.offset, segment.size)
    return None if data is None or len(data) < segment.size else data


async def read_block(fd: int, offset: int, size: int) -> bytes:
    """Read up to `size` bytes (at most BLOCK_BYTES); b"" only at the end of the file."""
    block = read_cached(fd, offset, size)
    if block is None:
        block = await in_thread(os.pread, fd, size, offset)
    return block


async def send_segment(
    send: Send,
    segment: FileSegment,
    *,
    more_body: bool,
    is_disconnected: Callable[[], bool] | None = None,
) -> None:
    """Send a range of an open file as body messages.

    :param more_body: of the last message; the others have it anyway.
    :param is_disconnected: asked before each block; if it returns True, nothing more is sent.
    :raises FileTruncated: if the file ends early; the response is then shorter than declared.
    """
    fd, offset, size = segment
    end = offset + size
    while offset < end:
        if is_disconnected is not None and is_disconnected():
            return
        block = await read_block(fd, offset, min(BLOCK_BYTES, end - offset))
        if not block:
            raise FileTruncated(end - offset, size)
        offset += len(block)
        await send(response_body(block, more_body=more_body or offset < end))
        if offset < end:
            # Neither the read nor the server's send() need have suspended: let other requests run,
            # and the disconnect be noticed.
            await next_turn()
    if size == 0 and not more_body:
        await send(response_body())


async def send_unsized(send: Send, fd: int, count: int | None) -> None:
    """Send what a pipe or a device gives, to its end or up to `count` bytes, with more_body set."""
    while count is None or count > 0:
        wanted = BLOCK_BYTES if count is None else min(BLOCK_BYTES, count)
        block = await in_thread(os.read, fd, wanted)
        if not block:
            return
        if count is not None:
            count -= len(block)
        await send(response_body(block, more_body=True))

"""What a message about a file asks to be sent: zerocopysend's descriptor, pathsend's path."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from wsgifast.errors import BodyError
from wsgifast.files import ByteRange
from wsgifast.http import parse_length
from wsgifast.sockets import FileSegment, file_segment

from .messages import PATHSEND, ZEROCOPYSEND, Message, PathSend, ZeroCopySend
from .pages import open_regular

__all__ = [
    "FileToSend",
    "PathToSend",
    "declared_length",
    "file_to_send",
    "open_for_pathsend",
    "path_to_send",
]


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


def declared_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The Content-Length of a response's head, None if it has none (or no valid one)."""
    for name, value in headers:
        if len(name) == 14 and name.lower() == b"content-length":
            return parse_length(value.decode("latin-1"))
    return None

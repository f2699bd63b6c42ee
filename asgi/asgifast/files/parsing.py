"""What zerocopysend and pathsend messages ask for: a descriptor or a path, and a range of bytes."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from wsgifast.errors import BodyError
from wsgifast.files import ByteRange
from wsgifast.sockets import FileSegment, file_segment

from ..messages import PATHSEND, ZEROCOPYSEND, Message, PathSend, ZeroCopySend
from .reading import open_regular


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

"""Reading and writing in a tree that others may change meanwhile.

Each name is walked from the tree's root on, no link is followed, and what is read, written and
removed is named relative to a directory that is open.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .directory import open_folder

__all__ = [
    "MAX_FILE_BYTES", "File", "facts_of", "folder_of", "is_regular", "read_file", "write_file",
]  # fmt: skip

# Files are compressed in memory, one in each thread.
MAX_FILE_BYTES = 256 * 1024 * 1024


class File(NamedTuple):
    content: bytes
    facts: os.stat_result


@contextlib.contextmanager
def folder_of(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory that a file is in; what comes is its descriptor and the file's name."""
    *folders, name = path.split("/")
    folder = open_folder(root, folders)
    try:
        yield folder, name
    finally:
        os.close(folder)


def facts_of(name: str, folder: int | None = None) -> os.stat_result | None:
    """Of the name itself, where it is a link; None if there is nothing."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None


def is_regular(facts: os.stat_result | None) -> bool:
    return facts is not None and stat.S_ISREG(facts.st_mode)


def read_file(folder: int, name: str) -> File | None:
    """Read a regular file; None for anything else, a link too.

    :raises OSError: if it is not there, or cannot be read.
    """
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not is_regular(facts):
        return None  # opening a device can do something
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        facts = os.fstat(file.fileno())
        if not is_regular(facts) or facts.st_size > MAX_FILE_BYTES:
            return None
        return File(file.read(), facts)


def write_file(folder: int, name: str, content: bytes, like: os.stat_result | None = None) -> None:
    """Write a file in one step.

    :param like: of a file whose permissions and modification time it gets.
    """
    # 100 characters: with its suffix it is to stay shorter than a name can be.
    temporary = f".{name[:100]}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            if like is not None:
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
                os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise

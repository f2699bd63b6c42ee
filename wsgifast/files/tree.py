"""Read and write files in a tree that others may change at the same time.

Paths are walked name by name from the root without following links, and files are opened, created
and removed relative to an open directory.
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

# Files are compressed in memory, one per thread.
MAX_FILE_BYTES = 256 * 1024 * 1024


class File(NamedTuple):
    content: bytes
    facts: os.stat_result


@contextlib.contextmanager
def folder_of(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory of a file; yields its descriptor and the file's name."""
    *folders, name = path.split("/")
    folder = open_folder(root, folders)
    try:
        yield folder, name
    finally:
        os.close(folder)


def facts_of(name: str, folder: int | None = None) -> os.stat_result | None:
    """Return the lstat() of a name; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None


def is_regular(facts: os.stat_result | None) -> bool:
    return facts is not None and stat.S_ISREG(facts.st_mode)


def read_file(folder: int, name: str) -> File | None:
    """Read a regular file; None for anything else, such as a link.

    :raises OSError: if it does not exist, or cannot be read.
    """
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not is_regular(facts):
        return None  # before open(): opening a device may have effects
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        facts = os.fstat(file.fileno())
        if not is_regular(facts) or facts.st_size > MAX_FILE_BYTES:
            return None
        return File(file.read(), facts)


def write_file(folder: int, name: str, content: bytes, like: os.stat_result | None = None) -> None:
    """Write a file atomically.

    :param like: the stat() of a file whose permissions and modification time it gets.
    """
    # 100 characters: with the suffix it must not exceed the longest name.
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

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

    :param like: the stat() of a file whose owner (as far as this process may set it), permissions
        and modification time it gets. None: the owner of the folder, and no permission for others.
    """
    # 100 characters: with the suffix it must not exceed the longest name.
    temporary = f".{name[:100]}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            _give_away(fd, os.fstat(folder) if like is None else like)
            if like is not None:
                # After the owner: no one else may read it before.
                os.fchmod(fd, _permissions(like, os.fstat(fd)))
                os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise


def _give_away(fd: int, like: os.stat_result) -> None:
    """Give a file the owner and group of another, as far as this process may."""
    facts = os.fstat(fd)
    if os.geteuid() == 0 and facts.st_uid != like.st_uid:
        with contextlib.suppress(OSError):  # in a user namespace, or on a network file system
            os.fchown(fd, like.st_uid, -1)
    if facts.st_gid != like.st_gid:
        with contextlib.suppress(OSError):  # of a group that this process is not in
            os.fchown(fd, -1, like.st_gid)


def _permissions(like: os.stat_result, own: os.stat_result) -> int:
    """Return the permission bits of a file for a copy, which may have another group.

    Without setuid, setgid and the sticky bit: those are for the original alone. What its group
    could do, another group may only if everybody may.
    """
    mode = like.st_mode & 0o777
    if own.st_gid != like.st_gid:
        mode &= ~0o070 | (mode & 0o007) << 3
    return mode

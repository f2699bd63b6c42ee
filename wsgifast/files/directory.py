"""Decide which files below a directory may be read, and open them. No other module decides this.

A URL path is split into plain names, or refused. The names are opened one at a time, each relative
to the directory before it, and without following symbolic links. So no rename by another process
can lead out of the directory. If a name is a link with a target inside the directory, the names of
the target are opened from the root. fstat() checks the descriptor of the file that is sent.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigurationError

# Linux's limits: the length of a path (PATH_MAX), and the links in a path (MAXSYMLINKS in namei.h).
_MAX_PATH_BYTES = 4096
_MAX_LINKS = 40

# O_NONBLOCK: if a FIFO has replaced the file, open() must not wait for a writer. O_NOCTTY: a
# terminal must not become the server's controlling terminal.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# O_PATH (Linux) needs no read permission for the directories of a path.
_PASS_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC

# The errors of a path without a file. ENOTDIR: a file in place of a directory. ELOOP: circular
# links, or a link with O_NOFOLLOW. EINVAL: a name that the file system does not allow.
_ABSENT = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}
)
# ENXIO: a socket, or a device without a driver.
_REFUSED = _ABSENT | {errno.ENXIO, errno.ENODEV}

# Inode, device, change time (ns) and size. The kernel sets the change time at every write, rename,
# chmod and utime. So files with the same identity have the same bytes, except for changes within
# one tick of the kernel's clock.
Identity = tuple[int, int, int, int]
identity_of: Callable[[os.stat_result], Identity] = attrgetter(
    "st_ino", "st_dev", "st_ctime_ns", "st_size"
)


class Opened(NamedTuple):
    """A regular file or directory that may be served. The caller closes the descriptor."""

    fd: int
    stat_result: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.stat_result.st_mode)


def is_served(stat_result: os.stat_result) -> bool:
    """Return whether this is a regular file or a directory. Other kinds are not opened."""
    return stat.S_ISREG(stat_result.st_mode) or stat.S_ISDIR(stat_result.st_mode)


def names_of(path: str, *, hidden_files: bool = False) -> list[str] | None:
    """Split a decoded URL path, relative to the root, into names.

    A hidden name begins with a dot. A leading `.well-known` is not hidden (RFC 8615).

    :param path: such as "css/site.css", without a leading slash. One trailing slash is ignored. The
        caller has to check that a path with a trailing slash leads to a directory.
    :param hidden_files: whether hidden names are served.
    :returns: None for a path that is not served. It is too long, or has an empty, `.` or `..`
        segment, a hidden name, a NUL, or a backslash (a separator on Windows and for some proxies).
    """
    path = path.removesuffix("/")
    if not path:
        return []
    if "\0" in path or "\\" in path or len(path) > _MAX_PATH_BYTES:
        return None
    names = path.split("/")
    if "." in names or ".." in names or "" in names:
        return None
    if not hidden_files and ("/." in path or path[0] == "."):
        shown = names[1:] if names[0] == ".well-known" else names
        if any(name[0] == "." for name in shown):
            return None
    return names


def open_folder(root: str | os.PathLike[str], names: Sequence[str]) -> int:
    """Open a directory below a root, and return the descriptor. The caller closes it.

    :raises OSError: if the directory does not exist, or one of the names is a link.
    """
    folder = os.open(root, _PASS_FLAGS)
    try:
        for name in names:
            above, folder = folder, os.open(name, _PASS_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
            os.close(above)
    except BaseException:
        os.close(folder)
        raise
    return folder


class Directory:
    """A root directory from which files are served.

    :param path: the path of the root. Links in this path are followed.
    :param follow_symlinks: follow all links. By default, only links to targets inside the root are
        followed.
    :raises ConfigurationError: if the directory does not exist, or cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], *, follow_symlinks: bool = False) -> None:
        if path == "":
            # The empty path would mean the working directory. An empty environment variable would
            # then publish the whole project.
            raise ConfigurationError(
                "directory='' is empty. Name a directory. '.' is the working directory."
            )
        try:
            self.path = os.path.abspath(os.fspath(path))
            # With "/.", open() also checks the search permission. os.access() would check it for
            # the real user id, and open() uses the effective one.
            os.close(os.open(f"{self.path}/.", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except (OSError, ValueError, TypeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"directory={os.fspath(path) if isinstance(path, Path) else path!r} cannot be "
                f"served: {reason}. Name a directory that exists and that this process may read"
            ) from error
        self.follow_symlinks = follow_symlinks
        # rstrip() is for the root "/", which ends with a slash.
        self._base = self.path.rstrip("/") + "/"

    def full_path(self, names: Sequence[str]) -> str:
        return self._base + "/".join(names)

    def open(self, names: Sequence[str]) -> Opened | None:
        """Open a file or directory, if it may be served.

        A device, FIFO or socket is not opened.

        :param names: the path below the root, from :func:`names_of`. No name is `..` or has a
            slash.
        :returns: None if the path does not exist or is not served: a device, FIFO or socket, a link
            to a target outside the root, or a circular link.
        :raises PermissionError: if the file exists and this process may not read it.
        :raises OSError: if the system fails (no free descriptor, an I/O error).
        """
        full_path = self.full_path(names)
        try:
            if self.follow_symlinks:
                return open_checked(full_path, None, follow=True)
            # Most requests that pass through the middleware are not for files, and stat() is
            # cheaper than opening each name. stat() follows links out of the root. So only the
            # error "no such file" counts: others would tell the client about files outside.
            if _is_absent(full_path):
                return None
            return self._open_beneath(list(names))
        except OSError as error:
            if error.errno in _REFUSED:
                return None
            raise
        except ValueError:  # a name that the file system's encoding cannot express
            return None

    def reopen(self, full_path: str, identity: Identity) -> int | None:
        """Open a file by its full path, after :meth:`open` has opened it before.

        :returns: the descriptor. None if the file is gone, or its identity has changed.
        """
        try:
            fd = os.open(full_path, _FILE_FLAGS)
        except OSError as error:
            if error.errno in _REFUSED or error.errno in (errno.EACCES, errno.EPERM):
                return None  # the file has changed, and the caller has to use open()
            raise
        if identity_of(os.fstat(fd)) == identity:
            return fd
        os.close(fd)
        return None

    def _open_beneath(self, names: list[str]) -> Opened | None:
        root = os.open(self.path, _PASS_FLAGS)
        try:
            for _ in range(_MAX_LINKS):
                reached = _walk(root, names)
                if not isinstance(reached, _Link):
                    return reached
                names = self._resolve(reached, names)
            return None
        finally:
            os.close(root)

    def _resolve(self, link: _Link, names: list[str]) -> list[str]:
        """Replace the link in `names` by its target. Return the new path below the root.

        :raises OSError: ELOOP, if the link leads out of the root.
        """
        target = link.target
        if target.startswith("/"):
            base = os.path.realpath(self.path).rstrip("/") + "/"
            if not (target + "/").startswith(base):
                raise OSError(errno.ELOOP, "a link out of the directory")
            resolved: list[str] = []
            target = target[len(base) :]
        else:
            resolved = names[: link.position]
        # Each `..` at the start of the target removes a name before the link. Those names are
        # directories and not links. A `..` after a name is refused, since that name may be a link.
        target_names = [name for name in target.split("/") if name not in ("", ".")]
        while target_names and target_names[0] == "..":
            if not resolved:
                raise OSError(errno.ELOOP, "a link out of the directory")
            resolved.pop()
            del target_names[0]
        if ".." in target_names:
            raise OSError(errno.ELOOP, "a link with '..' after a name")
        return resolved + target_names + names[link.position + 1 :]


def _is_absent(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in _REFUSED
    return False


class _Link(NamedTuple):
    """A symbolic link: its position in the names of a path, and its target."""

    position: int
    target: str


def _walk(root: int, names: Sequence[str]) -> Opened | _Link | None:
    """Open the file at a path of names without following links, or return the first link."""
    if not names:
        return open_checked(".", root)
    parent = root
    try:
        last = len(names) - 1
        for position in range(last):
            name = names[position]
            try:
                child = os.open(name, _PASS_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
            except OSError as error:
                # open() of a link fails with ENOTDIR on Linux, and with ELOOP on other systems.
                # ENOTDIR is also the error for a file. readlink() fails for that file.
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                return _Link(position, os.readlink(name, dir_fd=parent))
            if parent != root:
                os.close(parent)
            parent = child
        name = names[last]
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return _Link(last, os.readlink(name, dir_fd=parent))
        return open_checked(name, parent)
    finally:
        if parent != root:
            os.close(parent)


def open_checked(name: str, parent: int | None, *, follow: bool = False) -> Opened | None:
    """Open a file or directory. Return None for any other kind of file.

    open() of a device may have effects (rewind a tape, arm a watchdog). So stat() checks the kind
    before open(), and fstat() checks it again after open().
    """
    if not is_served(os.stat(name, dir_fd=parent, follow_symlinks=follow)):
        return None
    fd = os.open(name, _FILE_FLAGS if follow else _FILE_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    stat_result = os.fstat(fd)
    if not is_served(stat_result):
        os.close(fd)
        return None
    return Opened(fd, stat_result)

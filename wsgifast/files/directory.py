"""A directory that files are served from: the only module that decides which files may be read.

A URL path is split into plain names, or refused. The names are walked one at a time, each opened
relative to the directory before it and without following symbolic links, so that no renaming can
lead the walk out of the directory. A link is read, and its target is walked from the root instead
if it stays inside. fstat() checks the last opened file, which is the one that will be sent.
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

# Linux's own limits for a path and for the links in one (PATH_MAX, and MAXSYMLINKS in namei.h).
_MAX_PATH_BYTES = 4096
_MAX_LINKS = 40

# O_NONBLOCK: opening a FIFO that has replaced a file must not wait for a writer. O_NOCTTY: a
# terminal must not become the server's controlling terminal.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# O_PATH (Linux) needs no read permission for a directory on the way.
_PASS_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC

# The errors for "no such file". ENOTDIR: a file in place of a directory. ELOOP: circular links, or
# a link where none is followed. EINVAL: a name that the file system does not allow.
_ABSENT = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}
)
# ENXIO: a socket, or a device without a driver.
_REFUSED = _ABSENT | {errno.ENXIO, errno.ENODEV}

# Inode, device, change time (ns) and size. The kernel sets the change time at every write, rename,
# chmod and utime. So files of the same identity have the same bytes, up to a tick of its clock.
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
    """Whether this is a regular file or a directory. Nothing else is opened."""
    return stat.S_ISREG(stat_result.st_mode) or stat.S_ISDIR(stat_result.st_mode)


def names_of(path: str, *, hidden_files: bool = False) -> list[str] | None:
    """Split a decoded URL path, relative to the root, into the names to walk.

    :param path: such as "css/site.css", without a leading slash. One trailing slash is ignored;
        the caller has to check that it names a directory.
    :returns: None for a path that is not served: with an empty, `.` or `..` segment, a NUL or a
        backslash (a separator on Windows, and for some proxies), too long, or with a hidden name:
        one that begins with a dot, except for a leading `.well-known` (RFC 8615).
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
    """Open a directory below a root, for `dir_fd`. The caller closes it.

    :raises OSError: if it does not exist, or one of the names is a link.
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
    """A root directory, and whether links may lead out of it.

    :param path: the root, trusted: links in this path are followed.
    :param follow_symlinks: follow all links. By default only those that stay inside.
    :raises ConfigurationError: if there is no such directory, or it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], *, follow_symlinks: bool = False) -> None:
        if path == "":
            # It would be the working directory: an unset variable would publish the whole project.
            raise ConfigurationError("directory='': name one; '.' is the working directory")
        try:
            self.path = os.path.abspath(os.fspath(path))
            # Its "." takes the right to search it, too, which os.access() would ask of another user
            # than the one that opens files.
            os.close(os.open(f"{self.path}/.", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except (OSError, ValueError, TypeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"directory={os.fspath(path) if isinstance(path, Path) else path!r} cannot be "
                f"served: {reason}; name a directory that exists and that this process may read"
            ) from error
        self.follow_symlinks = follow_symlinks
        # The root "/" ends with a slash already.
        self._base = self.path.rstrip("/") + "/"

    def full_path(self, names: Sequence[str]) -> str:
        return self._base + "/".join(names)

    def open(self, names: Sequence[str]) -> Opened | None:
        """Open a file or directory, if it may be served.

        :param names: from :func:`names_of`. None of them is `..` or has a slash.
        :returns: None if there is none, or none that is served: a device, FIFO or socket (which is
            not opened at all), a link out of the root, circular links.
        :raises PermissionError: if it exists and the process may not read it.
        :raises OSError: if the system fails (no descriptor left, an I/O error).
        """
        full_path = self.full_path(names)
        try:
            if self.follow_symlinks:
                return open_checked(full_path, None, follow=True)
            # Most requests to middleware are for no file: one stat() is cheaper than the walk. Its
            # other errors may come from beyond a link out of the root, and are not to be seen.
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
        """Open a file again that :meth:`open` has opened before, in one call.

        :returns: None if it is not there, or has another identity by now.
        """
        try:
            fd = os.open(full_path, _FILE_FLAGS)
        except OSError as error:
            if error.errno in _REFUSED or error.errno in (errno.EACCES, errno.EPERM):
                return None  # it has changed: open() decides
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
                names = self._beyond(reached, names)
            return None
        finally:
            os.close(root)

    def _beyond(self, link: _Link, names: list[str]) -> list[str]:
        """Return the names to walk instead of `names`, of which one is a link.

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
        # The names before the link are directories and no links, so that a leading `..` can be
        # resolved by name. A later one cannot, since the name before it may be a link.
        behind = [name for name in target.split("/") if name not in ("", ".")]
        while behind and behind[0] == "..":
            if not resolved:
                raise OSError(errno.ELOOP, "a link out of the directory")
            resolved.pop()
            del behind[0]
        if ".." in behind:
            raise OSError(errno.ELOOP, "a link that goes down and up again")
        return resolved + behind + names[link.position + 1 :]


def _is_absent(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in _REFUSED
    return False


class _Link(NamedTuple):
    position: int
    target: str


def _walk(root: int, names: Sequence[str]) -> Opened | _Link | None:
    """Open the file that the names lead to without following links, or return the first link."""
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
                # A link: ENOTDIR on Linux, ELOOP elsewhere. For a file readlink() fails.
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
    """Open a file or directory. Anything else is refused before it is opened.

    Opening a device may have effects (rewind a tape, arm a watchdog), so stat() comes first. The
    fstat() after it decides.
    """
    if not is_served(os.stat(name, dir_fd=parent, follow_symlinks=follow)):
        return None
    fd = os.open(name, _FILE_FLAGS if follow else _FILE_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    stat_result = os.fstat(fd)
    if not is_served(stat_result):
        os.close(fd)
        return None
    return Opened(fd, stat_result)

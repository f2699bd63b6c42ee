"""Find the file of a URL path, and describe it.

The size, the times and the bytes of a small file are read from one open descriptor. So if a file is
replaced at the same time, the description never mixes the old file and the new file.
"""

from __future__ import annotations

import logging
import os
import posixpath
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..compression.codings import PRECOMPRESSED_SUFFIXES
from ..compression.dictionaries import VARY, hashless_name
from ..compression.policy import Compression, cache_directives
from ..compression.response import ResponseCoding
from ..http.headers import Header, Headers
from ..sockets.sending import has_reported_size
from .compressed_copies import MAX_FILE_BYTES
from .conditions import content_etag, stat_etag
from .directory import Directory, Opened, identity_of, names_of
from .found import (
    Found,
    HashedFile,
    Source,
    is_outdated,
    is_settled,
    open_if_readable,
    stat_or_none,
)
from .plan import describe
from .rules import HeaderRules

log = logging.getLogger("wsgifast.files")

_READ_BYTES = 1 << 20
# The most bytes to read of a file whose stat() size is wrong, as in /proc and /sys. Text files of
# the kernel are smaller. Some other files, such as /proc/self/pagemap, are practically endless.
_UNSIZED_BYTES = 16 << 20


class FoundFile:
    """An open file below a directory, and the precompressed files that were opened with it.

    :ivar absent: paths without a file. A new file there would take precedence over this file.
    :ivar roots: the directories in which other releases of the file may have the same path.
    """

    def __init__(
        self,
        directory: Directory,
        names: Sequence[str],
        opened: Opened,
        absent: list[str],
        roots: Sequence[Directory] = (),
    ) -> None:
        self.directory = directory
        self.roots = roots or [directory]
        self.names = names
        self.path = directory.full_path(names)
        self.stat_result = opened.stat_result
        self.absent = absent
        self._open = {self.path: opened}

    @property
    def hashed_file(self) -> HashedFile | None:
        """Return the places of other releases of the file. None if its name has no hash."""
        hashless = hashless_name(self.names[-1])
        return None if hashless is None else HashedFile(hashless, self.roots, self.names)

    def open_precompressed(self, suffix: str) -> Opened | None:
        """Open the file with an added suffix, such as ".gz". Return None if it cannot be read."""
        *folders, name = self.names
        opened = open_if_readable(self.directory, [*folders, name + suffix])
        if opened is not None:
            self._open[self.path + suffix] = opened
        return opened

    def opened(self, path: str) -> Opened:
        """Return the open file of a path: the file itself or a precompressed file."""
        return self._open[path]

    def detach(self, path: str) -> int:
        """Return the descriptor of an open file. The caller closes it in place of this object."""
        return self._open.pop(path).fd

    def close(self) -> None:
        """Close the files that were not detached."""
        for opened in self._open.values():
            os.close(opened.fd)


class FoundDirectory(NamedTuple):
    """A directory to list, or to redirect to.

    :ivar names: the path below each root.
    :ivar roots: the roots that have the directory.
    :ivar lacks_slash: whether the URL path has no trailing slash. Then the response redirects.
    """

    names: list[str]
    roots: list[Directory]
    lacks_slash: bool


class Unreadable(Exception):
    """Raised for an existing file that this process cannot read. The constructor logs the reason.

    :param reason: the end of the log line, after the path.
    """

    def __init__(self, path: str, reason: str) -> None:
        log.warning("%s %s", path, reason)


@dataclass(frozen=True)
class Lookup:
    """Finds files by URL path. See :mod:`wsgifast.files.site_options` for the other options.

    :ivar prefix: the URL path of the root, with a trailing slash.
    :ivar body_bytes: the size of the largest file whose content is cached.
    :ivar has_bare_prefix: whether the prefix without its slash belongs to the site. Otherwise it
        belongs to the app.
    :ivar compression: decides which files are compressed on request. None to compress no file.
    """

    directories: Sequence[Directory]
    prefix: str
    index: str | None
    hidden_files: bool
    rules: HeaderRules
    etag: str | None
    body_bytes: int
    listing: bool
    has_bare_prefix: bool
    compression: Compression | None = None

    def locate(self, path: str) -> FoundFile | FoundDirectory | None:
        """Open the file of a URL path.

        :param path: the URL path below the mount point. "" is the mount point without a slash.
        :returns: a directory, if it has to be listed or the path needs a trailing slash. None if no
            file is served at this path.
        :raises Unreadable: if this process may not read the file.
        """
        is_bare = self.is_bare_prefix(path)
        if not is_bare and not path.startswith(self.prefix):
            return None
        relative = path[len(self.prefix) :]
        names = names_of(relative, hidden_files=self.hidden_files)
        if names is None:
            return None
        wants_directory = not is_bare and (not relative or relative.endswith("/"))
        absent: list[str] = []
        listed: list[Directory] = []
        for directory in self.directories:
            try:
                found = self._locate_in(directory, names, absent)
            except PermissionError as error:
                full_path = directory.full_path(names)
                raise Unreadable(full_path, f"may not be read: {error.strerror}") from error
            if found == "directory":
                listed.append(directory)
            elif found is not None:
                is_index = len(found.names) > len(names)
                if is_index == wants_directory:
                    return found
                found.close()
                if is_index:
                    return FoundDirectory(names, [directory], lacks_slash=True)
                absent.append(found.path)  # "/file.txt/" does not name a file
        if self.listing and listed:
            return FoundDirectory(names, listed, lacks_slash=not wants_directory)
        return None

    def is_bare_prefix(self, path: str) -> bool:
        """Return whether a URL path is that of the root, without the trailing slash."""
        return path + "/" == self.prefix and (not path or self.has_bare_prefix)

    def _locate_in(
        self, directory: Directory, names: list[str], absent: list[str]
    ) -> FoundFile | Literal["directory"] | None:
        opened = directory.open(names)
        if opened is None:
            below = [] if self.index is None else [self.index]
            absent += [directory.full_path(names), directory.full_path([*names, *below])]
            return None
        if opened.is_directory:
            os.close(opened.fd)
            if self.index is None:
                return "directory"
            names = [*names, self.index]
            opened = directory.open(names)
            if opened is None or opened.is_directory:
                if opened is not None:
                    os.close(opened.fd)
                absent.append(directory.full_path(names))
                return "directory"
        return FoundFile(directory, names, opened, absent, self.directories)

    def describe(self, file: FoundFile, url: str, mount: str = "") -> Found:
        """Open the precompressed files of a file, and describe all of them.

        :param url: the URL path below the mount point.
        :param mount: the URL path of the mount point.
        :raises Unreadable: if a file of /proc, /sys and the like cannot be read.
        """
        headers = self.rules.headers(file.path, url, mount)
        if not has_reported_size(*file.opened(file.path)):
            # Such a file may have other bytes at each read, without a change of its times. So it is
            # not cached.
            source = self._describe_one(file, None, headers, None, _read_unsized(file))
            return Found(source, {}, url, settled=False)
        folder = posixpath.dirname(file.path)
        # stat() comes before the precompressed files are opened. If a file appears later, the
        # identity of the directory changes.
        watched = {folder: stat_or_none(folder)}
        codings: dict[str, os.stat_result] = {}
        is_compressed = Headers(headers).get("content-encoding") is not None
        for coding, suffix in () if is_compressed else PRECOMPRESSED_SUFFIXES.items():
            found = stat_or_none(file.path + suffix)
            if found is None:
                continue
            precompressed = file.open_precompressed(suffix)
            if precompressed is not None and _is_usable(precompressed, file.stat_result):
                codings[coding] = precompressed.stat_result
            else:
                watched[file.path + suffix] = found
        copy_codings = self._copy_codings(headers, file.stat_result.st_size)
        # The option `add_headers` may have changed these headers.
        cache_control = Headers(headers).get("cache-control") or ""
        has_deltas = (
            Headers(headers).get("use-as-dictionary") is not None
            and not is_compressed
            and "no-transform" not in cache_directives(cache_control)
        )
        vary = VARY if has_deltas else "Accept-Encoding" if codings or copy_codings else None
        return Found(
            self._describe_one(file, None, headers, vary),
            {
                coding: self._describe_one(file, coding, headers, vary)
                for coding in sorted(codings, key=lambda coding: codings[coding].st_size)
            },
            copy_codings=copy_codings,
            hashed_file=file.hashed_file if has_deltas else None,
            watched=[(path, identity_of(found)) for path, found in watched.items() if found],
            absent=file.absent,
            url=url,
            settled=all(
                stat_result is not None and is_settled(stat_result)
                for stat_result in (file.stat_result, *codings.values(), *watched.values())
            ),
        )

    def _copy_codings(self, headers: list[Header], size: int) -> tuple[str, ...]:
        compression = self.compression
        if compression is None or size > MAX_FILE_BYTES:
            return ()
        decision = ResponseCoding(compression, "GET", None, []).decide(200, headers, size)
        return () if decision is None else compression.codings

    def _describe_one(
        self,
        file: FoundFile,
        coding: str | None,
        headers: Sequence[Header],
        vary: str | None,
        unsized: bytes | None = None,
    ) -> Source:
        """Describe a file, or its precompressed file in a content coding.

        :param unsized: the current content of a file of /proc, /sys and the like. The response with
            it has no Last-Modified, no ETag of the modification time, and no ranges.
        """
        path = file.path if coding is None else file.path + PRECOMPRESSED_SUFFIXES[coding]
        fd, stat_result = opened = file.opened(path)
        if unsized is None:
            size, mtime_ns, body = (
                stat_result.st_size,
                stat_result.st_mtime_ns,
                self._small_body(opened),
            )
        else:
            size, mtime_ns, body = len(unsized), 0, unsized
        etag = None
        if self.etag == "stat":
            etag = stat_etag(size, mtime_ns, coding)
        elif self.etag == "content":
            etag = content_etag(_blocks(fd, size) if body is None else [body], coding)
        representation = describe(
            size=size,
            mtime_ns=mtime_ns,
            now=time.time(),
            etag=etag,
            coding=coding,
            vary=vary,
            headers=headers,
            body=body,
            ranges=unsized is None,
        )
        return Source(path, file.directory, identity_of(stat_result), representation)

    def _small_body(self, opened: Opened) -> bytes | None:
        fd, stat_result = opened
        if stat_result.st_size > self.body_bytes:
            return None
        body = os.pread(fd, stat_result.st_size + 1, 0)
        if len(body) != stat_result.st_size or identity_of(os.fstat(fd)) != identity_of(
            stat_result
        ):
            return None  # another process writes the file
        return body


def _is_usable(precompressed: Opened, original: os.stat_result) -> bool:
    """Return whether a precompressed file may be sent in place of the original."""
    stat_result = precompressed.stat_result
    return (
        stat.S_ISREG(stat_result.st_mode)
        and 0 < stat_result.st_size < original.st_size
        and has_reported_size(*precompressed)
        and not is_outdated(stat_result, original)
    )


def _read_unsized(file: FoundFile) -> bytes:
    fd = file.opened(file.path).fd
    content = bytearray()
    try:
        while len(content) <= _UNSIZED_BYTES:
            block = os.read(fd, _READ_BYTES)  # some of these files do not support pread()
            if not block:
                return bytes(content)
            content += block
    except OSError as error:
        raise Unreadable(file.path, f"cannot be read: {error.strerror}") from error
    raise Unreadable(file.path, f"reports no size, and has more than {_UNSIZED_BYTES} bytes")


def _blocks(fd: int, size: int) -> Iterator[bytes]:
    offset = 0
    while offset < size and (block := os.pread(fd, min(_READ_BYTES, size - offset), offset)):
        offset += len(block)
        yield block

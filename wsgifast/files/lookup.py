"""From a URL path to a described file, through the disk.

Whatever is described here was opened first: size, times and the bytes of a small file are those of
one descriptor, so a file that is replaced meanwhile is either the old one or the new one.
"""

from __future__ import annotations

import logging
import os
import posixpath
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .conditions import content_etag, stat_etag
from .directory import Directory, Identity, Opened, identity_of, names_of
from .entry import Entry, Header, Plan, Representation, describe
from .memory import Kept
from .rules import HeaderRules

__all__ = ["SIBLING_SUFFIXES", "Found", "FoundDirectory", "Located", "Lookup", "Refused", "Source"]

log = logging.getLogger("wsgifast.files")

# Encoded siblings by content coding; between two of one size the first named is sent.
SIBLING_SUFFIXES: Mapping[str, str] = {"zstd": ".zst", "br": ".br", "gzip": ".gz"}

# What is not a file's body: the objects kept for it in each encoding, when all answers that they
# remember have been asked for. Measured with tracemalloc; a test holds it to that.
_REPRESENTATION_COST_BYTES = 10_000
# Each header's text is in memory at most this often: as made, and again as ASGI's bytes, in the
# answers to GET, HEAD, a range, and those without a body.
_HEADER_COPIES = 6
# A file that was changed less than this ago may change again without a sign: the kernel's file
# times move in steps of 1 to 10 ms (one tick). It is served, but not kept until it is older.
_SETTLED_NS = 50_000_000
_READ_BYTES = 1 << 20


class Source:
    """Where a representation's bytes are: what core plans carry as their `file`.

    :ivar path: absolute; its directories may be links, so it is opened by :meth:`open` alone.
    :ivar body: all bytes of a small file; None for one that has to be opened.
    """

    __slots__ = ("_directory", "body", "identity", "path")

    def __init__(
        self, path: str, directory: Directory, identity: Identity, body: bytes | None
    ) -> None:
        self.path = path
        self.identity = identity
        self.body = body
        self._directory = directory

    def open(self) -> int | None:
        """Open the file that was described; None if it is not there as it was."""
        return self._directory.reopen(self.path, self.identity)


class Found(Kept):
    """A file that was looked up: all that its answers need, and what shows that it has changed.

    The path is looked at by stat(), which follows links: it only has to tell the same file from
    another, and the same was let through when it was opened.

    :ivar cost: 0 for what may not be kept.
    :ivar good_until: time.monotonic() before which no look is needed.
    """

    __slots__ = (
        "_absent",
        "_folder",
        "_folder_identity",
        "_identity",
        "_passed_over",
        "_path",
        "entry",
        "good_until",
    )

    def __init__(
        self,
        entry: Entry,
        folder: str,
        folder_identity: Identity,
        absent: Sequence[str],
        passed_over: Sequence[tuple[str, Identity]],
        cost: int,
    ) -> None:
        super().__init__(cost)
        self.entry = entry
        self.good_until = 0.0
        source: Source = entry.identity.file
        self._path = source.path
        self._identity = source.identity
        self._folder = folder
        self._folder_identity = folder_identity
        self._absent = absent
        # Siblings of no use, such as older ones: written over, they may be, and nothing else tells.
        self._passed_over = passed_over

    def is_unchanged(self, representation: Representation, negotiates: bool) -> bool:
        """Whether the disk is as it was.

        :param representation: the one that is to be sent.
        :param negotiates: the client takes encodings: siblings that have come or gone matter, and
            show in the directory's change time.
        """
        try:
            if identity_of(os.stat(self._path)) != self._identity:
                return False
            if negotiates:
                if identity_of(os.stat(self._folder)) != self._folder_identity:
                    return False
                if representation is not self.entry.identity:
                    source: Source = representation.file
                    if identity_of(os.stat(source.path)) != source.identity:
                        return False
                for path, identity in self._passed_over:
                    if identity_of(os.stat(path)) != identity:
                        return False
        except OSError:
            return False
        return not any(map(os.path.lexists, self._absent))


class Located(NamedTuple):
    """A regular file, open; the receiver closes it."""

    directory: Directory
    names: list[str]
    opened: Opened
    # Paths in the directories before this one: a file that appears there goes before this one.
    absent: list[str]

    @property
    def path(self) -> str:
        return self.directory.full_path(self.names)


class FoundDirectory(NamedTuple):
    """A directory that is shown as one, in each of the roots that has it."""

    names: list[str]
    roots: list[Directory]
    # Asked for without the slash at its end.
    lacks_slash: bool


# A file that is there and may not be read.
Refused = Literal["refused"]


@dataclass(frozen=True)
class Lookup:
    """How paths are looked up; see :class:`wsgifast.files.site.FileSite` for the options."""

    directories: Sequence[Directory]
    prefix: str
    index: str | None
    hidden_files: bool
    rules: HeaderRules
    etag: str | None
    # Up to this size, in bytes, a file's content is read and kept.
    body_bytes: int
    listing: bool = False

    def locate(self, path: str) -> Located | FoundDirectory | Refused | None:
        """Open the file that a URL path stands for.

        :returns: a directory where the path lacks its last slash, or it is to be listed; None if
            there is nothing that is served.
        """
        if not path.startswith(self.prefix):
            return None
        relative = path[len(self.prefix) :]
        names = names_of(relative, hidden_files=self.hidden_files)
        if names is None:
            return None
        wants_directory = not relative or relative.endswith("/")
        absent: list[str] = []
        listed: list[Directory] = []
        for directory in self.directories:
            try:
                located = self._locate_in(directory, names, absent)
            except PermissionError as error:
                log.warning("%s may not be read: %s", directory.full_path(names), error.strerror)
                return "refused"
            if located == "directory":
                listed.append(directory)
            elif located is not None:
                is_index = len(located.names) > len(names)
                if is_index == wants_directory:
                    return located
                os.close(located.opened.fd)
                if is_index:
                    return FoundDirectory(names, [directory], lacks_slash=True)
                absent.append(directory.full_path(names))  # "/file.txt/" is no file
        if self.listing and listed:
            return FoundDirectory(names, listed, lacks_slash=not wants_directory)
        return None

    def _locate_in(
        self, directory: Directory, names: list[str], absent: list[str]
    ) -> Located | Literal["directory"] | None:
        opened = directory.open(names)
        if opened is None:
            below = [] if self.index is None else [self.index]
            absent += [directory.full_path(names), directory.full_path([*names, *below])]
            return None
        if not opened.is_directory:
            return Located(directory, names, opened, absent)
        os.close(opened.fd)
        if self.index is not None:
            names = [*names, self.index]
            opened = directory.open(names)
            if opened is not None and not opened.is_directory:
                return Located(directory, names, opened, absent)
            if opened is not None:
                os.close(opened.fd)
            absent.append(directory.full_path(names))
        return "directory"

    def describe(self, located: Located, url: str) -> Found:
        """Describe a file and its encoded siblings; `located` stays open."""
        path, facts = located.path, located.opened.facts
        folder = posixpath.dirname(path)
        # Looked at before the siblings: one that comes meanwhile changes the directory's identity.
        folder_facts = _stat_or_none(folder)
        headers = self.rules.headers(path, url)
        siblings, passed_over = self._siblings(located)
        try:
            siblings.sort(key=lambda sibling: sibling[1].facts.st_size)
            identity = self._describe_one(
                located, path, located.opened, headers, negotiated=bool(siblings)
            )
            encoded = {
                coding: self._describe_one(
                    located,
                    path + SIBLING_SUFFIXES[coding],
                    sibling,
                    headers,
                    coding=coding,
                    negotiated=True,
                )
                for coding, sibling in siblings
            }
        finally:
            for _, sibling in siblings:
                os.close(sibling.fd)
        entry = Entry(identity, encoded)
        if folder_facts is None:
            return Found(entry, folder, (0, 0, 0, 0), located.absent, (), cost=0)
        looks = [folder_facts, facts, *(sibling.facts for _, sibling in siblings)]
        looks += passed_over.values()
        cost = _cost(entry, url, [*located.absent, *passed_over]) if _all_settled(looks) else 0
        others = [(other, identity_of(seen)) for other, seen in passed_over.items()]
        return Found(entry, folder, identity_of(folder_facts), located.absent, others, cost)

    def describe_as_found(self, located: Located, url: str) -> Representation:
        """Describe a file that changes too fast for anything to be kept about it.

        It has no entity tag, since the bytes may change again under the same one.
        """
        return describe(
            Source(located.path, located.directory, identity_of(located.opened.facts), None),
            size=located.opened.facts.st_size,
            mtime_ns=located.opened.facts.st_mtime_ns,
            now=time.time(),
            etag=None,
            content_type=None,  # among the headers
            headers=self.rules.headers(located.path, url),
        )

    def _siblings(
        self, located: Located
    ) -> tuple[list[tuple[str, Opened]], dict[str, os.stat_result]]:
        """The siblings of use by coding, open; and by path what stat() says of the others."""
        original = located.opened.facts
        *folders, name = located.names
        useful: list[tuple[str, Opened]] = []
        passed_over: dict[str, os.stat_result] = {}
        for coding, suffix in SIBLING_SUFFIXES.items():
            seen = _stat_or_none(located.path + suffix)
            if seen is None:
                continue
            try:
                sibling = located.directory.open([*folders, name + suffix])
            except PermissionError:
                sibling = None
            except BaseException:
                for _, opened in useful:
                    os.close(opened.fd)
                raise
            if sibling is not None and _takes_the_place(sibling.facts, original):
                useful.append((coding, sibling))
                continue
            passed_over[located.path + suffix] = seen
            if sibling is not None:
                os.close(sibling.fd)
        return useful, passed_over

    def _describe_one(
        self,
        located: Located,
        path: str,
        opened: Opened,
        headers: Sequence[Header],
        *,
        coding: str | None = None,
        negotiated: bool,
    ) -> Representation:
        fd, facts = opened
        size, mtime_ns = facts.st_size, facts.st_mtime_ns
        body = self._small_body(opened)
        etag = None
        if self.etag == "stat":
            etag = stat_etag(size, mtime_ns, coding)
        elif self.etag == "content":
            etag = content_etag(_blocks(fd, size) if body is None else [body], coding)
        representation = describe(
            Source(path, located.directory, identity_of(facts), body),
            size=size,
            mtime_ns=mtime_ns,
            now=time.time(),
            etag=etag,
            content_type=None,  # among the headers
            coding=coding,
            negotiated=negotiated,
            headers=headers,
        )
        if body:
            # The most frequent answer is ready to send: no segment of it has to be resolved.
            representation.__dict__["whole"] = Plan(200, representation.headers, (body,))
        return representation

    def _small_body(self, opened: Opened) -> bytes | None:
        fd, facts = opened
        if facts.st_size > self.body_bytes:
            return None
        body = os.pread(fd, facts.st_size + 1, 0)
        if len(body) != facts.st_size or identity_of(os.fstat(fd)) != identity_of(facts):
            return None  # it is being written to: what is sent is what the descriptor says then
        return body


def _stat_or_none(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None  # moved away since the file in it was opened


def _takes_the_place(sibling: os.stat_result, original: os.stat_result) -> bool:
    """Whether a sibling may be sent in place of the file that it is an encoding of."""
    return (
        stat.S_ISREG(sibling.st_mode)
        and 0 < sibling.st_size < original.st_size
        # An older one was made from an earlier content.
        and sibling.st_mtime_ns >= original.st_mtime_ns
    )


def _all_settled(looks: Sequence[os.stat_result]) -> bool:
    now = time.time_ns()
    return all(abs(now - facts.st_ctime_ns) > _SETTLED_NS for facts in looks)


def _cost(entry: Entry, url: str, absent: Sequence[str]) -> int:
    """Bytes of memory at most; strings may take four a character, and the key is one of them."""
    total = 4 * len(url) + sum(4 * len(path) for path in absent)
    for representation in (entry.identity, *entry.encoded.values()):
        source: Source = representation.file
        total += _REPRESENTATION_COST_BYTES + 4 * len(source.path) + len(source.body or b"")
        total += _HEADER_COPIES * sum(len(n) + len(v) for n, v in representation.headers)
    return total


def _blocks(fd: int, size: int) -> Iterator[bytes]:
    offset = 0
    while offset < size and (block := os.pread(fd, min(_READ_BYTES, size - offset), offset)):
        offset += len(block)
        yield block

"""A file as a delta to an earlier release of it that the client has (RFC 9842).

The dictionary is found by its SHA-256 among the files whose names differ from this one's in the
hash alone, in the same folder of each directory of the site: a release leaves those of the one
before. Or `wsgifast compress --against` has written the delta beside the file.

A delta is made once, by a thread of its own, and cached with the other coded copies. Requests wait
for it, but not for long: those that have waited in vain get an ordinary coding, and later ones the
delta.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from ..compression.dictionaries import (
    DCZ,
    HEADER_BYTES,
    HashedName,
    delta_header,
    delta_suffix,
    digest_of,
    hashed_name,
    make_delta,
)
from .coded_copies import COPIES, MAX_FILE_BYTES, CodedCopy, delta_key, made_copy
from .directory import Directory, Identity, Opened, identity_of
from .found import is_outdated, is_settled, open_if_readable, stat_or_none
from .lookup import FoundFile

log = logging.getLogger("wsgifast.files")

# How long a request waits for a delta: 5 MB take 50 ms, with the digests of two such files.
_WAIT_S = 0.25
# Deltas that may be waited for at once: more are not begun, so that their number, and that of their
# threads, is bounded. They are made one after the other.
_MAX_WAITED_FOR = 32
# Releases of a file that are looked at, the newest first.
MAX_RELEASES = 16
# Of how many files the releases are remembered; one takes about 3 kB.
_MAX_REMEMBERED = 1000
# A smaller file fits into the first packets whatever its coding, and helps little as a dictionary.
MIN_FILE_BYTES = 500


class _Wanted(NamedTuple):
    """A file, and the digest of the dictionary that it is to be a delta to."""

    file: FoundFile
    hashed: HashedName
    identity: Identity
    digest: bytes

    @property
    def folders(self) -> list[str]:
        """Where its releases may be: the same path in every directory of the site."""
        return [root.full_path(self.file.names[:-1]) for root in self.file.roots]

    @property
    def key(self) -> tuple[HashedName, tuple[str, ...]]:
        """What all releases of the file have in common."""
        return self.hashed, tuple(self.folders)


class _Release(NamedTuple):
    root: Directory
    names: tuple[str, ...]
    identity: Identity
    mtime_ns: int


class _Releases(NamedTuple):
    """What is known of the releases of a file: by digest, at one state of their folders.

    :ivar folders: the paths, and what was there; None for nothing.
    """

    folders: list[tuple[str, Identity | None]]
    by_digest: dict[bytes, _Release]

    def are_unchanged(self) -> bool:
        """Whether neither a folder nor one of the files has changed since."""
        files = [(r.root.full_path(r.names), r.identity) for r in self.by_digest.values()]
        return all(_identity_at(path) == seen for path, seen in [*self.folders, *files])

    def dictionary_for(self, wanted: _Wanted) -> _Release | None:
        """Return the release with the digest, unless it is the file itself."""
        release = self.by_digest.get(wanted.digest)
        return None if release is None or release.names == tuple(wanted.file.names) else release


class Deltas:
    """Finds and makes the deltas of a process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        # Set when the delta of that key has been made, or can not be.
        self._making: dict[str, threading.Event] = {}
        self._known: dict[tuple[HashedName, tuple[str, ...]], _Releases] = {}

    def get(self, file: FoundFile, digest: bytes) -> CodedCopy | None:
        """Return a file as a delta to the dictionary of a digest.

        :returns: None if there is none yet, or can be none.
        """
        opened = file.opened(file.path)
        hashed = hashed_name(file.names[-1])
        size = opened.facts.st_size
        if hashed is None or size < MIN_FILE_BYTES or not is_settled(opened.facts):
            return None
        identity = identity_of(opened.facts)
        key = delta_key(identity, digest)
        copy = COPIES.kept(key, on_disk=True)
        if copy is not None:
            return copy
        written = file.open_sibling(delta_suffix(digest))
        if written is not None:
            copy = _read_delta(written, opened, digest)
            if copy is not None:
                COPIES.keep(key, copy)
                return copy
        if size > MAX_FILE_BYTES:
            return None
        wanted = _Wanted(file, hashed, identity, digest)
        known = self._known.get(wanted.key)
        if known is not None and known.are_unchanged() and known.dictionary_for(wanted) is None:
            return None  # as found before, in the same state of the folders
        making = self._begin(wanted, key)
        if making is None or not making.wait(_WAIT_S):
            return None
        return COPIES.kept(key)

    def _begin(self, wanted: _Wanted, key: str) -> threading.Event | None:
        """Have a delta made, unless that goes on already; None if too many are."""
        with self._lock:
            making = self._making.get(key)
            if making is not None or len(self._making) >= _MAX_WAITED_FOR:
                return making
            making = self._making[key] = threading.Event()

        def make() -> None:
            try:
                with self._turn:
                    # It may have been made between the request's look and this thread's.
                    if COPIES.kept(key) is None and (copy := self._make(wanted)) is not None:
                        COPIES.keep(key, copy)
            except OSError as error:
                log.warning("%s: no delta could be made: %s", wanted.file.path, error)
            finally:
                with self._lock:
                    self._making.pop(key, None)
                making.set()

        try:
            threading.Thread(target=make, name="wsgifast delta", daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            with self._lock:
                self._making.pop(key, None)
            return None
        return making

    def _make(self, wanted: _Wanted) -> CodedCopy | None:
        release = self._look(wanted).dictionary_for(wanted)
        if release is None:
            return None
        file = wanted.file
        dictionary = content_of(release.root, release.names, release.identity)
        content = content_of(file.directory, file.names, wanted.identity)
        if dictionary is None or content is None or digest_of(dictionary) != wanted.digest:
            return None
        return made_copy(DCZ, content, partial(make_delta, dictionary=dictionary))

    def _look(self, wanted: _Wanted) -> _Releases:
        """Find the releases of a file, and read those that are new since the last look."""
        known = self._known.get(wanted.key)
        if known is not None and known.are_unchanged():
            return known
        digests = {} if known is None else {r: d for d, r in known.by_digest.items()}
        # Before they are listed: what changes meanwhile is found at the next look.
        seen = [(path, stat_or_none(path)) for path in wanted.folders]
        below = wanted.file.names[:-1]
        found = newest_releases(wanted.file.roots, below, wanted.hashed, MAX_FILE_BYTES)
        by_digest: dict[bytes, _Release] = {}
        for release in found:
            digest = digests.get(release)
            if digest is None:
                content = content_of(release.root, release.names, release.identity)
                if content is None:
                    continue  # it may not be served
                digest = digest_of(content)
            by_digest[digest] = release
        folders = [(path, None if facts is None else identity_of(facts)) for path, facts in seen]
        releases = _Releases(folders, by_digest)
        if all(facts is None or is_settled(facts) for _, facts in seen):
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[wanted.key] = releases
        return releases


def newest_releases(
    roots: Iterable[Directory], folder: Sequence[str], hashed: HashedName, max_bytes: int
) -> list[_Release]:
    """Return the releases of a file that can be dictionaries, the newest ones first.

    :param folder: below each root.
    :param max_bytes: of each.
    """
    found: list[_Release] = []
    for root in roots:
        opened = open_if_readable(root, folder)
        if opened is None:
            continue
        try:
            listed = os.listdir(opened.fd) if opened.is_directory else []
        finally:
            os.close(opened.fd)
        for name in listed:
            if hashed_name(name) != hashed:
                continue
            names = (*folder, name)
            facts = stat_or_none(root.full_path(names))
            if facts is None or not stat.S_ISREG(facts.st_mode):
                continue
            if MIN_FILE_BYTES <= facts.st_size <= max_bytes:
                found.append(_Release(root, names, identity_of(facts), facts.st_mtime_ns))
    return sorted(found, key=lambda release: release.mtime_ns, reverse=True)[:MAX_RELEASES]


def content_of(root: Directory, names: Sequence[str], identity: Identity) -> bytes | None:
    """Read a file that may be served; None if it has another identity by now."""
    opened = open_if_readable(root, names)
    if opened is None:
        return None
    with open(opened.fd, "rb") as file:
        if opened.is_directory or identity_of(opened.facts) != identity:
            return None
        content = file.read(opened.facts.st_size + 1)
        is_whole = len(content) == opened.facts.st_size
        return content if is_whole and identity_of(os.fstat(opened.fd)) == identity else None


def _identity_at(path: str) -> Identity | None:
    facts = stat_or_none(path)
    return None if facts is None else identity_of(facts)


def _read_delta(written: Opened, original: Opened, digest: bytes) -> CodedCopy | None:
    """Read a delta that was written beside its file; None if it is none of these two."""
    size = written.facts.st_size
    if (
        not stat.S_ISREG(written.facts.st_mode)
        or not HEADER_BYTES < size < min(original.facts.st_size, MAX_FILE_BYTES)
        or is_outdated(written.facts, original.facts)
    ):
        return None
    body = os.pread(written.fd, size, 0)
    if len(body) != size or not body.startswith(delta_header(digest)):
        return None
    return CodedCopy(body, DCZ, original.facts.st_size)


# Of the whole process, as the cache is.
DELTAS = Deltas()
# The threads of its parent are not there in a forked worker.
os.register_at_fork(after_in_child=DELTAS.reset)

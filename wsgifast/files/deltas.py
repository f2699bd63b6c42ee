"""A file as a delta to an earlier release of it that the client has (RFC 9842).

The dictionary is found by its SHA-256 among the files with names that differ from this one's only
in the hash. They are in the same folder of each directory of the site, where a release leaves the
files of the one before. Or `wsgifast compress --against` has written the delta beside the file.

A client may name any digest. So the names of a folder are listed once, and the releases of a file
are read once, until one of them changes. A file without other releases costs no thread and no read.

A delta is made once, by a thread of its own, and cached with the other compressed copies. Requests
wait for it, but not for long. Those that have waited in vain get an ordinary coding, and later ones
the delta.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from ..compression.dictionaries import (
    DCZ,
    DELTA_SUFFIX,
    HEADER_BYTES,
    HashedName,
    delta_header,
    delta_suffix,
    digest_of,
    hashed_name,
    make_delta,
)
from .compressed_copies import COPIES, MAX_FILE_BYTES, CompressedCopy, delta_key, made_copy
from .directory import Directory, Identity, Opened, identity_of
from .found import (
    CacheEntry,
    MemoryCache,
    ReleasesOf,
    is_outdated,
    is_settled,
    open_if_readable,
    stat_or_none,
)
from .lookup import FoundFile

log = logging.getLogger("wsgifast.files")

# How long a request waits for a delta: 5 MB take 50 ms, with the digests of two such files.
_WAIT_S = 0.25
# Deltas that may be waited for at once: more are not begun, so that their number, and that of their
# threads, is bounded. They are made one after the other.
_MAX_WAITED_FOR = 32
# Releases of a file that are looked at, the newest first.
MAX_RELEASES = 16
# The bytes that are cached of each folder, and of each file's releases.
_REMEMBERED_BYTES = 16 * 1024 * 1024
# The bytes of one name in a listing, and of one release with its digest, measured, with a reserve.
_NAME_BYTES = 400
_RELEASE_BYTES = 1000
# A smaller file fits into the first packets whatever its coding, and helps little as a dictionary.
MIN_FILE_BYTES = 500


class _Wanted(NamedTuple):
    """A file, and the digest of the dictionary that it is to be a delta to."""

    file: FoundFile
    releases: ReleasesOf
    identity: Identity
    digest: bytes


class _Release(NamedTuple):
    root: Directory
    names: tuple[str, ...]
    identity: Identity
    mtime_ns: int


class _Listing(CacheEntry):
    """The files of some folders that have other releases, at one state of the folders.

    :ivar folders: the paths and their identities. None for a missing folder.
    :ivar releases: names without their hash, and the files that have them: two at least.
    :ivar deltas: names of deltas that were written beside their files.
    """

    __slots__ = ("deltas", "folders", "releases")

    def __init__(
        self,
        folders: Sequence[tuple[str, Identity | None]],
        releases: dict[HashedName, list[tuple[Directory, str]]],
        deltas: frozenset[str],
    ) -> None:
        count = 1 + len(deltas) + sum(map(len, releases.values()))
        super().__init__(_NAME_BYTES * count)
        self.folders = folders
        self.releases = releases
        self.deltas = deltas

    def is_unchanged(self) -> bool:
        """Whether no folder has changed since."""
        return all(_identity_at(path) == seen for path, seen in self.folders)


class _Releases(CacheEntry):
    """The releases of a file by digest, at one state of their folders."""

    __slots__ = ("by_digest", "listing")

    def __init__(self, listing: _Listing, by_digest: dict[bytes, _Release]) -> None:
        super().__init__(_RELEASE_BYTES * (1 + len(by_digest)))
        self.listing = listing
        self.by_digest = by_digest

    def are_unchanged(self) -> bool:
        """Whether neither a folder nor one of the files has changed since."""
        return self.listing.is_unchanged() and all(
            _identity_at(each.root.full_path(each.names)) == each.identity
            for each in self.by_digest.values()
        )

    def dictionary_for(self, names: Sequence[str], digest: bytes) -> _Release | None:
        """Return the release with a digest, unless it is the file of these names itself."""
        release = self.by_digest.get(digest)
        return None if release is None or release.names == tuple(names) else release


class Deltas:
    """Finds and makes the deltas of a process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        # Set when the delta of that key has been made, or can not be.
        self._making: dict[str, threading.Event] = {}
        self._listings: MemoryCache[_Listing] = MemoryCache(_REMEMBERED_BYTES)
        self._known: MemoryCache[_Releases] = MemoryCache(_REMEMBERED_BYTES)

    def get(self, file: FoundFile, digest: bytes) -> CompressedCopy | None:
        """Return a file as a delta to the dictionary of a digest.

        :returns: None if there is none yet, or can be none.
        """
        opened = file.opened(file.path)
        releases = file.releases
        size = opened.stat_result.st_size
        if releases is None or size < MIN_FILE_BYTES or not is_settled(opened.stat_result):
            return None
        identity = identity_of(opened.stat_result)
        key = delta_key(identity, digest)
        copy = COPIES.cached(key, on_disk=True)
        if copy is not None:
            return copy
        written = file.open_precompressed(delta_suffix(digest))
        if written is not None:
            copy = _read_delta(written, opened, digest)
            if copy is not None:
                COPIES.store(key, copy)
                return copy
        if size > MAX_FILE_BYTES:
            return None
        if self.has_surely_none(releases, digest):
            return None
        wanted = _Wanted(file, releases, identity, digest)
        making = self._begin(wanted, key)
        if making is None or not making.wait(_WAIT_S):
            return None
        return COPIES.cached(key)

    def has_surely_none(self, file: ReleasesOf, digest: bytes) -> bool:
        """Whether there was no such dictionary or delta before, in the same state of the folders.

        It reads no file, and calls stat() only for paths that the kernel has cached.
        """
        listing = self._listings.get(file.folders_key)
        if listing is None or not listing.is_unchanged():
            return False
        if file.names[-1] + delta_suffix(digest) in listing.deltas:
            return False
        if file.hashed not in listing.releases:
            return True
        known = self._known.get(file.key)
        if known is None or not known.are_unchanged():
            return False
        return known.dictionary_for(file.names, digest) is None

    def _begin(self, wanted: _Wanted, key: str) -> threading.Event | None:
        """Have a delta made, unless that goes on already. None if too many are."""
        with self._lock:
            making = self._making.get(key)
            if making is not None or len(self._making) >= _MAX_WAITED_FOR:
                return making
            making = self._making[key] = threading.Event()

        def make() -> None:
            try:
                with self._turn:
                    # It may have been made between the request's look and this thread's.
                    if COPIES.cached(key) is None and (copy := self._make(wanted)) is not None:
                        COPIES.store(key, copy)
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

    def _make(self, wanted: _Wanted) -> CompressedCopy | None:
        release = self._look(wanted.releases).dictionary_for(wanted.file.names, wanted.digest)
        if release is None:
            return None
        file = wanted.file
        dictionary = content_of(release.root, release.names, release.identity)
        content = content_of(file.directory, file.names, wanted.identity)
        if dictionary is None or content is None or digest_of(dictionary) != wanted.digest:
            return None
        return made_copy(DCZ, content, partial(make_delta, dictionary=dictionary))

    def _look(self, file: ReleasesOf) -> _Releases:
        """Find the releases of a file, and read those that are new since the last look."""
        known = self._known.get(file.key)
        if known is not None and known.are_unchanged():
            return known
        digests = {} if known is None else {r: d for d, r in known.by_digest.items()}
        listing, settled = self._list(file)
        names = listing.releases.get(file.hashed, ())
        by_digest: dict[bytes, _Release] = {}
        for release in _newest(names, file.names[:-1], MAX_FILE_BYTES):
            digest = digests.get(release)
            if digest is None:
                content = content_of(release.root, release.names, release.identity)
                if content is None:
                    continue  # it may not be served
                digest = digest_of(content)
            by_digest[digest] = release
        releases = _Releases(listing, by_digest)
        if settled and names:
            self._known.put(file.key, releases)
        return releases

    def _list(self, file: ReleasesOf) -> tuple[_Listing, bool]:
        """List the folders of a file, unless that was done in their present state.

        :returns: also whether any later change would be seen.
        """
        listing = self._listings.get(file.folders_key)
        if listing is not None and listing.is_unchanged():
            return listing, True
        # Before they are listed: changes meanwhile are found at the next look.
        seen = [(path, stat_or_none(path)) for path in file.folders]
        folders = [
            (path, None if stat_result is None else identity_of(stat_result))
            for path, stat_result in seen
        ]
        found: dict[HashedName, list[tuple[Directory, str]]] = {}
        deltas = set()
        for root, name in _names_in(file.roots, file.names[:-1]):
            if name.endswith(DELTA_SUFFIX):
                deltas.add(name)
            elif (hashed := hashed_name(name)) is not None:
                found.setdefault(hashed, []).append((root, name))
        several = {hashed: names for hashed, names in found.items() if len(names) > 1}
        listing = _Listing(folders, several, frozenset(deltas))
        if listing.cost > _REMEMBERED_BYTES:
            log.warning("%s has too many releases: deltas to some of them only", seen[0][0])
            while several and listing.cost > _REMEMBERED_BYTES:
                several = dict(islice(several.items(), len(several) // 2))
                listing = _Listing(folders, several, listing.deltas)
        settled = all(stat_result is None or is_settled(stat_result) for _, stat_result in seen)
        if settled:
            self._listings.put(file.folders_key, listing)
        return listing, settled


def newest_releases(
    roots: Iterable[Directory], folder: Sequence[str], hashed: HashedName, max_bytes: int
) -> list[_Release]:
    """Return the releases of a file that can be dictionaries, the newest ones first.

    :param folder: below each root.
    :param max_bytes: of each.
    """
    names = [each for each in _names_in(roots, folder) if hashed_name(each[1]) == hashed]
    return _newest(names, folder, max_bytes)


def _names_in(roots: Iterable[Directory], folder: Sequence[str]) -> Iterator[tuple[Directory, str]]:
    """List a folder below each root. Nothing where there is no such folder."""
    for root in roots:
        opened = open_if_readable(root, folder)
        if opened is None:
            continue
        try:
            listed = os.listdir(opened.fd) if opened.is_directory else []
        finally:
            os.close(opened.fd)
        for name in listed:
            yield root, name


def _newest(
    releases: Iterable[tuple[Directory, str]], folder: Sequence[str], max_bytes: int
) -> list[_Release]:
    found: list[_Release] = []
    for root, name in releases:
        names = (*folder, name)
        stat_result = stat_or_none(root.full_path(names))
        if stat_result is None or not stat.S_ISREG(stat_result.st_mode):
            continue
        if MIN_FILE_BYTES <= stat_result.st_size <= max_bytes:
            found.append(_Release(root, names, identity_of(stat_result), stat_result.st_mtime_ns))
    return sorted(found, key=lambda release: release.mtime_ns, reverse=True)[:MAX_RELEASES]


def content_of(root: Directory, names: Sequence[str], identity: Identity) -> bytes | None:
    """Read a file that may be served. None if it has another identity by now."""
    opened = open_if_readable(root, names)
    if opened is None:
        return None
    with open(opened.fd, "rb") as file:
        if opened.is_directory or identity_of(opened.stat_result) != identity:
            return None
        content = file.read(opened.stat_result.st_size + 1)
        is_whole = len(content) == opened.stat_result.st_size
        return content if is_whole and identity_of(os.fstat(opened.fd)) == identity else None


def _identity_at(path: str) -> Identity | None:
    stat_result = stat_or_none(path)
    return None if stat_result is None else identity_of(stat_result)


def _read_delta(written: Opened, original: Opened, digest: bytes) -> CompressedCopy | None:
    """Read a delta that was written beside its file. None if it is none of these two."""
    size = written.stat_result.st_size
    if (
        not stat.S_ISREG(written.stat_result.st_mode)
        or not HEADER_BYTES < size < min(original.stat_result.st_size, MAX_FILE_BYTES)
        or is_outdated(written.stat_result, original.stat_result)
    ):
        return None
    body = os.pread(written.fd, size, 0)
    if len(body) != size or not body.startswith(delta_header(digest)):
        return None
    return CompressedCopy(body, DCZ, original.stat_result.st_size)


# Of the whole process, as the cache is.
DELTAS = Deltas()
# The threads of its parent are not there in a forked worker.
os.register_at_fork(after_in_child=DELTAS.reset)

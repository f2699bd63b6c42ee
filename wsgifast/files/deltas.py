"""Send a file as a delta to an earlier release that the client has (RFC 9842).

A release is one version of a file whose name contains a hash of its content. The releases of a file
have names that differ only in the hash. They are in the same folder, below any of the site's
directories. The earlier release is the dictionary of the delta. The client sends the SHA-256 of its
dictionary. This module searches for the release with that digest. Deltas that `wsgifast compress
--against` has written next to the file are sent too.

A client may send any digest, so the search for an unknown digest must be cheap. Folders are listed
and releases are read once, and again only after a change. A request for a file without other
releases starts no thread and reads no file.

Each delta is made once, by a new thread, and cached with the compressed copies. A request waits for
its delta, up to a timeout. After the timeout, the request gets an ordinary content coding. Later
requests get the delta.
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
    HashlessName,
    delta_header,
    delta_suffix,
    digest_of,
    hashless_name,
    make_delta,
)
from .compressed_copies import COPIES, MAX_FILE_BYTES, CompressedCopy, delta_key, made_copy
from .directory import Directory, Identity, Opened, identity_of
from .found import (
    CacheEntry,
    HashedFile,
    MemoryCache,
    is_outdated,
    is_settled,
    open_if_readable,
    stat_or_none,
)
from .lookup import FoundFile

log = logging.getLogger("wsgifast.files")

# The longest wait of a request for a delta. For a file of 5 MB, the delta and the digests of both
# releases take 50 ms.
_WAIT_S = 0.25
# The maximum number of unfinished deltas. Each has a thread, but only one thread works at a time.
_MAX_UNFINISHED = 32
# The maximum number of releases of a file to read. The newest releases are read.
MAX_RELEASES = 16
# The sizes of two caches: the listings of folders, and the digests of releases.
_CACHE_BYTES = 16 * 1024 * 1024
# The memory of a name in a listing, and of a release with its digest. Measured, and rounded up.
_NAME_BYTES = 400
_RELEASE_BYTES = 1000
# The smallest file that is sent as a delta, or used as a dictionary. A smaller file fits into the
# first packets of a connection in any content coding.
MIN_FILE_BYTES = 500


class _RequestedDelta(NamedTuple):
    """A requested delta: the file, and the SHA-256 of its dictionary."""

    file: FoundFile
    hashed_file: HashedFile
    identity: Identity
    digest: bytes


class _Release(NamedTuple):
    root: Directory
    names: tuple[str, ...]
    identity: Identity
    mtime_ns: int


class _Listing(CacheEntry):
    """The files with two or more releases in some folders, at the time of the listing.

    :ivar folders: the paths of the folders with their identities. None for a missing folder.
    :ivar releases: maps each name without its hash to two or more files with that name.
    :ivar deltas: the names of the delta files (.dcz).
    """

    __slots__ = ("deltas", "folders", "releases")

    def __init__(
        self,
        folders: Sequence[tuple[str, Identity | None]],
        releases: dict[HashlessName, list[tuple[Directory, str]]],
        deltas: frozenset[str],
    ) -> None:
        count = 1 + len(deltas) + sum(map(len, releases.values()))
        super().__init__(_NAME_BYTES * count)
        self.folders = folders
        self.releases = releases
        self.deltas = deltas

    def is_unchanged(self) -> bool:
        """Return whether no folder has changed since it was listed."""
        return all(_identity_at(path) == identity for path, identity in self.folders)


class _Releases(CacheEntry):
    """The releases of a file by digest. They are valid while `listing` is unchanged."""

    __slots__ = ("by_digest", "listing")

    def __init__(self, listing: _Listing, by_digest: dict[bytes, _Release]) -> None:
        super().__init__(_RELEASE_BYTES * (1 + len(by_digest)))
        self.listing = listing
        self.by_digest = by_digest

    def are_unchanged(self) -> bool:
        """Return whether neither a folder nor one of the releases has changed."""
        return self.listing.is_unchanged() and all(
            _identity_at(each.root.full_path(each.names)) == each.identity
            for each in self.by_digest.values()
        )

    def find_dictionary(self, names: Sequence[str], digest: bytes) -> _Release | None:
        """Return the release with a digest. None if it does not exist, or is the file itself.

        :param names: the path of the file itself.
        """
        release = self.by_digest.get(digest)
        return None if release is None or release.names == tuple(names) else release


class Deltas:
    """Finds and makes the deltas of a process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._compression_lock = threading.Lock()
        # Maps the key of an unfinished delta to an event. The event is set when the delta is made,
        # or its creation has failed.
        self._unfinished: dict[str, threading.Event] = {}
        self._listings: MemoryCache[_Listing] = MemoryCache(_CACHE_BYTES)
        self._releases: MemoryCache[_Releases] = MemoryCache(_CACHE_BYTES)

    def get(self, file: FoundFile, digest: bytes) -> CompressedCopy | None:
        """Return the delta that turns the dictionary with this digest into a file.

        :returns: None if the delta is not ready, or cannot be made.
        """
        opened = file.opened(file.path)
        hashed_file = file.hashed_file
        size = opened.stat_result.st_size
        if hashed_file is None or size < MIN_FILE_BYTES or not is_settled(opened.stat_result):
            return None
        identity = identity_of(opened.stat_result)
        key = delta_key(identity, digest)
        copy = COPIES.cached(key, on_disk=True)
        if copy is not None:
            return copy
        delta_file = file.open_precompressed(delta_suffix(digest))
        if delta_file is not None:
            copy = _read_delta(delta_file, opened, digest)
            if copy is not None:
                COPIES.store(key, copy)
                return copy
        if size > MAX_FILE_BYTES:
            return None
        if self.is_known_missing(hashed_file, digest):
            return None
        finished = self._begin(_RequestedDelta(file, hashed_file, identity, digest), key)
        if finished is None or not finished.wait(_WAIT_S):
            return None
        return COPIES.cached(key)

    def is_known_missing(self, hashed_file: HashedFile, digest: bytes) -> bool:
        """Return whether the caches show that there is no dictionary or delta for this digest.

        This method reads no file, and calls stat() only for paths that the kernel has cached.
        """
        listing = self._listings.get(hashed_file.folders_key)
        if listing is None or not listing.is_unchanged():
            return False
        if hashed_file.names[-1] + delta_suffix(digest) in listing.deltas:
            return False
        if hashed_file.hashless_name not in listing.releases:
            return True
        cached = self._releases.get(hashed_file.key)
        if cached is None or not cached.are_unchanged():
            return False
        return cached.find_dictionary(hashed_file.names, digest) is None

    def _begin(self, requested: _RequestedDelta, key: str) -> threading.Event | None:
        """Start a thread that makes a delta, unless a thread is already making it.

        :returns: an event that is set when the thread has finished. None if there are too many
            unfinished deltas or threads.
        """
        with self._lock:
            finished = self._unfinished.get(key)
            if finished is not None or len(self._unfinished) >= _MAX_UNFINISHED:
                return finished
            finished = self._unfinished[key] = threading.Event()

        def make() -> None:
            try:
                with self._compression_lock:
                    # Another thread may have made the delta since this request read the cache.
                    if COPIES.cached(key) is None and (copy := self._make(requested)) is not None:
                        COPIES.store(key, copy)
            except OSError as error:
                log.warning("%s: no delta could be made: %s", requested.file.path, error)
            finally:
                with self._lock:
                    self._unfinished.pop(key, None)
                finished.set()

        try:
            threading.Thread(target=make, name="wsgifast delta", daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            with self._lock:
                self._unfinished.pop(key, None)
            return None
        return finished

    def _make(self, requested: _RequestedDelta) -> CompressedCopy | None:
        release = self._read_releases(requested.hashed_file).find_dictionary(
            requested.file.names, requested.digest
        )
        if release is None:
            return None
        file = requested.file
        dictionary = content_of(release.root, release.names, release.identity)
        content = content_of(file.directory, file.names, requested.identity)
        if dictionary is None or content is None or digest_of(dictionary) != requested.digest:
            return None
        return made_copy(DCZ, content, partial(make_delta, dictionary=dictionary))

    def _read_releases(self, hashed_file: HashedFile) -> _Releases:
        """Return the releases of a file. Read only those that are not in the cache."""
        cached = self._releases.get(hashed_file.key)
        if cached is not None and cached.are_unchanged():
            return cached
        digests = {} if cached is None else {r: d for d, r in cached.by_digest.items()}
        listing, settled = self._list(hashed_file)
        names = listing.releases.get(hashed_file.hashless_name, ())
        by_digest: dict[bytes, _Release] = {}
        for release in _newest(names, hashed_file.names[:-1], MAX_FILE_BYTES):
            digest = digests.get(release)
            if digest is None:
                content = content_of(release.root, release.names, release.identity)
                if content is None:
                    continue  # the release may not be served
                digest = digest_of(content)
            by_digest[digest] = release
        releases = _Releases(listing, by_digest)
        if settled and names:
            self._releases.put(hashed_file.key, releases)
        return releases

    def _list(self, hashed_file: HashedFile) -> tuple[_Listing, bool]:
        """Return the listing of a file's folders. List them only if a folder has changed.

        :returns: the listing, and whether it may be cached. It may not be cached if a later change
            could leave the identity of a folder unchanged (:func:`~.found.is_settled`).
        """
        listing = self._listings.get(hashed_file.folders_key)
        if listing is not None and listing.is_unchanged():
            return listing, True
        # stat() comes before the listing, so that the next call notices changes during the listing.
        stat_results = [(path, stat_or_none(path)) for path in hashed_file.folders]
        folders = [
            (path, None if stat_result is None else identity_of(stat_result))
            for path, stat_result in stat_results
        ]
        found: dict[HashlessName, list[tuple[Directory, str]]] = {}
        deltas = set()
        for root, name in _names_in(hashed_file.roots, hashed_file.names[:-1]):
            if name.endswith(DELTA_SUFFIX):
                deltas.add(name)
            elif (hashless := hashless_name(name)) is not None:
                found.setdefault(hashless, []).append((root, name))
        several = {hashless: names for hashless, names in found.items() if len(names) > 1}
        listing = _Listing(folders, several, frozenset(deltas))
        if listing.cost > _CACHE_BYTES:
            folder = hashed_file.folders[0]
            log.warning("%s has too many releases: deltas to some of them only", folder)
            while several and listing.cost > _CACHE_BYTES:
                several = dict(islice(several.items(), len(several) // 2))
                listing = _Listing(folders, several, listing.deltas)
        settled = all(
            stat_result is None or is_settled(stat_result) for _, stat_result in stat_results
        )
        if settled:
            self._listings.put(hashed_file.folders_key, listing)
        return listing, settled


def newest_releases(
    roots: Iterable[Directory], folder: Sequence[str], hashless: HashlessName, max_bytes: int
) -> list[_Release]:
    """Return the releases of a file that can be dictionaries, the newest ones first.

    :param folder: the path of the folder below each root.
    :param hashless: the name of the file without its hash.
    :param max_bytes: the maximum size of a release.
    """
    names = [each for each in _names_in(roots, folder) if hashless_name(each[1]) == hashless]
    return _newest(names, folder, max_bytes)


def _names_in(roots: Iterable[Directory], folder: Sequence[str]) -> Iterator[tuple[Directory, str]]:
    """List a folder below each root. Skip roots that do not have the folder."""
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
    """Read a file. Return None if it may not be served, or its identity has changed."""
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


def _read_delta(delta_file: Opened, original: Opened, digest: bytes) -> CompressedCopy | None:
    """Read a file's delta file. Return None if it is outdated, too large or for other content."""
    size = delta_file.stat_result.st_size
    if (
        not stat.S_ISREG(delta_file.stat_result.st_mode)
        or not HEADER_BYTES < size < min(original.stat_result.st_size, MAX_FILE_BYTES)
        or is_outdated(delta_file.stat_result, original.stat_result)
    ):
        return None
    body = os.pread(delta_file.fd, size, 0)
    if len(body) != size or not body.startswith(delta_header(digest)):
        return None
    return CompressedCopy(body, DCZ, original.stat_result.st_size)


# One object for the whole process, like the cache of compressed copies.
DELTAS = Deltas()
# A forked worker does not have the threads of its parent.
os.register_at_fork(after_in_child=DELTAS.reset)

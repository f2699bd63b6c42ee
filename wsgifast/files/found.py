"""The cache of files that were found for URL paths, and the checks that they are unchanged.

- :class:`Found` describes the file of a URL path, in each of its content codings.
- :class:`MemoryCache` stores these descriptions, up to a total size.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from ..compression.codings import preferred_coding
from ..compression.dictionaries import HashlessName, prefers_delta
from ..http.headers import Headers
from .directory import Directory, Identity, Opened, identity_of
from .plan import Representation, RequestFacts

# The memory of a cached file in one content coding. It includes all cached plans (plan.py), but not
# the body. The number was measured with tracemalloc, and a test checks it.
_SOURCE_COST_BYTES = 10_000
# The maximum number of copies of a header in memory. The cached plans contain it as str for WSGI
# and as bytes for ASGI.
_HEADER_COPIES = 6
# The maximum difference between a modification time and its copy. WhiteNoise and ServeStatic copy
# the time as a float, which differs by up to 120 ns. A tool that stores only microseconds changes
# the time by less than 1000 ns. No file is written twice within 1000 ns.
_ROUNDED_NS = 1_000
# Other tools truncate the time to milliseconds, or to seconds (pigz, brotli, zstd before 1.5).
_TRUNCATED_TO_NS = (1_000_000, 1_000_000_000)
# File times have the resolution of the kernel's tick, 1 to 10 ms. If a file was changed more
# recently than this, a second change may not change its times. So the file is not cached.
_SETTLED_NS = 50_000_000


class CacheEntry:
    """A value of a :class:`MemoryCache`.

    :ivar cost: the maximum memory of the value in bytes, including the caches that it contains.
    :ivar used: whether the value was used since it was inserted or last skipped by an eviction.
    """

    __slots__ = ("cost", "used")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.used = False


EntryT = TypeVar("EntryT", bound=CacheEntry)


class MemoryCache(Generic[EntryT]):
    """A cache of recently used values, up to a total cost in bytes.

    Eviction uses the "clock" algorithm. Values are evicted in the order of insertion, and a value
    that was used meanwhile is inserted again. This is close to least recently used. A hit only sets
    a flag, and needs no lock. Files that are requested once do not evict files that are used often.

    :param max_bytes: the largest sum of all costs. 0 disables the cache.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[str, EntryT] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> EntryT | None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.used = True
        return entry

    def put(self, key: str, value: EntryT) -> list[tuple[str, EntryT]]:
        """Cache a value in place of the key's old value.

        A value whose cost is above `max_bytes` is not cached.

        :returns: the evicted values with their keys, or the value itself if it is not cached.
        """
        with self._lock:
            self._remove(key)
            if value.cost > self.max_bytes:
                return [(key, value)]
            evicted = []
            while self.used_bytes + value.cost > self.max_bytes:
                evicted.append(self._evict_one())
            self._entries[key] = value
            self.used_bytes += value.cost
            return evicted

    def _evict_one(self) -> tuple[str, EntryT]:
        while True:
            key = next(iter(self._entries))
            oldest = self._entries[key]
            if not oldest.used:
                self._remove(key)
                return key, oldest
            oldest.used = False
            self._entries.move_to_end(key)

    def _remove(self, key: str) -> None:
        value = self._entries.pop(key, None)
        if value is not None:
            self.used_bytes -= value.cost


class Source(NamedTuple):
    """A file in one content coding: its representation and its path.

    :ivar path: the absolute path. It may contain links, so only :meth:`reopen` may open it.
    """

    path: str
    directory: Directory
    identity: Identity
    representation: Representation

    def reopen(self) -> int | None:
        """Open the file, and return its descriptor. Return None if the file has changed."""
        return self.directory.reopen(self.path, self.identity)

    def cost(self) -> int:
        """Return the maximum memory of this object in bytes. A character may need four bytes."""
        representation = self.representation
        return (
            _SOURCE_COST_BYTES
            + 4 * len(self.path)
            + len(representation.body or b"")
            + _HEADER_COPIES * sum(len(n) + len(v) for n, v in representation.headers)
        )


class HashedFile(NamedTuple):
    """A file with a hash in its name, and the folders that may have other releases of the file.

    :ivar hashless_name: the name of the file without the hash.
    :ivar roots: the root directories. Each may have other releases at the same relative path.
    :ivar names: the path of the file below its root.
    """

    hashless_name: HashlessName
    roots: Sequence[Directory]
    names: Sequence[str]

    @property
    def folders(self) -> list[str]:
        return [root.full_path(self.names[:-1]) for root in self.roots]

    @property
    def folders_key(self) -> str:
        return "\0".join(self.folders)

    @property
    def key(self) -> str:
        """Return a key that is the same for all releases of the file."""
        return "\0".join([*self.hashless_name, *self.folders])


@dataclass(eq=False)
class Found(CacheEntry):
    """The file of a URL path, and its precompressed files.

    :ivar cost: 0 for a file that must not be cached.
    :ivar original: the file without a content coding.
    :ivar encoded: maps content codings in lower case to the precompressed files. The smallest file
        is the first.
    :param url: the key in the cache.
    :param settled: whether every later change of the files will change their identity. It is False
        shortly after a change (_SETTLED_NS). Files that are not settled must not be cached.
    :ivar copy_codings: the content codings in which requests may get a compressed copy.
    :ivar hashed_file: where to look for earlier releases of the file. None to send no deltas.
    :ivar watched: the paths of the directory and of unusable precompressed files, with their
        identities. If one of them changes, another precompressed file may be usable.
    :ivar absent: paths without a file. A new file there would take precedence over the cached file.
    """

    original: Source
    encoded: Mapping[str, Source]
    url: InitVar[str]
    settled: InitVar[bool]
    copy_codings: tuple[str, ...] = ()
    hashed_file: HashedFile | None = None
    watched: Sequence[tuple[str, Identity]] = ()
    absent: Sequence[str] = ()

    def __post_init__(self, url: str, settled: bool) -> None:
        super().__init__(0)
        self._codings = tuple(self.encoded)
        if settled:
            paths = [url, *self.absent, *(path for path, _ in self.watched)]
            self.cost = sum(4 * len(path) for path in paths)
            self.cost += sum(source.cost() for source in self.sources())

    def select(self, accept_encoding: str | None) -> Source:
        """Return the file or the precompressed file to send.

        :param accept_encoding: the request header. None if the request does not have it.
        """
        if accept_encoding is None or not self._codings:
            return self.original
        coding = preferred_coding(accept_encoding, self._codings)
        return self.original if coding is None else self.encoded[coding]

    def copy_coding(self, source: Source, accept_encoding: str | None) -> str | None:
        """Return the content coding of the compressed copy to send. Return None to send no copy.

        :param source: the result of :meth:`select`.
        """
        if source is not self.original or accept_encoding is None or not self.copy_codings:
            return None
        return preferred_coding(accept_encoding, self.copy_codings)

    def dictionary_digest(self, file_request: RequestFacts) -> bytes | None:
        """Return the digest of the client's dictionary. Return None to send no delta."""
        client = file_request.dictionary
        if client is None or self.hashed_file is None:
            return None
        if not prefers_delta(file_request.accept_encoding):
            return None
        allowed = Headers(self.original.representation.headers).get("access-control-allow-origin")
        return client.digest if client.may_be_used(allowed) else None

    def sources(self) -> list[Source]:
        return [self.original, *self.encoded.values()]

    def unchanged(self, accept_encoding: str | None) -> Source | None:
        """Return the file to send. Return None if the files or the directory have changed.

        stat() follows links. That is safe: a file with the same identity was allowed when it was
        opened.
        """
        original, source = self.original, self.select(accept_encoding)
        try:
            for each in (original,) if source is original else (original, source):
                if identity_of(os.stat(each.path)) != each.identity:
                    return None
            # New precompressed files matter only to clients that accept a content coding.
            if accept_encoding is not None:
                for path, identity in self.watched:
                    if identity_of(os.stat(path)) != identity:
                        return None
        except OSError:
            return None
        if self.absent and any(map(os.path.lexists, self.absent)):
            return None
        return source


def is_settled(stat_result: os.stat_result) -> bool:
    """Return whether a later change would change the file's identity."""
    return abs(time.time_ns() - stat_result.st_ctime_ns) > _SETTLED_NS


def stat_or_none(path: str | bytes, **options: Any) -> os.stat_result | None:
    """Return the stat result of a path, or None if os.stat() fails.

    :param options: the keyword arguments of os.stat().
    """
    try:
        return os.stat(path, **options)
    except OSError:
        return None


def open_if_readable(directory: Directory, names: Sequence[str]) -> Opened | None:
    """Open a file. Return None if there is no such file, or this process may not read it."""
    try:
        return directory.open(names)
    except PermissionError:
        return None


def has_same_time(one: os.stat_result, other: os.stat_result) -> bool:
    """Return whether a file and its copy have the same modification time, possibly rounded.

    Any other difference means that the file may have been written again after it was copied.
    """
    earlier, later = sorted((one.st_mtime_ns, other.st_mtime_ns))
    difference = later - earlier
    return difference <= _ROUNDED_NS or any(
        difference < unit and earlier % unit == 0 for unit in _TRUNCATED_TO_NS
    )


def is_outdated(precompressed: os.stat_result, original: os.stat_result) -> bool:
    """Return whether a precompressed file is older than its original."""
    return precompressed.st_mtime_ns < original.st_mtime_ns and not has_same_time(
        precompressed, original
    )

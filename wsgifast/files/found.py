"""Files that were found: their cache, their precompressed files, and checks for changes."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from ..compression.codings import preferred_coding
from ..compression.dictionaries import HashedName, prefers_delta
from ..http.headers import Headers
from .directory import Directory, Identity, Opened, identity_of
from .plan import Representation, RequestFacts

# The size of the cached objects of a file in each coding, without its body, once all plans that
# they cache have been made. Measured with tracemalloc. A test checks it.
_SOURCE_COST_BYTES = 10_000
# Each header is in memory at most this often: as str and as ASGI's bytes, in the plans for GET,
# HEAD, a range, and without a body.
_HEADER_COPIES = 6
# A time that was copied as a float, as by WhiteNoise and ServeStatic, is off by up to 120 ns, and
# one in microseconds by up to 1000. No file is written twice within that time.
_ROUNDED_NS = 1_000
# Other tools cut the time to one of these units (pigz, brotli, and zstd before 1.5: to seconds).
_CUT_TO_NS = (1_000_000, 1_000_000_000)
# A file that was changed less than this ago may change again at the same time stamp: file times
# have the resolution of the kernel's tick, 1 to 10 ms. It is served, but not cached yet.
_SETTLED_NS = 50_000_000


class CacheEntry:
    """A value of the cache.

    :ivar cost: the bytes of memory that it takes at most, including its own caches.
    :ivar used: set at each hit, cleared when the cache makes room.
    """

    __slots__ = ("cost", "used")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.used = False


K = TypeVar("K", bound=CacheEntry)


class MemoryCache(Generic[K]):
    """Caches recently used values, up to a total cost in bytes.

    A hit takes no lock: it sets a flag. Eviction is in the order of insertion, with a second chance
    for values used since (the "clock" algorithm). That is close to least recently used, and resists
    scans: many files that are requested once do not evict those in use.

    :param max_bytes: bound on the sum of all costs. 0 caches nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[str, K] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> K | None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.used = True
        return entry

    def put(self, key: str, value: K) -> list[tuple[str, K]]:
        """Cache a value in place of the key's last one, unless it alone exceeds the bound.

        :returns: the values that had to make room for it, or the value itself.
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

    def _evict_one(self) -> tuple[str, K]:
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
    """A file in one encoding: its representation, and where its bytes are.

    :ivar path: absolute. Its directories may be links: open it by :meth:`reopen` only.
    """

    path: str
    directory: Directory
    identity: Identity
    representation: Representation

    def reopen(self) -> int | None:
        """Open the file that was described. None if it has changed or is gone."""
        return self.directory.reopen(self.path, self.identity)

    def cost(self) -> int:
        """Return the bytes of memory that it takes at most. A character may take four."""
        representation = self.representation
        return (
            _SOURCE_COST_BYTES
            + 4 * len(self.path)
            + len(representation.body or b"")
            + _HEADER_COPIES * sum(len(n) + len(v) for n, v in representation.headers)
        )


class ReleasesOf(NamedTuple):
    """A file with a hash in its name, and the places of its other releases.

    :ivar hashed: its name without the hash.
    :ivar roots: the directories that may have releases under the same path.
    :ivar names: its own path below its root.
    """

    hashed: HashedName
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
        """Return the part that all releases of the file have in common."""
        return "\0".join([*self.hashed, *self.folders])


@dataclass(eq=False)
class Found(CacheEntry):
    """A file and its precompressed files, as found for one URL path.

    :ivar cost: 0 for a file that must not be cached.
    :ivar original: the file itself, without a content coding.
    :ivar encoded: the precompressed files by coding in lower case, the preferred one first.
    :param url: the key in the cache.
    :param settled: whether any later change would be seen.
    :ivar made_codings: those that the file may be compressed in.
    :ivar releases: it may be sent as a delta to an earlier one of these.
    :ivar beside: paths with changes that may bring other precompressed files: the directory, and
        precompressed files that are not sent, such as outdated ones.
    :ivar absent: paths that take precedence should a file appear there.
    """

    original: Source
    encoded: Mapping[str, Source]
    url: InitVar[str]
    settled: InitVar[bool]
    made_codings: tuple[str, ...] = ()
    releases: ReleasesOf | None = None
    beside: Sequence[tuple[str, Identity]] = ()
    absent: Sequence[str] = ()

    def __post_init__(self, url: str, settled: bool) -> None:
        super().__init__(0)
        self._codings = tuple(self.encoded)
        if settled:
            paths = [url, *self.absent, *(path for path, _ in self.beside)]
            self.cost = sum(4 * len(path) for path in paths)
            self.cost += sum(source.cost() for source in self.sources())

    def select(self, accept_encoding: str | None) -> Source:
        """Return the file to send for a request's Accept-Encoding. None if there is none."""
        if accept_encoding is None or not self._codings:
            return self.original
        coding = preferred_coding(accept_encoding, self._codings)
        return self.original if coding is None else self.encoded[coding]

    def made_coding(self, source: Source, accept_encoding: str | None) -> str | None:
        """Return the coding in which to compress the selected file. None to send it unchanged."""
        if source is not self.original or accept_encoding is None or not self.made_codings:
            return None
        return preferred_coding(accept_encoding, self.made_codings)

    def wanted_dictionary(self, conditions: RequestFacts) -> bytes | None:
        """Return the digest of the dictionary to send the file with. None to use none."""
        client = conditions.dictionary
        if client is None or self.releases is None or not prefers_delta(conditions.accept_encoding):
            return None
        allowed = Headers(self.original.representation.headers).get("access-control-allow-origin")
        return client.digest if client.may_be_used(allowed) else None

    def sources(self) -> list[Source]:
        return [self.original, *self.encoded.values()]

    def unchanged(self, accept_encoding: str | None) -> Source | None:
        """Return the file to send. None if anything has changed on disk.

        stat() follows links, which does no harm: the files of these identities were allowed when
        they were opened.
        """
        original, source = self.original, self.select(accept_encoding)
        try:
            for each in (original,) if source is original else (original, source):
                if identity_of(os.stat(each.path)) != each.identity:
                    return None
            # Changes of precompressed files affect only clients that accept codings.
            if accept_encoding is not None:
                for path, identity in self.beside:
                    if identity_of(os.stat(path)) != identity:
                        return None
        except OSError:
            return None
        if self.absent and any(map(os.path.lexists, self.absent)):
            return None
        return source


def is_settled(stat_result: os.stat_result) -> bool:
    """Whether any later change would be seen by the file's identity."""
    return abs(time.time_ns() - stat_result.st_ctime_ns) > _SETTLED_NS


def stat_or_none(path: str | bytes, **options: Any) -> os.stat_result | None:
    """Return the stat() of a path, or None if nothing is there.

    :param options: those of os.stat().
    """
    try:
        return os.stat(path, **options)
    except OSError:
        return None


def open_if_readable(directory: Directory, names: Sequence[str]) -> Opened | None:
    """Open the file that names lead to. Return None if this process may read none there."""
    try:
        return directory.open(names)
    except PermissionError:
        return None


def has_same_time(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether two files have the same modification time, or one time is the other, rounded.

    Not any difference below a second will do: the original may have been written again.
    """
    earlier, later = sorted((one.st_mtime_ns, other.st_mtime_ns))
    difference = later - earlier
    return difference <= _ROUNDED_NS or any(
        difference < unit and earlier % unit == 0 for unit in _CUT_TO_NS
    )


def is_outdated(precompressed: os.stat_result, original: os.stat_result) -> bool:
    """Return whether a precompressed file was made from an earlier content of its original."""
    return precompressed.st_mtime_ns < original.st_mtime_ns and not has_same_time(
        precompressed, original
    )

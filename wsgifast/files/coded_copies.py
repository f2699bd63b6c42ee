"""Compressed copies of files that have no compressed sibling: made once, and cached.

A hundred requests for a file that nobody has asked for yet compress it once: the first one does,
and the others wait for it. What the memory has no room for any more stays in an unnamed file.
Deltas (deltas.py) are kept in the same cache.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Sequence
from time import thread_time
from typing import IO

from ..compression.codings import TOTALS, compressor
from ..compression.dictionaries import DCZ
from ..compression.policy import Header, coded_tag, uncoded_headers_dropped
from ..sockets.sending import FileSegment, has_its_size
from .directory import Identity, identity_of
from .found import Kept, MemoryCache, is_settled
from .plan import Plan, Representation, RequestFacts

# The memory for the copies of a process.
_CACHE_BYTES = 64 * 1024 * 1024
# And the file behind it, which may be in memory too: many systems have such a /tmp.
_FILE_BYTES = 256 * 1024 * 1024
# A larger file stays as it is, and is sent by sendfile: compressing it would take a second, and its
# copy much of the cache.
MAX_FILE_BYTES = 16 * 1024 * 1024
# Higher than what is made for each response, as a copy is sent often: 5 MB take 0.1 to 0.2 s.
_LEVELS = {"zstd": 9, "br": 6, "gzip": 6}
# Copies and siblings that save less are not worth the client's decompression.
MIN_SAVING = 0.05
# What the objects of a copy take beside its bytes, with a representation and its plans.
_COPY_COST_BYTES = 10_000


class CodedCopy(Kept):
    """A file in a content coding.

    :ivar body: None if the file does not get smaller.
    :ivar uncoded_bytes: the size of the file.
    """

    __slots__ = ("_made", "body", "checksum", "coding", "uncoded_bytes")

    def __init__(self, body: bytes | None, coding: str, uncoded_bytes: int) -> None:
        super().__init__(_COPY_COST_BYTES + len(body or b""))
        self.body = body
        self.coding = coding
        self.uncoded_bytes = uncoded_bytes
        self.checksum = zlib.crc32(body or b"")
        # One pair, so that threads see both or neither.
        self._made: tuple[Sequence[Header], Representation] | None = None

    def plan(
        self,
        facts: RequestFacts,
        headers: Sequence[Header],
        etag: str | None,
        *,
        ranges: bool = True,
    ) -> Plan:
        """Plan the answer to a GET or HEAD with the copy, which has a validator of its own.

        :param headers: of the uncoded file's answer, with Vary. What is made of the same ones is
            remembered.
        :param etag: the uncoded file's; without one the copy has none.
        :param ranges: whether parts may be requested.
        """
        # A date is that of the uncoded file, too.
        if facts.if_range is not None and '"' not in facts.if_range:
            facts = facts._replace(range=None)
        assert self.body is not None
        made = self._made
        if made is None or made[0] is not headers:
            own = uncoded_headers_dropped(headers)
            own.append(("Content-Encoding", self.coding))
            tag = None if etag is None else coded_tag(etag, self.coding, self.checksum)
            if tag is not None:
                own.append(("ETag", tag))
            if ranges:
                own.append(("Accept-Ranges", "bytes"))
            whole = Representation(len(self.body), own, body=self.body, ranges=ranges)
            made = self._made = headers, whole
        plan = made[1].plan(facts)
        if plan.status == 200 and plan.segments:
            TOTALS.count(self.coding, self.uncoded_bytes, len(self.body), 0)
        return plan


class _CopiesOnDisk:
    """Copies in one unnamed file of a process, one behind the other; a full file begins anew.

    :param max_bytes: of the file.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._file: IO[bytes] | None = None
        self._reset()
        # A forked process must not write into its parent's file.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._begin_anew()

    def _begin_anew(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._end = 0
        # Of each copy where it is, its coding, its checksum, and the size of the uncoded file.
        self._places: dict[str, tuple[FileSegment, str, int, int]] = {}

    def put(self, key: str, copy: CodedCopy) -> None:
        """Write a copy. Without a place for it, it is compressed again when it is needed."""
        body = copy.body
        if body is None or len(body) > self._max_bytes:
            return
        with self._lock, contextlib.suppress(OSError):
            if key in self._places:
                return
            if self._end + len(body) > self._max_bytes:
                self._begin_anew()
            if self._file is None:
                self._file = tempfile.TemporaryFile()
            place = FileSegment(self._file.fileno(), self._end, len(body))
            if os.pwrite(place.fd, body, place.offset) == place.size:
                self._places[key] = place, copy.coding, copy.checksum, copy.uncoded_bytes
                self._end += place.size

    def get(self, key: str) -> CodedCopy | None:
        with self._lock, contextlib.suppress(OSError):
            found = self._places.get(key)
            if found is None:
                return None
            (fd, offset, size), coding, checksum, uncoded_bytes = found
            copy = CodedCopy(os.pread(fd, size, offset), coding, uncoded_bytes)
            if copy.checksum == checksum:
                return copy
        return None


class CodedCopies:
    """The cached copies of files.

    :param max_bytes: bound on their memory.
    :param max_file_bytes: bound on the file behind it.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES, max_file_bytes: int = _FILE_BYTES) -> None:
        self._cache: MemoryCache[CodedCopy] = MemoryCache(max_bytes)
        self._on_disk = _CopiesOnDisk(max_file_bytes)
        self._lock = threading.Lock()
        # Of the copies that are being made: the lock that their makers hold.
        self._making: dict[str, threading.Lock] = {}

    def kept(self, key: str, *, on_disk: bool = False) -> CodedCopy | None:
        """Return the copy of a :func:`copy_key` or :func:`delta_key`, if it is cached.

        :param on_disk: there, too; which may block.
        """
        copy = self._cache.get(key)
        if copy is None and on_disk and (copy := self._on_disk.get(key)) is not None:
            self.keep(key, copy)
        return copy

    def keep(self, key: str, copy: CodedCopy) -> None:
        for each in self._cache.put(key, copy):
            self._on_disk.put(*each)

    def get(self, segment: FileSegment, coding: str) -> CodedCopy | None:
        """Return the copy of a file, or of a part of it; it is made if it is not cached.

        :returns: None if there can be none: the file is too large, changes, or does not have the
            size that it reports.
        """
        fd, offset, size = segment
        facts = os.fstat(fd)
        if size > MAX_FILE_BYTES or not is_settled(facts):
            return None
        identity = identity_of(facts)
        key = copy_key(identity, offset, size, coding)
        copy = self._cache.get(key)
        if copy is not None:
            return copy
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        try:
            with making:
                copy = self.kept(key, on_disk=True)
                if copy is None and has_its_size(fd, facts):
                    copy = _make(segment, coding, identity)
                    if copy is not None:
                        self.keep(key, copy)
        finally:
            with self._lock:
                self._making.pop(key, None)
        return copy


def copy_key(identity: Identity, offset: int, size: int, coding: str) -> str:
    """Return the key of the coded copy of a part of a file."""
    return f"{identity} {offset} {size} {coding}"


def delta_key(identity: Identity, digest: bytes) -> str:
    """Return the key of a whole file as a delta to the dictionary of a digest."""
    return f"{identity} {DCZ} {digest.hex()}"


def _make(segment: FileSegment, coding: str, identity: Identity) -> CodedCopy | None:
    fd, offset, size = segment
    content = os.pread(fd, size, offset)
    if len(content) < size or identity_of(os.fstat(fd)) != identity:
        return None
    encode = compressor(coding, level=_LEVELS[coding], size=size).whole
    return made_copy(coding, content, encode)


def made_copy(coding: str, content: bytes, encode: Callable[[bytes], bytes]) -> CodedCopy:
    """Encode a file's content, and count the time that it takes."""
    began = thread_time()
    coded = encode(content)
    TOTALS.count(coding, 0, 0, thread_time() - began)  # its bytes each time that they are sent
    is_small = len(coded) <= len(content) * (1 - MIN_SAVING)
    return CodedCopy(coded if is_small else None, coding, len(content))


# Of the whole process: the limit is one, whatever is wrapped how often.
COPIES = CodedCopies()

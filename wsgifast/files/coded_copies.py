"""Compressed copies of files that have no compressed sibling: made once, and cached.

A hundred requests for a file that nobody has asked for yet compress it once: the first one does,
and the others wait for it.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Sequence

from ..compression.codings import compressor
from ..compression.policy import Header, coded_copy_tag, coded_tag, uncoded_headers_dropped
from ..sockets.sendfile import FileSegment
from .conditions import is_etag
from .memory import Kept, MemoryCache
from .plan import Representation

# The memory for copies, of all files.
_CACHE_BYTES = 64 * 1024 * 1024
# A larger file stays as it is, and is sent by sendfile: compressing it would take a second, and its
# copy much of the cache.
MAX_FILE_BYTES = 16 * 1024 * 1024
# Higher than what is made for each response, as a copy is sent often: 5 MB take 0.1 to 0.2 s.
_LEVELS = {"zstd": 9, "br": 6, "gzip": 6}
# Copies that save less are not worth the client's decompression.
_MIN_SAVING = 0.05
# What the objects of a copy take beside its bytes.
_COPY_COST_BYTES = 500


class CodedCopy(Kept):
    """A file in a content coding.

    :ivar body: None if the file does not get smaller.
    """

    __slots__ = ("body", "checksum")

    def __init__(self, body: bytes | None) -> None:
        super().__init__(_COPY_COST_BYTES + len(body or b""))
        self.body = body
        self.checksum = zlib.crc32(body or b"")

    def representation(self, headers: Sequence[Header], coding: str, etag: str) -> Representation:
        """Return the copy as what a request may ask ranges of, with a validator of its own.

        :param headers: of the uncoded file's answer, with Vary.
        :param etag: the uncoded file's.
        """
        assert self.body is not None
        if is_etag(etag) and not etag.startswith("W/"):
            etag = coded_copy_tag(etag, coding, self.checksum)
        else:
            etag = coded_tag(etag, coding)
        kept = [each for each in uncoded_headers_dropped(headers) if each[0].lower() != "etag"]
        own = [("Content-Encoding", coding), ("ETag", etag), ("Accept-Ranges", "bytes")]
        return Representation(len(self.body), [*kept, *own], body=self.body)


class CodedCopies:
    """The cached copies of all files.

    :param max_bytes: bound on their memory.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self._cache: MemoryCache[CodedCopy] = MemoryCache(max_bytes)
        self._lock = threading.Lock()
        # Of the copies that are being made: the lock that their makers hold.
        self._making: dict[str, threading.Lock] = {}

    def kept(self, facts: os.stat_result, segment: FileSegment, coding: str) -> CodedCopy | None:
        """Return the copy if it is cached."""
        return self._cache.get(_key(facts, segment, coding))

    def get(self, facts: os.stat_result, segment: FileSegment, coding: str) -> CodedCopy | None:
        """Return the copy of a file, or of a part of it; it is made if it is not cached.

        :param facts: fstat() of the file.
        :returns: None if the file has become shorter.
        """
        key = _key(facts, segment, coding)
        copy = self._cache.get(key)
        if copy is not None:
            return copy
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            copy = self._cache.get(key)
            if copy is None:
                copy = _make(segment, coding)
                if copy is not None:
                    self._cache.put(key, copy)
        with self._lock:
            self._making.pop(key, None)
        return copy


def _key(facts: os.stat_result, segment: FileSegment, coding: str) -> str:
    identity = (facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size)
    return f"{identity} {segment.offset} {segment.size} {coding}"


def _make(segment: FileSegment, coding: str) -> CodedCopy | None:
    content = bytearray()
    while len(content) < segment.size:
        offset = segment.offset + len(content)
        block = os.pread(segment.fd, segment.size - len(content), offset)
        if not block:
            return None
        content += block
    coded = compressor(coding, level=_LEVELS[coding], size=segment.size).whole(bytes(content))
    return CodedCopy(coded if len(coded) <= segment.size * (1 - _MIN_SAVING) else None)

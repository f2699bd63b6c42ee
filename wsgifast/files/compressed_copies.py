"""Compressed copies of files without a precompressed file: made once, and cached.

The first request for a file of up to 1 MiB makes its copy, which costs as much as a compressed page
of that size. One request at a time does. One thread makes the copies of larger files, and no
request waits for it. These requests get the uncompressed file, and later ones get the copy. The
thread works at a low priority, and rests as long as it works.

No copy is made while requests wait. The share of the time that copies take is bounded, so that
copies that do not fit into the cache are not made for ever.

Copies that no longer fit into memory stay in an unnamed file. Deltas (deltas.py) are in the same
cache.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, thread_time
from typing import IO

from ..compression.codings import TOTALS, compressor
from ..compression.dictionaries import DCZ
from ..compression.policy import IDENTITY_HEADERS, compressed_tag
from ..http.headers import Header, Headers
from ..sockets.sending import FileSegment, has_its_size
from .directory import Identity, identity_of
from .found import CacheEntry, MemoryCache, is_settled
from .plan import Plan, Representation, RequestFacts

log = logging.getLogger("wsgifast.files")

# The memory for the copies of a process.
_CACHE_BYTES = 64 * 1024 * 1024
# And the file behind it, which may be in memory too: many systems have such a /tmp.
_FILE_BYTES = 256 * 1024 * 1024
# A larger file stays as it is, and is sent by sendfile: compressing it would take a second, and its
# copy much of the cache.
MAX_FILE_BYTES = 16 * 1024 * 1024
# The first request for a file of up to so many bytes makes its copy, in 20 ms at most. Others that
# make one at the same time are waited for: so long.
_FIRST_REQUEST_BYTES = 1024 * 1024
_TURN_S = 0.1
# A file of up to so many bytes takes 10 ms at most at these levels. They are higher than those of a
# single response, as a copy is sent often. Others are compressed at the default levels.
_SMALL_FILE_BYTES = 256 * 1024
_LEVELS = {"zstd": 9, "br": 6, "gzip": 6}
# The bytes that the thread compresses before it rests.
_PIECE_BYTES = 128 * 1024
# Files that wait for the thread. One is given up if it was not requested for so long. Its clients
# have their responses by then, or have left.
_MAX_JOBS = 8
_MAX_UNWANTED_S = 5.0
# Processor time for copies: so much at once, and this share of the time.
_BURST_S = 5.0
_SHARE = 0.1
_REST_S = 0.02
# A piece of work seems to take hours if the process is stopped meanwhile.
_MAX_REST_S = 1.0
# Copies and precompressed files that save less are not worth the client's decompression.
MIN_SAVING = 0.05
# The memory of a copy beside its bytes: its objects, with a representation and its plans.
_COPY_COST_BYTES = 10_000


class CompressedCopy(CacheEntry):
    """A file in a content coding.

    :ivar body: None if the file does not get smaller.
    :ivar uncompressed_bytes: the size of the file.
    """

    __slots__ = ("_made", "body", "checksum", "coding", "uncompressed_bytes")

    def __init__(self, body: bytes | None, coding: str, uncompressed_bytes: int) -> None:
        super().__init__(_COPY_COST_BYTES + len(body or b""))
        self.body = body
        self.coding = coding
        self.uncompressed_bytes = uncompressed_bytes
        self.checksum = zlib.crc32(body or b"")
        # One pair, so that threads see both or neither.
        self._made: tuple[Sequence[Header], Representation] | None = None

    def plan(
        self,
        conditions: RequestFacts,
        headers: Sequence[Header],
        etag: str | None,
        *,
        ranges: bool = True,
    ) -> Plan:
        """Plan the response to a GET or HEAD with the copy, which has a validator of its own.

        :param headers: of the uncompressed file's response, with Vary. The result for the same ones
            is cached.
        :param etag: the uncompressed file's. Without one the copy has none.
        :param ranges: whether parts may be requested.
        """
        # A date is that of the uncompressed file, too.
        if conditions.if_range is not None and '"' not in conditions.if_range:
            conditions = conditions._replace(range=None)
        assert self.body is not None
        made = self._made
        if made is None or made[0] is not headers:
            own = Headers(headers).without(IDENTITY_HEADERS)
            own.append(("Content-Encoding", self.coding))
            tag = None if etag is None else compressed_tag(etag, self.coding, self.checksum)
            if tag is not None:
                own.append(("ETag", tag))
            if ranges:
                own.append(("Accept-Ranges", "bytes"))
            whole = Representation(len(self.body), own, body=self.body, ranges=ranges)
            made = self._made = headers, whole
        plan = made[1].plan(conditions)
        if plan.status == 200 and plan.segments:
            TOTALS.count(self.coding, self.uncompressed_bytes, len(self.body), 0)
        return plan


class _CopiesOnDisk:
    """Copies in one unnamed file of a process, one behind the other. A full file begins anew.

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
        # The place of each copy, its coding, its checksum, and the size of the uncompressed file.
        self._places: dict[str, tuple[FileSegment, str, int, int]] = {}

    def put(self, key: str, copy: CompressedCopy) -> None:
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
                self._places[key] = place, copy.coding, copy.checksum, copy.uncompressed_bytes
                self._end += place.size

    def get(self, key: str) -> CompressedCopy | None:
        with self._lock, contextlib.suppress(OSError):
            found = self._places.get(key)
            if found is None:
                return None
            (fd, offset, size), coding, checksum, uncompressed_bytes = found
            copy = CompressedCopy(os.pread(fd, size, offset), coding, uncompressed_bytes)
            if copy.checksum == checksum:
                return copy
        return None


class _Job:
    """A copy that the thread is to make.

    :param segment: with a descriptor of its own.
    """

    def __init__(self, segment: FileSegment, coding: str, stat_result: os.stat_result) -> None:
        self.segment = segment
        self.coding = coding
        self.stat_result = stat_result
        self.requested_at = monotonic()

    def is_wanted(self) -> bool:
        return monotonic() < self.requested_at + _MAX_UNWANTED_S


class _Pace:
    """When copies may be made.

    :ivar is_behind: returns whether requests wait for this process. Set by servers that know.
    """

    def __init__(self) -> None:
        self.is_behind: Callable[[], bool] = lambda: False
        self._paid_at = monotonic()  # when all processor time is made up for

    def may_work(self) -> bool:
        """Whether no request waits, and copies have not taken too much time."""
        return (self._paid_at - monotonic()) * _SHARE < _BURST_S and not self.is_behind()

    def spend(self, cpu_s: float) -> None:
        """Count processor time. Of two threads that do at once, one may not be counted."""
        self._paid_at = max(self._paid_at, monotonic()) + cpu_s / _SHARE

    def rest(self, wall_s: float, cpu_s: float) -> None:
        """Rest after a piece of work: longer on a busy machine, and until work may go on."""
        self.spend(cpu_s)
        # Looked up each time: gevent may replace it after this module was imported.
        time.sleep(min(wall_s if wall_s < 2 * cpu_s else 4 * wall_s, _MAX_REST_S))
        while not self.may_work():
            time.sleep(_REST_S)


class CompressedCopies:
    """The cached copies of files.

    :param max_bytes: bound on their memory.
    :param max_file_bytes: bound on the file behind it.
    :ivar pace: of the thread that makes them.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES, max_file_bytes: int = _FILE_BYTES) -> None:
        self._cache: MemoryCache[CompressedCopy] = MemoryCache(max_bytes)
        self._on_disk = _CopiesOnDisk(max_file_bytes)
        self.pace = _Pace()
        self._reset()
        # The threads of its parent are not there in a forked worker.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # of the request that makes a copy
        # By key, in the order in which they are made.
        self._jobs: dict[str, _Job] = {}
        self._works = False

    def cached(self, key: str, *, on_disk: bool = False) -> CompressedCopy | None:
        """Return the copy of a :func:`copy_key` or :func:`delta_key`, if it is cached.

        :param on_disk: also look on the disk, which may block.
        """
        copy = self._cache.get(key)
        if copy is None and on_disk and (copy := self._on_disk.get(key)) is not None:
            self.store(key, copy)
        return copy

    def store(self, key: str, copy: CompressedCopy) -> None:
        for each in self._cache.put(key, copy):
            self._on_disk.put(*each)

    def get(self, segment: FileSegment, coding: str) -> CompressedCopy | None:
        """Return the copy of a file, or of a part of it. Have it made if it is not cached.

        :returns: None if there is none yet, or can be none: the file is too large, changes, or does
            not have the size that it reports.
        """
        fd, offset, size = segment
        stat_result = os.fstat(fd)
        if size > MAX_FILE_BYTES or not is_settled(stat_result):
            return None
        key = copy_key(identity_of(stat_result), offset, size, coding)
        copy = self.cached(key, on_disk=True)
        if copy is not None:
            return copy
        if size > _FIRST_REQUEST_BYTES:
            self._want(key, segment, coding, stat_result)
            return None
        if not self.pace.may_work() or not self._turn.acquire(timeout=_TURN_S):
            return None
        try:
            # It may have been made while another request had its turn.
            copy = self.cached(key, on_disk=True)
            if copy is None and has_its_size(fd, stat_result):
                began = thread_time()
                copy = _make(segment, coding, stat_result, _whole(coding, size))
                self.pace.spend(thread_time() - began)
                if copy is not None:
                    self.store(key, copy)
        finally:
            self._turn.release()
        return copy

    def _want(
        self, key: str, segment: FileSegment, coding: str, stat_result: os.stat_result
    ) -> None:
        """Have the thread make a copy, unless it has enough to do."""
        with self._lock:
            job = self._jobs.get(key)
            if job is not None:
                job.requested_at = monotonic()
                return
            if len(self._jobs) >= _MAX_JOBS:
                return
            self._jobs[key] = _Job(segment._replace(fd=os.dup(segment.fd)), coding, stat_result)
            if self._works:
                return
            self._works = True
        # Without the lock: start() waits for the thread, which takes it. A greenlet in place of a
        # thread runs at once.
        try:
            threading.Thread(target=self._work, name="wsgifast copies", daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            with self._lock:
                self._works = False
                for each in [*self._jobs]:
                    self._close(each)

    def _close(self, key: str) -> None:
        """Remove a job, under the lock."""
        os.close(self._jobs.pop(key).segment.fd)

    def _work(self) -> None:
        # Elsewhere it would be the priority of the whole process. A greenlet has its main thread.
        thread = threading.get_native_id()
        if sys.platform == "linux" and thread != os.getpid():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, 10)
        while True:
            with self._lock:
                key = next(iter(self._jobs), None)
                if key is None:
                    self._works = False
                    return
                job = self._jobs[key]
            try:
                self.pace.rest(0, 0)
                if job.is_wanted() and has_its_size(job.segment.fd, job.stat_result):
                    encode = partial(_in_pieces, job, self.pace)
                    copy = _make(job.segment, job.coding, job.stat_result, encode)
                    if copy is not None:
                        self.store(key, copy)
            except Exception:
                log.exception("A compressed copy of a file could not be made")
            finally:
                with self._lock:
                    self._close(key)


def copy_key(identity: Identity, offset: int, size: int, coding: str) -> str:
    """Return the key of the compressed copy of a part of a file."""
    return f"{identity} {offset} {size} {coding}"


def delta_key(identity: Identity, digest: bytes) -> str:
    """Return the key of a whole file as a delta to the dictionary of a digest."""
    return f"{identity} {DCZ} {digest.hex()}"


def _make(
    segment: FileSegment,
    coding: str,
    stat_result: os.stat_result,
    encode: Callable[[bytes], bytes | None],
) -> CompressedCopy | None:
    """Make a copy. None if the file has changed, or the copy is given up."""
    fd, offset, size = segment
    content = os.pread(fd, size, offset)
    if len(content) < size or identity_of(os.fstat(fd)) != identity_of(stat_result):
        return None
    compressed = encode(content)
    return None if compressed is None else _copy(coding, content, compressed)


def _whole(coding: str, size: int) -> Callable[[bytes], bytes]:
    level = _LEVELS[coding] if size <= _SMALL_FILE_BYTES else None
    return partial(_counted, coding, compressor(coding, level=level, size=size).whole)


def _in_pieces(job: _Job, pace: _Pace, content: bytes) -> bytes | None:
    """Compress piece by piece, with rests. None if nobody wants it any more."""
    # libdeflate, which is there for a known size, makes no pieces.
    size = None if job.coding == "gzip" else len(content)
    pieces = compressor(job.coding, size=size)
    compressed: list[bytes] = []
    for at in range(0, len(content), _PIECE_BYTES):
        if not job.is_wanted():
            return None
        began, cpu_began = monotonic(), thread_time()
        compressed.append(_counted(job.coding, pieces.add, content[at : at + _PIECE_BYTES]))
        pace.rest(monotonic() - began, thread_time() - cpu_began)
    compressed.append(_counted(job.coding, lambda _: pieces.finish(), b""))
    return b"".join(compressed)


def made_copy(coding: str, content: bytes, encode: Callable[[bytes], bytes]) -> CompressedCopy:
    """Encode a file's content, and count the time that it takes."""
    return _copy(coding, content, _counted(coding, encode, content))


def _copy(coding: str, content: bytes, compressed: bytes) -> CompressedCopy:
    is_small = len(compressed) <= len(content) * (1 - MIN_SAVING)
    return CompressedCopy(compressed if is_small else None, coding, len(content))


def _counted(coding: str, encode: Callable[[bytes], bytes], content: bytes) -> bytes:
    """Compress, and count the time. The bytes count when they are sent."""
    began = thread_time()
    compressed = encode(content)
    TOTALS.count(coding, 0, 0, thread_time() - began)
    return compressed


# Of the whole process: the limit is one, whatever is wrapped how often.
COPIES = CompressedCopies()

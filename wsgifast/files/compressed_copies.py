"""Make compressed copies of files that have no precompressed file, and cache the copies.

- A file of up to 1 MiB: the first request makes the copy. Only one request at a time makes a copy.
- A larger file: a background thread makes the copy, and no request waits for the thread. Until the
  copy exists, requests get the uncompressed file. The thread has a low priority. It compresses the
  file in pieces, and sleeps after each piece.

No copy is made while requests wait for the process. The processor time for copies is bounded:
copies that do not fit into the cache would otherwise be made again and again.

If the memory for copies is used up, older copies are written to an unnamed temporary file. The
cache also contains the deltas that deltas.py makes.
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
from ..sockets.sending import FileSegment, has_reported_size
from .directory import Identity, identity_of
from .found import CacheEntry, MemoryCache, is_settled
from .plan import Plan, Representation, RequestFacts

log = logging.getLogger("wsgifast.files")

# The memory for the copies of a process.
_CACHE_BYTES = 64 * 1024 * 1024
# The size of the temporary file. On many systems /tmp is in memory too.
_FILE_BYTES = 256 * 1024 * 1024
# A larger file is not compressed. That would take a second, and much of the cache.
MAX_FILE_BYTES = 16 * 1024 * 1024
# The largest file whose copy is made by the first request. That takes 20 ms at most.
_FIRST_REQUEST_BYTES = 1024 * 1024
# The longest time that a request waits while another request makes a copy.
_LOCK_TIMEOUT_S = 0.1
# Files of up to this size are compressed at these levels, in 10 ms at most. The levels are higher
# than those of a single response, because a copy is sent often. Larger files use the default
# levels.
_SMALL_FILE_BYTES = 256 * 1024
_LEVELS = {"zstd": 9, "br": 6, "gzip": 6}
# The bytes that the thread compresses before it sleeps.
_PIECE_BYTES = 128 * 1024
# The maximum number of files in the thread's queue.
_MAX_JOBS = 8
# If a file was not requested for this time, the thread does not make its copy. The clients that
# requested the file have received it uncompressed by then, or have left.
_MAX_JOB_AGE_S = 5.0
# The limits of the processor time for copies: in one burst, and as a share of all time.
_BURST_S = 5.0
_SHARE = 0.1
# The interval of checks whether the thread may continue.
_CHECK_S = 0.02
# The longest sleep after a piece. If the process was stopped during a piece, the piece seems to
# have taken hours.
_MAX_SLEEP_S = 1.0
# The minimum share of bytes that a copy or a precompressed file must save. Otherwise the client's
# decompression costs more than the bytes.
MIN_SAVING = 0.05
# The memory of a copy in addition to its body: its objects, a representation and its plans.
_COPY_COST_BYTES = 10_000


class CompressedCopy(CacheEntry):
    """The copy of a file in a content coding.

    :ivar body: None if compression does not make the file smaller.
    :ivar checksum: the CRC-32 of the body.
    :ivar uncompressed_bytes: the size of the file.
    """

    __slots__ = ("_latest", "body", "checksum", "coding", "uncompressed_bytes")

    def __init__(self, body: bytes | None, coding: str, uncompressed_bytes: int) -> None:
        super().__init__(_COPY_COST_BYTES + len(body or b""))
        self.body = body
        self.coding = coding
        self.uncompressed_bytes = uncompressed_bytes
        self.checksum = zlib.crc32(body or b"")
        # The headers of the last call of plan() and its representation. They are one tuple, so that
        # no thread sees one value without the other.
        self._latest: tuple[Sequence[Header], Representation] | None = None

    def plan(
        self,
        file_request: RequestFacts,
        headers: Sequence[Header],
        etag: str | None,
        *,
        ranges: bool = True,
    ) -> Plan:
        """Return the plan of the response to a GET or HEAD with the copy.

        :param headers: the headers of the uncompressed file's response, with Vary. If the next call
            passes the same object, the representation is reused.
        :param etag: the entity tag of the uncompressed file. The tag of the copy is derived from
            it. None for a copy without a tag.
        :param ranges: whether parts may be requested.
        """
        # The copy and the uncompressed file have the same date. So a date in If-Range does not tell
        # whose part the client has.
        if file_request.if_range is not None and '"' not in file_request.if_range:
            file_request = file_request._replace(range=None)
        assert self.body is not None
        latest = self._latest
        if latest is None or latest[0] is not headers:
            copy_headers = Headers(headers).without(IDENTITY_HEADERS)
            copy_headers.append(("Content-Encoding", self.coding))
            tag = None if etag is None else compressed_tag(etag, self.coding, self.checksum)
            if tag is not None:
                copy_headers.append(("ETag", tag))
            if ranges:
                copy_headers.append(("Accept-Ranges", "bytes"))
            representation = Representation(
                len(self.body), copy_headers, body=self.body, ranges=ranges
            )
            latest = self._latest = headers, representation
        plan = latest[1].plan(file_request)
        if plan.status == 200 and plan.segments:
            TOTALS.count(self.coding, self.uncompressed_bytes, len(self.body), 0)
        return plan


class _CopiesOnDisk:
    """The copies of a process in one unnamed file. When the file is full, a new file replaces it.

    :param max_bytes: the maximum size of the file.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._file: IO[bytes] | None = None
        self._reset()
        # A forked process must not write into its parent's file.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._drop_file()

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._end = 0
        # For each key: the copy's segment, coding and checksum, and the uncompressed file's size.
        self._places: dict[str, tuple[FileSegment, str, int, int]] = {}

    def put(self, key: str, copy: CompressedCopy) -> None:
        """Write a copy to the file. If that fails, a later request makes the copy again."""
        body = copy.body
        if body is None or len(body) > self._max_bytes:
            return
        with self._lock, contextlib.suppress(OSError):
            if key in self._places:
                return
            if self._end + len(body) > self._max_bytes:
                self._drop_file()
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
    """A copy that the background thread has to make.

    :param segment: the part of the file. Its descriptor is closed with the job.
    """

    def __init__(self, segment: FileSegment, coding: str, stat_result: os.stat_result) -> None:
        self.segment = segment
        self.coding = coding
        self.stat_result = stat_result
        self.requested_at = monotonic()

    def is_recent(self) -> bool:
        return monotonic() < self.requested_at + _MAX_JOB_AGE_S


class _Pace:
    """Limits the processor time for copies, and decides when a copy may be made.

    :ivar is_behind: returns whether requests wait for this process. FastWorker replaces this
        function. The default returns False.
    """

    def __init__(self) -> None:
        self.is_behind: Callable[[], bool] = lambda: False
        # The time at which the processor time so far is no more than _SHARE of all time.
        self._affordable_at = monotonic()

    def may_work(self) -> bool:
        """Return whether no request waits, and copies have not taken too much processor time."""
        ahead_s = (self._affordable_at - monotonic()) * _SHARE
        return ahead_s < _BURST_S and not self.is_behind()

    def spend(self, cpu_s: float) -> None:
        """Count processor time. If two threads call this at once, one call may be lost."""
        self._affordable_at = max(self._affordable_at, monotonic()) + cpu_s / _SHARE

    def sleep_after(self, wall_s: float, cpu_s: float) -> None:
        """Sleep after a piece of work until the next piece may begin. Sleep longer on a busy host.

        :param wall_s: the elapsed time of the piece.
        :param cpu_s: its processor time.
        """
        self.spend(cpu_s)
        # The function is read from its module for each call, since gevent may replace it.
        time.sleep(min(wall_s if wall_s < 2 * cpu_s else 4 * wall_s, _MAX_SLEEP_S))
        while not self.may_work():
            time.sleep(_CHECK_S)


class CompressedCopies:
    """The compressed copies of files, in memory and on disk.

    :param max_bytes: the maximum memory of the copies.
    :param max_file_bytes: the maximum size of the temporary file.
    :ivar pace: limits the time that the copies take.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES, max_file_bytes: int = _FILE_BYTES) -> None:
        self._cache: MemoryCache[CompressedCopy] = MemoryCache(max_bytes)
        self._on_disk = _CopiesOnDisk(max_file_bytes)
        self.pace = _Pace()
        self._reset()
        # A forked worker does not have the threads of its parent.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._compression_lock = threading.Lock()  # locked by a request while it makes a copy
        # The jobs by key, in the order of their execution.
        self._jobs: dict[str, _Job] = {}
        self._thread_runs = False

    def cached(self, key: str, *, on_disk: bool = False) -> CompressedCopy | None:
        """Return the cached copy of a :func:`copy_key` or :func:`delta_key`. None if not cached.

        :param on_disk: also read the temporary file, which may block.
        """
        copy = self._cache.get(key)
        if copy is None and on_disk and (copy := self._on_disk.get(key)) is not None:
            self.store(key, copy)
        return copy

    def store(self, key: str, copy: CompressedCopy) -> None:
        """Cache a copy in memory. Write the copies that it evicts to the temporary file."""
        for each in self._cache.put(key, copy):
            self._on_disk.put(*each)

    def get(self, segment: FileSegment, coding: str) -> CompressedCopy | None:
        """Return the copy of a file, or of a part of it. If it is not cached, make or queue it.

        :returns: None if the copy is not ready, or cannot be made: the file is too large, has just
            changed, or does not have the size that stat() reports.
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
            self._enqueue(key, segment, coding, stat_result)
            return None
        if not self.pace.may_work() or not self._compression_lock.acquire(timeout=_LOCK_TIMEOUT_S):
            return None
        try:
            # Another request may have made the copy meanwhile.
            copy = self.cached(key, on_disk=True)
            if copy is None and has_reported_size(fd, stat_result):
                began = thread_time()
                copy = _make(segment, coding, stat_result, _encoder(coding, size))
                self.pace.spend(thread_time() - began)
                if copy is not None:
                    self.store(key, copy)
        finally:
            self._compression_lock.release()
        return copy

    def _enqueue(
        self, key: str, segment: FileSegment, coding: str, stat_result: os.stat_result
    ) -> None:
        """Queue a copy for the background thread, unless the queue is full."""
        with self._lock:
            job = self._jobs.get(key)
            if job is not None:
                job.requested_at = monotonic()
                return
            if len(self._jobs) >= _MAX_JOBS:
                return
            self._jobs[key] = _Job(segment._replace(fd=os.dup(segment.fd)), coding, stat_result)
            if self._thread_runs:
                return
            self._thread_runs = True
        # The lock is released before start(). Under gevent the thread is a greenlet, which may run
        # during start() and acquire the lock.
        try:
            threading.Thread(target=self._work, name="wsgifast copies", daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            with self._lock:
                self._thread_runs = False
                for each in [*self._jobs]:
                    self._close(each)

    def _close(self, key: str) -> None:
        """Remove a job, and close its descriptor. The caller has locked `_lock`."""
        os.close(self._jobs.pop(key).segment.fd)

    def _work(self) -> None:
        # Only Linux has a priority per thread. A greenlet runs in the main thread, whose priority
        # must not change. The id of the main thread is that of the process.
        thread = threading.get_native_id()
        if sys.platform == "linux" and thread != os.getpid():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, 10)
        while True:
            with self._lock:
                key = next(iter(self._jobs), None)
                if key is None:
                    self._thread_runs = False
                    return
                job = self._jobs[key]
            try:
                self.pace.sleep_after(0, 0)
                if job.is_recent() and has_reported_size(job.segment.fd, job.stat_result):
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
    """Return the key of a whole file's delta to the dictionary with this digest."""
    return f"{identity} {DCZ} {digest.hex()}"


def _make(
    segment: FileSegment,
    coding: str,
    stat_result: os.stat_result,
    encode: Callable[[bytes], bytes | None],
) -> CompressedCopy | None:
    """Make a copy. Return None if the file has changed, or `encode` returns None."""
    fd, offset, size = segment
    content = os.pread(fd, size, offset)
    if len(content) < size or identity_of(os.fstat(fd)) != identity_of(stat_result):
        return None
    compressed = encode(content)
    return None if compressed is None else _copy(coding, content, compressed)


def _encoder(coding: str, size: int) -> Callable[[bytes], bytes]:
    level = _LEVELS[coding] if size <= _SMALL_FILE_BYTES else None
    return partial(_counted, coding, compressor(coding, level=level, size=size).whole)


def _in_pieces(job: _Job, pace: _Pace, content: bytes) -> bytes | None:
    """Compress piece by piece, and sleep after each. Return None if the copy is not needed now."""
    # With a size, gzip uses libdeflate, which cannot compress in pieces.
    size = None if job.coding == "gzip" else len(content)
    pieces = compressor(job.coding, size=size)
    compressed: list[bytes] = []
    for at in range(0, len(content), _PIECE_BYTES):
        if not job.is_recent():
            return None
        began, cpu_began = monotonic(), thread_time()
        compressed.append(_counted(job.coding, pieces.add, content[at : at + _PIECE_BYTES]))
        pace.sleep_after(monotonic() - began, thread_time() - cpu_began)
    compressed.append(_counted(job.coding, lambda _: pieces.finish(), b""))
    return b"".join(compressed)


def made_copy(coding: str, content: bytes, encode: Callable[[bytes], bytes]) -> CompressedCopy:
    """Return the copy that `encode` makes of a file's content, and count the processor time."""
    return _copy(coding, content, _counted(coding, encode, content))


def _copy(coding: str, content: bytes, compressed: bytes) -> CompressedCopy:
    is_small = len(compressed) <= len(content) * (1 - MIN_SAVING)
    return CompressedCopy(compressed if is_small else None, coding, len(content))


def _counted(coding: str, encode: Callable[[bytes], bytes], content: bytes) -> bytes:
    """Compress, and count the processor time. Bytes are counted when they are sent."""
    began = thread_time()
    compressed = encode(content)
    TOTALS.count(coding, 0, 0, thread_time() - began)
    return compressed


# One cache for the whole process, so that its limits hold for any number of StaticFiles and
# middleware.
COPIES = CompressedCopies()

"""Compressed copies of files that have no compressed sibling: made once, and cached.

One thread makes them, one after the other, so that the requests of a few clients never keep all
threads and processors busy. It works at a low priority, rests as long as it works, and stops while
requests wait. Its share of the time is bounded, so that copies that do not fit into the cache are
not made for ever. A large file is compressed quickly.

A few requests wait for the copy of a small file, unless others wait for a thread. Others are
answered without it, and later ones get it. What the memory has no room for any more stays in an
unnamed file. Deltas (deltas.py) are kept in the same cache.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Sequence
from time import monotonic, sleep, thread_time
from typing import IO

from ..compression.codings import TOTALS, compressor
from ..compression.dictionaries import DCZ
from ..compression.policy import Header, coded_tag, uncoded_headers_dropped
from ..sockets.sending import FileSegment, has_its_size
from .directory import Identity, identity_of
from .found import Kept, MemoryCache, is_settled
from .plan import Plan, Representation, RequestFacts

log = logging.getLogger("wsgifast.files")

# The memory for the copies of a process.
_CACHE_BYTES = 64 * 1024 * 1024
# And the file behind it, which may be in memory too: many systems have such a /tmp.
_FILE_BYTES = 256 * 1024 * 1024
# A larger file stays as it is, and is sent by sendfile: compressing it would take a second, and its
# copy much of the cache.
MAX_FILE_BYTES = 16 * 1024 * 1024
# A file of up to so many bytes takes 30 ms at most at these levels. They are higher than what is
# made for each response, as a copy is sent often. Others are compressed at the default levels.
_SMALL_FILE_BYTES = 256 * 1024
_LEVELS = {"zstd": 9, "br": 6, "gzip": 6}
_PIECE_BYTES = 128 * 1024
# Requests wait for the copy of a file of up to this size: so many of them, and so long.
_WAITED_FOR_BYTES = 1024 * 1024
_MAX_WAITING = 2
_WAIT_S = 1.0
# Files that wait to be compressed. One is given up if nobody has asked for it for so long: those
# who asked are served, or have left.
_MAX_JOBS = 8
_MAX_UNWANTED_S = 5.0
# Processor time for copies: so much at once, and this share of the time.
_BURST_S = 5.0
_SHARE = 0.1
_REST_S = 0.02
# A piece of work seems to take hours if the process is stopped meanwhile.
_MAX_REST_S = 1.0
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


class _Job:
    """A copy that is to be made.

    :param segment: with a descriptor of its own.
    :ivar copy: the result, once it is done.
    """

    def __init__(self, segment: FileSegment, coding: str, facts: os.stat_result) -> None:
        self.segment = segment
        self.coding = coding
        self.facts = facts
        self.asked_at = monotonic()
        self.done = threading.Event()
        self.copy: CodedCopy | None = None

    def is_wanted(self) -> bool:
        return monotonic() < self.asked_at + _MAX_UNWANTED_S


class _Pace:
    """When the thread that makes copies may go on.

    :ivar is_behind: returns whether requests wait for this process; set by servers that know.
    """

    def __init__(self) -> None:
        self.is_behind: Callable[[], bool] = lambda: False
        self._left_s = _BURST_S
        self._seen = monotonic()

    def rest(self, wall_s: float, cpu_s: float) -> None:
        """Rest after a piece of work: longer on a busy machine, and while requests wait."""
        sleep(min(wall_s if wall_s < 2 * cpu_s else 4 * wall_s, _MAX_REST_S))
        self._left_s -= cpu_s
        while True:
            now = monotonic()
            self._left_s = min(_BURST_S, self._left_s + _SHARE * (now - self._seen))
            self._seen = now
            if self._left_s > 0 and not self.is_behind():
                return
            sleep(_REST_S)


class CodedCopies:
    """The cached copies of files.

    :param max_bytes: bound on their memory.
    :param max_file_bytes: bound on the file behind it.
    :ivar pace: of the thread that makes them.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES, max_file_bytes: int = _FILE_BYTES) -> None:
        self._cache: MemoryCache[CodedCopy] = MemoryCache(max_bytes)
        self._on_disk = _CopiesOnDisk(max_file_bytes)
        self.pace = _Pace()
        self._reset()
        # The threads of its parent are not there in a forked worker.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        # By key, in the order in which they are made.
        self._jobs: dict[str, _Job] = {}
        self._waiting = 0
        self._works = False

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
        """Return the copy of a file, or of a part of it; have it made if it is not cached.

        :returns: None if there is none yet, or can be none: the file is too large, changes, or does
            not have the size that it reports.
        """
        fd, offset, size = segment
        facts = os.fstat(fd)
        if size > MAX_FILE_BYTES or not is_settled(facts):
            return None
        key = copy_key(identity_of(facts), offset, size, coding)
        copy = self.kept(key, on_disk=True)
        if copy is not None:
            return copy
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                if len(self._jobs) >= _MAX_JOBS:
                    return None
                job = _Job(segment._replace(fd=os.dup(fd)), coding, facts)
                self._jobs[key] = job
                if not self._works and not self._start():
                    self._close(key)
                    return None
            job.asked_at = monotonic()
            if size > _WAITED_FOR_BYTES or self._waiting >= _MAX_WAITING:
                return None
            self._waiting += 1
        give_up_at = monotonic() + _WAIT_S
        try:
            # The thread that makes copies stops while requests wait, perhaps for this thread.
            while not (self.pace.is_behind() or job.done.wait(_REST_S)):
                if monotonic() >= give_up_at:
                    break
        finally:
            with self._lock:
                self._waiting -= 1
        return job.copy

    def _start(self) -> bool:
        """Start the thread; False if the system allows no more threads."""
        try:
            threading.Thread(target=self._work, name="wsgifast copies", daemon=True).start()
        except RuntimeError:
            return False
        self._works = True
        return True

    def _close(self, key: str) -> None:
        """Remove a job, under the lock."""
        job = self._jobs.pop(key)
        os.close(job.segment.fd)
        job.done.set()

    def _work(self) -> None:
        if sys.platform == "linux":  # elsewhere it would be the whole process
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while True:
            with self._lock:
                key = next(iter(self._jobs), None)
                if key is None:
                    self._works = False
                    return
                job = self._jobs[key]
            began, cpu_began = monotonic(), thread_time()
            try:
                # It may have been made between the request's look and this one.
                job.copy = self.kept(key, on_disk=True)
                if job.copy is None and job.is_wanted() and has_its_size(job.segment.fd, job.facts):
                    job.copy = _make(job.segment, job, self.pace)
                    if job.copy is not None:
                        self.keep(key, job.copy)
            except Exception:
                log.exception("A compressed copy of a file could not be made")
            finally:
                with self._lock:
                    self._close(key)
            if job.segment.size <= _PIECE_BYTES:
                self.pace.rest(monotonic() - began, thread_time() - cpu_began)


def copy_key(identity: Identity, offset: int, size: int, coding: str) -> str:
    """Return the key of the coded copy of a part of a file."""
    return f"{identity} {offset} {size} {coding}"


def delta_key(identity: Identity, digest: bytes) -> str:
    """Return the key of a whole file as a delta to the dictionary of a digest."""
    return f"{identity} {DCZ} {digest.hex()}"


def _make(segment: FileSegment, job: _Job, pace: _Pace) -> CodedCopy | None:
    fd, offset, size = segment
    coding = job.coding
    content = os.pread(fd, size, offset)
    if len(content) < size or identity_of(os.fstat(fd)) != identity_of(job.facts):
        return None
    if size <= _PIECE_BYTES:
        return made_copy(
            coding, content, compressor(coding, level=_LEVELS[coding], size=size).whole
        )
    # libdeflate, which is there for a known size, makes no pieces.
    level = _LEVELS[coding] if size <= _SMALL_FILE_BYTES else None
    pieces = compressor(coding, level=level, size=None if coding == "gzip" else size)
    coded: list[bytes] = []
    for at in range(0, size, _PIECE_BYTES):
        if not job.is_wanted():
            return None
        began, cpu_began = monotonic(), thread_time()
        coded.append(pieces.add(content[at : at + _PIECE_BYTES]))
        cpu_s = thread_time() - cpu_began
        TOTALS.count(coding, 0, 0, cpu_s)
        pace.rest(monotonic() - began, cpu_s)
    coded.append(pieces.finish())
    return made_copy(coding, content, lambda _: b"".join(coded))


def made_copy(coding: str, content: bytes, encode: Callable[[bytes], bytes]) -> CodedCopy:
    """Encode a file's content, and count the time that it takes."""
    began = thread_time()
    coded = encode(content)
    TOTALS.count(coding, 0, 0, thread_time() - began)  # its bytes each time that they are sent
    is_small = len(coded) <= len(content) * (1 - MIN_SAVING)
    return CodedCopy(coded if is_small else None, coding, len(content))


# Of the whole process: the limit is one, whatever is wrapped how often.
COPIES = CodedCopies()

"""The queued output for one client: blocks of a stream, bytes in memory and parts of files.

Plain data structures without a socket. Every call of a :class:`Backlog` needs the queue's lock,
except for :meth:`Backlog.spill`.

A disk thread writes output to a temporary file. The output stays in its place in the queue. If its
turn comes before it is written, it is sent from memory, and the written bytes are not used.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from ..files.temporary import Budget, TemporaryFile
from ..sockets.sending import FileSegment

# This much of each connection's output stays in memory in any case: a response of usual size.
_ALWAYS_IN_MEMORY_BYTES = 16 * 1024
# The bytes that TLS encrypts in one call, and those read of a file without sendfile. It is constant
# because TLS must get refused bytes again, without a byte less.
PIECE_BYTES = 128 * 1024
# Smaller buffers are joined: each has an overhead of some hundred bytes.
_JOINED_BYTES = 4 * 1024
# The most buffers of one send.
_BUFFERS = 64
# Blocks are coalesced up to this size: larger writes are no cheaper per byte.
_COALESCED_BYTES = 64 * 1024
# The same for blocks that are compressed when they are framed. The thread that takes them
# compresses them under the queue's lock.
_COMPRESSED_BYTES = 16 * 1024
# Free space that is left on the file system of the temporary files.
_LEFT_FREE_BYTES = 64 * 1024 * 1024


class OutputMemory(Budget):
    """Counts the output in memory that waits for clients. Beyond a limit, temporary files are used.

    :param disk: counts the bytes of these.
    :param warn: a logging function.
    """

    def __init__(self, limit_bytes: int, disk: Budget, warn: Callable[..., object]) -> None:
        super().__init__(limit_bytes)
        self.disk = disk
        self._warn = warn
        self._warned = set[str]()

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    def take(self, size: int) -> bool:
        if super().take(size):
            return True
        self.warn_once(
            "Slow clients leave more than %d bytes waiting in memory: from now on what "
            "exceeds it goes to temporary files in %s",
            self._limit_bytes,
            tempfile.gettempdir(),
        )
        return False

    def warn_once(self, text: str, *args: object) -> None:
        """Log a text for the first time only: the log may be on the same disk."""
        with self._lock:
            warned = text in self._warned
            self._warned.add(text)
        if not warned:
            self._warn(text, *args)


class DelayedBlocks:
    """The blocks of a stream that are delayed, and framed together.

    Only the writer adds blocks, without a lock. The thread that takes them has the queue's lock.
    CPython copies a list in one step, and blocks that are appended later stay.

    :param frame: frames blocks that are sent together, as one chunk. None for no framing.
    :param most_waiting: how many bytes may wait here for a slow client.
    :param compresses: whether `frame` compresses, too.
    :ivar blocks: unframed, none of them empty.
    :ivar size: their bytes. It may be wrong for a moment, which a limit and a log tolerate.
    :ivar last_block_at: when the app handed the last one over, monotonic.
    :ivar most_delayed: how many bytes may wait for the next block.
    """

    __slots__ = ("_frame", "blocks", "last_block_at", "most_delayed", "most_waiting", "size")

    def __init__(
        self,
        frame: Callable[[bytes], bytes] | None,
        *,
        most_waiting: int,
        compresses: bool = False,
    ) -> None:
        self.blocks: list[bytes] = []
        self.size = 0
        self._frame = frame
        self.last_block_at = time.monotonic()
        self.most_delayed = _COMPRESSED_BYTES if compresses else _COALESCED_BYTES
        self.most_waiting = _COMPRESSED_BYTES if compresses else most_waiting

    def pop_all(self) -> bytes:
        """Remove all blocks, and return them joined and framed."""
        taken = self.blocks[:]
        del self.blocks[: len(taken)]
        self.size = 0
        data = b"".join(taken)
        return self._frame(data) if self._frame is not None and data else data


class Spilling:
    """Buffers that a disk thread writes to a temporary file.

    :ivar size: their bytes, without those that were taken.
    :ivar taken: how many bytes were taken to be sent from memory, as they are not written yet.
    """

    __slots__ = ("_at", "_first", "buffers", "size", "taken")

    def __init__(self, buffers: list[memoryview]) -> None:
        self.buffers = buffers
        self.size = sum(map(len, buffers))
        self.taken = 0
        # The first buffer of which something is left, and where.
        self._first = self._at = 0

    def take(self, most: int) -> bytes:
        """Return a copy of the next bytes, `most` or all that are left."""
        parts: list[memoryview] = []
        left = most
        while left and self._first < len(self.buffers):
            part = self.buffers[self._first][self._at : self._at + left]
            parts.append(part)
            left -= len(part)
            self._at += len(part)
            if self._at == len(self.buffers[self._first]):
                self._first += 1
                self._at = 0
        self.taken += most - left
        self.size -= most - left
        return b"".join(parts)

    def rest(self) -> list[memoryview]:
        """Return the buffers without the bytes that were taken."""
        left = self.buffers[self._first :]
        if self._at:
            left[0] = left[0][self._at :]
        return left


class Backlog:
    """A queue of buffers and parts of files.

    :param memory: counts buffers that stay in memory for longer than one send.
    :ivar size: bytes that wait.
    :ivar in_memory: bytes of memory that buffers use. A buffer is freed when its last byte is sent.
    :ivar file_sent: bytes sent of the first item, if it is a file.
    :ivar by_sendfile: bytes sent by sendfile.
    :ivar waited_s: seconds that the writer has waited for its client, or for a disk.
    :ivar spilling: the buffers that a disk thread is writing. They may have left the queue.
    """

    __slots__ = (
        "_is_closed", "_items", "_memory", "_reserved", "_spill_file", "_temporary", "_uses",
        "by_sendfile", "file_sent", "in_memory", "size", "spilling", "waited_s",
    )  # fmt: skip

    def __init__(self, memory: OutputMemory) -> None:
        self.size = 0
        self.file_sent = 0
        self.by_sendfile = 0
        self.waited_s = 0.0
        self._items: deque[memoryview | FileSegment | Spilling] = deque()
        self._memory = memory
        self.in_memory = 0
        self._reserved = 0  # how many of them `memory` has counted
        self._spill_file: TemporaryFile | None = None  # more may be written to it
        self.spilling: Spilling | None = None
        self._is_closed = False
        self._uses: dict[int, int] = {}  # reference counts of descriptors: the last use closes one
        self._temporary: dict[int, TemporaryFile] = {}  # those of temporary files

    # Adding

    def append(self, buffer: bytes | memoryview) -> None:
        items = self._items
        self.size += len(buffer)
        if len(items) > 1 and len(buffer) < _JOINED_BYTES:
            # Not the first one: TLS may need the same buffer again.
            last = items[-1]
            if isinstance(last, memoryview) and len(last) < _JOINED_BYTES:
                items.pop()
                self._on_gone(last)
                buffer = b"".join((last, buffer))
        view = memoryview(buffer)
        items.append(view)
        self.in_memory += _bytes_in_memory(view)

    def append_file(self, segment: FileSegment) -> None:
        """Add a part of a file. Its descriptor is closed once it is sent."""
        self.size += segment.size
        self._items.append(segment)
        self.use(segment.fd)

    def take_excess(self, ahead_bytes: int | None) -> list[memoryview]:
        """Count the buffers in memory. Remove excess ones from the end, and return them.

        Buffers before a file stay in any case, and all of them while a disk thread is writing.

        :param ahead_bytes: the bytes to keep if there are more than twice as many, or None.
        """
        if self.spilling is not None:
            self.count_memory()
            return []
        more = self.in_memory - self._reserved
        if self.in_memory <= _ALWAYS_IN_MEMORY_BYTES:
            self._memory.count(max(0, more))
        elif more > 0 and not self._memory.take(more):
            return self._take_back(self._reserved)
        self._reserved = max(self._reserved, self.in_memory)
        if ahead_bytes is not None and self.in_memory > 2 * ahead_bytes:
            return self._take_back(ahead_bytes)
        return []

    def count_memory(self) -> None:
        """Count all buffers in memory."""
        more = self.in_memory - self._reserved
        if more > 0:
            self._memory.count(more)
            self._reserved = self.in_memory

    def _take_back(self, keep: int) -> list[memoryview]:
        """Remove buffers from the end until at most `keep` bytes are in memory."""
        items = self._items
        taken: list[memoryview] = []
        while items and self.in_memory > keep:
            buffer = items[-1]
            if not isinstance(buffer, memoryview):
                break
            items.pop()
            taken.append(buffer)
            self._on_gone(buffer)
            self.size -= len(buffer)
        taken.reverse()
        self.release_memory()
        return taken

    def may_spill(self, limit: int) -> bool:
        """Return whether more may be written to a temporary file.

        :param limit: the largest size of the file. Sent bytes cannot be overwritten, because their
            pages may still be in the socket.
        """
        return (0 if self._spill_file is None else self._spill_file.size) < limit

    def begin_spill(self, buffers: list[memoryview]) -> Spilling:
        """Add the buffers of :meth:`take_excess`. :meth:`spill` and :meth:`end_spill` follow."""
        self.spilling = spilling = Spilling(buffers)
        self._items.append(spilling)
        self.size += spilling.size
        self.in_memory += sum(map(_bytes_in_memory, buffers))
        self.count_memory()
        return spilling

    def end_spill(self, spilling: Spilling, segment: FileSegment | None) -> None:
        """Buffers have been written, or cannot be.

        :param segment: where they are, or None if they stay in memory.
        """
        self.spilling = None
        if self._is_closed:
            self._close_spill_file()
            return
        items = self._items
        try:
            at = items.index(spilling)
        except ValueError:
            return  # sent from memory by now, or dropped
        items.rotate(-at)
        items.popleft()
        if segment is None:
            self._return_rest(spilling)
        else:
            taken = spilling.taken
            segment = segment._replace(offset=segment.offset + taken, size=segment.size - taken)
            self.in_memory -= sum(map(_bytes_in_memory, spilling.buffers))
            before = items[-1] if at else None
            if isinstance(before, FileSegment) and before.fd == segment.fd:
                if before.offset + before.size == segment.offset:
                    segment = before._replace(size=before.size + segment.size)
                    items.pop()
                    at -= 1
                else:
                    self.use(segment.fd)
            else:
                self.use(segment.fd)
            items.appendleft(segment)
        items.rotate(at)
        self.release_memory()

    def spill(self, buffers: list[memoryview]) -> FileSegment | None:
        """Write buffers to a temporary file. Called by a disk thread, without the lock.

        :returns: None if that is not possible.
        """
        try:
            if self._spill_file is None:
                disk = self._memory.disk
                # It is only read by the kernel, or by os.pread: there is no use for a buffer.
                file = TemporaryFile(disk, left_free_bytes=_LEFT_FREE_BYTES, buffer_bytes=1)
                self._spill_file = self._temporary[file.fileno()] = file
                self.use(file.fileno())
            return self._spill_file.append(*buffers)
        except OSError as error:
            text = "Output stays in memory, as it cannot be written to a temporary file: %s"
            self._memory.warn_once(text, error)
            return None

    # Sending

    @property
    def first(self) -> memoryview | FileSegment | None:
        items = self._items
        if not items:
            return None
        first = items[0]
        if not isinstance(first, Spilling):
            return first
        # Not written in time. The rest stays there, so that a slow client does not keep all of it.
        # It must be enough for a piece that TLS has refused before.
        if first.size <= PIECE_BYTES:
            items.popleft()
            self._return_rest(first)
        else:
            self._insert(first.take(PIECE_BYTES))
        return self.first

    def buffers(self) -> tuple[list[memoryview], bool]:
        """Return the first buffers, as many as one send takes, and whether a file follows them."""
        buffers: list[memoryview] = []
        for item in islice(self._items, _BUFFERS):
            if not isinstance(item, memoryview):
                return buffers, isinstance(item, FileSegment)
            buffers.append(item)
        return buffers, False

    def replace_buffers(self, count: int, left: Sequence[bytes | memoryview]) -> int:
        """Replace the first buffers by the unsent ones. Return how many bytes were sent."""
        sent = 0
        for _ in range(count):
            buffer = self._items.popleft()
            assert isinstance(buffer, memoryview)
            self._on_gone(buffer)
            sent += len(buffer)
        for rest in reversed(left):
            view = memoryview(rest)
            self._items.appendleft(view)
            self.in_memory += _bytes_in_memory(view)
            sent -= len(view)
        self.size -= sent
        return sent

    def advance_file(self, size: int, *, by_kernel: bool) -> None:
        """Some bytes of the first file have been sent.

        :param by_kernel: by sendfile.
        """
        self.size -= size
        if by_kernel:
            self.by_sendfile += size
        self._take_from_file(size)

    def insert_read(self, data: bytes) -> None:
        """The next bytes of the first file have been read: send them first."""
        self._take_from_file(len(data))
        self._insert(data)

    def _return_rest(self, spilling: Spilling) -> None:
        """Put buffers, of which nothing is written, at the front of the queue."""
        rest = spilling.rest()
        self.in_memory += sum(map(_bytes_in_memory, rest))
        self.in_memory -= sum(map(_bytes_in_memory, spilling.buffers))
        self._items.extendleft(reversed(rest))

    def _insert(self, data: bytes) -> None:
        self._items.appendleft(memoryview(data))
        self.in_memory += len(data)
        self._reserved += len(data)
        self._memory.count(len(data))

    def _take_from_file(self, size: int) -> None:
        segment = self._items[0]
        assert isinstance(segment, FileSegment)
        self.file_sent += size
        if self.file_sent == segment.size:
            self._items.popleft()
            self.file_sent = 0
            self.release(segment.fd)

    def _on_gone(self, buffer: memoryview) -> None:
        self.in_memory -= _bytes_in_memory(buffer)

    # Ends

    def release_memory(self) -> None:
        """Stop counting bytes that are no longer in memory."""
        if self.in_memory < self._reserved:
            self._memory.count(self.in_memory - self._reserved)
            self._reserved = self.in_memory

    def clear(self) -> None:
        """Drop everything, except a temporary file to which a disk thread may be writing."""
        for item in self._items:
            if isinstance(item, FileSegment):
                self.release(item.fd)
        self._items.clear()
        self.size = self.file_sent = self.in_memory = 0
        self.release_memory()

    def close(self) -> None:
        """Drop everything. The writer is done."""
        self.clear()
        self._is_closed = True
        if self.spilling is None:  # else the thread that writes closes it
            self._close_spill_file()

    def _close_spill_file(self) -> None:
        spill, self._spill_file = self._spill_file, None
        if spill is not None:
            self.release(spill.fileno())

    def use(self, fd: int) -> None:
        """Keep a descriptor open until :meth:`release`."""
        self._uses[fd] = self._uses.get(fd, 0) + 1

    def release(self, fd: int) -> None:
        uses = self._uses.pop(fd) - 1
        if uses:
            self._uses[fd] = uses
        elif fd in self._temporary:
            self._temporary.pop(fd).close()
        else:
            os.close(fd)


def _bytes_in_memory(buffer: memoryview) -> int:
    whole = buffer.obj
    return len(whole) if isinstance(whole, bytes) else buffer.nbytes

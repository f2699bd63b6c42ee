"""The queued output for one client: blocks of a stream, bytes in memory and parts of files.

These are data structures without a socket. All methods of a :class:`Backlog` need the queue's lock,
except :meth:`Backlog.spill`.

A disk thread may write buffers to a temporary file. Meanwhile the buffers remain in the queue. If
they must be sent before they are written, they are sent from memory. Their bytes in the file are
then not used.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ..files.temporary import Budget, TemporaryFile
from ..sockets.sending import FileSegment

# This many bytes of each connection's output always stay in memory: a response of usual size.
_ALWAYS_IN_MEMORY_BYTES = 16 * 1024
# The number of bytes that TLS encrypts in one call. Also the size of reads from a file without
# sendfile. It is constant: if TLS refuses bytes, the next call must pass at least the same bytes.
PIECE_BYTES = 128 * 1024
# Smaller buffers are joined, because each buffer has an overhead of some hundred bytes.
_JOINED_BYTES = 4 * 1024
# The maximum number of buffers in one send.
_BUFFERS = 64
# Blocks are joined up to this size. Larger writes have the same cost per byte.
_COALESCED_BYTES = 64 * 1024
# The same limit for blocks that are compressed when they are framed. They are compressed under the
# queue's lock, so the limit is lower.
_COMPRESSED_BYTES = 16 * 1024
# The space that must remain free on the file system of the temporary files.
_MIN_FREE_BYTES = 64 * 1024 * 1024


class OutputMemory(Budget):
    """Counts the output in memory that waits for clients. Output above a limit uses the disk.

    :param disk: counts the bytes in temporary files.
    :param warn: logs a warning, but not often. The log may be on the same disk as the files.
    """

    def __init__(self, limit_bytes: int, disk: Budget, warn: Callable[..., object]) -> None:
        super().__init__(limit_bytes)
        self.disk = disk
        self.warn = warn

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    def has_room(self, size: int) -> bool:
        if super().has_room(size):
            return True
        self.warn(
            "More than %d bytes wait in memory for slow clients: further output is written to "
            "temporary files in %s",
            self._limit_bytes,
            tempfile.gettempdir(),
        )
        return False


@dataclass(slots=True, eq=False)
class DelayedBlocks:
    """Delayed blocks of a stream, which are framed together.

    Only the writer appends blocks, and needs no lock for that. A thread that removes blocks needs
    the queue's lock. CPython copies a list in one step, so blocks that are appended meanwhile are
    not lost.

    :param frame: frames joined blocks as one chunk. None if the response has no chunks.
    :param max_waiting_bytes: the maximum number of bytes that may wait here for a slow client.
    :param compresses: whether `frame` also compresses.
    :ivar max_delayed_bytes: the maximum number of bytes that may wait for the next block.
    :ivar blocks: the unframed blocks. None of them is empty.
    :ivar size: the bytes of the blocks, for limits and the log. It is changed without the lock, so
        it may be wrong for a moment.
    :ivar last_block_at: the monotonic time at which the app wrote its last block.
    """

    frame: Callable[[bytes], bytes] | None
    max_waiting_bytes: int
    compresses: bool
    max_delayed_bytes: int = _COALESCED_BYTES
    blocks: list[bytes] = field(default_factory=list)
    size: int = 0
    last_block_at: float = 0.0

    def __post_init__(self) -> None:
        self.last_block_at = time.monotonic()
        if self.compresses:
            self.max_waiting_bytes = self.max_delayed_bytes = _COMPRESSED_BYTES

    def pop_all(self) -> bytes:
        """Remove all blocks, and return them joined and framed."""
        taken = self.blocks[:]
        del self.blocks[: len(taken)]
        self.size = 0
        data = b"".join(taken)
        return self.frame(data) if self.frame is not None and data else data


@dataclass(slots=True, eq=False)
class Spilling:
    """Buffers that a disk thread writes to a temporary file.

    These are lists, because CPython keeps freed blocks of deques. Such a block at the end of the
    heap would keep the memory before it from the system.

    :ivar remaining: the buffers in reverse order, without the bytes that were popped to be sent.
    :ivar size: the number of bytes in `remaining`.
    """

    buffers: list[memoryview]
    remaining: list[memoryview] = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.remaining = self.buffers[::-1]
        self.size = sum(map(len, self.buffers))

    def pop(self, limit: int) -> bytes:
        """Return a copy of the next bytes, at most `limit`, to be sent."""
        parts: list[memoryview] = []
        while limit and self.remaining:
            buffer = self.remaining.pop()
            parts.append(buffer[:limit])
            if len(buffer) > limit:
                self.remaining.append(buffer[limit:])
            limit -= len(parts[-1])
        data = b"".join(parts)
        self.size -= len(data)
        return data


@dataclass(slots=True, eq=False, repr=False)
class Backlog:
    """A queue of buffers and parts of files.

    :param memory: counts buffers that stay in memory after a send.
    :ivar size: the number of queued bytes.
    :ivar in_memory: the bytes of memory that buffers use. A buffer is freed after its last byte was
        sent.
    :ivar file_sent: the number of sent bytes of the first item, if the item is a file.
    :ivar by_sendfile: the number of bytes sent by sendfile.
    :ivar waited_s: the seconds for which the writer has waited for the client or a disk.
    :ivar spilling: buffers that a disk thread is writing.
    """

    memory: OutputMemory
    size: int = 0
    in_memory: int = 0
    file_sent: int = 0
    by_sendfile: int = 0
    waited_s: float = 0.0
    spilling: Spilling | None = None
    _reserved: int = 0  # the part of `in_memory` that `memory` has counted
    _items: deque[memoryview | FileSegment | Spilling] = field(default_factory=deque)
    _spill_file: TemporaryFile | None = None
    _uses: dict[int, int] = field(default_factory=dict)  # the references to each descriptor
    _is_closed: bool = False

    # Adding output.

    def append(self, buffer: bytes | memoryview) -> None:
        items = self._items
        self.size += len(buffer)
        if len(items) > 1 and len(buffer) < _JOINED_BYTES:
            # The first buffer is never joined, because after a refusal TLS needs the same buffer
            # again.
            last = items[-1]
            if isinstance(last, memoryview) and len(last) < _JOINED_BYTES:
                items.pop()
                self.in_memory -= _bytes_in_memory(last)
                buffer = b"".join((last, buffer))
        view = memoryview(buffer)
        items.append(view)
        self.in_memory += _bytes_in_memory(view)

    def append_file(self, segment: FileSegment) -> None:
        """Add a part of a file. Its descriptor is closed after the part was sent."""
        self.size += segment.size
        self._items.append(segment)
        self.use(segment.fd)

    def begin_spill(self, ahead_bytes: float) -> Spilling | None:
        """Count the buffers in memory. Let a disk thread write those that exceed a limit.

        They are the last buffers after any file. The disk thread calls :meth:`spill`, and then
        :meth:`end_spill`. Meanwhile, no other buffer is written.

        :param ahead_bytes: the number of bytes to keep if there are more than twice as many.
        :returns: the buffers to write, or None.
        """
        limit: float = self.in_memory
        if self.spilling is None and self.in_memory > _ALWAYS_IN_MEMORY_BYTES:
            more = self.in_memory - self._reserved
            if more > 0 and not self.memory.has_room(more):
                limit = self._reserved
            elif self.in_memory > 2 * ahead_bytes:
                limit = ahead_bytes
        self.count_memory()
        items, remaining = self._items, self.in_memory
        buffers: list[memoryview] = []
        while remaining > limit and isinstance(buffer := items[-1], memoryview):
            items.pop()
            buffers.append(buffer)
            remaining -= _bytes_in_memory(buffer)
        if not buffers:
            return None
        self.spilling = spilling = Spilling(buffers[::-1])
        items.append(spilling)
        return spilling

    def count_memory(self) -> None:
        """Count all buffers in memory, even if they exceed the limit."""
        more = self.in_memory - self._reserved
        if more > 0:
            self.memory.count(more)
            self._reserved = self.in_memory

    @property
    def spilled_bytes(self) -> int:
        """The size of the temporary file, including sent bytes.

        The space of sent bytes cannot be reused, because the socket may still refer to their pages.
        """
        return 0 if self._spill_file is None else self._spill_file.size

    def end_spill(self, spilling: Spilling, segment: FileSegment | None) -> None:
        """Replace buffers by the part of the temporary file that contains them.

        :param segment: this part, or None if the buffers could not be written.
        """
        self.spilling = None
        if self._is_closed:
            self._close_spill_file()
            return
        items = self._items
        if spilling not in items:
            return  # the buffers were sent from memory or dropped
        at = items.index(spilling)
        items.rotate(-at)
        items.popleft()
        if segment is None:
            self._requeue_remaining(spilling)
        else:
            # The popped bytes of the file are not used.
            end = segment.offset + segment.size
            segment = segment._replace(offset=end - spilling.size, size=spilling.size)
            self.in_memory -= sum(map(_bytes_in_memory, spilling.buffers))
            match items[-1] if at else None:
                case FileSegment(fd, offset, size) if (fd, offset + size) == segment[:2]:
                    segment = FileSegment(fd, offset, size + segment.size)
                    items.pop()
                    at -= 1
                case _:
                    self.use(segment.fd)
            items.appendleft(segment)
        items.rotate(at)
        self.release_memory()

    def spill(self, buffers: Sequence[memoryview]) -> FileSegment | None:
        """Write buffers to a temporary file. A disk thread calls it without the lock.

        :returns: the part of the file, or None if it cannot be written.
        """
        try:
            if self._spill_file is None:
                disk = self.memory.disk
                # It has no write buffer, because the kernel and os.pread read it directly.
                file = TemporaryFile(disk, min_free_bytes=_MIN_FREE_BYTES, buffer_bytes=1)
                self._spill_file = file
                self.use(file.fileno())
            return self._spill_file.append(*buffers)
        except OSError as error:
            text = "Output stays in memory, because a temporary file cannot be written: %s"
            self.memory.warn(text, error)
            return None

    # Sending output.

    @property
    def first(self) -> memoryview | FileSegment | None:
        items = self._items
        if not items:
            return None
        first = items[0]
        if not isinstance(first, Spilling):
            return first
        # The socket is ready before the buffers are written. A piece of them is copied, to be sent
        # now. The disk thread still writes all buffers. The piece contains at least the bytes that
        # TLS has refused.
        if first.size <= PIECE_BYTES:
            items.popleft()
            self._requeue_remaining(first)
        else:
            self._insert(first.pop(PIECE_BYTES))
        return self.first

    def buffers(self) -> tuple[list[memoryview], bool]:
        """Return the first buffers for one send, and whether a file follows them."""
        buffers: list[memoryview] = []
        for item in islice(self._items, _BUFFERS):
            if not isinstance(item, memoryview):
                return buffers, isinstance(item, FileSegment)
            buffers.append(item)
        return buffers, False

    def replace_buffers(self, count: int, unsent: Sequence[bytes | memoryview]) -> int:
        """Replace the first buffers by their unsent bytes. Return the number of sent bytes."""
        sent = 0
        for _ in range(count):
            buffer = self._items.popleft()
            assert isinstance(buffer, memoryview)
            self.in_memory -= _bytes_in_memory(buffer)
            sent += len(buffer)
        for unsent_buffer in reversed(unsent):
            view = memoryview(unsent_buffer)
            self._items.appendleft(view)
            self.in_memory += _bytes_in_memory(view)
            sent -= len(view)
        self.size -= sent
        return sent

    def advance_file(self, size: int, *, by_kernel: bool) -> None:
        """Remove sent bytes from the first file.

        :param by_kernel: whether sendfile has sent them.
        """
        self.size -= size
        if by_kernel:
            self.by_sendfile += size
        self._remove_from_file(size)

    def insert_read(self, data: bytes) -> None:
        """Replace the next bytes of the first file by a buffer, which is sent first."""
        self._remove_from_file(len(data))
        self._insert(data)

    def _requeue_remaining(self, spilling: Spilling) -> None:
        """Insert the buffers that have not been popped at the front of the queue."""
        remaining = spilling.remaining
        self.in_memory += sum(map(_bytes_in_memory, remaining))
        self.in_memory -= sum(map(_bytes_in_memory, spilling.buffers))
        self._items.extendleft(remaining)

    def _insert(self, data: bytes) -> None:
        self._items.appendleft(memoryview(data))
        self.in_memory += len(data)
        self._reserved += len(data)
        self.memory.count(len(data))

    def _remove_from_file(self, size: int) -> None:
        segment = self._items[0]
        assert isinstance(segment, FileSegment)
        self.file_sent += size
        if self.file_sent == segment.size:
            self._items.popleft()
            self.file_sent = 0
            self.release(segment.fd)

    # The end of a response.

    def release_memory(self) -> None:
        """Stop counting bytes that are no longer in memory."""
        if self.in_memory < self._reserved:
            self.memory.count(self.in_memory - self._reserved)
            self._reserved = self.in_memory

    def clear(self) -> None:
        """Drop all output. A temporary file stays open, because a disk thread may be writing it."""
        for item in self._items:
            if isinstance(item, FileSegment):
                self.release(item.fd)
        self._items.clear()
        self.size = self.file_sent = self.in_memory = 0
        self.release_memory()

    def close(self) -> None:
        """Drop all output, and close the temporary file. The writer adds no more output."""
        self.clear()
        if self.spilling is None and not self._is_closed:  # otherwise end_spill() closes the file
            self._close_spill_file()
        self._is_closed = True

    def _close_spill_file(self) -> None:
        if self._spill_file is not None:
            self.release(self._spill_file.fileno())

    def use(self, fd: int) -> None:
        """Count a use of a descriptor.

        It remains open until :meth:`release` is called for each use.
        """
        self._uses[fd] = self._uses.get(fd, 0) + 1

    def release(self, fd: int) -> None:
        uses = self._uses.pop(fd) - 1
        if uses:
            self._uses[fd] = uses
        elif self._spill_file is not None and self._spill_file.fileno() == fd:
            self._spill_file.close()
            self._spill_file = None
        else:
            os.close(fd)


def _bytes_in_memory(buffer: memoryview) -> int:
    underlying = buffer.obj
    return len(underlying) if isinstance(underlying, bytes) else buffer.nbytes

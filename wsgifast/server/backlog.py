"""What waits for one client, in its order: bytes in memory, runs of files, and their cost.

A plain structure: it knows no socket and waits for nothing. Every call needs its queue's lock, but
for :meth:`Backlog.spill`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from itertools import islice

from ..sockets.sendfile import FileSegment
from .output_memory import OutputMemory, SpillFile

__all__ = ["Backlog"]

# So much of a connection's output stays in memory in any case: an answer of the usual size.
_ALWAYS_IN_MEMORY_BYTES = 16 * 1024
# Smaller buffers are joined: each costs some hundred bytes of memory beside its own.
_JOINED_BYTES = 4 * 1024
# Buffers given to one send; small chunks of a generator come in such bundles.
_BUFFERS = 64


class Backlog:
    """Buffers and files, sent from the front.

    :param memory: counts what lies in memory here for longer than a send takes.
    :ivar size: bytes that wait.
    :ivar in_memory: bytes of the buffers; one stays whole until its end is sent.
    :ivar file_sent: bytes of the first item that have been taken, if it is a file.
    :ivar by_sendfile: bytes of files that the kernel has sent by itself.
    :ivar waited_s: seconds that the writer has waited for its client.
    """

    __slots__ = (
        "_items",
        "_memory",
        "_reserved",
        "_spill_file",
        "_spill_is_used",
        "_uses",
        "by_sendfile",
        "file_sent",
        "in_memory",
        "size",
        "waited_s",
    )

    def __init__(self, memory: OutputMemory) -> None:
        self.size = 0
        self.file_sent = 0
        self.by_sendfile = 0
        self.waited_s = 0.0
        self._items: deque[memoryview | FileSegment] = deque()
        self._memory = memory
        self.in_memory = 0
        self._reserved = 0  # how many of them are counted
        self._spill_file: SpillFile | None = None
        self._spill_is_used = False
        # How often each descriptor of ours is in use; the last use closes it.
        self._uses: dict[int, int] = {}

    # Adding

    def append(self, buffer: bytes | memoryview) -> None:
        items = self._items
        self.size += len(buffer)
        if len(items) > 1 and len(buffer) < _JOINED_BYTES:
            # Not the one in front: it may have been shown to the kernel.
            last = items[-1]
            if not isinstance(last, FileSegment) and len(last) < _JOINED_BYTES:
                items.pop()
                self._on_gone(last)
                buffer = b"".join((last, buffer))
        view = memoryview(buffer)
        items.append(view)
        self.in_memory += _bytes_in_memory(view)

    def append_file(self, segment: FileSegment) -> None:
        """Add a run of a file, by a descriptor of its own that is closed behind it."""
        items = self._items
        last = items[-1] if items else None
        self.size += segment.size
        if isinstance(last, FileSegment) and last.fd == segment.fd:
            # What is spilled piece by piece is one run.
            items[-1] = last._replace(size=last.size + segment.size)
        else:
            items.append(segment)
            self.use(segment.fd)
            if self._spill_file is not None and segment.fd == self._spill_file.fd:
                self._share_spill_file(segment.fd)

    def reserve_memory(self) -> bool:
        """Have what lies in memory counted; False, and no more than before, if it is too much."""
        more = self.in_memory - self._reserved
        if more > 0:
            if self.in_memory <= _ALWAYS_IN_MEMORY_BYTES:
                self._memory.count(more)
            elif not self._memory.reserve(more):
                return False
            self._reserved = self.in_memory
        return True

    def take_back(self, *, keep: int | None = None) -> list[memoryview]:
        """Remove buffers from the end, until no more than so many bytes are in memory.

        :param keep: None for as many as are counted. What lies before a file stays in any case.
        """
        if keep is None:
            keep = self._reserved
        items = self._items
        taken: list[memoryview] = []
        while items and self.in_memory > keep:
            buffer = items[-1]
            if isinstance(buffer, FileSegment):
                break
            items.pop()
            taken.append(buffer)
            self._on_gone(buffer)
            self.size -= len(buffer)
        taken.reverse()
        self.release_memory()
        return taken

    def may_spill(self, limit: int) -> bool:
        """Whether its temporary file may take more.

        :param limit: bytes of the file. There is a new one once all of it has been sent; it cannot
            be written over, since what sendfile has sent of it may be on its way still.
        """
        spill = self._spill_file
        if spill is None:
            return limit > 0
        if spill.written < limit:
            return True
        if self._uses.get(spill.fd) != 1:
            return False
        self._close_spill_file()
        return True

    def spill(self, buffers: list[memoryview]) -> FileSegment:
        """Write buffers to a temporary file; by the thread that adds, without the lock.

        :raises OSError: if that cannot be.
        """
        if self._spill_file is None:
            self._spill_file = SpillFile(self._memory.disk)
        return self._spill_file.append(buffers)

    def _share_spill_file(self, fd: int) -> None:
        """More may be written to it behind what has been sent: that is a use of its own."""
        if not self._spill_is_used:
            self._spill_is_used = True
            self.use(fd)

    # Sending

    @property
    def first(self) -> memoryview | FileSegment | None:
        return self._items[0] if self._items else None

    def buffers(self) -> tuple[list[memoryview], bool]:
        """The buffers in front, as many as one send is given; and whether a file follows them."""
        buffers: list[memoryview] = []
        for item in islice(self._items, _BUFFERS):
            if isinstance(item, FileSegment):
                return buffers, True
            buffers.append(item)
        return buffers, False

    def replace_buffers(self, count: int, left: Sequence[bytes | memoryview]) -> int:
        """Put what a send has left of the first buffers in their place; return what it has sent."""
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
        """So many bytes of the file in front have been sent.

        :param by_kernel: by sendfile.
        """
        self.size -= size
        if by_kernel:
            self.by_sendfile += size
        self._take_from_file(size)

    def insert_read(self, data: bytes) -> None:
        """The next bytes of the file in front have been read: they are to be sent first."""
        self._take_from_file(len(data))
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
        """Have what is in memory no more counted no more."""
        if self.in_memory < self._reserved:
            self._memory.count(self.in_memory - self._reserved)
            self._reserved = self.in_memory

    def clear(self) -> None:
        """Drop everything, but for a temporary file that its writer may be writing to."""
        for item in self._items:
            if isinstance(item, FileSegment):
                self.release(item.fd)
        self._items.clear()
        self.size = self.file_sent = self.in_memory = 0
        self.release_memory()

    def close(self) -> None:
        """Drop everything; nobody writes any more."""
        self.clear()
        self._close_spill_file()

    def _close_spill_file(self) -> None:
        spill, self._spill_file = self._spill_file, None
        if spill is not None:
            spill.give_back()
            if not self._spill_is_used:
                self.use(spill.fd)
            self._spill_is_used = False
            self.release(spill.fd)

    def use(self, fd: int) -> None:
        """Keep a descriptor open until :meth:`release`, whatever becomes of its file here."""
        self._uses[fd] = self._uses.get(fd, 0) + 1

    def release(self, fd: int) -> None:
        uses = self._uses.pop(fd) - 1
        if uses:
            self._uses[fd] = uses
        else:
            os.close(fd)


def _bytes_in_memory(buffer: memoryview) -> int:
    whole = buffer.obj
    return len(whole) if isinstance(whole, bytes) else buffer.nbytes

"""Blocks of streams that are held back, the queues that hold them, and what all queues share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..files.temporary import Budget
from .backlog import OutputMemory
from .disk import DiskThreads
from .sending import ClientWait

if TYPE_CHECKING:
    from .server import Server

# A block is held back if it follows another one this soon.
_COALESCE_S = 0.0005
# Blocks are coalesced up to this size: larger writes are no cheaper per byte.
_COALESCED_BYTES = 64 * 1024
# The same of blocks that are compressed when they are framed: by whatever thread takes them, under
# the queue's lock.
_COMPRESSED_BYTES = 16 * 1024
# What may wait there however little memory is left: a single block would be a system
# call, or a write to a temporary file.
_WAITING_ANYWAY_BYTES = 16 * 1024


class HeldBlocks:
    """The blocks of a stream that are held back, and framed together.

    Only the writer adds some; the thread that takes them has the queue's lock. The two need no lock
    between them: CPython copies a list in one step, and what is appended later stays.

    Before a slow client, blocks wait here too: its queue takes them once it has nothing else to
    send, or when there are many. Nobody needs to hurry, so no tick is requested.

    :param queue: the output queue, whose module imports this one.
    :param frame: frames blocks that are sent together, as one chunk; None for no framing.
    :param most_waiting: how many bytes may wait there.
    :param compresses: whether `frame` compresses, too.
    :ivar blocks: unframed, none of them empty.
    :ivar size: their bytes; it may be wrong for a moment, which a limit and a log tolerate.
    """

    __slots__ = (
        "_frame", "_last_block", "_most_held", "_most_waiting", "_queue", "_reserved", "_rules",
        "blocks", "size",
    )  # fmt: skip

    def __init__(
        self,
        queue: Any,
        rules: OutputRules,
        frame: Callable[[bytes], bytes] | None,
        *,
        most_waiting: int,
        compresses: bool = False,
    ) -> None:
        self.blocks: list[bytes] = []
        self.size = 0
        self._queue = queue
        self._rules = rules
        self._frame = frame
        self._last_block = time.monotonic()  # when the app handed it over
        self._most_held = _COMPRESSED_BYTES if compresses else _COALESCED_BYTES
        self._most_waiting = _COMPRESSED_BYTES if compresses else most_waiting
        self._reserved = 0  # the writer sets it, and who takes the blocks resets it

    def write(self, block: bytes) -> None:
        """As :meth:`.OutputQueue.write`, but the block may be held back for the next one."""
        now = time.monotonic()
        behind = now - self._last_block < _COALESCE_S
        self._last_block = now
        # Append first. A tick removes the queue from the rules' `queues` and then takes the blocks:
        # if it came too early for this block, the check below finds the queue missing.
        self.blocks.append(block)
        self.size = size = self.size + len(block)
        queue = self._queue
        if queue.draining:
            # Its thread sets `draining` to False before it takes the blocks for the last time: it
            # finds this one.
            if size < (self._reserved or self._reserve()) and queue.error is None:
                return
        elif behind and size < self._most_held and queue.error is None:
            rules = self._rules
            if queue in rules.queues or rules.hold_back(queue):
                return
        with queue.lock:
            data = self.take()
        if data:
            queue.write(data)

    def take(self) -> bytes:
        """Remove all blocks, and return them joined and framed."""
        taken = self.blocks[:]
        del self.blocks[: len(taken)]
        self.size = 0
        reserved = self._reserved
        if reserved:
            self._reserved = 0
            self._rules.memory.count(-reserved)
        data = b"".join(taken)
        return self._frame(data) if self._frame is not None and data else data

    def _reserve(self) -> int:
        """Reserve memory for blocks that wait before a slow client; returns how many bytes."""
        size = self._most_waiting
        if not self._rules.memory.take(size):
            size = min(size, _WAITING_ANYWAY_BYTES)
            self._rules.memory.count(size)
        self._reserved = size
        return size


class OutputRules:
    """How responses are sent.

    :ivar queues: those that hold blocks back, until the monitor's next tick at most.
    :ivar share_work: called during a long turn that releases the GIL: other threads go on with the
        rest of the work.
    :ivar ahead_bytes: what may wait for one client before the writer waits, or uses a file.
    :ivar memory: counts the output in memory.
    :ivar disk: the threads for files that are not in the page cache.
    """

    def __init__(self, server: Server) -> None:
        self.options = options = server.options
        self.ahead_bytes = options.output_ahead_bytes
        self.counters = server.counters
        self.share_work = server.pool.share_work
        self.queues: set[Any] = set()
        self._request_tick = server.pool.monitor.request_tick
        log = server.log
        on_disk = Budget(options.responses_on_disk_bytes)
        self.memory = OutputMemory(options.output_memory_bytes, on_disk, log.warning)
        self.disk = DiskThreads(lambda error: log.error("Error in a disk thread", exc_info=error))

    def new_wait(self) -> ClientWait:
        """A client is waited for, for the first time in its response."""
        return ClientWait(self.options.send_timeout_s, self.options.send_least_bytes_per_s)

    # Queues that hold blocks back

    def hold_back(self, queue: Any) -> bool:
        """Have a queue flushed at the next tick; False if there will be none."""
        if not self._request_tick():
            return False
        self.queues.add(queue)
        if not self._request_tick():
            queue.flush()  # the monitor has stopped meanwhile
        return True

    def tick(self) -> bool:
        """Send what is held back; returns whether there was anything. Never blocks."""
        queues = self.queues
        if not queues:
            return False
        later = []
        for queue in list(queues):  # not those that writers add meanwhile: this has an end
            queues.discard(queue)
            if not queue.flush(wait=False):
                later.append(queue)
        queues.update(later)
        return True

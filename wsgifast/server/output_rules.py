"""Limits, counters and threads that all output queues of a server share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..files.temporary import Budget
from ..sockets.client_limits import ClientWait
from .backlog import OutputMemory
from .disk import DiskThreads
from .shared import Shared


@dataclass(eq=False, repr=False)
class OutputRules:
    """The limits, counters and threads of all output queues.

    :param share_work: called during a long turn that releases the GIL, so that other threads handle
        the remaining work.
    :param request_tick: requests a call of :meth:`tick`.
    :ivar to_flush: the queues with delayed blocks, and a function that flushes each queue at the
        next tick. It is called with the queue's lock, and never blocks.
    :ivar ahead_bytes: the number of bytes that may wait for one client before the writer waits or
        uses a temporary file.
    :ivar memory: counts the output in memory.
    :ivar disk: threads that read files that are not in the page cache.
    """

    shared: Shared
    share_work: Callable[[], object]
    request_tick: Callable[[], object]
    to_flush: dict[Any, Callable[[], object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = options = self.shared.options
        self.ahead_bytes = options.output_ahead_bytes
        on_disk = Budget(options.responses_on_disk_bytes)
        self.memory = OutputMemory(options.output_memory_bytes, on_disk, self.shared.warn_seldom)
        log = self.shared.log
        self.disk = DiskThreads(lambda error: log.error("Error in a disk thread", exc_info=error))

    def new_wait(self) -> ClientWait:
        """Return new time limits, for a client that accepts no more bytes at the moment."""
        return ClientWait(self.options.send_timeout_s, self.options.send_min_bytes_per_s)

    # Queues with delayed blocks.

    def flush_soon(self, queue: Any, flush: Callable[[], object]) -> None:
        """Flush a queue at the next tick."""
        self.to_flush[queue] = flush
        self.request_tick()

    def tick(self) -> bool:
        """Send all delayed blocks, without blocking. Return whether there were delayed blocks."""
        if not self.to_flush:
            return False
        # A copy, because writers may add queues meanwhile. Those are flushed at the next tick.
        for queue, flush in self.to_flush.copy().items():
            if queue.lock.acquire(blocking=False):  # otherwise it is flushed at the next tick
                try:
                    self.to_flush.pop(queue, None)
                    flush()
                finally:
                    queue.lock.release()
        return True

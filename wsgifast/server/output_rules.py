"""Shared by all output queues of a server: limits, memory, threads for the disk, and the tick."""

from __future__ import annotations

from collections.abc import Callable

from ..files.temporary import Budget
from ..sockets.client_limits import ClientWait
from .backlog import OutputMemory
from .disk import DiskThreads
from .shared import Shared


class OutputRules:
    """How responses are sent.

    :param share_work: called during a long turn that releases the GIL: other threads go on with
        the rest of the work.
    :param request_tick: has :meth:`tick` called soon.
    :ivar to_flush: how to flush each queue with delayed blocks, at the next tick.
        Such a function never blocks, and returns False if it has to be called again.
    :ivar ahead_bytes: how many bytes may wait for one client before the writer waits or spills.
    :ivar memory: counts the output in memory.
    :ivar disk: the threads for files that are not in the page cache.
    """

    def __init__(
        self,
        shared: Shared,
        *,
        share_work: Callable[[], object],
        request_tick: Callable[[], object],
    ) -> None:
        self.options = options = shared.options
        self.ahead_bytes = options.output_ahead_bytes
        self.counters = shared.counters
        self.share_work = share_work
        self.to_flush: dict[object, Callable[[], bool]] = {}
        self._request_tick = request_tick
        log = shared.log
        on_disk = Budget(options.responses_on_disk_bytes)
        self.memory = OutputMemory(options.output_memory_bytes, on_disk, log.warning)
        self.disk = DiskThreads(lambda error: log.error("Error in a disk thread", exc_info=error))

    def new_wait(self) -> ClientWait:
        """A client is waited for, for the first time in its response."""
        return ClientWait(self.options.send_timeout_s, self.options.send_least_bytes_per_s)

    # Queues with delayed blocks

    def flush_soon(self, queue: object, flush: Callable[[], bool]) -> None:
        """Have a queue flushed at the next tick."""
        self.to_flush[queue] = flush
        self._request_tick()

    def tick(self) -> bool:
        """Send the delayed blocks, and return whether there were any. Never blocks."""
        if not self.to_flush:
            return False
        later = {}
        # A copy: writers add queues meanwhile, which wait for the next tick.
        for queue, flush in self.to_flush.copy().items():
            self.to_flush.pop(queue, None)
            if not flush():
                later[queue] = flush
        self.to_flush.update(later)
        return True

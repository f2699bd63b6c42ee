"""What all output queues of a worker share: limits and helpers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .coalescing import Coalescing
from .counters import Counters
from .disk import DiskThreads
from .limits import Budget, ClientWait
from .options import Options
from .output_memory import OutputMemory


class OutputRules:
    """How responses are sent.

    :param options: the server's, and its counters.
    :param coalescing: the queues that hold blocks back.
    :param share_work: called during a long turn that releases the GIL: other threads go on with the
        rest of the work.
    :ivar ahead_bytes: what may wait for one client before the writer waits, or uses a file.
    :ivar memory: counts the output in memory.
    :ivar disk: the threads for files that are not in the page cache.
    """

    def __init__(
        self,
        options: Options,
        counters: Counters,
        coalescing: Coalescing,
        share_work: Callable[[], object],
        log: Any,
    ) -> None:
        self.options = options
        self.ahead_bytes = options.output_ahead_bytes
        self.counters = counters
        self.coalescing = coalescing
        self.share_work = share_work
        on_disk = Budget(options.responses_on_disk_bytes)
        self.memory = OutputMemory(options.output_memory_bytes, on_disk, log.warning)
        self.disk = DiskThreads(lambda error: log.error("Error in a disk thread", exc_info=error))

    def new_wait(self) -> ClientWait:
        """A client is waited for, for the first time in its response."""
        return ClientWait(self.options.send_timeout_s, self.options.send_least_bytes_per_s)

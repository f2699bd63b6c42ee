"""What all output queues of a worker share: limits and helpers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .coalescing import Coalescing
from .counters import Counters
from .disk import DiskThreads
from .limits import ClientWait
from .look_ahead import CachedRuns
from .output_memory import OutputMemory


@dataclass(frozen=True)
class OutputRules:
    """How responses are sent.

    :ivar ahead_bytes: with more bytes in its queue, a writer waits, or uses a temporary file.
    :ivar response_on_disk_bytes: the most bytes of such a file.
    :ivar timeout_s: how long a client may take nothing.
    :ivar least_bytes_per_s: the least average rate once `timeout_s` has passed; 0 for any.
    :ivar sendfile: whether to use sendfile.
    :ivar memory: counts the output in memory.
    :ivar disk: the threads for files that are not in the page cache.
    :ivar cached_runs: what the page cache has of files.
    :ivar coalescing: the queues that hold blocks back.
    :ivar counters: the server's.
    :ivar share_work: called during a long turn that releases the GIL: other threads go on with the
        rest of the work.
    """

    ahead_bytes: int
    response_on_disk_bytes: int
    timeout_s: float
    least_bytes_per_s: float
    sendfile: bool
    memory: OutputMemory
    disk: DiskThreads
    cached_runs: CachedRuns
    coalescing: Coalescing
    counters: Counters
    share_work: Callable[[], object]

    def new_wait(self) -> ClientWait:
        """A client is waited for, for the first time in its response."""
        return ClientWait(self.timeout_s, self.least_bytes_per_s)

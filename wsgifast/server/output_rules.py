"""What all output queues of a worker share: their limits, and who sends at the next tick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .counters import Counters
from .disk import DiskThreads
from .limits import DiskBudget, time_left_s
from .look_ahead import SeenInMemory
from .options import Options
from .output_memory import OutputMemory

__all__ = ["Coalescing", "OutputRules"]


class Flushes(Protocol):
    """A queue whose last blocks are coalesced."""

    def flush(self, *, wait: bool = True) -> bool:
        """Send them; False if another thread is sending, and it is not to be waited for."""


class Coalescing:
    """The queues whose last blocks wait for company, at most until the next tick.

    :param request_tick: whether one comes soon; it does if it can be brought about.
    """

    def __init__(self, request_tick: Callable[[], bool]) -> None:
        self.request_tick = request_tick
        self.queues: set[Flushes] = set()

    def tick(self) -> bool:
        """Send what waits; whether there was anything. Waits for nobody: the monitor calls it."""
        queues = self.queues
        if not queues:
            return False
        later = []
        while queues:
            try:
                queue = queues.pop()
            except KeyError:
                break  # its own thread was quicker
            if not queue.flush(wait=False):
                later.append(queue)
        queues.update(later)
        return True


@dataclass(frozen=True)
class OutputRules:
    """How responses are sent.

    :ivar ahead_bytes: bytes in a queue from which on the next write has to wait, or goes to a
        temporary file.
    :ivar response_on_disk_bytes: the most of such a file.
    :ivar timeout_s: within so many seconds a client must take something.
    :ivar least_bytes_per_s: on average, from `timeout_s` on; 0 for any rate.
    :ivar sendfile: whether the kernel may send files by itself.
    :ivar memory: what all queues hold.
    :ivar disk: for files that are not in memory.
    :ivar seen: which are.
    :ivar counters: of the server.
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
    seen: SeenInMemory
    coalescing: Coalescing
    counters: Counters
    share_work: Callable[[], object]

    @classmethod
    def of(
        cls,
        options: Options,
        *,
        coalescing: Coalescing,
        counters: Counters,
        share_work: Callable[[], object],
        log: Any,
    ) -> OutputRules:
        """The rules of a server with these options."""
        on_disk = DiskBudget(options.responses_on_disk_bytes)
        return cls(
            ahead_bytes=options.output_ahead_bytes,
            response_on_disk_bytes=options.response_on_disk_bytes,
            timeout_s=options.send_timeout_s,
            least_bytes_per_s=options.send_least_bytes_per_s,
            sendfile=options.sendfile,
            memory=OutputMemory(options.output_memory_bytes, on_disk, log.warning),
            disk=DiskThreads(lambda error: log.error("Error in a disk thread", exc_info=error)),
            seen=SeenInMemory(),
            coalescing=coalescing,
            counters=counters,
            share_work=share_work,
        )

    def time_left_s(self, waited_s: float, taken: int) -> float:
        """For how many more seconds a client is waited for that has taken so many bytes."""
        return time_left_s(self.timeout_s, self.least_bytes_per_s, taken, waited_s)

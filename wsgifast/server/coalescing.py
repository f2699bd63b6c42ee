"""Blocks of streams that are held back, and the queues that hold them until the next tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HeldBlocks:
    """Unframed blocks of a stream that are held back.

    Only the writer appends; the thread that takes them has the queue's lock. The two need no lock
    between them: CPython copies a list in one step, and what is appended later stays.

    :ivar blocks: none of them empty.
    :ivar size: their bytes; it may be wrong for a moment, which a limit and a log tolerate.
    """

    __slots__ = ("blocks", "size")

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.size = 0

    def take(self) -> bytes:
        """Remove all blocks, and return them joined."""
        taken = self.blocks[:]
        del self.blocks[: len(taken)]
        self.size = 0
        return b"".join(taken)


class Coalescing:
    """The output queues that hold blocks back until the monitor's next tick at most.

    :param request_tick: see :meth:`.Monitor.request_tick`.
    """

    def __init__(self, request_tick: Callable[[], bool]) -> None:
        self.request_tick = request_tick
        self.queues: set[Any] = set()  # OutputQueue's module imports this one

    def add(self, queue: Any) -> bool:
        """Have a queue flushed at the next tick; False if there will be none."""
        if not self.request_tick():
            return False
        self.queues.add(queue)
        if not self.request_tick():
            queue.flush()  # the monitor has stopped meanwhile
        return True

    def tick(self) -> bool:
        """Send what is held back; returns whether there was anything. Never blocks."""
        queues = self.queues
        if not queues:
            return False
        later = []
        while queues:
            try:
                queue = queues.pop()
            except KeyError:
                break  # its writer was quicker
            if not queue.flush(wait=False):
                later.append(queue)
        queues.update(later)
        return True

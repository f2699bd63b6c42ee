"""The blocks of a stream that wait for each other, added by one thread and taken by any."""

from __future__ import annotations

__all__ = ["Gathered"]


class Gathered:
    """Blocks in their order.

    Who makes them appends, and is alone in that; whoever takes has the queue's lock. The two need
    no lock between them: a list is copied in one step, and what comes after that stays.

    :ivar blocks: not empty; none of them framed.
    :ivar size: bytes of them. It may be wrong for a moment, as it is for a bound and for the log.
    """

    __slots__ = ("blocks", "size")

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.size = 0

    def take(self) -> bytes:
        """All blocks as one; b"" if there are none."""
        taken = self.blocks[:]
        del self.blocks[: len(taken)]
        self.size = 0
        return b"".join(taken)

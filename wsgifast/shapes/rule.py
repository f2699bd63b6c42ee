"""When the shape of a body is slow: a pure function of the sizes and times of its chunks.

It returns ids of the doctor's findings; wsgifast.commands.doctor.catalogue describes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

# An app that takes longer than this for its next chunk has paused: it streams on purpose.
PAUSE_S = 0.005
# Fewer chunks, or larger ones, cost a server no more than the app that makes them.
_MANY_CHUNKS = 16
_SMALL_CHUNK_BYTES = 4096
# A file in blocks of this size or less costs more per block than per byte.
_SMALL_BLOCK_BYTES = 128 * 1024
# From this size on a file read into memory is a finding.
_LARGE_BYTES = 16 * 1024 * 1024


@dataclass
class Chunks:
    """The chunks of a body, or the body messages of an ASGI response.

    :ivar sizes: bytes of each.
    :ivar waits_s: the seconds that the app took for each.
    """

    sizes: list[int] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def add(self, size: int, wait_s: float) -> None:
        self.sizes.append(size)
        self.waits_s.append(wait_s)

    @property
    def count(self) -> int:
        return len(self.sizes)

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def median(self) -> float:
        return median(self.sizes) if self.sizes else 0.0

    @property
    def pauses(self) -> int:
        """How often the app paused before a chunk."""
        return sum(wait > PAUSE_S for wait in self.waits_s[1:])


BodyKind = Literal["list", "iterator", "file", "wrapped-file", "messages"]


class BodySeen(NamedTuple):
    """An app's body, as it was before any repair.

    :ivar kind: a list or tuple, an iterator, a file that the server reads, a file in a wrapper that
        no server recognises, or ASGI messages.
    :ivar is_events: whether its head says that it is an event stream.
    :ivar file_bytes: the size of the file that the body comes from, if it is known to.
    """

    chunks: Chunks
    kind: BodyKind
    is_events: bool = False
    file_bytes: int | None = None


_OF_SMALL_CHUNKS = {"list": "WF001", "messages": "WF030"}


def slow_shape(seen: BodySeen) -> str | None:
    """Return the id of the finding about a body's shape; None if it is not slow."""
    chunks = seen.chunks
    # What a file pauses for is the disk, or a busy machine.
    has_pauses = chunks.pauses * 4 > chunks.count and seen.file_bytes is None
    if has_pauses or seen.is_events:
        return "WF023" if chunks.count > 1 else None
    if seen.kind == "wrapped-file" or (seen.kind == "file" and chunks.count > 1):
        return "WF007"
    if seen.file_bytes is not None:
        if chunks.count > 1 and seen.kind == "messages":
            return "WF031"
        if chunks.count > 1 and chunks.median <= _SMALL_BLOCK_BYTES:
            return "WF008"
        if chunks.count <= 1:
            return "WF009" if seen.file_bytes >= _LARGE_BYTES else None
    if is_many_and_small(chunks):
        return _OF_SMALL_CHUNKS.get(seen.kind, "WF003")
    return None


def is_many_and_small(chunks: Chunks) -> bool:
    """Whether there are many chunks, and small ones."""
    return chunks.count >= _MANY_CHUNKS and chunks.median < _SMALL_CHUNK_BYTES

"""How far a file may be sent without waiting for its disk: what was seen of it in memory just now.

To look costs a good part of what sending costs. So a file is looked at once for all connections
that send it, and further ahead the longer it is sent; after a while it is looked at again, since it
may be gone from memory.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from ..sockets.page_cache import cached_bytes

__all__ = ["LookAhead", "SeenInMemory"]

# As far ahead a file is looked for in memory: at first, and at most. It is twice as far each time
# that the client has taken all of it soon; a slow one takes less before it is looked for again.
_FIRST_BYTES = 512 * 1024
_MOST_BYTES = 4 * 1024 * 1024
# How long what was seen in memory is taken to be there.
_TRUSTED_FOR_S = 0.5
# So many files are remembered; beyond, all are forgotten.
_MOST_FILES = 1000

# A file system and an inode of it.
_File = tuple[int, int]


class _Run(NamedTuple):
    """A run of a file that is in memory: offsets, and until when that is trusted; monotonic."""

    begin: int
    end: int
    until: float


class SeenInMemory:
    """What was seen of large files; shared by all connections, and their threads."""

    def __init__(self) -> None:
        self._runs: dict[_File, _Run] = {}

    def find(self, file: _File, place: int, now: float) -> _Run | None:
        """A run that is trusted still, and that an offset is in."""
        run = self._runs.get(file)
        return run if run and run.begin <= place < run.end and now <= run.until else None

    def add(self, file: _File, seen: _Run, now: float) -> None:
        """Remember a run, together with the one that it goes on from."""
        before = self._runs.get(file)
        if before and before.begin <= seen.begin <= before.end and now <= before.until:
            seen = _Run(before.begin, max(before.end, seen.end), before.until)
        elif len(self._runs) >= _MOST_FILES:
            self._runs.clear()
        self._runs[file] = seen


class LookAhead:
    """One connection's view of the file that it sends."""

    __slots__ = ("_file", "_look", "_run", "_seen")

    def __init__(self, seen: SeenInMemory) -> None:
        self._seen = seen
        self._file: _File | None = None  # one that is worth remembering
        self._run = _Run(0, 0, 0.0)
        self._look = 0  # bytes looked for last

    def cached_bytes(self, fd: int, place: int, left: int, *, begin: bool) -> int:
        """How far a file, of which so much is left, may be sent without waiting for its disk.

        :param begin: it is sent from here on; before, it was another file.
        """
        now = time.monotonic()
        run = self._run
        forgets = begin or now > run.until
        if not forgets and place < run.end:
            return min(run.end - place, left)
        if begin:
            self._file = None
            if left > _FIRST_BYTES:
                facts = os.fstat(fd)
                self._file = (facts.st_dev, facts.st_ino)
        file = self._file
        known = self._seen.find(file, place, now) if file else None
        if known is None:
            self._look = _FIRST_BYTES if forgets else min(2 * self._look, _MOST_BYTES)
            cached = cached_bytes(fd, place, min(left, self._look))
            known = _Run(place, place + cached, now + _TRUSTED_FOR_S)
            if file and cached:
                self._seen.add(file, known, now)
        self._run = known
        return min(known.end - place, left)

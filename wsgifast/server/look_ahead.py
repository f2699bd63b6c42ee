"""How far a file can be sent without waiting for its disk.

Asking what the page cache has of a file costs a good part of sending it. So the answer is shared by
all connections that send the file, covers more of it the longer a connection sends, and is trusted
only for a short time, because pages may be evicted.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from ..sockets.sending import cached_bytes

# How far ahead to ask: at first, and at most. The distance doubles each time that a client has
# taken all of it while it was trusted.
_FIRST_BYTES = 512 * 1024
_MOST_BYTES = 4 * 1024 * 1024
# How long an answer is trusted.
_TRUSTED_FOR_S = 0.5
# Files remembered; when there are more, all are forgotten.
_MOST_FILES = 1000

# st_dev and st_ino.
_File = tuple[int, int]


class _Run(NamedTuple):
    """A cached run of a file: two offsets, and until when to trust it (monotonic)."""

    begin: int
    end: int
    until: float


class CachedRuns:
    """The cached runs of large files; shared by all connections and threads."""

    def __init__(self) -> None:
        self._runs: dict[_File, _Run] = {}

    def find(self, file: _File, place: int, now: float) -> _Run | None:
        """Return the run around an offset, if it is still trusted."""
        run = self._runs.get(file)
        return run if run and run.begin <= place < run.end and now <= run.until else None

    def add(self, file: _File, seen: _Run, now: float) -> None:
        """Remember a run, merged with the one that it continues."""
        before = self._runs.get(file)
        if before and before.begin <= seen.begin <= before.end and now <= before.until:
            seen = _Run(before.begin, max(before.end, seen.end), before.until)
        elif len(self._runs) >= _MOST_FILES:
            self._runs.clear()
        self._runs[file] = seen


class LookAhead:
    """One connection's view of the file that it sends."""

    __slots__ = ("_file", "_look", "_run", "_seen")

    def __init__(self, seen: CachedRuns) -> None:
        self._seen = seen
        self._file: _File | None = None  # only if it is large
        self._run = _Run(0, 0, 0.0)
        self._look = 0  # bytes asked for last

    def cached_bytes(self, fd: int, place: int, left: int, *, begin: bool) -> int:
        """Return how many bytes can be sent from `place` on without waiting for the disk.

        :param left: bytes of the file that are left to send.
        :param begin: this is the first call for this file.
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

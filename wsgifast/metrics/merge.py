"""Adds up the files of prometheus_client's multiprocess mode, at little cost for each scrape.

Theory of operation. A process only adds entries to its files, and an entry keeps its place. So the
keys of a file are parsed once, and again when it has grown; a scrape in between only reads the
numbers, and adds those of one key. prometheus_client's own code would parse every entry of every
process at each scrape. It is left the gauges, which are few, and have rules of their own.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Iterable
from typing import Any

from ..imports import needs

with needs("wsgifast.metrics.merge", "prometheus_client", "prometheus"):
    from prometheus_client.core import Metric
    from prometheus_client.mmap_dict import MmapedDict
    from prometheus_client.multiprocess import MultiProcessCollector

# Kinds whose values are added up, also those of processes that have ended; those of gauges are not.
ADDED_UP = frozenset({"counter", "histogram", "summary"})
# Reading a file that is being made, or was left unfinished, raises one of these.
UNREADABLE = (struct.error, RuntimeError, ValueError, FileNotFoundError)

# A file begins with the number of its bytes that are used.
_USED = struct.Struct("=i")
_HEAD_BYTES = 8
_VALUE_BYTES = 8


class ValuesFile:
    """One process's values of one kind.

    :ivar kind: "counter", "gauge_livesum", ...
    :ivar keys: the key of each value, as it is in the file.
    :raises OSError: if it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.kind, _ = parts_of(path)
        self.keys: list[str] = []
        self.numbers: tuple[float, ...] = ()
        self._used = _HEAD_BYTES
        self._values = struct.Struct("=")
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._fd)

    def read(self) -> None:
        """Read the numbers, and the keys that are new.

        :raises OSError, ValueError: if the file is incomplete.
        """
        data = os.pread(self._fd, self._used, 0)
        if not data:
            return  # it has just been created
        try:
            if _USED.unpack_from(data)[0] > self._used:
                self._find_values()
                data = os.pread(self._fd, self._used, 0)
            self.numbers = self._values.unpack_from(data)
        except (struct.error, RuntimeError, ValueError) as error:
            raise ValueError(f"{self.path} has no values of metrics: {error}") from error

    def _find_values(self) -> None:
        keys, layout, end = [], ["="], 0
        read: Any = MmapedDict.read_all_values_from_file  # has no types
        for key, _, _, position in read(self.path):
            keys.append(key)
            layout.append(f"{position - end}xd")
            end = position + _VALUE_BYTES
        self.keys = keys
        self._values = struct.Struct("".join(layout))
        self._used = end + _VALUE_BYTES  # behind each value is its time


def parts_of(path: str) -> tuple[str, str]:
    """A file's kind, with the mode of gauges, and its process."""
    kind, _, process = os.path.basename(path).removesuffix(".db").rpartition("_")
    return kind, process


def sums(files: Iterable[ValuesFile]) -> dict[str, float]:
    """The values of files of one kind, added up by their keys."""
    found: dict[str, float] = {}
    for file in files:
        if not found:
            found = dict(zip(file.keys, file.numbers, strict=True))
            continue
        for key, number in zip(file.keys, file.numbers, strict=True):
            found[key] = found.get(key, 0.0) + number
    return found


def gauges(paths: Iterable[str]) -> Iterable[Metric]:
    """Those of these files, by prometheus_client's own rules."""
    merge: Any = MultiProcessCollector.merge  # has no types
    found: Iterable[Metric] = merge(paths)
    return found

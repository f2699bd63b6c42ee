"""Adds up the files of prometheus_client's multiprocess mode, at little cost for each scrape.

Theory of operation. A process only adds entries to its files, and an entry keeps its place. So the
keys of a file are parsed once, and again when it has grown; a scrape in between only reads the
numbers, and adds those of one key. prometheus_client's own code would parse every entry of every
process at each scrape. It is left the gauges, which are few, and have rules of their own.
"""

from __future__ import annotations

import json
import os
import struct
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from ..imports import needs

with needs("wsgifast.metrics.merge", "prometheus_client", "prometheus"):
    from prometheus_client.core import Metric
    from prometheus_client.mmap_dict import MmapedDict
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.utils import floatToGoString

# Kinds whose values are added up, also those of processes that have ended; those of gauges are not.
ADDED_UP = frozenset({"counter", "histogram", "summary"})
# Reading a file that is being made, or was left unfinished, raises one of these.
UNREADABLE = (struct.error, RuntimeError, ValueError, FileNotFoundError)

# A file begins with the number of its bytes that are used.
_USED = struct.Struct("=i")
_HEAD_BYTES = 8
_VALUE_BYTES = 8
# Parsed keys that are remembered: as many as 1,500 series of both histograms of requests have.
_MOST_KEYS = 50_000


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

        :raises OSError, ValueError, RuntimeError, struct.error: if the file is incomplete.
        """
        data = os.pread(self._fd, self._used, 0)
        if not data:
            return  # it has just been created
        if _USED.unpack_from(data)[0] > self._used:
            self._find_values()
            data = os.pread(self._fd, self._used, 0)
        self.numbers = self._values.unpack_from(data)

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


def metrics_of(kind: str, values: Mapping[str, float]) -> Iterable[Metric]:
    """The metrics of a kind.

    :param values: by their keys.
    """
    metrics: dict[str, Metric] = {}
    # By metric and labels: a histogram's counts by their bounds, and the other samples.
    found: dict[tuple[str, _Labels], tuple[dict[float, float], dict[str, float]]] = {}
    for text, value in values.items():
        key = _parsed(kind, text)
        if key.metric not in metrics:
            metrics[key.metric] = Metric(key.metric, key.help, kind)
        counts, others = found.setdefault((key.metric, key.labels), ({}, {}))
        if key.bound is None:
            others[key.sample] = others.get(key.sample, 0.0) + value
        else:
            counts[key.bound] = counts.get(key.bound, 0.0) + value
    for (name, labels), (counts, others) in found.items():
        add, shown = metrics[name].add_sample, dict(labels)
        total = 0.0
        for bound, total in _accumulated(counts):
            add(f"{name}_bucket", {**shown, "le": bound}, total)
        if counts:
            add(f"{name}_count", shown, total)
        for sample, value in others.items():
            add(sample, shown, value)
    return metrics.values()


def _accumulated(counts: Mapping[float, float]) -> Iterator[tuple[str, float]]:
    as_text: Any = floatToGoString  # has no types
    bounds = sorted(counts)
    return zip(map(as_text, bounds), accumulate(map(counts.__getitem__, bounds)), strict=True)


def gauges(paths: Iterable[str]) -> Iterable[Metric]:
    """Those of these files, by prometheus_client's own rules."""
    merge: Any = MultiProcessCollector.merge  # has no types
    found: Iterable[Metric] = merge(paths)
    return found


_Labels = tuple[tuple[str, str], ...]


class _Key(NamedTuple):
    """What an entry's key says.

    :ivar labels: without the bound.
    :ivar bound: of a histogram's bucket; None for other samples.
    """

    metric: str
    sample: str
    labels: _Labels
    bound: float | None
    help: str


@lru_cache(_MOST_KEYS)
def _parsed(kind: str, text: str) -> _Key:
    metric, sample, labels, documentation = json.loads(text)
    bound = labels.pop("le", None) if kind == "histogram" else None
    at = None if bound is None else float(bound)
    return _Key(metric, sample, tuple(sorted(labels.items())), at, documentation)

"""Adds up the files of prometheus_client's multiprocess mode at each scrape, at little cost.

Theory of operation. A process only adds entries to its files, and an entry keeps its place. So the
names of entries, and the sum that each of them belongs to, are found once (a :class:`Layout`). That
holds until a file comes, goes or grows. A scrape in between only reads the numbers and adds
each to its sum; prometheus_client's own code would parse every entry at each scrape.

How numbers are added up is prometheus_client's rule, by a metric's kind and a gauge's mode. Gauges
that go by time are left to it.
"""

from __future__ import annotations

import json
import os
import struct
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from ..imports import needs
from .processes import pid_in

with needs("wsgifast.metrics.merge", "prometheus_client", "prometheus"):
    from prometheus_client.core import Metric, Sample
    from prometheus_client.mmap_dict import MmapedDict
    from prometheus_client.utils import floatToGoString

__all__ = ["Layout", "ValuesFile", "parts_of"]

# A file begins with the number of its bytes that are used.
_USED = struct.Struct("=i")
_HEAD_BYTES = 8
_VALUE_BYTES = 8


class ValuesFile:
    """One process's values of one kind.

    :ivar keys: the key of each value, as it is in the file.
    :ivar kind: "counter", "gauge_livesum", ...
    :raises OSError: if it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.kind, self.process = parts_of(path)
        self.keys: list[str] = []
        self.numbers: tuple[float, ...] = ()
        self._used = _HEAD_BYTES
        self._values = struct.Struct("=")
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._fd)

    def read(self) -> bool:
        """Read the numbers; return whether there are new ones among them.

        :raises OSError, ValueError, RuntimeError, struct.error: if the file is incomplete.
        """
        data = os.pread(self._fd, self._used, 0)
        if not data:
            return False  # it has just been created
        has_grown: bool = _USED.unpack_from(data)[0] > self._used
        if has_grown:
            self._find_values()
            data = os.pread(self._fd, self._used, 0)
        self.numbers = self._values.unpack_from(data)
        return has_grown

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


Labels = tuple[tuple[str, str], ...]
Add = Callable[[list[float], Iterable[int], Iterable[float]], None]


def _sum(sums: list[float], places: Iterable[int], numbers: Iterable[float]) -> None:
    for place, number in zip(places, numbers):  # noqa: B905 - of one length; this is the scrape
        sums[place] += number


def _greatest(sums: list[float], places: Iterable[int], numbers: Iterable[float]) -> None:
    for place, number in zip(places, numbers, strict=True):
        sums[place] = max(sums[place], number)


def _least(sums: list[float], places: Iterable[int], numbers: Iterable[float]) -> None:
    for place, number in zip(places, numbers, strict=True):
        sums[place] = min(sums[place], number)


class _Mode(NamedTuple):
    """How the values of several processes become one.

    :ivar start: the sum before the first value.
    """

    add: Add
    start: float = 0.0


_GREATEST, _LEAST = _Mode(_greatest, float("-inf")), _Mode(_least, float("inf"))
_MODES = {
    "counter": _Mode(_sum),
    "histogram": _Mode(_sum),
    "summary": _Mode(_sum),
    "gauge_all": _Mode(_sum),  # each process has its own place
    "gauge_liveall": _Mode(_sum),
    "gauge_sum": _Mode(_sum),
    "gauge_livesum": _Mode(_sum),
    "gauge_max": _GREATEST,
    "gauge_livemax": _GREATEST,
    "gauge_min": _LEAST,
    "gauge_livemin": _LEAST,
}
_FOR_EACH_PROCESS = ("gauge_all", "gauge_liveall")


class _Family:
    """A metric while its samples are being found.

    :ivar groups: by labels without a histogram's bounds: the start of each sample, by its name and
        bound.
    """

    def __init__(self, name: str, documentation: str, kind: str) -> None:
        self.metric = Metric(name, documentation, kind.partition("_")[0])
        self.groups: dict[Labels, dict[tuple[str, float | None], float]] = {}


class Layout:
    """Which value of which file belongs to which sample.

    :param files: have been read; :meth:`fits` is true for each.
    :ivar metrics: with samples whose values are their places among the sums.
    """

    def __init__(self, files: Sequence[ValuesFile]) -> None:
        found = _Found()
        keyed = [(file, [found.add(file, key) for key in file.keys]) for file in files]
        self._places: dict[_Key, int] = {}
        self._starts: list[float] = []
        # Of each histogram: its first bucket, and the place behind its last one.
        self._buckets: list[tuple[int, int]] = []
        self.metrics = [self._lay_out(family) for family in found.families.values()]
        self._files = [
            (file, _MODES[file.kind].add, [self._places[key] for key in keys])
            for file, keys in keyed
        ]

    @staticmethod
    def fits(file: ValuesFile) -> bool:
        return file.kind in _MODES

    def sums(self) -> list[float]:
        """Return the value of each sample, from the numbers last read."""
        sums = self._starts.copy()
        for file, add, places in self._files:
            add(sums, places, file.numbers)
        for first, behind in self._buckets:
            sums[first:behind] = accumulate(sums[first:behind])
            sums[behind] = sums[behind - 1]  # the count
        return sums

    def _lay_out(self, family: _Family) -> Metric:
        metric = family.metric
        for labels, samples in family.groups.items():
            bounds = sorted(key for key in samples if key[1] is not None)
            first = len(self._starts)
            for name, bound in bounds:
                self._place(metric, name, labels, bound, samples[name, bound])
            if bounds:
                self._buckets.append((first, len(self._starts)))
                self._place(metric, f"{metric.name}_count", labels, None, 0.0)
            for (name, bound), start in samples.items():
                if bound is None:
                    self._place(metric, name, labels, None, start)
        return metric

    def _place(
        self, metric: Metric, name: str, labels: Labels, bound: float | None, start: float
    ) -> None:
        as_text: Any = floatToGoString  # has no types
        shown = dict(labels) if bound is None else {**dict(labels), "le": as_text(bound)}
        place = len(self._starts)
        metric.samples.append(Sample(name, shown, place))
        self._places[metric.name, labels, name, bound] = place
        self._starts.append(start)


# A metric's name, the labels without a bound, the sample's name, and the bound.
_Key = tuple[str, Labels, str, float | None]


class _Found:
    """The samples found in files, by their metrics."""

    def __init__(self) -> None:
        self.families: dict[str, _Family] = {}
        self._keys: dict[tuple[str, str, str], _Key] = {}

    def add(self, file: ValuesFile, text: str) -> _Key:
        process = file.process if file.kind in _FOR_EACH_PROCESS else ""
        key = self._keys.get((file.kind, process, text))
        if key is None:
            key = self._keys[file.kind, process, text] = self._parse(file.kind, process, text)
        return key

    def _parse(self, kind: str, process: str, text: str) -> _Key:
        metric, name, labels, documentation = json.loads(text)
        bound = labels.pop("le", None) if kind == "histogram" else None
        if process:
            labels["pid"] = str(pid_in(process) or process)
        family = self.families.get(metric)
        if family is None:
            family = self.families[metric] = _Family(metric, documentation, kind)
        group = family.groups.setdefault(tuple(sorted(labels.items())), {})
        at = None if bound is None else float(bound)
        group[name, at] = _MODES[kind].start
        return metric, tuple(sorted(labels.items())), name, at

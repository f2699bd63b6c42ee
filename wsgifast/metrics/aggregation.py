"""Add up the metrics in the files of prometheus_client's multiprocess mode.

Each process has its own files, one for each kind of metric. The counters and histograms of a
process remain valid after its end. Workers may be replaced often. So the files of dead processes
are merged into one file for each kind. Otherwise the number of files, and the time of a scrape,
would grow with each replaced worker.

Theory of operation
-------------------
Merging. The merged file is written under a temporary name. A second file, the plan, lists the files
that the merged file replaces. The plan is also written under a temporary name, and then renamed.
Before this rename, the metrics files are unchanged. All steps after it can be repeated. If the
exporter is killed during these steps, the next exporter finds the plan, and carries it out before
it reads other files. Scrapes ignore replaced files that could not be removed.

Reading. A process only appends entries to its files, and an entry never moves. So the keys of a
file are parsed once, and again when the file has grown. All other scrapes only read the numbers,
and add up the numbers of equal keys. prometheus_client's code would parse every entry of every
process at each scrape. That code is used only for the gauges, which are few, and have special
rules.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from ..checks import needs
from .health import is_alive, pid_in
from .top import Scrape

with needs("wsgifast.metrics.aggregation", "prometheus_client", "prometheus"):
    from prometheus_client.core import Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.mmap_dict import MmapedDict
    from prometheus_client.multiprocess import MultiProcessCollector

# The kinds whose values are added up, also for ended processes. Gauges have other rules.
_ADDED_UP = frozenset({"counter", "histogram", "summary"})
# The errors from reading a file that is being written, or is incomplete.
UNREADABLE = (struct.error, RuntimeError, ValueError, FileNotFoundError)

# The name of the process in the names of merged files.
_DEAD = "wsgifast-dead"
_PLAN = "merging.json"
# The most parsed keys in the cache: more than a scrape usually has.
_PARSED_KEYS = 20_000
# The start of a file: the number of used bytes.
_USED = struct.Struct("=i")
_HEADER_BYTES = 8
_VALUE_BYTES = 8


class Directory:
    """The metrics files of several processes. Thread-safe.

    :param own: whether wsgifast made the directory. If so, :meth:`clean` also removes files with
        metrics of the app whose process has ended.
    """

    def __init__(self, path: str, *, own: bool) -> None:
        self.path = path
        self._own = own
        self._lock = threading.Lock()
        # The files of the kinds in _ADDED_UP, by path and inode.
        self._values: dict[tuple[str, int], _ValuesFile] = {}
        # The paths of files that are merged, but not removed yet.
        self._replaced: set[str] = set()

    def text(self, accept: str = "") -> tuple[str, bytes]:
        """Return the Content-Type and the text of the metrics, added up for all processes.

        :param accept: the client's Accept header.
        """
        with self._lock:
            metrics = self._read()
            encode, content_type = choose_encoder(accept)
            return content_type, encode(SimpleNamespace(collect=lambda: metrics))

    def scrape(self) -> Scrape:
        """Return the samples of all processes, added up."""
        with self._lock:
            return Scrape.of(time.monotonic(), self._read())

    def _read(self) -> list[Metric]:
        files = {file for file in self._files() if file[0] not in self._replaced}
        summed_files = {file for file in files if _parts_of(file[0])[0] in _ADDED_UP}
        for removed in self._values.keys() - summed_files:
            self._values.pop(removed).close()
        for new in summed_files - self._values.keys():
            self._values[new] = _ValuesFile(new[0])
        for file in self._values.values():
            file.read()
        merge: Any = MultiProcessCollector.merge  # has no types
        metrics: list[Metric] = list(merge(path for path, _ in files - summed_files))
        for metric in metrics:
            metric.samples = [_with_plain_pid(sample) for sample in metric.samples]
        for kind in _ADDED_UP:
            sums = _sums(file for file in self._values.values() if file.kind == kind)
            metrics += _added_up(kind, sums)
        return metrics

    def clean(self) -> None:
        """Remove the gauges of dead processes, and merge their counters and histograms."""
        with self._lock:
            self._carry_out_plan()
        dead: dict[str, list[str]] = defaultdict(list)
        alive: dict[str, bool] = {_DEAD: True}
        for path, _ in self._files():
            kind, process = _parts_of(path)
            if process not in alive:
                alive[process] = self._may_live(process)
            if not alive[process]:
                dead[kind].append(path)
        for kind, paths in dead.items():
            with self._lock:
                if kind in _ADDED_UP:
                    self._merge(kind, paths)
                elif kind.startswith("gauge_live"):
                    for path in paths:
                        os.unlink(path)

    def _files(self) -> list[tuple[str, int]]:
        """Return the path and the inode of each file.

        The inode shows whether a merged file was replaced. Empty files have just been created, and
        are ignored. The app may remove files at any time, by prometheus_client's
        mark_process_dead().
        """
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.name.endswith(".db") and entry.stat().st_size > 0:
                        found.append((entry.path, entry.inode()))
        return found

    def _may_live(self, process: str) -> bool:
        if pid_in(process) is None:
            # The name of a file with metrics of the app contains the pid without a start time. If
            # the user has chosen the directory, the user must remove such files.
            if not self._own or not process.isascii() or not process.isdecimal():
                return True
            process = f"wsgifast-{process}-0"  # 0 stands for an unknown start time
        return is_alive(process)

    # These methods need the lock.

    def _merge(self, kind: str, paths: Iterable[str]) -> None:
        """Merge files of dead processes into the file of their kind, and remove them.

        :raises OSError: if a file cannot be written or removed.
        """
        merged, temporary = self._merged(kind)
        _write(temporary, _sums(_readable([*paths, merged])))
        plan = os.path.join(self.path, _PLAN)
        with open(f"{plan}.tmp", "w") as file:
            json.dump({"kind": kind, "gone": [os.path.basename(path) for path in paths]}, file)
        os.replace(f"{plan}.tmp", plan)
        self._carry_out_plan()

    def _carry_out_plan(self) -> None:
        """Carry out the plan, if there is one.

        :raises OSError: if a file cannot be renamed or removed.
        """
        path = os.path.join(self.path, _PLAN)
        try:
            with open(path) as file:
                plan = json.load(file)
        except FileNotFoundError:
            return
        merged, temporary = self._merged(plan["kind"])
        with contextlib.suppress(FileNotFoundError):
            os.replace(temporary, merged)
        self._replaced = {self._path_of(name) for name in plan["gone"]}
        for replaced in self._replaced:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(replaced)
        os.unlink(path)
        self._replaced.clear()

    def _merged(self, kind: str) -> tuple[str, str]:
        """Return the path of the merged file of a kind, and its temporary path."""
        path = self._path_of(f"{kind}_{_DEAD}")
        return f"{path}.db", f"{path}.tmp"

    def _path_of(self, name: str) -> str:
        """Return a path in this directory, whatever name a changed plan may contain."""
        return os.path.join(self.path, os.path.basename(name))


def _readable(paths: Iterable[str]) -> Iterator[_ValuesFile]:
    """Return the files, without missing and incomplete ones."""
    for path in paths:
        with contextlib.suppress(*UNREADABLE):
            file = _ValuesFile(path)
            file.read()
            yield file


def _write(path: str, values: Mapping[str, float]) -> None:
    with open(path, "wb"):
        pass  # empties an incomplete file of an earlier attempt
    open_dict: Any = MmapedDict  # has no types
    written = open_dict(path)
    try:
        for key, value in values.items():
            written.write_value(key, value, 0.0)
    finally:
        written.close()


def _with_plain_pid(sample: Any) -> Any:
    """Return a sample whose label `pid` is the pid in place of the process's name."""
    pid = pid_in(sample.labels.get("pid", ""))
    return sample if pid is None else sample._replace(labels={**sample.labels, "pid": str(pid)})


class _ValuesFile:
    """The values of one kind, from one process.

    :ivar kind: "counter", "gauge_livesum", ...
    :ivar keys: the key of each value, as the JSON in the file.
    :ivar numbers: the values, in the order of `keys`.
    :raises OSError: if the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.kind, _ = _parts_of(path)
        self.keys: list[str] = []
        self.numbers: tuple[float, ...] = ()
        self._used = _HEADER_BYTES
        self._values = struct.Struct("=")
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._fd)

    def read(self) -> None:
        """Read the numbers, and new keys.

        :raises OSError, ValueError: if the file is incomplete.
        """
        data = os.pread(self._fd, self._used, 0)
        if not data:
            return  # the file has just been created
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
        self._used = end + _VALUE_BYTES  # a time follows each value


def _parts_of(path: str) -> tuple[str, str]:
    """Return a file's kind, which includes the mode of gauges, and its process."""
    kind, _, process = os.path.basename(path).removesuffix(".db").rpartition("_")
    return kind, process


def _sums(files: Iterable[_ValuesFile]) -> dict[str, float]:
    """Return the sums of the values with the same key, from files of one kind."""
    found: dict[str, float] = {}
    for file in files:
        if not found:
            found = dict(zip(file.keys, file.numbers, strict=True))
            continue
        for key, number in zip(file.keys, file.numbers, strict=True):
            found[key] = found.get(key, 0.0) + number
    return found


def _added_up(kind: str, values: Mapping[str, float]) -> Iterable[Metric]:
    """Return the metrics of one kind.

    :param values: the values by key, as in prometheus_client's files.
    """
    found: dict[str, Metric] = {}
    for key, value in values.items():
        name, sample, labels, help = _parsed(key)
        metric = found.get(name)
        if metric is None:
            metric = found[name] = Metric(name, help, kind)
        metric.add_sample(sample, labels, value)
    accumulate: Any = MultiProcessCollector._accumulate_metrics  # has no types
    metrics: Iterable[Metric] = accumulate(found, True)
    return metrics


@lru_cache(_PARSED_KEYS)
def _parsed(key: str) -> tuple[str, str, Any, str]:
    """Return the metric, the sample, the labels and the help text in a key."""
    name, sample, labels, help = json.loads(key)
    return name, sample, tuple(sorted(labels.items())), help

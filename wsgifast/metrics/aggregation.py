"""The files of prometheus_client's multiprocess mode, added up for a scrape.

Each process has its own files, one for each kind of metric. Counters and histograms still count
after their process has ended. Workers may be replaced often, so the files of dead ones are merged
into one file for each kind: otherwise each scrape would have to read more files than the last.

Theory of operation
-------------------
Merging. The merged file is written under a temporary name. Then a plan, which names the files that
it replaces, is put in place by one rename. Before the rename nothing has changed. After it only
steps remain that can be repeated. If the exporter is killed in between, the next one finds the plan
and carries it out before it reads any of the files. A file that the plan could not remove is left
out of scrapes.

Reading. A process only adds entries to its files, and an entry never moves. So the keys of a file
are parsed once, and again when it has grown. A scrape in between only reads the numbers, and adds
those of one key. prometheus_client's own code would parse every entry of every process at each
scrape. It reads only the gauges, which are few, and have rules of their own.
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

# Kinds with values that are added up, also those of ended processes. Gauges are not.
_ADDED_UP = frozenset({"counter", "histogram", "summary"})
# Reading a file that is being made, or was left unfinished, raises one of these.
UNREADABLE = (struct.error, RuntimeError, ValueError, FileNotFoundError)

# The name of the process in the names of merged files.
_DEAD = "wsgifast-dead"
_PLAN = "merging.json"
# Keys that are remembered as they were parsed: more than a scrape usually has.
_PARSED_KEYS = 20_000
# A file begins with the number of its bytes that are used.
_USED = struct.Struct("=i")
_HEADER_BYTES = 8
_VALUE_BYTES = 8


class Directory:
    """The files of several processes. Any thread may call.

    :param own: whether wsgifast made the directory. If so, files of the app's own metrics are
        cleaned up as well.
    """

    def __init__(self, path: str, *, own: bool) -> None:
        self.path = path
        self._own = own
        self._lock = threading.Lock()
        # Of kinds that are added up, by path and inode.
        self._values: dict[tuple[str, int], _ValuesFile] = {}
        # Merged, and not removed yet.
        self._replaced: set[str] = set()

    def text(self, accept: str = "") -> tuple[str, bytes]:
        """Return the Content-Type, and the metrics of all processes, added up.

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
        lasting = {file for file in files if _parts_of(file[0])[0] in _ADDED_UP}
        for gone in self._values.keys() - lasting:
            self._values.pop(gone).close()
        for new in lasting - self._values.keys():
            self._values[new] = _ValuesFile(new[0])
        for file in self._values.values():
            file.read()
        merge: Any = MultiProcessCollector.merge  # has no types
        gauges: list[Metric] = list(merge(path for path, _ in files - lasting))
        for metric in gauges:
            metric.samples = [_with_plain_pid(sample) for sample in metric.samples]
        for kind in _ADDED_UP:
            own = _sums(file for file in self._values.values() if file.kind == kind)
            gauges += _added_up(kind, own)
        return gauges

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
        """The path and the inode of each: a merged file is replaced by one of the same name.

        An empty file has just been created, and one that vanishes is the app's, removed by its
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
            # Files of an app's own metrics have only the pid in their names. In a directory that
            # the user has chosen, cleaning them up is left to the user.
            if not self._own or not process.isascii() or not process.isdecimal():
                return True
            process = f"wsgifast-{process}-0"  # as if its start were not known
        return is_alive(process)

    # With the lock.

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
        """:raises OSError: if a file cannot be renamed or removed."""
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
        """The merged file of a kind, and its temporary name."""
        path = self._path_of(f"{kind}_{_DEAD}")
        return f"{path}.db", f"{path}.tmp"

    def _path_of(self, name: str) -> str:
        """The path of a file of a plan, which may have been written by others: a file in here."""
        return os.path.join(self.path, os.path.basename(name))


def _readable(paths: Iterable[str]) -> Iterator[_ValuesFile]:
    """Files, but for those that are not there or were left unfinished."""
    for path in paths:
        with contextlib.suppress(*UNREADABLE):
            file = _ValuesFile(path)
            file.read()
            yield file


def _write(path: str, values: Mapping[str, float]) -> None:
    with open(path, "wb"):
        pass  # one may have been left unfinished
    open_dict: Any = MmapedDict  # has no types
    written = open_dict(path)
    try:
        for key, value in values.items():
            written.write_value(key, value, 0.0)
    finally:
        written.close()


def _with_plain_pid(sample: Any) -> Any:
    """Replace the name of a process by its pid."""
    pid = pid_in(sample.labels.get("pid", ""))
    return sample if pid is None else sample._replace(labels={**sample.labels, "pid": str(pid)})


class _ValuesFile:
    """One process's values of one kind.

    :ivar kind: "counter", "gauge_livesum", ...
    :ivar keys: the key of each value, as it is in the file.
    :raises OSError: if it cannot be opened.
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


def _parts_of(path: str) -> tuple[str, str]:
    """A file's kind, with the mode of gauges, and its process."""
    kind, _, process = os.path.basename(path).removesuffix(".db").rpartition("_")
    return kind, process


def _sums(files: Iterable[_ValuesFile]) -> dict[str, float]:
    """The values of files of one kind, added up by their keys."""
    found: dict[str, float] = {}
    for file in files:
        if not found:
            found = dict(zip(file.keys, file.numbers, strict=True))
            continue
        for key, number in zip(file.keys, file.numbers, strict=True):
            found[key] = found.get(key, 0.0) + number
    return found


def _added_up(kind: str, values: Mapping[str, float]) -> Iterable[Metric]:
    """The metrics of one kind, from values by their keys in prometheus_client's files."""
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
    """The metric, the sample, its labels, and the help of a key."""
    name, sample, labels, help = json.loads(key)
    return name, sample, tuple(sorted(labels.items())), help

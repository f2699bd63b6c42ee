"""The files of prometheus_client's multiprocess mode, added up for a scrape.

Each process has its own files, one for each kind of metric. Counters and histograms still count
after their process has ended. Workers may be replaced often, so the files of dead ones are merged
into one file for each kind: otherwise each scrape would have to read more files than the last.

The values of all processes are added up by their keys, and each key is parsed once.
prometheus_client's own code would parse every entry of every process at each scrape. It is left the
gauges, which are few, and have rules of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from ..checks import needs
from .health import is_alive, pid_in

with needs("wsgifast.metrics.aggregation", "prometheus_client", "prometheus"):
    from prometheus_client.core import Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.mmap_dict import MmapedDict
    from prometheus_client.multiprocess import MultiProcessCollector

# Kinds whose values are added up, also those of processes that have ended; those of gauges are not.
_ADDED_UP = frozenset({"counter", "histogram", "summary"})
# Reading a file that is being made, or was left unfinished, raises one of these.
UNREADABLE = (struct.error, RuntimeError, ValueError, FileNotFoundError)

# The name of the process in the names of merged files.
_DEAD = "wsgifast-dead"
_ATTEMPTS = 3
# Keys that are remembered as they were parsed: more than a scrape usually has.
_PARSED_KEYS = 20_000

# The values of a file, and their keys.
Values = list[tuple[str, float]]


class Directory:
    """The files of several processes; any thread may call.

    :param own: whether wsgifast made the directory: then files of the app's own metrics are cleaned
        up as well.
    """

    def __init__(self, path: str, *, own: bool) -> None:
        self.path = path
        self._own = own
        self._lock = threading.Lock()

    def text(self, accept: str = "") -> tuple[str, bytes]:
        """The metrics of all processes, added up; and before it, its Content-Type.

        :param accept: the client's Accept header.
        """
        with self._lock:
            for attempt in range(_ATTEMPTS):
                try:
                    metrics = self._read()
                    break
                except UNREADABLE:
                    if attempt == _ATTEMPTS - 1:
                        raise
            encode, content_type = choose_encoder(accept)
            return content_type, encode(SimpleNamespace(collect=lambda: metrics))

    def _read(self) -> list[Metric]:
        by_kind: dict[str, list[str]] = defaultdict(list)
        gauges: list[str] = []
        for path in self._files():
            kind, _ = _parts_of(path)
            if kind in _ADDED_UP:
                by_kind[kind].append(path)
            else:
                gauges.append(path)
        found = list(_gauges(gauges))
        for metric in found:
            metric.samples = [_with_plain_pid(sample) for sample in metric.samples]
        for kind, paths in by_kind.items():
            found += _added_up(kind, _sums(map(_values_of, paths)))
        return found

    def clean(self) -> None:
        """Remove the gauges of dead processes, and merge their counters and histograms."""
        dead: dict[str, list[str]] = defaultdict(list)
        alive: dict[str, bool] = {_DEAD: True}
        for path in self._files():
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

    def _files(self) -> list[str]:
        with os.scandir(self.path) as entries:
            return [entry.path for entry in entries if _has_values(entry)]

    def _may_live(self, process: str) -> bool:
        if pid_in(process) is not None:
            return is_alive(process)
        # Files of an app's own metrics have only the pid in their names. In a directory that the
        # user has chosen, cleaning them up is left to the user.
        if not self._own or not process.isascii() or not process.isdecimal():
            return True
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass
        return True

    def _merge(self, kind: str, paths: Iterable[str]) -> None:
        """Merge files of dead processes into the file of their kind, and remove them.

        :raises OSError: if a file cannot be written or removed.
        """
        merged = os.path.join(self.path, f"{kind}_{_DEAD}.db")
        temporary = f"{merged}.tmp"
        _write(temporary, _sums(_readable([*paths, merged])))
        os.replace(temporary, merged)
        for path in paths:
            os.unlink(path)


def _has_values(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".db") and entry.stat().st_size > 0


def _readable(paths: Iterable[str]) -> Iterator[Values]:
    """The values of files, but for those that are not there or were left unfinished."""
    for path in paths:
        with contextlib.suppress(*UNREADABLE):
            yield _values_of(path)


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


def _values_of(path: str) -> Values:
    """A file's values by their keys.

    :raises OSError, ValueError: if it is not there, or incomplete.
    """
    read: Any = MmapedDict.read_all_values_from_file  # has no types
    try:
        return [(key, value) for key, value, _, _ in read(path)]
    except (struct.error, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} has no values of metrics: {error}") from error


def _parts_of(path: str) -> tuple[str, str]:
    """A file's kind, with the mode of gauges, and its process."""
    kind, _, process = os.path.basename(path).removesuffix(".db").rpartition("_")
    return kind, process


def _sums(files: Iterable[Values]) -> dict[str, float]:
    """The values of files of one kind, added up by their keys."""
    found: dict[str, float] = defaultdict(float)
    for values in files:
        for key, value in values:
            found[key] += value
    return found


def _gauges(paths: Iterable[str]) -> Iterable[Metric]:
    """Those of these files, by prometheus_client's own rules."""
    merge: Any = MultiProcessCollector.merge  # has no types
    found: Iterable[Metric] = merge(paths)
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

"""The directory of prometheus_client's multiprocess mode, and the files of dead processes in it.

Each process has its own files, one for each kind of metric. Counters and histograms still count
after their process has ended. Workers may be replaced often, so the files of dead ones are merged:
otherwise each scrape would have to read more files than the last.
"""

from __future__ import annotations

import copy
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from .dead import DEAD, UNREADABLE, finish, merged, put_together
from .merge import Layout, ValuesFile, parts_of
from .processes import is_alive, pid_in

__all__ = ["Directory"]

# Kinds whose values still count after their process has ended; those of gauges do not.
_LASTING = frozenset({"counter", "histogram", "summary"})
_ATTEMPTS = 3


class Directory:
    """The files of several processes; any thread may call.

    :param own: whether wsgifast made the directory: then files of the app's own metrics are cleaned
        up as well.
    """

    def __init__(self, path: str, *, own: bool) -> None:
        self.path = path
        self._own = own
        self._lock = threading.Lock()
        # By path and inode.
        self._values: dict[tuple[str, int], ValuesFile] = {}
        self._layout: Layout | None = None

    def collect(self) -> Iterator[Any]:
        """The metrics of all processes, added up; called by prometheus_client's registries."""
        with self._lock:
            layout = self._read()
            if layout is None:
                metrics = list(self._merged_by_time())
            else:
                values = layout.sums()
                metrics = [_with_values(metric, values) for metric in layout.metrics]
        yield from metrics

    def _read(self) -> Layout | None:
        """Read all files again; None if only prometheus_client can add them up."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._read_once()
            except UNREADABLE:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _read_once(self) -> Layout | None:
        with os.scandir(self.path) as entries:
            # The inode too: a merged file is replaced by a new one of the same name.
            there = {(e.path, e.inode()) for e in entries if e.name.endswith(".db")}
        for gone in self._values.keys() - there:
            self._values.pop(gone).close()
            self._layout = None
        for new in there - self._values.keys():
            self._values[new] = ValuesFile(new[0])
            self._layout = None
        for file in self._values.values():
            if file.read():
                self._layout = None
        if not all(map(Layout.fits, self._values.values())):
            return None
        if self._layout is None:
            self._layout = Layout(list(self._values.values()))
        return self._layout

    def _merged_by_time(self) -> Iterator[Any]:
        for metric in merged(self._files(), accumulate=True):
            metric.samples = [_with_plain_pid(sample) for sample in metric.samples]
            yield metric

    def processes(self) -> set[str]:
        """Live processes of this server that have files in the directory."""
        names = {parts_of(path)[1] for path in self._files()}
        return {name for name in names if is_alive(name)}

    def clean(self) -> None:
        """Remove the gauges of dead processes, and merge their counters and histograms."""
        with self._lock:
            finish(self.path)
        dead: dict[str, list[str]] = defaultdict(list)
        alive: dict[str, bool] = {DEAD: True}
        for path in self._files():
            kind, process = parts_of(path)
            if process not in alive:
                alive[process] = self._may_live(process)
            if not alive[process]:
                dead[kind].append(path)
        for kind, paths in dead.items():
            with self._lock:
                if kind in _LASTING:
                    put_together(self.path, kind, paths)
                elif kind.startswith("gauge_live"):
                    for path in paths:
                        os.unlink(path)

    def _files(self) -> list[str]:
        with os.scandir(self.path) as entries:
            # An empty file has just been created.
            return [e.path for e in entries if e.name.endswith(".db") and e.stat().st_size]

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


def _with_values(metric: Any, values: Sequence[float]) -> Any:
    made = copy.copy(metric)
    made.samples = [sample._replace(value=values[sample.value]) for sample in metric.samples]
    return made


def _with_plain_pid(sample: Any) -> Any:
    """Replace the name of a process by its pid."""
    pid = pid_in(sample.labels.get("pid", ""))
    return sample if pid is None else sample._replace(labels={**sample.labels, "pid": str(pid)})

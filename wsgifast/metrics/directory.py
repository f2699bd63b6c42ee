"""The directory of prometheus_client's multiprocess mode, and the files of dead processes in it.

Each process has its own files, one for each kind of metric. Counters and histograms still count
after their process has ended. Workers may be replaced often, so the files of dead ones are merged
into one file for each kind: otherwise each scrape would have to read more files than the last.

Theory of operation of merging. The merged file is written under a temporary name. Then a plan,
which names the files that it replaces, is put in place by one rename. Before the rename nothing has
changed; after it only steps remain that can be repeated. If the exporter is killed in between, the
next one finds the plan and carries it out before it reads any of the files.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from prometheus_client.mmap_dict import MmapedDict

from .exposition import text_format
from .merge import ADDED_UP, UNREADABLE, ValuesFile, gauges, parts_of, sums
from .processes import is_alive, pid_in

# The name of the process in the names of merged files.
_DEAD = "wsgifast-dead"
_PLAN = "merging.json"
_ATTEMPTS = 3
# Formats whose lines are kept: Prometheus always asks for the same.
_MOST_FORMATS = 4


class Directory:
    """The files of several processes; any thread may call.

    :param own: whether wsgifast made the directory: then files of the app's own metrics are cleaned
        up as well.
    """

    def __init__(self, path: str, *, own: bool) -> None:
        self.path = path
        self._own = own
        self._lock = threading.Lock()
        self._format = lru_cache(_MOST_FORMATS)(text_format)
        # Of kinds that are added up, by path and inode.
        self._values: dict[tuple[str, int], ValuesFile] = {}

    def text(self, accept: str = "") -> tuple[str, bytes]:
        """The metrics of all processes, added up; and before it, its Content-Type.

        :param accept: the client's Accept header.
        """
        with self._lock:
            for attempt in range(_ATTEMPTS):
                try:
                    values, others = self._read()
                    break
                except UNREADABLE:
                    if attempt == _ATTEMPTS - 1:
                        raise
            chosen = self._format(accept)
            return chosen.content_type, chosen.text(values, others)

    def _read(self) -> tuple[dict[str, dict[str, float]], list[Any]]:
        """Of each kind that is added up the values by their keys; and the gauges."""
        with os.scandir(self.path) as entries:
            # The inode too: a merged file is replaced by a new one of the same name. An empty file
            # has just been created.
            files = {(e.path, e.inode()) for e in entries if _has_values(e)}
        lasting = {file for file in files if parts_of(file[0])[0] in ADDED_UP}
        for gone in self._values.keys() - lasting:
            self._values.pop(gone).close()
        for new in lasting - self._values.keys():
            self._values[new] = ValuesFile(new[0])
        for file in self._values.values():
            file.read()
        values = {
            kind: sums(file for file in self._values.values() if file.kind == kind)
            for kind in ADDED_UP
        }
        others = list(gauges(path for path, _ in files - lasting))
        for metric in others:
            metric.samples = [_with_plain_pid(sample) for sample in metric.samples]
        return values, others

    def processes(self) -> set[str]:
        """Live processes of this server that have files in the directory."""
        names = {parts_of(path)[1] for path in self._files()}
        return {name for name in names if is_alive(name)}

    def clean(self) -> None:
        """Remove the gauges of dead processes, and merge their counters and histograms."""
        with self._lock:
            self._carry_out_plan()
        dead: dict[str, list[str]] = defaultdict(list)
        alive: dict[str, bool] = {_DEAD: True}
        for path in self._files():
            kind, process = parts_of(path)
            if process not in alive:
                alive[process] = self._may_live(process)
            if not alive[process]:
                dead[kind].append(path)
        for kind, paths in dead.items():
            with self._lock:
                if kind in ADDED_UP:
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

    # With the lock.

    def _merge(self, kind: str, paths: Iterable[str]) -> None:
        """Merge files of dead processes into the file of their kind, and remove them.

        :raises OSError: if a file cannot be written or removed.
        """
        merged, temporary = self._merged(kind)
        _write(temporary, sums(_readable([*paths, merged])))
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
        for name in plan["gone"]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path_of(name))
        os.unlink(path)

    def _merged(self, kind: str) -> tuple[str, str]:
        """The merged file of a kind, and its temporary name."""
        path = self._path_of(f"{kind}_{_DEAD}")
        return f"{path}.db", f"{path}.tmp"

    def _path_of(self, name: str) -> str:
        """The path of a file of a plan, which may have been written by others: a file in here."""
        return os.path.join(self.path, os.path.basename(name))


def _has_values(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".db") and entry.stat().st_size > 0


def _readable(paths: Iterable[str]) -> Iterator[ValuesFile]:
    """Files, but for those that are not there or were left unfinished."""
    for path in paths:
        with contextlib.suppress(*UNREADABLE):
            file = ValuesFile(path)
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

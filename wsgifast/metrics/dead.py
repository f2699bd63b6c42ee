"""Merges the files of dead processes into one file for each kind, so that all is counted once.

Theory of operation. The merged file is written under a temporary name. Then a plan, which names the
files that it replaces, is put in place by one rename. Before the rename nothing has changed; after
it only steps remain that can be repeated. If the exporter is killed in between, the next one finds
the plan and carries it out before it reads any of the files.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterable
from typing import Any

from ..imports import needs

with needs("wsgifast.metrics.dead", "prometheus_client", "prometheus"):
    from prometheus_client.mmap_dict import MmapedDict, mmap_key
    from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["DEAD", "UNREADABLE", "finish", "merged", "put_together"]

# The name of the process in the names of merged files.
DEAD = "wsgifast-dead"
# Reading a file that is being made, or was left unfinished, raises one of these.
UNREADABLE = (struct.error, RuntimeError, ValueError, FileNotFoundError)

_PLAN = "merging.json"


def put_together(directory: str, kind: str, paths: Iterable[str]) -> None:
    """Merge files of dead processes into the file of their kind, and remove them.

    :param kind: of the files; one whose values still count after the end of their process.
    :raises OSError: if a file cannot be written or removed.
    """
    finish(directory)
    gone = list(paths)
    whole = _whole(directory, kind)
    _write(_made(directory, kind), [path for path in [*gone, whole] if _is_readable(path)])
    plan = os.path.join(directory, _PLAN)
    with open(f"{plan}.tmp", "w") as file:
        json.dump({"kind": kind, "gone": [os.path.basename(path) for path in gone]}, file)
    os.replace(f"{plan}.tmp", plan)
    finish(directory)


def finish(directory: str) -> None:
    """Carry out a plan, if one was left.

    :raises OSError: if a file cannot be written or removed.
    """
    path = os.path.join(directory, _PLAN)
    try:
        with open(path) as file:
            plan = json.load(file)
    except FileNotFoundError:
        return
    with contextlib.suppress(FileNotFoundError):
        os.replace(_made(directory, plan["kind"]), _whole(directory, plan["kind"]))
    for name in plan["gone"]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))
    os.unlink(path)


def merged(paths: Iterable[str], *, accumulate: bool) -> Iterable[Any]:
    """prometheus_client's own sum of files."""
    merge: Any = MultiProcessCollector.merge  # has no types
    found: Iterable[Any] = merge(paths, accumulate=accumulate)
    return found


def _whole(directory: str, kind: str) -> str:
    return os.path.join(directory, f"{kind}_{DEAD}.db")


def _made(directory: str, kind: str) -> str:
    return os.path.join(directory, f"{kind}_{DEAD}.tmp")


def _write(path: str, files: Iterable[str]) -> None:
    with open(path, "wb"):
        pass  # one may have been left unfinished
    open_dict: Any = MmapedDict  # has no types
    values = open_dict(path)
    try:
        for metric in merged(files, accumulate=False):
            for sample in metric.samples:
                key = mmap_key(
                    metric.name, sample.name, list(sample.labels), list(sample.labels.values()),
                    metric.documentation,
                )  # fmt: skip
                values.write_value(key, sample.value, 0.0)
    finally:
        values.close()


def _is_readable(path: str) -> bool:
    try:
        merged([path], accumulate=False)
    except UNREADABLE:
        return False
    return True

"""What dead processes have counted, put together in one file of each kind, and counted once.

Theory of operation. The file that is to replace those of the dead is made aside. Then a plan that
names it and them is put in place by one rename: before it nothing has been done, and behind it all
of it is, but for steps that each can be taken again. So whoever is killed in between leaves a plan
that the next one carries out before it looks at any of the files.
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

# The process that the files put together are of.
DEAD = "wsgifast-dead"
# A file that is being made, or was left unfinished, cannot be read.
UNREADABLE = (struct.error, RuntimeError, ValueError, FileNotFoundError)

_PLAN = "merging.json"


def put_together(directory: str, kind: str, paths: Iterable[str]) -> None:
    """Add files of dead processes to what is there of others, and remove them.

    :param kind: the files'; of metrics that count on behind a process's end.
    :raises OSError: if that cannot be done.
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

    :raises OSError: if that cannot be done.
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

"""StaticFiles beside WhiteNoise, behind the same gunicorn gthread worker, and in large trees.

    python -m loadtests.static_files [--profile release]

With nginx as the limit. Without a server: `python -m loadtests.calls static`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from whitenoise import WhiteNoise

from wsgifast import StaticFiles

from .bench import BYTES, Client, Contender, Load, Row, Table, Task, Unit, gunicorn, raw, wrk
from .command import main
from .peers import nginx
from .shapes import FILE_BYTES, MIB, PAYLOADS, payload_files

__all__ = ["MILLISECONDS", "TABLES", "no_app", "start_up", "static_app", "whitenoise_app"]

RANGE = (f"Range: bytes={3 * MIB}-{4 * MIB - 1}",)
FEW_FILES, MANY_FILES = 10, 100_000


def whitenoise_app(root: str = str(PAYLOADS)) -> Any:
    """WhiteNoise as its documentation deploys it: all files known at the start."""
    return WhiteNoise(no_app, root=root, prefix="/")


def static_app(root: str = str(PAYLOADS)) -> StaticFiles:
    return StaticFiles(directory=root)


def no_app(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("404 Not Found", [("Content-Length", "0")])
    return []


def _served(path: str) -> tuple[Contender, ...]:
    return (
        Contender("WhiteNoise", gunicorn("loadtests.static_files:whitenoise_app()"), path),
        Contender("StaticFiles", gunicorn("loadtests.static_files:static_app()"), path),
        Contender("nginx", nginx(), path),
    )


def _tree(count: int) -> Contender:
    """One file of a tree of so many."""
    server = gunicorn(f"loadtests.static_files:static_app('{{folder}}/{count}')")
    return Contender(f"{count:,} files", server, "/0/0.txt")


def start_up(script: str, arguments: Callable[[Path], tuple[str, ...]]) -> Client:
    """Seconds to make an app in a process of its own.

    :param script: prints them, and other figures by their names, in JSON.
    :param arguments: the script's, of the run's folder.
    """

    def run(task: Task) -> Load:
        command = [sys.executable, "-c", script, *arguments(task.folder)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        seconds, facts = json.loads(ran.stdout)
        return Load(1, 0, 0, seconds, facts=facts)

    return run


def _start_up(count: int) -> Client:
    return start_up(_START_UP, lambda folder: (str(folder / str(count)),))


_START_UP = """
import json, resource, sys, time
from wsgifast import StaticFiles
most_mb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, start = most_mb(), time.perf_counter()
StaticFiles(directory=sys.argv[1])
print(json.dumps([time.perf_counter() - start, {"MB more": most_mb() - before}]))
"""
MILLISECONDS = Unit("start, ms", lambda m: m.load.seconds * 1e3)


ROWS = [
    Row("static.small", "1 KiB", _served("/1024.bin"), wrk(8)),
    Row("static.large", "10 MiB", _served(f"/{FILE_BYTES}.bin"), raw(), BYTES),
    Row(
        "static.ranges", "1 MiB ranges of it", _served(f"/{FILE_BYTES}.bin"), raw(), BYTES,
        headers=RANGE,
    ),
]  # fmt: skip
TREES = [
    Row(
        "static.start",
        "start by the size of the tree",
        tuple(
            Contender(f"{count:,} files", client=_start_up(count))
            for count in (FEW_FILES, MANY_FILES)
        ),
        _start_up(FEW_FILES),
        MILLISECONDS,
        http=False,
    ),
    Row(
        "static.tree", "1 KiB by the size of the tree",
        (_tree(FEW_FILES), _tree(MANY_FILES)), wrk(8),
    ),
]  # fmt: skip


def prepare_trees(folder: Path) -> None:
    """Two trees of files of 1 KiB, a thousand in each of their folders."""
    content = bytes(1024)
    for count in (FEW_FILES, MANY_FILES):
        for number in range(count):
            path = folder / str(count) / str(number // 1000) / f"{number % 1000}.txt"
            if number % 1000 == 0:
                path.parent.mkdir(parents=True)
            path.write_bytes(content)


TABLES = [
    Table(
        "static-files",
        "StaticFiles beside WhiteNoise on a gthread worker",
        ROWS,
        payload_files(1024, FILE_BYTES),
    ),
    Table("static-trees", "StaticFiles by the size of the tree", TREES, prepare_trees),
]

if __name__ == "__main__":
    raise SystemExit(main("loadtests.static_files", __doc__, TABLES))

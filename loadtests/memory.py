"""Memory of a large download over time: Django's FileResponse under ASGI, Django's own and ours.

    python -m loadtests.memory [--profile release]

uvicorn, one process, new for each download. Django's own handler holds all of a file in memory, so
that its file is 256 MiB; of the one of 10 GiB the first GiB is read, with `--profile release` all
of it. The files are sparse, and read into the page cache before: the kernel's sendfile takes
seconds for each GB of a hole that is not there.
"""

from __future__ import annotations

import http.client
import os
import time
from dataclasses import replace
from pathlib import Path

from .bench import Contender, Load, Row, Table, Task, Unit, resident_bytes
from .command import main
from .peers import uvicorn
from .shapes import LARGE_FOLDER_VARIABLE, MIB

__all__ = ["TABLES"]

BOUNDED_BYTES, LARGE_BYTES = 256 * MIB, 10 * 1024 * MIB
# Of the large file, where only a short look is asked for.
SHORT_BYTES = 1024 * MIB
LOOKS = 100
MEMORY = Unit(
    "MiB more", lambda m: m.load.facts["at most, MiB"],
    "CPU s/GB", lambda m: m.cpu_s_per_gb, difference=True,
)  # fmt: skip


def watched(task: Task) -> Load:
    """Download once, after a small page, and look at the server's memory meanwhile."""
    buffer = memoryview(bytearray(MIB))
    whole = int(task.path.rpartition("/")[2])
    size = whole if task.full else min(whole, SHORT_BYTES)
    with open(task.folder / f"{whole}.bin", "rb", buffering=0) as file:
        while file.tell() < size:
            file.readinto(buffer)
    connection = http.client.HTTPConnection(*task.address, timeout=60)
    try:
        _get(connection, "/page").read()
        before = resident_bytes(task.pid)
        begun, cpu = time.perf_counter(), time.process_time()
        answer = _get(connection, task.path)
        received = 0
        looks: list[float] = []
        while received < size and (count := answer.readinto(buffer)):
            received += count
            if received * LOOKS >= size * (len(looks) + 1):
                looks.append((resident_bytes(task.pid) - before) / MIB)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    finally:
        connection.close()
    came = received >= size
    quarters = {f"at {n}/4, MiB": looks[n * len(looks) // 4 - 1] for n in (1, 2, 3, 4)}
    facts = {"at most, MiB": max(looks), **quarters, "MB/s": received / 1e6 / seconds}
    return Load(int(came), int(not came), received, seconds, client_cpu_s=cpu, facts=facts)


def _get(connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
    connection.request("GET", path)
    return connection.getresponse()


def _contender(name: str, factory: str, size: int, *, ours: bool = True) -> Contender:
    server = uvicorn(f"loadtests.django_files:{factory}", "--factory", ours=ours)
    server = replace(server, env=((LARGE_FOLDER_VARIABLE, "{folder}"),))
    return Contender(name, server, f"/large/{size}", fresh=True)


def prepare(folder: Path) -> None:
    for size in (BOUNDED_BYTES, LARGE_BYTES):
        path = folder / f"{size}.bin"
        path.touch()
        os.truncate(path, size)


TABLES = [
    Table(
        "memory",
        "Memory of a large download",
        [
            Row(
                "memory.django",
                "FileResponse under ASGI",
                (
                    _contender("Django, 256 MiB", "asgi", BOUNDED_BYTES, ours=False),
                    _contender("ours, 256 MiB", "fast_asgi", BOUNDED_BYTES),
                    _contender("ours, 10 GiB", "fast_asgi", LARGE_BYTES),
                    _contender(
                        "ours on uvicorn's protocol, 10 GiB", "fast_asgi", LARGE_BYTES, ours=False
                    ),
                ),
                watched,
                MEMORY,
                rounds=1,
            )
        ],
        prepare,
    )
]

if __name__ == "__main__":
    raise SystemExit(main("loadtests.memory", __doc__, TABLES))

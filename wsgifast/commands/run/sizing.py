"""Computes the number of workers from the CPUs and the memory of a container, and the app's memory.

:func:`read_container` and :func:`temporary_note` read /proc and /sys. Tests pass another root
folder with such files.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...checks import size_text

# The ratio of a worker's memory after many requests to that after the import of its app. Requests,
# caches, compressors and data of the app need memory.
_GROWTH = 1.5
# Memory for gunicorn's arbiter, the process for metrics, and the socket buffers of the kernel.
_OTHERS_BYTES = 64 * 1024 * 1024
# File systems where temporary files should not be, and the resource that the files use there.
_SCARCE = {"tmpfs": "memory", "ramfs": "memory", "overlay": "the container's writable layer"}


@dataclass(frozen=True)
class Container:
    """The resources that this process may use.

    :ivar cpus: the number of CPUs, which may be a fraction.
    :ivar cpus_by: the name of the limit of the CPUs: "quota", "affinity", or "machine".
    """

    cpus: float
    cpus_by: str
    memory_bytes: int


def read_container(root: Path = Path("/")) -> Container:
    """Return the resources of this process, with the limits of cgroups v1 and v2.

    :param root: the folder that contains /proc and /sys.
    """
    machine = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    cpus, cpus_by = float(affinity), "machine" if affinity == machine else "affinity"
    for quota in _quotas(root):
        if quota < cpus:
            cpus, cpus_by = quota, "quota"
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Container(cpus, cpus_by, min([machine_bytes, *_memory_limits(root)]))


def size(container: Container, worker_bytes: int, *, spare: int) -> tuple[int, str]:
    """Return the number of workers, and the reason for the user.

    :param worker_bytes: the memory of a worker that has imported the app. 0 if not known.
    :param spare: the number of additional workers while workers are replaced.
    """
    by_cpus = max(1, math.ceil(container.cpus))
    cpus = f"{container.cpus:g} CPU{'s' * (container.cpus != 1)} of the {container.cpus_by}"
    if not worker_bytes:
        return by_cpus, f"{_workers(by_cpus)}: {cpus}"
    room_bytes = container.memory_bytes - _OTHERS_BYTES
    by_memory = int(room_bytes / (worker_bytes * _GROWTH)) - spare
    if by_memory >= by_cpus:
        return by_cpus, f"{_workers(by_cpus)}: {cpus}. The memory is enough for {by_memory}"
    workers = max(1, by_memory)
    reason = (
        f"{size_text(container.memory_bytes)} of memory, and {size_text(worker_bytes)} for each "
        f"worker that has imported the app. {cpus}"
    )
    if by_memory < 1:
        reason += ". The memory is too small for a worker and its replacement at the same time"
    return workers, f"{_workers(workers)}: {reason}"


def temporary_note(folder: str | None = None, root: Path = Path("/")) -> str | None:
    """Return a warning about the folder of temporary files. None if its file system is suitable.

    :param folder: the folder. None for that of Python's tempfile.
    """
    folder = os.path.realpath(folder or tempfile.gettempdir())
    kinds = {}
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")  # proc_pid_mountinfo(5)
        kinds[before.split()[4].replace("\\040", " ")] = after.split()[0]
    within = [each for each in kinds if folder == each or folder.startswith(f"{each.rstrip('/')}/")]
    kind = kinds[max(within, key=len)] if within else ""
    if kind not in _SCARCE:
        return None
    return (
        f"{folder} is in {_SCARCE[kind]} ({kind}), and large uploads and responses to slow clients "
        "are stored there. Set TMPDIR to a directory on a disk, such as a volume"
    )


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def _quotas(root: Path) -> Iterator[float]:
    for folder in _folders(root, "cpu"):
        limit = _words(folder / "cpu.max")  # v2: "max 100000", or "150000 100000"
        if not limit:
            limit = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(limit) == 2 and all(word.isdigit() for word in limit) and int(limit[1]):
            yield int(limit[0]) / int(limit[1])


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            for word in _words(folder / name):
                # Without a limit, cgroup v2 has "max", and v1 a number near 2**63.
                if word.isdigit():
                    yield int(word)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and of all its parents, up to the mount.

    In a container, the path in /proc may be that of the host, which does not exist here. The
    container's limits are then in the folder of the mount.
    """
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.split(":", 2)  # cgroups(7)
        if not names:
            top = mount
        elif controller in names.split(","):
            top = mount / names if (mount / names).is_dir() else mount / controller
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:length])


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []

"""The number of workers for a container. Its limits are files that a test writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from wsgifast.commands.run.sizing import Container, read_container, size, temporary_note

MIB = 2**20
MACHINE_BYTES = {"SC_PHYS_PAGES": 4 * MIB, "SC_PAGE_SIZE": 4096}
V2 = {"proc/self/cgroup": "0::/shop.slice/shop.service\n"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n1:name=systemd:/\n"}


def lay_out(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, Container(8.0, "affinity", 16384 * MIB)),
        (
            V2 | {
                "sys/fs/cgroup/shop.slice/shop.service/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/shop.slice/shop.service/memory.max": "max\n",
                "sys/fs/cgroup/shop.slice/memory.max": f"{512 * MIB}\n",
                "sys/fs/cgroup/shop.slice/cpu.max": "max 100000\n",
            },
            Container(1.5, "quota", 512 * MIB),
        ),
        # In a container, the mount itself has the limits, for any path.
        (
            {"proc/self/cgroup": "0::/../../kubepods/pod1\n"}
            | {"sys/fs/cgroup/cpu.max": "200000 100000", "sys/fs/cgroup/memory.max": str(MIB)},
            Container(2.0, "quota", MIB),
        ),
        (
            V2 | {"sys/fs/cgroup/cpu.max": "9900000 100000"},
            Container(8.0, "affinity", 16384 * MIB),
        ),
        (
            V1 | {
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{256 * MIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            Container(0.5, "quota", 256 * MIB),
        ),
        (
            V1 | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            Container(8.0, "affinity", 16384 * MIB),
        ),
        (
            V2 | {"sys/fs/cgroup/cpu.max": "many\n"},
            Container(8.0, "affinity", 16384 * MIB),
        ),
    ],
)  # fmt: skip
def test_limits_of_cgroups(
    files: Mapping[str, str], expected: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("os.sysconf", MACHINE_BYTES.__getitem__)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    assert read_container(lay_out(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("container", "worker_mib", "count", "reason"),
    [
        (
            Container(2.0, "quota", 1024 * MIB), 64, 2,
            "2 workers: 2 CPUs of the quota. The memory is enough for 9",
        ),
        (
            Container(1.5, "quota", 1024 * MIB), 64, 2,
            "2 workers: 1.5 CPUs of the quota. The memory is enough for 9",
        ),
        (
            Container(1.0, "machine", 1024 * MIB), 64, 1,
            "1 worker: 1 CPU of the machine. The memory is enough for 9",
        ),
        (Container(0.2, "quota", 1024 * MIB), 0, 1, "1 worker: 0.2 CPUs of the quota"),
        (
            Container(8.0, "machine", 512 * MIB), 100, 1,
            "1 worker: 512 MiB of memory, and 100 MiB for each worker that has "
            "imported the app. 8 CPUs of the machine",
        ),
        (
            Container(2.0, "quota", 128 * MIB), 200, 1,
            "1 worker: 128 MiB of memory, and 200 MiB for each worker that has "
            "imported the app. 2 CPUs of the quota. The memory is too small for a worker and its "
            "replacement at the same time",
        ),
    ],
)  # fmt: skip
def test_workers_are_as_many_as_cpus_and_memory_allow(
    container: Container, worker_mib: int, count: int, reason: str
) -> None:
    assert size(container, worker_mib * MIB, spare=1) == (count, reason)


MOUNTS = """\
20 1 0:20 / / rw - overlay overlay rw
21 20 0:21 / /tmp rw - tmpfs tmpfs rw
22 20 8:1 / /var/lib\\040data rw - ext4 /dev/sda1 rw
"""


@pytest.mark.parametrize(
    ("folder", "said"),
    [("/tmp/a", "in memory (tmpfs)"), ("/tmpfiles", "writable layer"), ("/var/lib data/a", None)],
)
def test_temporary_directory_is_reported_with_its_cost(
    folder: str, said: str | None, tmp_path: Path
) -> None:
    note = temporary_note(folder, lay_out(tmp_path, {"proc/self/mountinfo": MOUNTS}))
    assert note is None if said is None else said in str(note)

"""The leak harness: it finds leaks, and our servers have none."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from loadtests.harness.tables import Contender, Task
from loadtests.leaks import (
    ASYNCIO_SPARES,
    LEAVING_CLIENTS,
    STATES,
    TABLE,
    Count,
    grown,
    leaked,
    measure,
)
from loadtests.payloads import files
from wsgifast.commands.bench.processes import running_server

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_servers")]

FIRST = Count(
    connections=0, descriptors=10, threads=5, memory_bytes=30_000 * 1024, blocks=100_000,
    processes=(1, 2),
)  # fmt: skip


@pytest.mark.parametrize(
    "contender", [c for row in TABLE.rows for c in row.contenders], ids=lambda c: c.name
)
def test_abandoned_connections_leave_nothing_behind(contender: Contender, tmp_path: Path) -> None:
    """Few connections, but in every state, and more that leave at once."""
    server = contender.server
    assert server is not None
    files(tmp_path)
    is_uvicorn = "uvicorn" in contender.name
    if is_uvicorn:  # its timers end sooner then
        server = dataclasses.replace(server, argv=(*server.argv, "--timeout-keep-alive=1"))
    with running_server(server, folder=tmp_path) as process:
        task = Task("/", 0.0, process.address, process.pid, tls=server.tls)
        counts = list(measure(task, rounds=1, round_s=0.5, idle_s=2.0 * is_uvicorn))
    before, after = (count.connections for count in counts)
    assert before == 0
    assert after > LEAVING_CLIENTS * (len(STATES) - 1)
    assert leaked(counts, ASYNCIO_SPARES) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"descriptors": 9, "threads": 4}, []),
        ({"descriptors": 12}, ["2 descriptors are left"]),
        ({"threads": 7}, []),
        ({"threads": 8}, ["3 threads are left"]),
        ({"processes": (1, 3)}, ["a process has been replaced"]),
    ],
)
def test_leaked_descriptors_threads_processes_found(
    change: dict[str, int], found: list[str]
) -> None:
    last = dataclasses.replace(FIRST, connections=1000, **change)  # type: ignore[arg-type]
    assert leaked([FIRST, last], 2) == found


def test_growth_is_of_the_later_half_of_the_rounds() -> None:
    sizes = [(0, 0), (9000, 90_000), (9000, 90_000), (9100, 90_500)]
    counts = [
        dataclasses.replace(
            FIRST, connections=1000 * n, memory_bytes=(30_000 + kib) * 1024, blocks=blocks
        )
        for n, (kib, blocks) in enumerate(sizes)
    ]
    assert grown(counts) == []
    still = dataclasses.replace(
        FIRST, connections=4000, memory_bytes=FIRST.memory_bytes + 20_000 * 1024, blocks=100_000
    )
    assert grown([*counts, still]) == ["each connection adds 5.0 blocks"]
    half = dataclasses.replace(
        still, connections=3000, memory_bytes=FIRST.memory_bytes + (15 << 20)
    )
    assert grown([*counts[:3], half, still]) == [
        "each connection adds 5.0 blocks",
        "each connection adds 5632 bytes",
    ]

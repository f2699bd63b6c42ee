"""The leak harness: it finds what is left, and nothing is left by our servers."""

from __future__ import annotations

import dataclasses

import pytest

from loadtests.leaks import SERVERS, Count, Kind, grown, kept, measure
from loadtests.leaving import HELD

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_servers")]

FIRST = Count(
    connections=0, descriptors=10, threads=5, memory_kib=30_000, blocks=100_000, processes=(1, 2)
)


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.name)
def test_abandoned_connections_leave_nothing_behind(kind: Kind) -> None:
    """Few of them, but in every state, and more in a process that is killed."""
    counts = list(measure(kind, connections=36, rounds=1, seconds=20.0))
    assert [count.connections for count in counts] == [0, 36 + HELD]
    assert kept(kind, counts) == []


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
def test_what_is_kept(change: dict[str, int], found: list[str]) -> None:
    kind = dataclasses.replace(SERVERS[0], spare_threads=2)
    last = dataclasses.replace(FIRST, connections=1000, **change)  # type: ignore[arg-type]
    assert kept(kind, [FIRST, last]) == found


def test_only_the_later_half_of_the_rounds_tells_of_growth() -> None:
    counts = [
        dataclasses.replace(FIRST, connections=1000 * n, memory_kib=30_000 + kib, blocks=blocks)
        for n, (kib, blocks) in enumerate([(0, 0), (9000, 90_000), (9000, 90_000), (9100, 90_500)])
    ]
    assert grown(counts) == []
    still = dataclasses.replace(
        FIRST, connections=4000, memory_kib=FIRST.memory_kib + 20_000, blocks=100_000
    )
    assert grown([*counts, still]) == [
        "each connection adds 5.0 blocks",
        "each connection adds 5632 bytes",
    ]

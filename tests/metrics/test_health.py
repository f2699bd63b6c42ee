"""The rules behind liveness and readiness."""

from __future__ import annotations

import math

import pytest

from wsgifast.metrics.health import State, liveness, readiness

NOW = 1000.0
FREE = State(1, NOW - 0.5, None, True, 5.0, 60.0, [])
BUSY = FREE._replace(exhausted_since=NOW - 4.0)
EXHAUSTED = FREE._replace(exhausted_since=NOW - 12.4)
SILENT = FREE._replace(beat_at=NOW - 100.0)
ENDING = FREE._replace(accepts=False)


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ([FREE], "ready: 1 of 1 worker"),
        ([BUSY], "ready: 1 of 1 worker"),
        ([FREE, EXHAUSTED, ENDING], "ready: 1 of 2 workers"),
        ([FREE, SILENT], "ready: 1 of 1 worker"),
        ([EXHAUSTED._replace(unready_after_s=math.inf)], "ready: 1 of 1 worker"),
    ],
)
def test_server_with_a_free_worker_is_ready(workers: list[State], text: str) -> None:
    assert readiness(workers, NOW) == (True, text)


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ([], "no worker accepts connections"),
        ([ENDING, SILENT], "no worker accepts connections"),
        ([EXHAUSTED], "no thread of 1 worker has been free for 12 s"),
        (
            [EXHAUSTED, EXHAUSTED._replace(exhausted_since=NOW - 30.0), ENDING, SILENT],
            "no thread of 2 workers has been free for 12 s",
        ),
    ],
)
def test_server_without_a_free_worker_is_not_ready(workers: list[State], text: str) -> None:
    assert readiness(workers, NOW) == (False, text)


@pytest.mark.parametrize("workers", [[], [FREE], [EXHAUSTED], [SILENT, EXHAUSTED], [ENDING]])
def test_server_with_a_live_worker_is_alive(workers: list[State]) -> None:
    assert liveness(workers, NOW) == (True, "alive")


def test_server_of_silent_workers_is_not_alive() -> None:
    workers = [SILENT, SILENT._replace(beat_at=NOW - 70.2)]
    assert liveness(workers, NOW) == (False, "no worker has given a sign of life for 70 s")
    assert liveness([SILENT._replace(lost_after_s=math.inf)], NOW).ok

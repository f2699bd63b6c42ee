"""Liveness and readiness: their rules, the workers' files, and the responses to probes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from wsgifast.metrics import health
from wsgifast.metrics.health import (
    SlowClient,
    State,
    StateFile,
    liveness,
    name_of_process,
    readiness,
)

NOW = 1000.0
FREE = State(1, NOW - 0.5, None, True, 5.0, 60.0, [])
BUSY = FREE._replace(exhausted_since=NOW - 4.0)
EXHAUSTED = FREE._replace(exhausted_since=NOW - 12.4)
SILENT = FREE._replace(beat_at=NOW - 100.0)
ENDING = FREE._replace(accepts=False)


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ([FREE], "ready: 1 of 1 workers"),
        ([BUSY], "ready: 1 of 1 workers"),
        ([FREE, EXHAUSTED, ENDING], "ready: 1 of 2 workers"),
        ([FREE, SILENT], "ready: 1 of 1 workers"),
        ([EXHAUSTED._replace(unready_after_s=math.inf)], "ready: 1 of 1 workers"),
    ],
)
def test_server_with_a_free_worker_is_ready(workers: list[State], text: str) -> None:
    assert readiness(workers, NOW) == (True, text)


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ([], "no worker accepts connections"),
        ([ENDING, SILENT], "no worker accepts connections"),
        ([EXHAUSTED], "no thread of 1 workers has been free for 12 s"),
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
    assert liveness([SILENT._replace(lost_after_s=math.inf)], NOW) == (True, "alive")


SLOW = SlowClient("192.0.2.1:50000", "/movie", 300_000, 12.5, 800.0)


def state(**changed: Any) -> State:
    now = time.monotonic()
    return State(os.getpid(), now, None, True, 5.0, math.inf, [SLOW])._replace(**changed)


def found(directory: Path) -> list[State]:
    return list(health.states(str(directory)))


def test_written_state_is_read(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path))
    for written in (state(), state(exhausted_since=7.25, accepts=False, slow_clients=[])):
        file.update(written)
        assert found(tmp_path) == [written]
    assert len(list(tmp_path.iterdir())) == 1


def test_state_is_written_on_change_or_when_old(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path))
    first = state(lost_after_s=60.0)
    file.update(first)
    file.update(first._replace(beat_at=first.beat_at + 1))
    assert found(tmp_path) == [first]
    changed = first._replace(beat_at=first.beat_at + 2, accepts=False)
    file.update(changed)
    assert found(tmp_path) == [changed]
    later = changed._replace(beat_at=changed.beat_at + 3)
    file.update(later)
    assert found(tmp_path) == [later]
    impatient = later._replace(lost_after_s=2.0)
    file.update(impatient)
    soon = impatient._replace(beat_at=impatient.beat_at + 1)
    file.update(soon)
    assert found(tmp_path) == [soon]


def test_states_of_ended_workers_are_removed(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path))
    file.update(state())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = tmp_path / f"state_{name_of_process(child.pid)}.json"
    other.write_text(json.dumps(state(pid=child.pid)))
    part = other.with_name(f"{other.name}.part")
    part.write_text("[")
    assert {each.pid for each in found(tmp_path)} == {os.getpid(), child.pid}
    health.remove_dead(str(tmp_path))
    assert part.exists()
    child.communicate(b"")
    assert [each.pid for each in found(tmp_path)] == [os.getpid()]
    health.remove_dead(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("text", ["", "[", "[1, 2]", "{}", '["a", null, 3, 4, 5, 6, 7]'])
def test_invalid_state_is_skipped(tmp_path: Path, text: str) -> None:
    (tmp_path / f"state_{name_of_process(os.getpid())}.json").write_text(text)
    (tmp_path / "state_of_another.json").write_text(json.dumps(state()))
    (tmp_path / "gauge_all_1.db").write_text("")
    assert found(tmp_path) == []
    health.remove_dead(str(tmp_path))


def answered(path: str, directory: Path) -> tuple[int, str]:
    response = health.response(path, str(directory))
    assert response is not None
    return int(response.status[:3]), response.body.decode()


def test_probes_are_answered_by_states(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path))
    assert answered("/livez", tmp_path) == (200, "alive\n")
    assert answered("/readyz", tmp_path) == (503, "no worker accepts connections\n")
    file.update(state())
    assert answered("/readyz", tmp_path) == (200, "ready: 1 of 1 workers\n")
    file.update(state(exhausted_since=time.monotonic() - 9))
    assert answered("/livez", tmp_path) == (200, "alive\n")
    assert answered("/readyz", tmp_path) == (
        503,
        "no thread of 1 workers has been free for 9 s\n",
    )
    file.update(state(beat_at=time.monotonic() - 70, lost_after_s=60.0))
    status, text = answered("/livez", tmp_path)
    assert status == 503
    assert "sign of life" in text
    assert health.response("/metrics", str(tmp_path)) is None


@pytest.mark.parametrize("path", health.PATHS)
def test_probe_after_the_end_of_the_server_is_503(path: str, tmp_path: Path) -> None:
    assert answered(path, tmp_path / "removed") == (503, "the server has ended\n")


def test_slowest_clients_come_first(tmp_path: Path) -> None:
    slower = SLOW._replace(client="192.0.2.2:1", bytes_per_s=10.0)
    StateFile(str(tmp_path)).update(state(slow_clients=[SLOW, slower]))
    status, text = answered("/clients", tmp_path)
    assert status == 200
    first, second = json.loads(text)
    assert first == {"pid": os.getpid(), **slower._asdict()}
    assert second["client"] == SLOW.client

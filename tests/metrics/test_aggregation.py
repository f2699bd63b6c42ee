"""The files of several processes, added up like by prometheus_client.

Those of dead processes come last.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.utils import floatToGoString
from prometheus_client.values import MultiProcessValue

from tests.support.calls import raising
from tests.support.process import in_a_child, open_descriptors
from wsgifast.metrics import Distribution
from wsgifast.metrics import aggregation as module
from wsgifast.metrics.aggregation import Directory
from wsgifast.metrics.collecting import point
from wsgifast.metrics.health import is_alive, name_of_process, pid_in, processes
from wsgifast.metrics.prometheus import FileReporter
from wsgifast.metrics.setup import DIRECTORY

from .test_prometheus import Samples, parsed

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Write = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    return tmp_path


def report() -> None:
    reporter = FileReporter()
    reporter.add(
        lambda: [
            point("wsgifast_threads", 4),
            point("wsgifast_worker_memory_bytes", 1000),
            point("wsgifast_timeouts_total", 2, "head"),
            point("wsgifast_thread_wait_seconds", Distribution((5, *([1] * 10)), 7.5)),
        ]
    )
    reporter.report()


def samples(directory: Directory) -> Samples:
    return parsed(directory.text()[1])


def test_counters_of_ended_processes_last(path: Path) -> None:
    directory = Directory(str(path), own=True)
    report()
    for deaths in (1, 2, 3):
        in_a_child(report)
        directory.clean()
        found = samples(directory)
        assert found["wsgifast_threads", ()] == 4
        assert found["wsgifast_worker_memory_bytes", (("pid", str(os.getpid())),)] == 1000
        assert found["wsgifast_timeouts_total", (("kind", "head"),)] == 2 * (deaths + 1)
        assert found["wsgifast_thread_wait_seconds_sum", ()] == 7.5 * (deaths + 1)
        assert found["wsgifast_thread_wait_seconds_bucket", (("le", "0.001"),)] == 5 * (deaths + 1)
        assert found["wsgifast_thread_wait_seconds_count", ()] == 15 * (deaths + 1)
        assert sorted({file.name.rpartition("_")[2] for file in path.iterdir()}) == sorted(
            [f"{name_of_process(os.getpid())}.db", "wsgifast-dead.db"]
        )
    assert processes(str(path)) == {name_of_process(os.getpid())}


class Killed(BaseException):
    pass


class Mortal:
    """A replacement of os that kills its caller at one of its renames and removals.

    :param behind: the caller is killed after the call, not before it.
    """

    def __init__(self, at: int, *, behind: bool) -> None:
        self._left = at
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def replace(self, *args: str) -> None:
        self._take(os.replace, *args)

    def unlink(self, *args: str) -> None:
        self._take(os.unlink, *args)

    def _take(self, step: Callable[..., None], *args: str) -> None:
        self._left -= 1
        if self._left != -1:
            step(*args)
            return
        if self._behind:
            step(*args)
        raise Killed


@pytest.mark.parametrize("behind", [False, True])
def test_exporter_killed_anywhere_counts_nothing_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    for steps in itertools.count():
        in_a_child(report)
        deaths = steps + 1
        with monkeypatch.context() as patch:
            patch.setattr(module, "os", Mortal(steps, behind=behind))
            with contextlib.suppress(Killed):
                Directory(str(path), own=True).clean()
                break
        # The next exporter.
        directory = Directory(str(path), own=True)
        directory.clean()
        found = samples(directory)
        assert found["wsgifast_timeouts_total", (("kind", "head"),)] == 2 * deaths
        assert found["wsgifast_thread_wait_seconds_count", ()] == 15 * deaths
        assert {file.name for file in path.iterdir()} >= {"counter_wsgifast-dead.db"}
    # The steps: a plan, a file, the file that it replaces and the plan's removal, for both kinds,
    # and the gauges' files.
    assert steps == 2 * 4 + 2
    assert not list(path.glob("*.tmp"))


def test_file_vanishing_once_listed_is_left_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report()
    (gone := path / "gauge_liveall_1.db").touch()
    listed = [*os.scandir(path)]
    gone.unlink()
    monkeypatch.setattr(os, "scandir", lambda path: contextlib.nullcontext(listed))
    assert samples(Directory(str(path), own=False))["wsgifast_threads", ()] == 4


def test_files_that_cannot_be_removed_count_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        in_a_child(report)
    directory = Directory(str(path), own=True)
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", raising(PermissionError))
            with pytest.raises(PermissionError):
                directory.clean()
        found = samples(directory)
        assert found["wsgifast_timeouts_total", (("kind", "head"),)] == 4
        assert found["wsgifast_thread_wait_seconds_count", ()] == 30
    directory.clean()
    assert samples(directory)["wsgifast_timeouts_total", (("kind", "head"),)] == 4
    assert len(list(path.glob("counter_*"))) == 1


APPS_OWN = """
import prometheus_client
prometheus_client.Counter("orders", "Orders.").inc()
prometheus_client.Gauge("queue", "Queue.", multiprocess_mode="livesum").set(3)
"""


@pytest.mark.parametrize("own", [True, False])
def test_app_metrics_are_removed_in_own_directory_only(path: Path, own: bool) -> None:
    subprocess.run([sys.executable, "-c", APPS_OWN], check=True)
    directory = Directory(str(path), own=own)
    before = {file.name for file in path.iterdir()}
    directory.clean()
    found = samples(directory)
    assert found["orders_total", ()] == 1
    assert (("queue", ()) in found) is not own
    assert ({file.name for file in path.iterdir()} == before) is not own


def test_unfinished_file_is_skipped(path: Path) -> None:
    directory = Directory(str(path), own=True)
    in_a_child(report)
    (path / "counter_wsgifast-1-1.db").touch()  # killed while it made the file
    assert samples(directory)["wsgifast_timeouts_total", (("kind", "head"),)] == 2
    (path / "counter_wsgifast-1-2.db").write_bytes(b"\xff\x01\0\0" + bytes(20))
    directory.clean()
    assert samples(directory)["wsgifast_timeouts_total", (("kind", "head"),)] == 2
    assert not (path / "counter_wsgifast-1-2.db").exists()


def test_plan_touches_no_file_elsewhere(path: Path) -> None:
    directory, elsewhere = path / "metrics", path / "elsewhere"
    directory.mkdir()
    elsewhere.touch()
    (path / "counter_wsgifast-dead.tmp").touch()
    plan = {"kind": "../counter", "gone": ["../elsewhere", str(elsewhere)]}
    (directory / "merging.json").write_text(json.dumps(plan))
    Directory(str(directory), own=False).clean()
    assert not [*directory.iterdir()]
    assert {file.name for file in path.iterdir()} == {
        "metrics", "elsewhere", "counter_wsgifast-dead.tmp"
    }  # fmt: skip


def test_process_differs_from_a_later_one_of_its_pid() -> None:
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    name = name_of_process(sleeping.pid)
    assert pid_in(name) == sleeping.pid
    assert is_alive(name)
    if sys.platform == "linux":
        assert not is_alive(f"wsgifast-{sleeping.pid}-1")
    sleeping.send_signal(signal.SIGKILL)
    while is_alive(name):  # a zombie is dead
        pass
    sleeping.wait()
    assert not is_alive(name)


@pytest.mark.parametrize("name", ["", "wsgifast-dead", "123", "wsgifast-1-x"])
def test_invalid_name_is_no_live_process(name: Any) -> None:
    assert not is_alive(name)


def process(name: str) -> Write:
    """Write values like that process."""
    make_class: Any = MultiProcessValue
    value_class = make_class(lambda: name)
    values: dict[Any, Any] = {}

    def write(kind: str, metric: str, value: float, /, *, sample: str = "", **labels: str) -> None:
        kind, _, mode = kind.partition("_")
        names, given = tuple(labels), tuple(labels.values())
        key = (kind, mode, sample or metric, names, given)
        if key not in values:
            values[key] = value_class(
                kind, metric, sample or metric, names, given, 'Help, "quoted" \\ here.',
                multiprocess_mode=mode,
            )  # fmt: skip
        values[key].set(value, timestamp=value)

    return write


def theirs(path: Path, accept: str) -> list[str]:
    as_chosen: Any = choose_encoder
    registry: Any = CollectorRegistry()
    MultiProcessCollector(registry, str(path))  # type: ignore[no-untyped-call]
    return sorted(as_chosen(accept)[0](registry).decode().split("\n"))


def ours(directory: Directory, accept: str) -> list[str]:
    return sorted(directory.text(accept)[1].decode().split("\n"))


def write_all(write: Write, by: float) -> None:
    write("counter", "orders", 3 * by, sample="orders_total", kind='new "\n')
    write("counter", "orders", 1e15 * by, sample="orders_total", kind="old")
    write("summary", "weight", 2 * by, sample="weight_sum")
    write("summary", "weight", 1 * by, sample="weight_count")
    for labels in ({"of": "a"}, {"of": "b"}):
        for bound in (0.5, 1.0, 10.0, float("inf")):
            le = floatToGoString(bound)  # type: ignore[no-untyped-call]
            write("histogram", "took", by, sample="took_bucket", **labels, le=le)
        write("histogram", "took", 7 * by, sample="took_sum", **labels)
    for mode in ("all", "liveall", "sum", "livesum", "max", "livemax", "min", "livemin"):
        write(f"gauge_{mode}", f"of_{mode}", -2 * by, state="x")


@pytest.mark.parametrize("accept", ["", OPENMETRICS, "text/plain; version=1.0.0"])
def test_scrape_is_that_of_prometheus_client(path: Path, accept: str) -> None:
    directory = Directory(str(path), own=False)
    one, two = process("11"), process("22")
    write_all(one, 1)
    assert ours(directory, accept) == theirs(path, accept)
    write_all(two, 2.5)
    assert ours(directory, accept) == theirs(path, accept)
    write_all(one, 3)  # other numbers in the same places
    assert ours(directory, accept) == theirs(path, accept)
    for number in range(200):  # a file that grows
        one("counter", "orders", 1, sample="orders_total", kind=f"kind {number}")
    assert ours(directory, accept) == theirs(path, accept)
    for name in ("gauge_livesum_22.db", "counter_11.db"):
        (path / name).unlink()
        assert ours(directory, accept) == theirs(path, accept)


@pytest.mark.parametrize("mode", ["mostrecent", "livemostrecent"])
def test_most_recent_gauge_equals_prometheus_clients(path: Path, mode: str) -> None:
    directory = Directory(str(path), own=False)
    process("11")(f"gauge_{mode}", "at", 9)
    process("22")(f"gauge_{mode}", "at", 5)
    assert "at 9.0" in ours(directory, "")
    assert ours(directory, "") == theirs(path, "")


def test_removed_files_are_closed(path: Path) -> None:
    directory = Directory(str(path), own=False)
    write_all(process("11"), 1)
    before = open_descriptors()
    assert directory.text()[1]
    for file in path.iterdir():
        file.unlink()
    assert not directory.text()[1]
    assert open_descriptors() <= before


def test_values_of_a_removed_file_are_not_reported(path: Path) -> None:
    directory = Directory(str(path), own=False)
    write = process("11")
    for number in range(3000):
        write("counter", "orders", 1, sample="orders_total", kind=f"kind {number}")
    assert len(directory.text()[1].splitlines()) == 3002
    (path / "counter_11.db").unlink()
    write_all(process("22"), 1)
    for _ in range(2):
        assert ours(directory, "") == theirs(path, "")

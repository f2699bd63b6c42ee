"""Files of several processes, added up: what prometheus_client makes of them, each time anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.utils import floatToGoString
from prometheus_client.values import MultiProcessValue

from tests.support.process import open_descriptors
from wsgifast.metrics.aggregation import Directory
from wsgifast.metrics.setup import DIRECTORY

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Write = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    return str(tmp_path)


def process(name: str) -> Write:
    """Writes values as that process."""
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


def theirs(path: str, accept: str) -> list[str]:
    as_chosen: Any = choose_encoder
    registry: Any = CollectorRegistry()
    MultiProcessCollector(registry, path)  # type: ignore[no-untyped-call]
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
def test_scrape_is_that_of_prometheus_client(path: str, accept: str) -> None:
    directory = Directory(path, own=False)
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
    os.unlink(os.path.join(path, "gauge_livesum_22.db"))
    assert ours(directory, accept) == theirs(path, accept)


@pytest.mark.parametrize("mode", ["mostrecent", "livemostrecent"])
def test_most_recent_gauge_is_that_of_prometheus_client(path: str, mode: str) -> None:
    directory = Directory(path, own=False)
    process("11")(f"gauge_{mode}", "at", 9)
    process("22")(f"gauge_{mode}", "at", 5)
    assert "at 9.0" in ours(directory, "")
    assert ours(directory, "") == theirs(path, "")


def test_removed_files_are_closed(path: str) -> None:
    directory = Directory(path, own=False)
    write_all(process("11"), 1)
    before = open_descriptors()
    assert directory.text()[1]
    for name in os.listdir(path):
        os.unlink(os.path.join(path, name))
    assert not directory.text()[1]
    assert open_descriptors() <= before


def test_values_of_a_removed_file_are_not_reported(path: str) -> None:
    directory = Directory(path, own=False)
    write = process("11")
    for number in range(3000):
        write("counter", "orders", 1, sample="orders_total", kind=f"kind {number}")
    assert len(directory.text()[1].splitlines()) == 3002
    os.unlink(os.path.join(path, "counter_11.db"))
    write_all(process("22"), 1)
    for _ in range(2):
        assert ours(directory, "") == theirs(path, "")

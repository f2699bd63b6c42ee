"""Points: the values of metrics at the moment when they are collected.

A collector is called at a scrape, or once a second in prometheus_client's multiprocess mode; never
at a request. Until then, a number that exists already costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from .catalogue import CATALOGUE, Metric


class Distribution(NamedTuple):
    """The value of a histogram.

    :ivar counts: of each bucket alone, one more than the metric has bounds.
    :ivar total: the sum of all observed values.
    """

    counts: tuple[int, ...]
    total: float


class Point(NamedTuple):
    """One value of one metric.

    :ivar labels: values in the order of the metric's labels.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


Collector = Callable[[], Iterable[Point]]

# The collectors of this process, beside those of its requests.
process_collectors: list[Collector] = []
# By a histogram's name: called with each value that a collector finds, for back ends that do not
# take distributions.
observers: dict[str, list[Callable[[float], object]]] = {}


def collect_process() -> Iterator[Point]:
    """The points of all process_collectors."""
    for collector in process_collectors:
        yield from collector()


def point(name: str, value: float | Distribution, *labels: str) -> Point:
    """A point of a metric of the catalogue."""
    return Point(CATALOGUE[name], labels, value)


def points_of(name: str, values: Mapping[str, float]) -> Iterator[Point]:
    """The points of a metric with one label, for its known values and those in `values`.

    :param values: by label.
    """
    metric = CATALOGUE[name]
    for label, value in {**dict.fromkeys(metric.known, 0), **values}.items():
        yield Point(metric, (label,), value)

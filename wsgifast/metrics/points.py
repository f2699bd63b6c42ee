"""How a thing reports: it hands over points when it is asked, and counts plainly until then.

A *source* is asked at a scrape, or once a second where the figures of several processes are put
together; never at a request. So whoever has a number already does nothing else for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from .catalogue import CATALOGUE, Metric

__all__ = [
    "Distribution",
    "Point",
    "Source",
    "observers",
    "point",
    "points_of",
    "process_points",
    "process_sources",
]


class Distribution(NamedTuple):
    """The value of a histogram.

    :ivar counts: of each bucket alone, one more than the metric has bounds.
    :ivar total: the sum of all that was observed.
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


Source = Callable[[], Iterable[Point]]

# What is told of this process wherever its requests are told of.
process_sources: list[Source] = []
# By a histogram's name, who has to be told of each value that a source has found for it, since a
# distribution cannot be handed on.
observers: dict[str, list[Callable[[float], object]]] = {}


def process_points() -> Iterator[Point]:
    """The points of all of them; itself a source."""
    for source in process_sources:
        yield from source()


def point(name: str, value: float | Distribution, *labels: str) -> Point:
    """A point of a metric of the catalogue."""
    return Point(CATALOGUE[name], labels, value)


def points_of(name: str, values: Mapping[str, float]) -> Iterator[Point]:
    """Those of a metric with one label: of each known value of it, and of each that is there.

    :param values: by the label's.
    """
    metric = CATALOGUE[name]
    for label, value in {**dict.fromkeys(metric.known, 0), **values}.items():
        yield Point(metric, (label,), value)

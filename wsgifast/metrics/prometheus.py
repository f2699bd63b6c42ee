"""Export metrics by prometheus_client, from one process or from several.

A single process collects its points (values with labels) at each scrape. In prometheus_client's
multiprocess mode (PROMETHEUS_MULTIPROC_DIR) a thread of each process writes its points into files
once a second. The scraped process adds up the files of all processes.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import accumulate
from typing import Any

from ..checks import needs
from .catalogue import Metric
from .collecting import Collector, Distribution, Point, collect_process, every_second
from .health import name_of_process
from .requests import RequestMetrics
from .setup import DIRECTORY, check_space

with needs("wsgifast.metrics.prometheus", "prometheus_client", "prometheus"):
    from prometheus_client import REGISTRY
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.utils import floatToGoString
    from prometheus_client.values import MultiProcessValue

# The time between two writes of an idle process.
_IDLE_PERIOD_S = 5.0

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_MODES = {"sum": "livesum", "max": "livemax", "each": "liveall"}
_recorder: RequestMetrics | None = None
_lock = threading.Lock()


def recorder() -> RequestMetrics:
    """Return the request metrics of this process. The first call registers them."""
    global _recorder
    with _lock:  # functools.cache could call the function in two threads at once
        if _recorder is None:
            if DIRECTORY in os.environ:
                _recorder = RequestMetrics(on_first=every_second.start)
                reporter().add(_recorder.collect)
                reporter().add(collect_process)
            else:
                _recorder = RequestMetrics()
                REGISTRY.register(PointCollector([_recorder.collect, collect_process]))
    return _recorder


@cache
def reporter() -> FileReporter:
    """Return the reporter for multiprocess mode, which runs once a second and at exit."""
    made = FileReporter()
    every_second.add(made.report_if_active)
    os.register_at_fork(after_in_child=made.restart_after_fork)
    atexit.register(every_second.call, [made.report])
    return made


class PointCollector:
    """A collector for prometheus_client's registries. It calls our collectors at each scrape."""

    def __init__(self, sources: Iterable[Collector]) -> None:
        self._sources = list(sources)

    def collect(self) -> Iterator[Any]:
        families: dict[str, Any] = {}
        for source in self._sources:
            for metric, labels, value in source():
                family = families.get(metric.name)
                if family is None:
                    make = _FAMILIES[metric.kind]
                    family = families[metric.name] = make(
                        metric.name, metric.help, labels=metric.labels
                    )
                if isinstance(value, Distribution):
                    buckets = list(zip(_bounds(metric), accumulate(value.counts), strict=True))
                    family.add_metric(labels, buckets, value.total)
                else:
                    family.add_metric(labels, value)
        yield from families.values()


def _bounds(metric: Metric) -> list[str]:
    as_text: Any = floatToGoString  # has no types
    return [as_text(bound) for bound in (*metric.bounds, float("inf"))]


class FileReporter:
    """Writes the points of collectors into this process's files. A forked child has its own files.

    Only one thread at a time writes.

    :ivar activity: if set, a function that returns None while the process is active. While the
        process is idle, each call returns the same value.
    """

    def __init__(self) -> None:
        self._collectors: list[Collector] = []
        self.activity: Callable[[], object] | None = None
        self.restart_after_fork()

    def restart_after_fork(self) -> None:
        """In a forked child, start from zero, because the parent reports its own counts."""
        self._lock = threading.Lock()
        # prometheus_client's class of the values in this process's files.
        self._value_class: Any = None
        # Maps a metric and its labels to prometheus_client's values, and to the numbers that they
        # were last set to.
        self._values: dict[tuple[str, tuple[str, ...]], tuple[list[Any], list[float]]] = {}
        self._reported_activity: object = None
        self._reported_at = float("-inf")

    def add(self, collector: Collector) -> None:
        self._collectors.append(collector)

    def report_if_active(self) -> None:
        """Report, unless the process is idle and has reported in the last seconds.

        :raises OSError: if the files cannot be written.
        """
        now = time.monotonic()
        activity = None if self.activity is None else self.activity()
        if (
            activity is None
            or activity != self._reported_activity
            or now >= self._reported_at + _IDLE_PERIOD_S
        ):
            self.report()
            self._reported_activity, self._reported_at = activity, now

    def report(self) -> None:
        """Write the current values.

        :raises OSError: if the files cannot be written or the disk is full.
        """
        with self._lock:
            check_space(os.environ[DIRECTORY])
            if self._value_class is None:
                name = name_of_process(os.getpid())
                make_class: Any = MultiProcessValue  # has no types
                self._value_class = make_class(lambda: name)
            for collector in self._collectors:
                for point in collector():
                    self._write(point)

    def _write(self, point: Point) -> None:
        metric, labels, value = point
        key = (metric.name, labels)
        found = self._values.get(key)
        if found is None:
            values = self._make(metric, labels)
            found = self._values[key] = (values, [0.0] * len(values))
        numbers = (*value.counts, value.total) if isinstance(value, Distribution) else (value,)
        values, written = found
        for index, number in enumerate(numbers):
            if number != written[index]:
                values[index].set(number)
                written[index] = number

    def _make(self, metric: Metric, labels: tuple[str, ...]) -> list[Any]:
        """Return new values of a metric, like those of prometheus_client's own metric classes."""
        kind, name = metric.kind, metric.name
        if kind == "counter":
            family = name.removesuffix("_total")
            samples = [(family, name, metric.labels, labels)]
        elif kind == "gauge":
            samples = [(name, name, metric.labels, labels)]
        else:
            samples = [
                (name, f"{name}_bucket", (*metric.labels, "le"), (*labels, bound))
                for bound in _bounds(metric)
            ]
            samples.append((name, f"{name}_sum", metric.labels, labels))
        mode = _MODES[metric.across] if kind == "gauge" else ""
        return [
            self._value_class(kind, *sample, metric.help, multiprocess_mode=mode)
            for sample in samples
        ]

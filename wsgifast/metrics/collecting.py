"""Collect the values of metrics, and call functions once a second.

A collector is a function that returns the current values. It is called at a scrape, or once a
second in prometheus_client's multiprocess mode, and not for each request. So a metric of a number
that the server counts anyway costs no request any time.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from .catalogue import CATALOGUE, Metric

_PERIOD_S = 1.0  # the time between two calls of the periodic functions


class Distribution(NamedTuple):
    """The value of a histogram.

    :ivar counts: the number of values in each bucket. There is one more bucket than bounds.
    :ivar total: the sum of all values.
    """

    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts values in the buckets of a metric.

    :ivar metric: the metric of the values.
    :ivar new: the values that are not in the buckets yet. Append new values to this list.
    """

    __slots__ = ("_counts", "_total", "metric", "new")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.new: list[float] = []
        self._counts = [0] * (len(metric.bounds) + 1)
        self._total = 0.0

    def sort(self) -> None:
        """Count the new values in the buckets. A bucket includes its upper bound."""
        values = self.new
        self._total += sum(values)
        values.sort()
        begin = 0
        for bucket, bound in enumerate(self.metric.bounds):
            end = bisect_right(values, bound, begin)
            self._counts[bucket] += end - begin
            begin = end
            if end == len(values):
                break
        self._counts[-1] += len(values) - begin
        values.clear()

    def distribution(self) -> Distribution:
        self.sort()
        return Distribution(tuple(self._counts), self._total)


class Point(NamedTuple):
    """One value of one metric.

    :ivar labels: the values of the metric's labels, in the metric's order.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


Collector = Callable[[], Iterable[Point]]

# The collectors of this process, except those of request metrics.
process_collectors: list[Collector] = []
# For back ends that do not accept distributions: functions to call with each new value of a
# histogram, by the name of the histogram.
observers: dict[str, list[Callable[[float], object]]] = {}


def collect_process() -> Iterator[Point]:
    """Return the points of all process_collectors."""
    for collector in process_collectors:
        yield from collector()


def point(name: str, value: float | Distribution, *labels: str) -> Point:
    """Return a point of a metric in the catalogue."""
    return Point(CATALOGUE[name], labels, value)


def points_of(name: str, values: Mapping[str, float]) -> Iterator[Point]:
    """Return the points of a metric with one label.

    :param values: the values by label. Known labels that are missing get the value 0.
    """
    metric = CATALOGUE[name]
    for label, value in {**dict.fromkeys(metric.known, 0), **values}.items():
        yield Point(metric, (label,), value)


class ConnectionCounters:
    """A server's counters of its connections.

    Additions need no lock. CPython switches threads only at calls and at the end of loop
    iterations, and an addition to an attribute contains neither.

    :ivar accepted: accepted connections.
    :ivar connections_refused: accepted connections that were closed at once, because their address
        had too many.
    :ivar sendfile_bytes: bytes of files sent by sendfile.
    :ivar timeouts: connections that a timeout ended, by the kind of the timeout.
    :ivar refused: requests that got an error in place of the app's response, by status.
    :ivar probes: health checks that the server itself has answered, by status.
    :ivar shed: requests that were dropped while they waited for a thread, by reason.
    :ivar request_timeouts: requests whose deadline has passed.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.connections_refused = 0
        self.sendfile_bytes = 0
        self.timeouts = Counter[str]()
        self.refused = Counter[int]()
        self.probes = Counter[str]()
        self.shed = Counter[str]()
        self.request_timeouts = 0

    def collect(self) -> Iterator[Point]:
        """Return all points, except the number of connections. Any thread may call this."""
        yield point("wsgifast_sendfile_bytes_total", self.sendfile_bytes)
        yield from points_of("wsgifast_timeouts_total", self.timeouts.copy())
        for status, count in self.refused.copy().items():
            yield point("wsgifast_requests_refused_total", count, str(status))
        yield from points_of("wsgifast_health_checks_total", self.probes.copy())
        yield from points_of("wsgifast_requests_shed_total", self.shed.copy())
        yield point("wsgifast_request_timeouts_total", self.request_timeouts)


class Failures:
    """Logs the first failure of a back end, and ignores the others.

    :param log: a logger.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._is_logged = False

    def log(self) -> None:
        """Log the exception that is being handled, if it is the first failure."""
        if self._is_logged:
            return
        self._is_logged = True
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # such as a full disk, which needs no traceback
            self._log.error("Metrics have failed: %s; further failures are not logged", error)
        else:
            self._log.exception("Metrics have failed; further failures are not logged")


class Periodic:
    """Calls functions periodically, in a thread. The first failure of each function is logged.

    A function that has failed is called again. The thread is a daemon, and does not exist in a
    forked child.
    """

    def __init__(self) -> None:
        self._functions: list[Callable[[], object]] = []
        self._reset()

    def _reset(self) -> None:
        log = logging.getLogger("wsgifast")
        self._failures = defaultdict[Callable[[], object], Failures](partial(Failures, log))
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, function: Callable[[], object]) -> None:
        self._functions.append(function)

    def start(self) -> None:
        """Start the thread, unless it runs in this process."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="wsgifast-metrics", daemon=True
                )
                self._thread.start()

    def call(self, functions: Iterable[Callable[[], object]] | None = None) -> None:
        """Call some functions now. By default, call all that were added."""
        for function in self._functions if functions is None else functions:
            try:
                function()
            except Exception:  # noqa: BLE001 - log() reports it
                self._failures[function].log()

    def _run(self) -> None:
        sleep = threading.Event()
        while True:
            self.call()
            sleep.wait(_PERIOD_S)


every_second = Periodic()

os.register_at_fork(after_in_child=every_second._reset)

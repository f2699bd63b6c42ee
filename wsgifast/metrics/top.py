"""Compute the view of `wsgifast top`: the activity of a server between two scrapes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The labels of a value: pairs of name and value.
Labels = frozenset[tuple[str, str]]
_DURATION = "http_server_request_duration_seconds"
_SIZE = "http_server_response_body_size_bytes"
_WAIT = "wsgifast_thread_wait_seconds"
_ROUTE, _STATUS = "http_route", "http_response_status_code"


@dataclass(frozen=True)
class Scrape:
    """The samples of all metrics at one time.

    :ivar at: the monotonic time in seconds.
    :ivar samples: maps the name of a sample, such as "..._bucket", to its values by labels.
    """

    at: float
    samples: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def of(cls, at: float, metrics: Iterable[Any]) -> Scrape:
        """Return the samples of metrics of prometheus_client."""
        samples: dict[str, dict[Labels, float]] = {}
        for metric in metrics:
            for name, labels, value, *_ in metric.samples:
                samples.setdefault(name, {})[frozenset(dict(labels).items())] = value
        return cls(at, samples)


@dataclass(frozen=True)
class Endpoint:
    """One URL pattern. Quantiles are in seconds. They are None if there was no request."""

    pattern: str
    requests_per_s: float
    errors_per_s: float
    p50_s: float | None
    p99_s: float | None
    body_bytes_per_s: float


@dataclass(frozen=True)
class View:
    """The activity of a server between two scrapes. Unreported values are None.

    :ivar seconds: the time between the scrapes.
    :ivar none_free: the share of the time in which a worker had no free thread, from 0 to 1. It
        is the average of all workers.
    :ivar errors_per_s: responses with a status of 500 or more.
    :ivar connections: the number of connections by state.
    :ivar memory_bytes: the resident memory of each worker by its pid.
    :ivar cpu: the number of processors that all workers use.
    :ivar endpoints: sorted by p99, the slowest first.
    :ivar clients: sorted by rate, the slowest first.
    """

    seconds: float
    workers: int | None
    threads: int | None
    threads_busy: int | None
    requests_waiting: int | None
    none_free: float | None
    wait_p99_s: float | None
    requests_per_s: float | None
    errors_per_s: float | None
    p50_s: float | None
    p99_s: float | None
    body_bytes_per_s: float | None
    sendfile_bytes_per_s: float | None
    clients_left_per_s: float | None
    timeouts_per_s: float | None
    connections: Mapping[str, int]
    slow_clients: int | None
    queued_bytes: int | None
    spooled_bytes: int | None
    accept_backlog: int | None
    memory_bytes: Mapping[str, int]
    cpu: float | None
    endpoints: Sequence[Endpoint]
    clients: Sequence[Mapping[str, Any]]


def view(before: Scrape, after: Scrape, clients: Sequence[Mapping[str, Any]] = ()) -> View:
    """Compare two scrapes of one server.

    :param clients: the slowest clients, from :func:`.health.slow_clients`.
    """
    seconds = max(after.at - before.at, 1e-9)

    def gauge(name: str) -> int | None:
        found = after.samples.get(name)
        return None if found is None else round(sum(found.values()))

    def rate(name: str) -> float | None:
        if name not in after.samples:
            return None
        return sum(_gained(before, after, name).values()) / seconds

    counts = _gained(before, after, f"{_DURATION}_count")
    durations = _gained(before, after, f"{_DURATION}_bucket")
    sizes = _gained(before, after, f"{_SIZE}_sum")
    all_requests = _buckets(durations)
    workers = gauge("wsgifast_workers")
    saturated = rate("wsgifast_saturated_seconds_total")
    return View(
        seconds=seconds,
        workers=workers,
        threads=gauge("wsgifast_threads"),
        threads_busy=gauge("wsgifast_threads_busy"),
        requests_waiting=gauge("wsgifast_requests_waiting"),
        none_free=None if saturated is None else min(1.0, saturated / max(1, workers or 1)),
        wait_p99_s=quantile(0.99, _buckets(_gained(before, after, f"{_WAIT}_bucket"))),
        requests_per_s=rate(f"{_DURATION}_count"),
        errors_per_s=_errors(counts) / seconds if f"{_DURATION}_count" in after.samples else None,
        p50_s=quantile(0.5, all_requests),
        p99_s=quantile(0.99, all_requests),
        body_bytes_per_s=rate(f"{_SIZE}_sum"),
        sendfile_bytes_per_s=rate("wsgifast_sendfile_bytes_total"),
        clients_left_per_s=rate("wsgifast_clients_left_total"),
        timeouts_per_s=rate("wsgifast_timeouts_total"),
        connections=_by_label(after, "wsgifast_connections", "state"),
        slow_clients=gauge("wsgifast_slow_clients"),
        queued_bytes=gauge("wsgifast_output_queued_bytes"),
        spooled_bytes=gauge("wsgifast_output_spooled_bytes"),
        accept_backlog=gauge("wsgifast_accept_backlog"),
        memory_bytes=_by_label(after, "wsgifast_worker_memory_bytes", "pid"),
        cpu=rate("wsgifast_worker_cpu_seconds_total"),
        endpoints=_endpoints(counts, durations, sizes, seconds),
        clients=clients,
    )


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """Return a quantile of a histogram, by linear interpolation within a bucket.

    Prometheus's histogram_quantile() gives the same result.

    :param buckets: maps each upper bound to the number of values up to the bound. The last bound is
        inf.
    :returns: None if there are no values. If the quantile is above the last finite bound, that
        bound.
    """
    count = max(buckets.values(), default=0.0)
    if not count:
        return None
    rank = share * count
    low = count_below = 0.0
    for bound in sorted(buckets):
        cumulative = buckets[bound]
        if cumulative >= rank:
            if math.isinf(bound):
                return low
            inside = cumulative - count_below
            return low + (bound - low) * ((rank - count_below) / inside if inside else 1.0)
        low, count_below = bound, cumulative
    return low


def _gained(before: Scrape, after: Scrape, name: str) -> dict[Labels, float]:
    """Return how much each counter of a name has grown between two scrapes."""
    now, then = after.samples.get(name, {}), before.samples.get(name, {})
    if any(value < then.get(key, 0.0) for key, value in now.items()):
        then = {}  # the server has restarted
    return {key: value - then.get(key, 0.0) for key, value in now.items()}


def _buckets(counters: Mapping[Labels, float]) -> dict[float, float]:
    """Return the sum of histograms with the same bounds."""
    buckets: dict[float, float] = {}
    for key, gained in counters.items():
        bound = float(dict(key)["le"])
        buckets[bound] = buckets.get(bound, 0.0) + gained
    return buckets


def _errors(counts: Mapping[Labels, float]) -> float:
    return sum(n for key, n in counts.items() if dict(key).get(_STATUS, "").startswith("5"))


def _endpoints(
    counts: Mapping[Labels, float],
    durations: Mapping[Labels, float],
    sizes: Mapping[Labels, float],
    seconds: float,
) -> list[Endpoint]:
    bodies, times = _by_pattern(sizes), _by_pattern(durations)
    found = []
    for pattern, pattern_counts in _by_pattern(counts).items():
        if any(pattern_counts.values()):
            buckets = _buckets(times[pattern])
            found.append(
                Endpoint(
                    pattern,
                    sum(pattern_counts.values()) / seconds,
                    _errors(pattern_counts) / seconds,
                    quantile(0.5, buckets),
                    quantile(0.99, buckets),
                    sum(bodies[pattern].values()) / seconds,
                )
            )
    return sorted(found, key=lambda each: (-(each.p99_s or 0.0), each.pattern))


def _by_pattern(counters: Mapping[Labels, float]) -> Mapping[str, dict[Labels, float]]:
    found = defaultdict[str, dict[Labels, float]](dict)
    for key, value in counters.items():
        found[dict(key).get(_ROUTE, "")][key] = value
    return found


def _by_label(scrape: Scrape, name: str, label: str) -> dict[str, int]:
    samples = scrape.samples.get(name, {})
    return dict(sorted((dict(key).get(label, ""), round(value)) for key, value in samples.items()))

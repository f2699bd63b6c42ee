"""Compares two scrapes. Pure; the result is ready to be displayed or dumped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..metrics.catalogue import CONNECTION_STATES
from .reading import Client, Histogram, Labels, Scrape, label, summed

__all__ = ["Endpoint", "View", "quantile", "view"]

_DURATION = "http_server_request_duration_seconds"
_SIZE = "http_server_response_body_size_bytes"


@dataclass(frozen=True)
class Endpoint:
    """One URL pattern. Rates are per second; quantiles are in seconds, None without a request."""

    pattern: str
    requests_per_s: float
    errors_per_s: float
    p50_s: float | None
    p99_s: float | None
    body_bytes_per_s: float


@dataclass(frozen=True)
class View:
    """A server between two scrapes; None stands for what it does not report.

    :ivar seconds: between them.
    :ivar none_free: the share of that time in which no thread of a worker was free, 0 to 1.
    :ivar errors_per_s: responses with a 5xx.
    :ivar connections: by their state.
    :ivar memory_bytes: resident, by the pid of each worker.
    :ivar cpu: processors in use, by all workers.
    :ivar endpoints: the slowest first, by their p99.
    :ivar clients: the slowest first.
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
    clients: Sequence[Client] | None


def view(before: Scrape, after: Scrape, clients: Sequence[Client] | None = None) -> View:
    """Compare two scrapes of one server.

    :param clients: the slowest ones, as the server reports them.
    """
    seconds = max(after.at - before.at, 1e-9)

    def gauge(name: str) -> int | None:
        found = after.values.get(name)
        return None if found is None else round(sum(found.values()))

    def rate(name: str) -> float | None:
        found = after.values.get(name)
        if found is None:
            return None
        old = before.values.get(name, {})
        return sum(_gained(value, old.get(key, 0.0)) for key, value in found.items()) / seconds

    durations = _since(before, after, _DURATION)
    waits = summed(_since(before, after, "wsgifast_thread_wait_seconds").values())
    all_requests = summed(durations.values())
    counted = _DURATION in after
    workers = gauge("wsgifast_workers")
    saturated = rate("wsgifast_saturated_seconds_total")
    return View(
        seconds=seconds,
        workers=workers,
        threads=gauge("wsgifast_threads"),
        threads_busy=gauge("wsgifast_threads_busy"),
        requests_waiting=gauge("wsgifast_requests_waiting"),
        none_free=None if saturated is None else min(1.0, saturated / max(1, workers or 1)),
        wait_p99_s=quantile(0.99, waits),
        requests_per_s=_count(durations.values()) / seconds if counted else None,
        errors_per_s=_count(_errors(durations)) / seconds if counted else None,
        p50_s=quantile(0.5, all_requests),
        p99_s=quantile(0.99, all_requests),
        body_bytes_per_s=sum(each.total for each in _since(before, after, _SIZE).values()) / seconds
        if _SIZE in after
        else None,
        sendfile_bytes_per_s=rate("wsgifast_sendfile_bytes_total"),
        clients_left_per_s=rate("wsgifast_clients_left_total"),
        timeouts_per_s=rate("wsgifast_timeouts_total"),
        connections=_by_label(after, "wsgifast_connections", "state", CONNECTION_STATES),
        slow_clients=gauge("wsgifast_slow_clients"),
        queued_bytes=gauge("wsgifast_output_queued_bytes"),
        spooled_bytes=gauge("wsgifast_output_spooled_bytes"),
        accept_backlog=gauge("wsgifast_accept_backlog"),
        memory_bytes=_by_label(after, "wsgifast_worker_memory_bytes", "pid", ()),
        cpu=rate("wsgifast_worker_cpu_seconds_total"),
        endpoints=_endpoints(durations, _since(before, after, _SIZE), seconds),
        clients=clients,
    )


def quantile(share: float, histogram: Histogram) -> float | None:
    """As Prometheus's histogram_quantile: within its bucket a value is taken to be anywhere.

    :returns: None for an empty histogram; the last finite bound for what lies beyond it.
    """
    count = max(histogram.buckets.values(), default=0.0)
    if not count:
        return None
    rank = share * count
    low = below = 0.0
    for bound in sorted(histogram.buckets):
        at_most = histogram.buckets[bound]
        if at_most >= rank:
            if math.isinf(bound):
                return low
            inside = at_most - below
            return low + (bound - low) * ((rank - below) / inside if inside else 1.0)
        low, below = bound, at_most
    return low


def _endpoints(
    durations: Mapping[Labels, Histogram], sizes: Mapping[Labels, Histogram], seconds: float
) -> list[Endpoint]:
    patterns = {label(key, "http_route") for key in durations}
    found = []
    for pattern in patterns:
        own = {k: each for k, each in durations.items() if label(k, "http_route") == pattern}
        count = _count(own.values())
        if not count:
            continue
        whole = summed(own.values())
        size = sum(each.total for k, each in sizes.items() if label(k, "http_route") == pattern)
        found.append(
            Endpoint(
                pattern,
                count / seconds,
                _count(_errors(own)) / seconds,
                quantile(0.5, whole),
                quantile(0.99, whole),
                size / seconds,
            )
        )
    return sorted(found, key=lambda each: (-(each.p99_s or 0.0), each.pattern))


def _errors(durations: Mapping[Labels, Histogram]) -> Iterable[Histogram]:
    return (
        each
        for key, each in durations.items()
        if label(key, "http_response_status_code").startswith("5")
    )


def _count(histograms: Iterable[Histogram]) -> float:
    return sum(max(each.buckets.values(), default=0.0) for each in histograms)


def _since(before: Scrape, after: Scrape, name: str) -> dict[Labels, Histogram]:
    """What has been observed between the two."""
    old = before.histograms.get(name, {})
    return {
        key: _difference(each, old.get(key)) for key, each in after.histograms.get(name, {}).items()
    }


def _difference(after: Histogram, before: Histogram | None) -> Histogram:
    if before is None or _count([after]) < _count([before]):  # of a server that began anew
        return after
    return Histogram(
        {bound: count - before.buckets.get(bound, 0.0) for bound, count in after.buckets.items()},
        after.total - before.total,
    )


def _gained(after: float, before: float) -> float:
    return after if after < before else after - before


def _by_label(scrape: Scrape, name: str, of: str, order: Sequence[str]) -> dict[str, int]:
    found = {label(key, of): round(value) for key, value in scrape.values.get(name, {}).items()}
    first = [key for key in order if key in found]
    return {key: found[key] for key in [*first, *sorted(found.keys() - set(first))]}

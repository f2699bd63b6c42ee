"""Collect FastWorker's metrics of requests and of the worker.

Each request is recorded once. A thread collects the values of the server every second, and writes
all metrics into the files that the exporter reads (wsgifast.metrics.exporter). If the app contains
a WSGIFast middleware with another back end, that back end gets the values of the server too.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from sys import modules
from typing import Any

from ..bodies.access_log import LENGTH_ERROR, PATTERN, SENT_AS
from ..errors import ConfigurationError, MissingExtra
from ..metrics.catalogue import CATALOGUE
from ..metrics.collecting import (
    Distribution,
    Histogram,
    Point,
    every_second,
    observers,
    point,
    points_of,
    process_collectors,
)
from ..metrics.health import SlowClient, State, resident_bytes
from ..metrics.instrumented import FRAMEWORKS, call_noting_pattern
from ..metrics.requests import LengthError, Recording, RequestMetrics, labels_of_parsed
from ..metrics.setup import Wanted, check, give_to_user, prepare, start_exporting, wanted_metrics
from ..middleware import WSGIFast
from ..server.application import Application
from ..server.deadlines import RequestTimedOut
from ..server.output import OutputQueue
from ..server.receiving import Exchange
from ..server.response import Response
from ..server.server import Server
from ..server.shared import Counters
from ..sockets.sending import FileTruncated
from .gauges import active_requests, gauges, slowest_clients
from .options import InvalidWorkerOption

_WAIT = CATALOGUE["wsgifast_thread_wait_seconds"]
_QUEUE = CATALOGUE["wsgifast_queue_seconds"]
_REQUEST_START = "HTTP_X_REQUEST_START"
# The status of a request whose client disconnected before its response began, as in nginx's log.
_CLIENT_LEFT_STATUS = 499
# The maximum number of slow clients in a worker's state.
_MAX_CLIENTS = 20
# If no thread was free for this many seconds, /readyz reports the worker as not ready. Most bursts
# of requests are shorter, and most clients wait longer.
UNREADY_AFTER_S = 5.0
# The arbiter replaces a worker that sends no heartbeat for `timeout` seconds. A worker is lost if
# it is silent for this many timeouts. If all workers are lost, /livez fails.
_LOST_AFTER_TIMEOUTS = 2


def wants_metrics(worker_class: Any) -> Wanted | None:
    """Return the value that enables metrics, from the environment or from the worker class."""
    return wanted_metrics("FastWorker.metrics_bind", worker_class.metrics_bind)


def prepare_metrics(worker_class: Any) -> None:
    """Choose the directory of the metrics. The arbiter calls this before it loads the app.

    The directory must be known before prometheus_client is imported. This function ignores errors,
    because :func:`check_metrics` reports them.
    """
    wanted = wants_metrics(worker_class)
    if wanted is not None:
        with contextlib.suppress(ConfigurationError, MissingExtra):
            prepare(wanted, os.getpid())


def check_metrics(worker_class: Any, cfg: Any) -> None:
    """Check in the arbiter that the metrics can be served.

    :raises InvalidWorkerOption: if the address is malformed or in use, the directory cannot be
        used, or prometheus_client is missing.
    """
    wanted = wants_metrics(worker_class)
    if wanted is None:
        return
    try:
        directory = check(wanted, os.getpid())
    except (ConfigurationError, MissingExtra) as error:
        raise InvalidWorkerOption(str(error)) from None
    # The arbiter imports this module, because it can report an error of the import. It may also
    # have more rights than its workers.
    from ..metrics import prometheus  # noqa: F401

    give_to_user(directory, cfg.uid, cfg.gid)


class WorkerCollector:
    """Collects a worker's metrics. All methods are thread-safe."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._waits, self._queue = Histogram(_WAIT), Histogram(_QUEUE)
        self._lock = threading.Lock()
        self._ended_as: str | None = None

    def end(self, reason: str) -> None:
        """Note that the worker has ended. From now on, collect() yields only its counters."""
        self._ended_as = reason

    def collect(self) -> Iterator[Point]:
        counters = self.server.shared.counters
        yield point("wsgifast_worker_starts_total", 1)
        yield point("wsgifast_connections_accepted_total", counters.accepted)
        yield point("wsgifast_connections_refused_total", counters.connections_refused)
        yield from counters.collect()
        yield point("wsgifast_worker_cpu_seconds_total", time.process_time())
        yield Point(_WAIT, (), self._wait())
        yield Point(_QUEUE, (), self._observed(self._queue, counters.queued))
        ended = {} if self._ended_as is None else {self._ended_as: 1}
        yield from points_of("wsgifast_worker_ends_total", ended)
        if ended:
            return
        yield point("wsgifast_workers", 1)
        yield point("wsgifast_workers_draining", int(self.server.shared.is_draining))
        yield point("wsgifast_worker_memory_bytes", resident_bytes())
        yield from gauges(self.server)

    def activity(self) -> object:
        """Return a value that changes when the server accepts a connection.

        None while a connection is open.
        """
        server = self.server
        if server.connections:
            return None
        return server.shared.counters.accepted, server.accepts

    def _wait(self) -> Distribution:
        counts, total_s = self._observed(self._waits, self.server.shared.counters.waits)
        # All other requests started without waiting for a thread.
        at_once = max(0, self.server.application.requests - sum(counts))
        return Distribution((counts[0] + at_once, *counts[1:]), total_s)

    def _observed(self, histogram: Histogram, times: deque[float]) -> Distribution:
        """Move new times into a histogram, and return the distribution of all its times."""
        with self._lock:
            new = [times.popleft() for _ in range(len(times))]
            histogram.new += new
            distribution = histogram.distribution()
        for observe in observers.get(histogram.metric.name, ()):
            for seconds in new:
                observe(seconds)
        return distribution


class ResponseRecorder:
    """Records requests after their responses have been sent.

    :param log: the first failure is logged there.
    :ivar metrics: the recorder. It is also in every environ, so that a WSGIFast in the app does not
        record the request again.
    """

    def __init__(self, metrics: RequestMetrics, log: Any) -> None:
        self.metrics = metrics
        self._recording = Recording(metrics, None, log)
        self._application: Application | None = None
        self._counters: Counters | None = None

    def watch(self, server: Server, application: Application) -> None:
        """Count the active requests of a server, and record the URL patterns of its app."""
        self._counters = server.shared.counters
        self.metrics.running_requests = partial(active_requests, server)
        self._application = application
        self.note_patterns()

    def note_patterns(self) -> None:
        """Wrap the app to record URL patterns, if a known framework is loaded.

        Some apps load their framework at the first request. So this method is called every second
        until a framework is loaded.
        """
        application = self._application
        if application is None or modules.keys().isdisjoint(FRAMEWORKS):
            return
        self._application = None
        if type(application.app) is not WSGIFast:  # WSGIFast records patterns itself
            application.app = partial(call_noting_pattern, application.app)

    def record(self, output: OutputQueue, exchange: Exchange, now: float) -> None:
        """Record a request after the last byte of its response.

        :param now: the monotonic time.
        """
        environ, resp = exchange.environ, exchange.resp
        if environ is None:
            return
        if (
            resp is not None
            and resp.status is not None
            and output.error is None
            and not resp.must_close
            and not resp.dropped
            and _REQUEST_START not in environ
            and LENGTH_ERROR not in environ
        ):
            # Written inline: a function call would cost 1 % of the time of a small response.
            req = exchange.req
            self._recording.add(
                (
                    req.method,
                    req.scheme,
                    resp.status_code,
                    environ[PATTERN] if PATTERN in environ else None,  # noqa: SIM401
                    environ[SENT_AS] if SENT_AS in environ else "",  # noqa: SIM401
                    now - exchange.started,
                    resp.sent,
                ),
                now,
            )
        else:
            self._record_other(output, exchange, environ, now)

    def _record_other(
        self, output: OutputQueue, exchange: Exchange, environ: dict[str, Any], now: float
    ) -> None:
        """Record a request that failed or that waited in the queue of a proxy."""
        error, resp = output.error, exchange.resp
        status, size = _CLIENT_LEFT_STATUS, 0
        if resp is not None and resp.status is not None:
            status, size = resp.status_code, resp.sent
        elif resp is not None and error is None:
            return  # the app has taken over its connection
        if self._counters is not None and (queued_s := exchange.waited_in_proxy_s()) is not None:
            self._counters.queued.append(queued_s)
        length_error = environ.get(LENGTH_ERROR)
        client_has_left = resp is None  # during an upload that the app was reading
        if error is not None or resp is None or resp.must_close or resp.dropped:
            if error is not None:
                client_has_left = not isinstance(error, (FileTruncated, RequestTimedOut))
            length_error = length_error or _length_error(resp, error)
        self._recording.end(
            labels_of_parsed(exchange.req),
            None,
            status,
            environ.get(PATTERN),
            environ.get(SENT_AS, ""),
            exchange.started,
            now,
            size,
            length_error,
            client_has_left,
        )


def _length_error(resp: Response | None, error: BaseException | None) -> LengthError | None:
    if isinstance(error, FileTruncated):
        return "short"
    if resp is None or error is not None or resp.is_as_declared():
        return None
    if resp.missing:
        return "short"
    return "long" if resp.is_cut else None


def start_reporting(
    collector: WorkerCollector, responses: ResponseRecorder | None, worker: Any
) -> Callable[[], None]:
    """Start to report a worker's metrics.

    :param responses: None if requests are not recorded.
    :param worker: its class defines the address of the exporter.
    :returns: a function that writes the last report when the worker ends.
    """
    process_collectors.append(collector.collect)
    if responses is not None:
        every_second.add(responses.note_patterns)
    wanted = wants_metrics(type(worker))
    if wanted is None:
        return lambda: None
    from ..metrics.prometheus import reporter

    files = reporter()
    files.activity = collector.activity
    state = partial(state_of, collector.server, worker)
    start_exporting(wanted, worker.ppid, state)
    return partial(every_second.call, [files.report])


def state_of(server: Server, worker: Any, *, max_clients: int = _MAX_CLIENTS) -> State:
    """Return a worker's state for probes. This function is thread-safe."""
    slowest: list[SlowClient] = []
    if max_clients:
        connections = list(server.connections)
        slowest = slowest_clients(connections, time.monotonic(), limit=max_clients)
    return State(
        os.getpid(),
        worker.beaten_at,
        server.pool.exhaustion.since,
        server.accepts,
        UNREADY_AFTER_S,
        _LOST_AFTER_TIMEOUTS * worker.cfg.timeout or math.inf,
        slowest,
    )

"""FastWorker's metrics of requests and of the worker itself.

Each request is recorded once. Once a second a thread collects the server's figures, and writes all
metrics into the files that the exporter reads (wsgifast.metrics.exporter). A WSGIFast in the app
with OpenTelemetry or prometheus_client's own registry as its back end collects these figures too.
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
from ..metrics.setup import Wanted, check, hand_over, prepare, start_exporting, wanted_metrics
from ..middleware import WSGIFast
from ..server.application import Application, queued_seconds
from ..server.deadlines import RequestTimedOut
from ..server.output import OutputQueue
from ..server.receiving import Exchange
from ..server.response import Response
from ..server.server import Server
from ..server.shared import Counters
from ..sockets.sending import FileTruncated
from .gauges import gauges, requests_under_way, slowest_clients
from .options import InvalidWorkerOption

_WAIT = CATALOGUE["wsgifast_thread_wait_seconds"]
_QUEUE = CATALOGUE["wsgifast_queue_seconds"]
_REQUEST_START = "HTTP_X_REQUEST_START"
# The most slow clients in a worker's state.
_MOST_CLIENTS = 20
# After so many seconds in which no thread was free, /readyz reports that a worker is not ready. A
# burst of requests is shorter, and a client waits for longer.
UNREADY_AFTER_S = 5.0
# The arbiter replaces a worker that is silent for its `timeout`. If one is silent for this many
# times as long, only a restart of the server can help.
_LOST_AFTER_TIMEOUTS = 2


def wants_metrics(worker_class: Any) -> Wanted | None:
    """Return the option that enables metrics: the environment variable, or else the class's."""
    return wanted_metrics("FastWorker.metrics_bind", worker_class.metrics_bind)


def prepare_metrics(worker_class: Any) -> None:
    """In the arbiter: choose the directory, before the app and prometheus_client are imported.

    Errors are reported by :func:`check_metrics`.
    """
    wanted = wants_metrics(worker_class)
    if wanted is not None:
        with contextlib.suppress(ConfigurationError, MissingExtra):
            prepare(wanted, os.getpid())


def check_metrics(worker_class: Any, cfg: Any) -> None:
    """In the arbiter: refuse metrics that cannot work.

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
    # Imported here, where an error can be reported. A worker of another user may not be allowed to.
    from ..metrics import prometheus  # noqa: F401

    hand_over(directory, cfg.uid, cfg.gid)


class WorkerCollector:
    """Collects a worker's metrics. Any thread may call."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._waits, self._queue = Histogram(_WAIT), Histogram(_QUEUE)
        self._lock = threading.Lock()
        self._ended_as: str | None = None

    def end(self, reason: str) -> None:
        """The worker has ended: from now on only its counters are collected."""
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
        """A value that stays the same while the worker has no connection and gets none."""
        server = self.server
        if server.connections:
            return None
        return server.shared.counters.accepted, server.accepts

    def _wait(self) -> Distribution:
        counts, total_s = self._observed(self._waits, self.server.shared.counters.waits)
        # All other requests found a thread free.
        at_once = max(0, self.server.requests - sum(counts))
        return Distribution((counts[0] + at_once, *counts[1:]), total_s)

    def _observed(self, histogram: Histogram, times: deque[float]) -> Distribution:
        """All times so far, with these, which are taken."""
        with self._lock:
            new = [times.popleft() for _ in range(len(times))]
            histogram.new += new
            distribution = histogram.distribution()
        for observe in observers.get(histogram.metric.name, ()):
            for seconds in new:
                observe(seconds)
        return distribution


class ResponseRecorder:
    """Records requests when their responses have been sent.

    :param log: a failure is logged there, once.
    :ivar metrics: in every environ, they keep a WSGIFast in the app from recording again.
    """

    def __init__(self, metrics: RequestMetrics, log: Any) -> None:
        self.metrics = metrics
        self._recording = Recording(metrics, None, log)
        self._application: Application | None = None
        self._counters: Counters | None = None

    def watch(self, server: Server, application: Application) -> None:
        """Count the active requests of a server, and note the URL patterns of its app."""
        self._counters = server.shared.counters
        self.metrics.running_requests = partial(requests_under_way, server)
        self._application = application
        self.note_patterns()

    def note_patterns(self) -> None:
        """Note the URL patterns of the app's framework, if one is loaded by now.

        An app may load it at its first request, so this is called now and then. An app without one
        is called directly.
        """
        application = self._application
        if application is None or modules.keys().isdisjoint(FRAMEWORKS):
            return
        self._application = None
        if type(application.app) is not WSGIFast:  # WSGIFast notes them itself
            application.app = partial(call_noting_pattern, application.app)

    def record(self, output: OutputQueue, exchange: Exchange, now: float) -> None:
        """Record a request after the last byte of its response.

        :param now: monotonic.
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
            # Each call would cost a hundredth of a small response.
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
        """Record a request that has waited in a proxy's queue or has failed."""
        error, resp = output.error, exchange.resp
        status, size = 500, 0  # the response to an error of the app is not the app's
        if resp is not None and resp.status is not None:
            status, size = resp.status_code, resp.sent
        elif resp is not None and error is None:
            return  # the app has taken its connection over
        if self._counters is not None and (queued_s := queued_seconds(exchange)) is not None:
            self._counters.queued.append(queued_s)
        length_error = environ.get(LENGTH_ERROR)
        left = False
        if error is not None or resp is None or resp.must_close or resp.dropped:
            if error is not None:
                if resp is not exchange.replaced_by:
                    size = max(0, size - output.bytes_left())
                left = not isinstance(error, (FileTruncated, RequestTimedOut))
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
            left,
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
    """Report a worker's metrics from now on.

    :param responses: None if no requests are recorded.
    :param worker: its class has the address.
    :returns: a function for the last report, when the worker ends.
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


def state_of(server: Server, worker: Any, *, most_clients: int = _MOST_CLIENTS) -> State:
    """A worker's state, for probes. Any thread may call."""
    slowest: list[SlowClient] = []
    if most_clients:
        connections = list(server.connections)
        slowest = slowest_clients(connections, time.monotonic(), most=most_clients)
    return State(
        os.getpid(),
        worker.beaten_at,
        server.pool.exhaustion.since,
        server.accepts,
        UNREADY_AFTER_S,
        _LOST_AFTER_TIMEOUTS * worker.cfg.timeout or math.inf,
        slowest,
    )

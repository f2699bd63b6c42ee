"""What a FastWorker tells of itself and of its requests, to Prometheus and to statsd.

Nothing of it is done at a request but one record of it in a tally. A thread asks the server for its
figures once a second, and puts all of them into the files that the exporter reads (see
wsgifast.metrics.exporter), or sends them to where gunicorn's own statsd counters go. A WSGIFast in
the app that tells OpenTelemetry, or prometheus_client's own registry, tells these figures too.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from sys import modules
from typing import TYPE_CHECKING, Any

from ..metrics.catalogue import CATALOGUE, CONNECTION_STATES
from ..metrics.patterns import (
    BOTTLE,
    FLASK,
    PATTERN,
    note_django_pattern,
    noting_pattern,
    wsgi_pattern,
)
from ..metrics.periodic import Periodic, every_second
from ..metrics.points import Distribution, Point, point, process_sources
from ..metrics.processes import resident_bytes
from ..metrics.recorder import RECORDER, LengthError, Recorder
from ..metrics.tally import NOTED_TOGETHER, Tally
from ..routes import LENGTH_ERROR, ROUTE
from ..server.carrier import Carrier
from ..server.exchange import Exchange
from ..server.figures import figures_of
from ..server.server import Server
from ..sockets.sendfile import FileTruncated
from .metrics_setup import export_of
from .state import StateReporter

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

__all__ = ["Answers", "WorkerSource", "begin_to_tell", "tell_statsd"]

_WAIT = CATALOGUE["wsgifast_thread_wait_seconds"]


class WorkerSource:
    """A worker's points; several threads may ask for them.

    :param requests: how many requests the worker has had.
    """

    def __init__(self, server: Server, requests: Callable[[], int]) -> None:
        self.server = server
        self._requests = requests
        self._waits = [0] * (len(_WAIT.bounds) + 1)
        self._waited_s = 0.0
        self._lock = threading.Lock()
        self._ended_as: str | None = None

    def end(self, reason: str) -> None:
        """The worker serves no more: only what was counted is left to tell."""
        self._ended_as = reason

    def points(self) -> Iterator[Point]:
        counters = self.server.counters
        yield point("wsgifast_worker_starts_total", 1)
        yield point("wsgifast_sendfile_bytes_total", counters.sendfile_bytes)
        yield point("wsgifast_connections_accepted_total", counters.accepted)
        for kind, count in counters.timeouts.copy().items():
            yield point("wsgifast_timeouts_total", count, kind)
        for status, count in counters.refused.copy().items():
            yield point("wsgifast_requests_refused_total", count, str(status))
        yield point("wsgifast_worker_cpu_seconds_total", time.process_time())
        yield Point(_WAIT, (), self._wait())
        if self._ended_as is not None:
            yield point("wsgifast_worker_ends_total", 1, self._ended_as)
            return
        yield from self._gauges()

    def _wait(self) -> Distribution:
        with self._lock:
            for seconds in self.server.counters.take_waits():
                self._waits[bisect_left(_WAIT.bounds, seconds)] += 1
                self._waited_s += seconds
            # Whoever is not among them found a thread free.
            at_once = max(0, self._requests() - sum(self._waits))
            return Distribution((self._waits[0] + at_once, *self._waits[1:]), self._waited_s)

    def _gauges(self) -> Iterator[Point]:
        figures = figures_of(self.server)
        yield point("wsgifast_workers", 1)
        yield point("wsgifast_threads", figures.threads)
        yield point("wsgifast_threads_busy", figures.busy)
        yield point("wsgifast_requests_waiting", figures.waiting)
        yield point("wsgifast_saturated_seconds_total", figures.exhausted_s)
        for state in CONNECTION_STATES:
            yield point("wsgifast_connections", figures.connections[state], state)
        yield point("wsgifast_connections_limit", self.server.options.worker_connections)
        yield point("wsgifast_slow_clients", figures.slow_clients)
        yield point("wsgifast_output_queued_bytes", figures.queued_bytes)
        yield point("wsgifast_output_spooled_bytes", figures.spooled_bytes)
        yield point("wsgifast_request_bodies_spooled_bytes", figures.bodies_spooled_bytes)
        if figures.backlog is not None:
            yield point("wsgifast_accept_backlog", figures.backlog[0])
            yield point("wsgifast_accept_backlog_limit", figures.backlog[1])
        yield point("wsgifast_worker_memory_bytes", resident_bytes())


class Answers:
    """Records requests when they have been answered.

    :param log: is told once of a recorder that raises.
    """

    def __init__(self, recorder: Recorder, log: Any) -> None:
        self._recorder = recorder
        # Where most requests are counted without a call; other recorders have none.
        self._lanes = recorder.lanes if isinstance(recorder, Tally) else {}
        self._log = log
        self._has_failed = False

    def observed(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """The app, with its framework's URL patterns noted."""

        def call(environ: dict[str, Any], start_response: StartResponse) -> Any:
            environ[RECORDER] = recorder
            lane = lanes.get((environ["REQUEST_METHOD"], environ["wsgi.url_scheme"]))
            if lane is not None:
                lane.begun += 1
            else:
                self._begin(environ)
            if FLASK in modules:
                start_response = noting_pattern(environ, start_response)
            body = app(environ, start_response)
            if "django" in modules:
                note_django_pattern(environ, body)
            return body

        recorder, lanes = self._recorder, self._lanes
        return call

    def _begin(self, environ: dict[str, Any]) -> None:
        try:
            self._recorder.begin(environ["REQUEST_METHOD"], environ["wsgi.url_scheme"])
        except Exception:  # noqa: BLE001 - whatever it is, the request is answered
            self._log_failure()

    def record(self, carrier: Carrier, exchange: Exchange) -> None:
        """A response has been sent, as far as it ever will be."""
        environ, resp = exchange.environ, exchange.resp
        if environ is None:
            return
        try:
            error = carrier.output.error
            if resp is None:
                status, size = 500, 0  # the answer to what the app has raised is not the app's
            elif resp.status is not None:
                status, size = resp.status_code, resp.sent
            elif error is not None:
                status, size = 500, 0
            else:  # the app has taken the connection over
                self._recorder.abandon(exchange.req.method, environ["wsgi.url_scheme"])
                return
            if error is not None:
                size = max(0, size - carrier.output.bytes_left())
            method, scheme = exchange.req.method, environ["wsgi.url_scheme"]
            pattern, route = environ.get(PATTERN), environ.get(ROUTE, "")
            if pattern is None and BOTTLE in modules:
                pattern = wsgi_pattern(environ)
            seconds = time.monotonic() - exchange.started
            lane = self._lanes.get((method, scheme))
            noted = None if lane is None else lane.noted.get((status, pattern, route))
            if noted is not None and len(noted[0]) < NOTED_TOGETHER:
                noted[0].append(seconds)
                noted[1].append(size)
            else:
                self._recorder.record(method, scheme, status, pattern, route, seconds, size)
            is_well = error is None and (resp is None or resp.is_as_declared())
            if not is_well or LENGTH_ERROR in environ:
                self._count_what_went_wrong(environ, resp, error)
        except Exception:  # noqa: BLE001 - the response is out
            self._log_failure()

    def _log_failure(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._log.exception("Metrics have failed, and are told of no more than this once")

    def _count_what_went_wrong(
        self, environ: dict[str, Any], resp: Any, error: BaseException | None
    ) -> None:
        length_error = environ.get(LENGTH_ERROR) or _length_error(resp, error)
        if length_error is not None:
            self._recorder.count_length_error(length_error)
        if error is not None and not isinstance(error, FileTruncated):
            self._recorder.count_client_left()


def _length_error(resp: Any, error: BaseException | None) -> LengthError | None:
    if isinstance(error, FileTruncated):
        return "short"
    if resp is None or error is not None or resp.is_as_declared():
        return None
    if resp.missing():
        return "short"
    return None if resp.has_no_place_for_a_body() else "long"


def begin_to_tell(source: WorkerSource, worker: Any) -> Callable[[], None]:
    """Tell of a worker from now on; returns what tells the last.

    :param worker: its class says where, its configuration whether statsd is told.
    """
    process_sources.append(source.points)
    last: list[Callable[[], None]] = []
    export = export_of(type(worker), worker.ppid)
    if export is not None:
        from ..metrics.keeper import Keeper
        from ..metrics.prometheus import reporter

        last.append(reporter().report)
        every_second.add(Keeper(export).look)
        every_second.add(StateReporter(source.server, worker, export.directory).report)
    statsd = worker.log
    if worker.cfg.statsd_host and hasattr(statsd, "increment"):
        tell = tell_statsd(statsd, source)
        every_second.add(tell)
        last.append(tell)
    if last:
        every_second.start()

    def tell_the_last() -> None:
        closing = Periodic()
        for function in last:
            closing.add(function)
        closing.call()

    return tell_the_last


def tell_statsd(statsd: Any, source: WorkerSource) -> Callable[[], None]:
    """What sends a worker's points by gunicorn's statsd client.

    A gauge of several workers would be whichever has sent it last; so each sends its own as a value
    of a histogram, whose sum, mean and greatest are those of the workers.
    """
    counted: dict[str, float] = {}

    def count(name: str, total: float) -> None:
        more = total - counted.get(name, 0)
        if more:
            counted[name] = total
            statsd.increment(name, more)

    def tell() -> None:
        for metric, labels, value in source.points():
            name = ".".join((metric.opentelemetry_name, *labels))
            if isinstance(value, Distribution):
                count(f"{name}.count", sum(value.counts))
                count(f"{name}.seconds", value.total)
            elif metric.kind == "counter":
                count(name, value)
            else:
                statsd.histogram(name, value)

    return tell

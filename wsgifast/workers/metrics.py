"""What a FastWorker tells of itself and of its requests, to Prometheus and to statsd.

Nothing of it is done at a request but one note of it in a tally. A thread asks the server for its
figures once a second, and puts all of them into the files that the exporter reads (see
wsgifast.metrics.exporter), or sends them to where gunicorn's own statsd counters go. A WSGIFast in
the app that tells OpenTelemetry, or prometheus_client's own registry, tells these figures too.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from sys import modules
from typing import TYPE_CHECKING, Any

from ..metrics.catalogue import CATALOGUE
from ..metrics.failures import Failures
from ..metrics.patterns import (
    BOTTLE,
    DJANGO,
    FLASK,
    PATTERN,
    note_django_pattern,
    start_noting,
    wsgi_pattern,
)
from ..metrics.periodic import Periodic, every_second
from ..metrics.points import Distribution, Point, observers, point, points_of, process_sources
from ..metrics.processes import resident_bytes
from ..metrics.recorder import RECORDER, LengthError
from ..metrics.tally import NOTED_TOGETHER, Tally
from ..middleware import WSGIFast
from ..routes import LENGTH_ERROR, ROUTE
from ..server.channel import Channel
from ..server.exchange import Exchange
from ..server.figures import figures_of, requests_under_way
from ..server.response import Response
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
        yield from points_of("wsgifast_timeouts_total", counters.timeouts.copy())
        for status, count in counters.refused.copy().items():
            yield point("wsgifast_requests_refused_total", count, str(status))
        yield point("wsgifast_worker_cpu_seconds_total", time.process_time())
        yield Point(_WAIT, (), self._wait())
        ended = {} if self._ended_as is None else {self._ended_as: 1}
        yield from points_of("wsgifast_worker_ends_total", ended)
        if ended:
            return
        yield from self._gauges()

    def _wait(self) -> Distribution:
        with self._lock:
            for seconds in self.server.counters.take_waits():
                self._waits[bisect_left(_WAIT.bounds, seconds)] += 1
                self._waited_s += seconds
                for observe in observers.get(_WAIT.name, ()):
                    observe(seconds)
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
        yield from points_of("wsgifast_connections", figures.connections)
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

    :param log: is told once of a tally that raises.
    """

    def __init__(self, tally: Tally, log: Any) -> None:
        self._tally = tally
        self._notes = tally.notes
        self._failures = Failures(log)

    def environ_part(self) -> dict[str, Any]:
        """What every environ has of it: a WSGIFast in the app records nothing once more."""
        return {RECORDER: self._tally}

    def watch(self, server: Server) -> None:
        """Have it told which requests are under way in a server."""
        self._tally.active = partial(requests_under_way, server)

    def observed(self, app: Callable[..., Any]) -> Callable[..., Any]:
        """The app, with its framework's URL patterns noted; a WSGIFast notes them by itself."""
        if type(app) is WSGIFast:
            return app

        def call(environ: dict[str, Any], start_response: StartResponse) -> Any:
            if FLASK in modules:
                start_response = partial(start_noting, environ, start_response)
            body = app(environ, start_response)
            if DJANGO in modules:
                note_django_pattern(environ, body)
            return body

        return call

    def record(self, channel: Channel, exchange: Exchange, now: float) -> None:
        """A response has been sent, as far as it ever will be.

        It is noted here, and not by the tally's record(): see :class:`~wsgifast.metrics.Tally`.

        :param now: monotonic.
        """
        environ, resp = exchange.environ, exchange.resp
        if environ is None:
            return
        try:
            if (
                resp is None
                or resp.must_close
                or (counter := resp.counter).dropped
                or channel.output.error is not None
                or LENGTH_ERROR in environ
            ):
                sent = self._look_closer(channel, environ, resp)
                if sent is None:
                    return
                status, size = sent
            else:
                status, size = resp.status_code, counter.sent
            # Not by get(): a call less.
            pattern = environ[PATTERN] if PATTERN in environ else None  # noqa: SIM401
            if pattern is None and BOTTLE in modules:
                pattern = wsgi_pattern(environ)
            route = environ[ROUTE] if ROUTE in environ else ""  # noqa: SIM401
            notes = self._notes
            noted = notes[exchange.req.method, environ["wsgi.url_scheme"], status, pattern, route]
            noted += (now - exchange.started, size)
            if len(noted) >= NOTED_TOGETHER:
                self._tally.count()
        except Exception:  # noqa: BLE001 - the response is out
            self._failures.tell()

    def _look_closer(
        self, channel: Channel, environ: dict[str, Any], resp: Response | None
    ) -> tuple[int, int] | None:
        """Count what has gone wrong, if anything has.

        :returns: the status, and the bytes of the body; None where the app has taken its
            connection over.
        """
        error = channel.output.error
        if resp is None:
            status, size = 500, 0  # the answer to what the app has raised is not the app's
        elif resp.status is not None:
            status, size = resp.status_code, resp.sent
        elif error is not None:
            status, size = 500, 0
        else:
            return None
        length_error = environ.get(LENGTH_ERROR) or _length_error(resp, error)
        if length_error is not None:
            self._tally.count_length_error(length_error)
        if error is not None:
            size = max(0, size - channel.output.bytes_left())
            if not isinstance(error, FileTruncated):
                self._tally.count_client_left()
        return status, size


def _length_error(resp: Response | None, error: BaseException | None) -> LengthError | None:
    if isinstance(error, FileTruncated):
        return "short"
    if resp is None or error is not None or resp.is_as_declared():
        return None
    if resp.missing():
        return "short"
    return "long" if resp.is_cut() else None


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

"""`wsgifast top`: what a server did between two scrapes of its metrics address.

Reads the address over HTTP, the list of slow clients at /clients too, compares the scrapes, and
writes the result as text or JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import needs, size_text
from ..errors import WSGIFastError
from ..metrics.setup import VARIABLE, metrics_address
from ..sockets.options import Address
from .arguments import add_parser, count, option, seconds
from .client import HTTPClient, NoAnswer
from .terminal import cell_text, fitted, output_width, show, table

_DEFAULT_ADDRESS = "127.0.0.1:9100"
_INTERVAL_S = 2.0

_EXAMPLES = """\
  wsgifast top
  wsgifast top 10.0.0.5:9100 --every 5
  wsgifast top --json | jq .threads_busy
"""
# A server that is asked on its own address answers in milliseconds.
_TIMEOUT_S = 5.0

# The labels of a value, by name.
Labels = frozenset[tuple[str, str]]
_DURATION = "http_server_request_duration_seconds"
_SIZE = "http_server_response_body_size_bytes"
_WAIT = "wsgifast_thread_wait_seconds"
_ROUTE, _STATUS = "http_route", "http_response_status_code"
# Of a pattern or path, however narrow the terminal is.
_LEAST_COLUMNS = 16


def add_command(commands: Any) -> None:
    """Add `top` to the command line's subcommands."""
    parser = add_parser(
        commands,
        "top",
        help="show threads, rates, memory, slow endpoints and slow clients of a running server",
        description="Poll the metrics address of a server twice, and show its activity in between. "
        "Use it with `wsgifast run --metrics HOST:PORT`, with FastWorker and "
        "WSGIFAST_METRICS=HOST:PORT, or with any other server that serves wsgifast's metrics.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "address",
        nargs="?",
        metavar="ADDRESS",
        help=f"HOST:PORT (default: ${VARIABLE}, or {_DEFAULT_ADDRESS})",
    )
    again = f"poll repeatedly at this interval (default: twice, {_INTERVAL_S:g} s apart)"
    option(parser, "--every", "SECONDS", again, type=seconds)
    option(parser, "--json", help="print one JSON object for each view")
    option(parser, "--most", "N", "number of endpoints and clients to show", default=20, type=count)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    shown = options.address or os.environ.get(VARIABLE) or _DEFAULT_ADDRESS
    # Also accept it as a browser shows it.
    address = metrics_address(shown.removeprefix("http://").partition("/")[0], "ADDRESS")
    before = scrape(address)
    while True:
        time.sleep(options.every or _INTERVAL_S)
        after = scrape(address)
        found = view(before, after, clients(address))
        before = after
        if options.json:
            show(json.dumps(dataclasses.asdict(found)))
        else:
            show("\n".join(lines(found, str(address), most=options.most, width=output_width())))
        if options.every is None:
            return 0
        if not options.json:
            show()


def lines(view: View, address: str, *, most: int = 20, width: int | None = None) -> list[str]:
    """The lines of a view; what the server does not report is "-", or left out with its line.

    :param most: endpoints, and clients.
    :param width: in columns: in wider tables patterns and paths are cut.
    """
    values = {name: value for name, value in vars(view).items() if not isinstance(value, list)}
    shown = {name: _shown(name, value) for name, value in values.items()}
    text = [f"{address}, over {shown['seconds']} s", ""]
    text += [line.format(**shown) for name, line in _LINES.items() if shown[name] != "-"]
    for titles, found in ((_ENDPOINTS, view.endpoints), (_CLIENTS, view.clients)):
        if found:
            rows = [[_shown(name, getattr(each, name)) for name in titles] for each in found[:most]]
            least = {n: _LEAST_COLUMNS for n, name in enumerate(titles) if name in _LONG}
            columns, *cells = fitted([[*titles.values()], *rows], width, least)
            text += ["", *table(columns, cells).splitlines()]
    return text


# By the value without which there is no such line.
_LINES = {
    "workers": "workers   {workers}, {memory_bytes}, {cpu} processors in use",
    "threads": "threads   {threads_busy} of {threads} busy, none free {none_free} of the time, "
    "{requests_waiting} waiting for one, wait p99 {wait_p99_s}",
    "seconds": "requests  {requests_per_s}, {errors_per_s} with 5xx, p50 {p50_s}, p99 {p99_s}",
    "body_bytes_per_s": "bytes     {body_bytes_per_s} of bodies, {sendfile_bytes_per_s} by "
    "sendfile",
    "connections": "clients   {connections}, {accept_backlog} in the accept queue",
    "slow_clients": "slow      {slow_clients} of them, {queued_bytes} queued, {spooled_bytes} in "
    "files, {clients_left_per_s} left, {timeouts_per_s} timed out",
}
# The titles of columns.
_ENDPOINTS = {
    "pattern": "slowest endpoints", "requests_per_s": "requests", "errors_per_s": "5xx",
    "p50_s": "p50", "p99_s": "p99", "body_bytes_per_s": "bodies",
}  # fmt: skip
_CLIENTS = {
    "client": "slowest clients", "bytes_per_s": "takes", "queued_bytes": "queued",
    "waited_s": "for", "path": "path",
}  # fmt: skip
_LONG = ("pattern", "path")


def _shown(name: str, value: Any) -> str:
    """A value in the unit with which its name ends."""
    if isinstance(value, Mapping):
        each = ", ".join(f"{key}: {_shown(name, part)}" for key, part in value.items() if part)
        total = _shown(name, sum(value.values())) if value else "-"
        return f"{total} ({each})" if each else total
    for end, form in _FORMATS.items():
        if value is not None and name.endswith(end):
            return form(value)
    return cell_text(value)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "bytes_per_s": lambda value: f"{size_text(value)}/s",
    "_per_s": "{:,.1f}/s".format,
    "bytes": size_text,
    "_free": "{:.0%}".format,
    "_s": _time,
}


@dataclass(frozen=True)
class Scrape:
    """All samples at one moment, by their names, such as "..._bucket", and their labels.

    :ivar at: monotonic, in seconds.
    """

    at: float
    samples: Mapping[str, Mapping[Labels, float]]


@dataclass(frozen=True)
class Client:
    """A client that does not take its response as fast as it comes.

    :ivar pid: of the worker.
    :ivar client: its address.
    :ivar path: of its request.
    :ivar waited_s: for how long something has waited for it.
    :ivar bytes_per_s: what it has taken since then.
    """

    pid: int
    client: str
    path: str
    queued_bytes: int
    waited_s: float
    bytes_per_s: float


def scrape(address: Address) -> Scrape:
    """Ask a server for its metrics.

    :raises WSGIFastError: if nothing listens there, or something else does.
    """
    at = time.monotonic()
    status, text = _get(address, "/metrics")
    if status == 500:  # the exporter says why
        raise WSGIFastError(f"{address}/metrics answers {status}: {text.strip()}")
    if status != 200:
        raise WSGIFastError(f"{address}/metrics answers {status}: that is not a metrics address")
    return parsed(text, at)


def clients(address: Address) -> list[Client] | None:
    """Ask a server for its slowest clients; None if it does not report them.

    :raises WSGIFastError: if it cannot be asked.
    """
    status, text = _get(address, "/clients")
    if status != 200:
        return None
    try:
        return [Client(**each) for each in json.loads(text)]
    except (ValueError, TypeError):
        return None  # another server's


def _get(address: Address, path: str) -> tuple[int, str]:
    client = HTTPClient(*address, headers=[("Accept", "text/plain")], limit_s=_TIMEOUT_S)
    try:
        answer = client.ask(path)
    except NoAnswer as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            raise WSGIFastError(
                f"nothing listens on {address}: start the server with `wsgifast run --metrics "
                f"{address}` or {VARIABLE}={address}, or name its metrics address"
            ) from None
        raise
    return answer.status, answer.body.decode("utf-8", "replace")


def parsed(text: str, at: float) -> Scrape:
    """Parse Prometheus's text format.

    :raises WSGIFastError: if the text is not in that format.
    :raises MissingExtra: if prometheus_client is not installed.
    """
    with needs("wsgifast top", "prometheus_client", "prometheus"):
        from prometheus_client.parser import text_string_to_metric_families
    samples: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for name, labels, value, *_ in family.samples:
                samples.setdefault(name, {})[frozenset(labels.items())] = value
    except (ValueError, KeyError) as error:
        raise WSGIFastError(f"that is not Prometheus's text format: {error}") from None
    return Scrape(at, samples)


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
    """As Prometheus's histogram_quantile: within its bucket a value is taken to be anywhere.

    :param buckets: upper bound -> how many values are at most that; the last bound is infinite.
    :returns: None without a value; the last finite bound for what lies beyond it.
    """
    count = max(buckets.values(), default=0.0)
    if not count:
        return None
    rank = share * count
    low = below = 0.0
    for bound in sorted(buckets):
        at_most = buckets[bound]
        if at_most >= rank:
            if math.isinf(bound):
                return low
            inside = at_most - below
            return low + (bound - low) * ((rank - below) / inside if inside else 1.0)
        low, below = bound, at_most
    return low


def _gained(before: Scrape, after: Scrape, name: str) -> dict[Labels, float]:
    """By how much the counters of a name have grown."""
    now, then = after.samples.get(name, {}), before.samples.get(name, {})
    if any(value < then.get(key, 0.0) for key, value in now.items()):
        then = {}  # the server began anew
    return {key: value - then.get(key, 0.0) for key, value in now.items()}


def _buckets(counters: Mapping[Labels, float]) -> dict[float, float]:
    """Histograms with the same bounds as one."""
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
    for pattern, own in _by_pattern(counts).items():
        if any(own.values()):
            buckets = _buckets(times[pattern])
            found.append(
                Endpoint(
                    pattern,
                    sum(own.values()) / seconds,
                    _errors(own) / seconds,
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


def _by_label(scrape: Scrape, name: str, of: str) -> dict[str, int]:
    samples = scrape.samples.get(name, {})
    return dict(sorted((dict(key).get(of, ""), round(value)) for key, value in samples.items()))

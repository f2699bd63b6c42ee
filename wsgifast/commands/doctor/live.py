"""A running server, seen from outside: the responses of its clients, and the reasons of waits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from statistics import median

from ...bodies.chunks import is_event_stream
from ...bodies.slow_shapes import Chunks
from ..arguments import check_path
from ..client import BROWSER_ACCEPT_ENCODING, HTTPClient, NoResponse, Response
from .catalogue import known_ids
from .examination import compressed_sizes
from .findings import add_to, answers_error, coding_findings, finding_at, findings_of
from .model import Endpoint, Finding, Observation, Recording, Report, Unreached

# Bodies up to here leave a server in one packet or a few: a pause between them is Nagle's.
_SMALL_BYTES = 32 * 1024
# The shortest delay of acknowledgements in Linux, in seconds, less the error of a clock.
_STALL_S = 0.030
_REQUESTS_FOR_STALL = 8
# Slow readers, and for how long they are there.
_SLOW_READERS = 8
_SLOW_S = 2.0
# Smaller bodies fit into socket buffers, so that slow readers do not matter.
_HOLDING_BYTES = 1024 * 1024
# Slow readers stop others that wait so many times as long as before, and at least this long.
_STOPPED = 10.0
_STOPPED_S = 0.25


def look_at(
    url: str,
    paths: Iterable[str] = ("/",),
    *,
    headers: Iterable[tuple[str, str]] = (),
    limit_s: float = 10.0,
    silence: Iterable[str] = (),
) -> Report:
    """Examine some paths of a running server, by GET.

    It makes about ten requests for each path. For a body of 1 MiB or more, eight further clients
    read slowly for two seconds.

    :param url: such as "http://127.0.0.1:8000". A path in it goes before the others.
    :param limit_s: seconds for one request.
    :param silence: ids of findings to leave out.
    :raises ConfigurationError: if the URL or a path is malformed, or an id is unknown.
    :raises NoResponse: if the server cannot be reached.
    """
    silenced = known_ids(silence)
    client, prefix = HTTPClient.of_url(url, headers=headers, limit_s=limit_s)
    prefix = prefix.partition("?")[0].rstrip("/")
    report = Report(url, "WSGI", None)
    for path in paths:
        check_path(path)
        endpoint = Endpoint(prefix + path, path, "command line")
        try:
            first = client.ask(endpoint.url)
        except NoResponse as error:
            if isinstance(error.__cause__, TimeoutError) and is_event_stream(error.headers):
                partial = Recording(error.status, list(error.headers), "response", timed_out=True)
                seen = Observation(endpoint, partial, Recording())
                add_to(report, seen, findings_of(seen))
                continue
            if not report.observations and not report.unreached:
                raise
            report.unreached.append(Unreached(path, str(error)))
            continue
        seen = Observation(endpoint, _recorded(first), Recording())
        wrong = answers_error(seen)
        findings = [] if wrong is None else [wrong]
        lost = ""
        for check in (_length, _packets, _compression):
            try:
                findings += check(client, endpoint, first)
            except NoResponse as error:  # the other checks go on
                lost = str(error)
        if lost:
            report.unreached.append(Unreached(path, lost))
            report.findings += findings
        else:
            add_to(report, seen, findings)
    report.findings += _slow_readers(client, report)
    report.finish(silenced)
    return report


def _length(client: HTTPClient, endpoint: Endpoint, first: Response) -> Iterator[Finding]:
    if first.missing:
        size = len(first.body)
        what = f"Content-Length says {size + first.missing} bytes, the body has {size}"
        yield finding_at("WF013", endpoint, what, "count the bytes")


def _packets(client: HTTPClient, endpoint: Endpoint, first: Response) -> Iterator[Finding]:
    if first.closes:
        fix = "a server that keeps connections open: gunicorn's gthread or FastWorker"
        yield finding_at("WF041", endpoint, "the connection ends with it", fix)
        return
    if len(first.body) > _SMALL_BYTES:
        return
    with contextlib.closing(client.connect()) as connection:
        responses = []
        for _ in range(_REQUESTS_FOR_STALL):
            responses.append(client.ask(endpoint.url, on=connection))
            if responses[-1].closes:
                return
    # The first ones of a connection are acknowledged at once.
    gap = median(response.body_s for response in responses[2:])
    if gap >= _STALL_S:
        what = f"the body comes {gap * 1e3:.0f} ms after the headers"
        yield finding_at("WF040", endpoint, what, "WSGIFast(app)", f"{gap * 1e3:.0f} ms")


def _compression(client: HTTPClient, endpoint: Endpoint, first: Response) -> Iterator[Finding]:
    compressed = _recorded(client.ask(endpoint.url, headers=[BROWSER_ACCEPT_ENCODING]))
    seen = Observation(endpoint, _recorded(first), Recording(), compressed)
    seen.compressed_sizes = compressed_sizes(compressed)
    yield from coding_findings(seen)


def _slow_readers(client: HTTPClient, report: Report) -> Iterator[Finding]:
    ended = [seen for seen in report.observations if not seen.raw.timed_out]
    by_size = sorted(ended, key=lambda seen: seen.raw.chunks.total)
    if not by_size or by_size[-1].raw.chunks.total < _HOLDING_BYTES:
        return
    small, endpoint = by_size[0].endpoint.url, by_size[-1].endpoint
    before = median(client.ask(small).seconds for _ in range(5))
    with contextlib.ExitStack() as stack:
        for _ in range(_SLOW_READERS):
            stack.enter_context(contextlib.closing(client.read_slowly(endpoint.url)))
        time.sleep(0.2)
        end = time.monotonic() + _SLOW_S
        waits = []
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                client.ask(small)
            except NoResponse:
                what = f"beside {_SLOW_READERS} slow readers the server does not answer others"
                yield finding_at("WF045", endpoint, what, "gunicorn -k wsgifast.workers.FastWorker")
                return
            waits.append(time.monotonic() - began)
    wait = median(waits)
    if wait > max(_STOPPED_S, before * _STOPPED):
        what = f"beside {_SLOW_READERS} slow readers others wait"
        cost = f"{before * 1e3:.0f} ms alone -> {wait * 1e3:.0f} ms"
        yield finding_at("WF045", endpoint, what, "gunicorn -k wsgifast.workers.FastWorker", cost)


def _recorded(response: Response) -> Recording:
    chunks = Chunks([len(response.body)], [0.0])
    found = Recording(
        response.status, list(response.headers), "response", chunks, wall_s=response.seconds
    )
    found.sent(response.body)
    return found

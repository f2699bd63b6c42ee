"""`wsgifast doctor --live`: examine responses of a running server, and delays of its clients."""

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
from .findings import add_observation, answers_error, coding_findings, finding_at, findings_of
from .model import Endpoint, Finding, Observation, Recording, Report, Unreached

# A server sends a body of up to this size in a few packets. Without TCP_NODELAY, Nagle's algorithm
# causes a pause between the headers and such a body.
_SMALL_BYTES = 32 * 1024
# In Linux, this pause is at least 40 ms, which is the shortest delay of an acknowledgement. The
# limit is lower, because measurements have errors.
_STALL_S = 0.030
_REQUESTS_FOR_STALL = 8
# A slow reader is a client that requests a body, and does not read it. The number of slow readers,
# and the time for which they do not read.
_SLOW_READERS = 8
_SLOW_S = 2.0
# Smaller bodies fit into socket buffers, so slow readers do not block the server.
_BLOCKING_BYTES = 1024 * 1024
# Slow readers block other clients if a response takes at least _BLOCKED_RATIO times as long as
# without slow readers, and at least _BLOCKED_S seconds.
_BLOCKED_RATIO = 10.0
_BLOCKED_S = 0.25


def examine_server(
    url: str,
    paths: Iterable[str] = ("/",),
    *,
    headers: Iterable[tuple[str, str]] = (),
    limit_s: float = 10.0,
    silence: Iterable[str] = (),
) -> Report:
    """Examine paths of a running server with GET.

    This function sends about ten requests for each path. If the largest body has 1 MiB or more,
    eight further clients request it, and do not read it for two seconds.

    :param url: the URL of the server, such as "http://127.0.0.1:8000". If the URL has a path, it is
        put before each of `paths`.
    :param headers: the headers of every request.
    :param limit_s: the time limit of one request in seconds.
    :param silence: the ids of findings to omit.
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
                add_observation(report, seen, findings_of(seen))
                continue
            if not report.observations and not report.unreached:
                raise
            report.unreached.append(Unreached(path, str(error)))
            continue
        seen = Observation(endpoint, _recorded(first), Recording())
        server_error = answers_error(seen)
        findings = [] if server_error is None else [server_error]
        failure = ""
        for check in (_length, _packet_delay, _compression):
            try:
                findings += check(client, endpoint, first)
            except NoResponse as error:  # the next check is still made
                failure = str(error)
        if failure:
            report.unreached.append(Unreached(path, failure))
            report.findings += findings
        else:
            add_observation(report, seen, findings)
    report.findings += _slow_readers(client, report)
    report.finish(silenced)
    return report


def _length(client: HTTPClient, endpoint: Endpoint, first: Response) -> Iterator[Finding]:
    if first.missing:
        size = len(first.body)
        what = f"Content-Length says {size + first.missing} bytes, the body has {size}"
        yield finding_at("WF013", endpoint, what, "count the bytes")


def _packet_delay(client: HTTPClient, endpoint: Endpoint, first: Response) -> Iterator[Finding]:
    if first.closes:
        fix = "a server that keeps connections open: gunicorn's gthread or FastWorker"
        yield finding_at("WF041", endpoint, "the server closes the connection after it", fix)
        return
    if len(first.body) > _SMALL_BYTES:
        return
    with contextlib.closing(client.connect()) as connection:
        responses = []
        for _ in range(_REQUESTS_FOR_STALL):
            responses.append(client.ask(endpoint.url, on=connection))
            if responses[-1].closes:
                return
    # The kernel does not delay the first acknowledgements of a connection.
    gap = median(response.body_s for response in responses[2:])
    if gap >= _STALL_S:
        what = f"the body arrives {gap * 1e3:.0f} ms after the headers"
        yield finding_at("WF040", endpoint, what, "WSGIFast(app)", f"{gap * 1e3:.0f} ms")


def _compression(client: HTTPClient, endpoint: Endpoint, first: Response) -> Iterator[Finding]:
    compressed = _recorded(client.ask(endpoint.url, headers=[BROWSER_ACCEPT_ENCODING]))
    seen = Observation(endpoint, _recorded(first), Recording(), compressed)
    seen.compressed_sizes = compressed_sizes(compressed)
    yield from coding_findings(seen)


def _slow_readers(client: HTTPClient, report: Report) -> Iterator[Finding]:
    ended = [seen for seen in report.observations if not seen.raw.timed_out]
    by_size = sorted(ended, key=lambda seen: seen.raw.chunks.total)
    if not by_size or by_size[-1].raw.chunks.total < _BLOCKING_BYTES:
        return
    small, endpoint = by_size[0].endpoint.url, by_size[-1].endpoint
    before = median(client.ask(small).seconds for _ in range(5))
    with contextlib.ExitStack() as stack:
        for _ in range(_SLOW_READERS):
            stack.enter_context(contextlib.closing(client.read_slowly(endpoint.url)))
        time.sleep(0.2)
        deadline = time.monotonic() + _SLOW_S
        waits = []
        while time.monotonic() < deadline:
            began = time.monotonic()
            try:
                client.ask(small)
            except NoResponse:
                what = f"with {_SLOW_READERS} slow readers the server does not answer other clients"
                yield finding_at("WF045", endpoint, what, "gunicorn -k wsgifast.workers.FastWorker")
                return
            waits.append(time.monotonic() - began)
    wait = median(waits)
    if wait > max(_BLOCKED_S, before * _BLOCKED_RATIO):
        what = f"with {_SLOW_READERS} slow readers other clients wait"
        cost = f"{before * 1e3:.0f} ms alone -> {wait * 1e3:.0f} ms"
        yield finding_at("WF045", endpoint, what, "gunicorn -k wsgifast.workers.FastWorker", cost)


def _recorded(response: Response) -> Recording:
    chunks = Chunks([len(response.body)], [0.0])
    found = Recording(
        response.status, list(response.headers), "response", chunks, wall_s=response.seconds
    )
    found.sent(response.body)
    return found

"""Decide which findings follow from an observation. This module sends no requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...bodies.chunks import is_event_stream
from ...bodies.entity_rules import may_have_tag
from ...bodies.slow_shapes import BodyKind, BodySeen, is_many_and_small, slow_shape
from ...checks import size_text
from ...http.framing import list_members
from .catalogue import CATALOGUE
from .model import (
    LARGE_BYTES,
    MAX_STORED_BYTES,
    Endpoint,
    Finding,
    Observation,
    Recording,
    Report,
    Unreached,
)

# A finding about CPU time needs this minimum gain, as a ratio and in seconds. Smaller gains may be
# errors of the measurement.
_MIN_GAIN = 1.2
_MIN_GAIN_S = 0.00005
# If an app blocks the event loop for longer than this, other clients notice the delay.
BLOCKED_S = 0.1
# If other threads wake the event loop for at least this share of the messages, the body is a sync
# generator, which a thread runs.
_MIN_THREAD_SHARE = 0.5

# Texts for keys of Observation.costs that users would not understand.
_CONTENDERS = {"sendfile": "by sendfile", "pathsend=True": "by sendfile"}

# Compression does not pay if the ratio of the compressed to the uncompressed size exceeds this.
# Bodies below _SMALL_BYTES are not checked.
_MAX_SIZE_RATIO = 0.95
_SMALL_BYTES = 1000
# If a compressed file costs more than this ratio of the uncompressed file, the app compresses it
# for each request. A compressed copy in a cache costs no more than the file.
_MAX_COST_RATIO = 1.1

_FIXED = "nothing: the app's wrapper fixes it"
# If a wrapper makes at least this many times as many sends as coalesce=True, the wrapper does not
# coalesce.
_MIN_SENDS_RATIO = 2

_MAY_HELP = "; --cookie or --header may help"
_WRAP = "WSGIFast(app)"
_ASGI_WRAP = "ASGIFast(app)"
_PROTOCOL = "ASGIFast(app) on asgifast.uvicorn's protocols"
_UVICORN_PROTOCOL = "uvicorn --http asgifast.uvicorn:HttpToolsProtocol"
_REQUESTED_PROTOCOL = "ASGIFast(app, pathsend=True) on asgifast.uvicorn's protocols"
_COALESCE = "WSGIFast(app, coalesce=True)"
_FASTWORKER = "gunicorn -k wsgifast.workers.FastWorker"


def findings_of(seen: Observation, *, was_wrapped: bool = False) -> list[Finding]:
    """Return the findings about an endpoint.

    :param was_wrapped: whether users already run the app in wsgifast's middleware. Findings that
        the middleware fixes then have the severity "info".
    """
    failure = _failure(seen)
    if failure is not None:
        findings = [failure]
    else:
        candidates = (*_changed(seen), *_shape(seen), *_remarks(seen), *coding_findings(seen))
        findings = [finding for finding in candidates if finding is not None]
    if not was_wrapped:
        return findings
    return [_with_wrapper(seen, finding) for finding in findings]


def _with_wrapper(seen: Observation, finding: Finding) -> Finding:
    """Return the finding with the severity and the fix for an app that is already wrapped."""
    if finding.id == "WF031" and finding.fix == _PROTOCOL:  # only the server needs a change
        return replace(finding, severity="info", fix=_UVICORN_PROTOCOL)
    return replace(finding, severity="info", fix=_FIXED) if _is_fixed(seen, finding) else finding


def _is_fixed(seen: Observation, finding: Finding) -> bool:
    if finding.id in ("WF011", "WF012", "WF013", "WF014", "WF015"):
        status = seen.wrapped.status
        return not seen.wrapped.failed and status is not None and status < 500
    if finding.id == "WF003":
        wrapped, coalesced = (seen.costs.get(name) for name in ("wrapped", "coalesced"))
        return bool(wrapped and coalesced and wrapped.sends < _MIN_SENDS_RATIO * coalesced.sends)
    if finding.id == "WF025":
        return seen.wrapped_compressed is not None and bool(seen.wrapped_compressed.coding)
    if finding.id == "WF034":
        return _has_validator(seen.wrapped)
    if finding.id in ("WF001", "WF007", "WF030"):
        return finding.fix.startswith((_WRAP, _ASGI_WRAP))
    return finding.id in ("WF020", "WF021") and finding.fix in (_WRAP, _ASGI_WRAP)


def add_observation(report: Report, seen: Observation, findings: Sequence[Finding]) -> None:
    """Add an endpoint and its findings to a report.

    If the app redirected or refused the request, the report lists the endpoint as not reached.
    """
    reason = _unreached_reason(seen)
    if reason is not None and not any(finding.severity == "wrong" for finding in findings):
        report.unreached.append(Unreached(seen.endpoint.name, reason, seen.endpoint.method))
    else:
        report.observations.append(seen)
        report.findings += findings


def answers_error(seen: Observation) -> Finding | None:
    """Return the finding about a status of 500 or above. None for any other status."""
    status = seen.raw.status
    if status is None or status < 500:
        return None
    return _finding("WF015", seen, f"answers {status}", "see the app's log")


def _unreached_reason(seen: Observation) -> str | None:
    """Return why the request did not reach the endpoint, with a hint. None if it did.

    For example, the login or the host check of the app may respond instead of the endpoint.
    """
    raw = seen.raw
    status = raw.status or 0
    if 300 <= status < 400:
        where = (raw.header("Location") or "").partition("?")[0]
        is_login = re.search(r"log_?-?in|sign_?-?in|auth", where, re.IGNORECASE)
        if where.startswith("https:"):
            # The response of a running server, which may be behind a proxy.
            is_live = raw.returned == "response"
            header = "--header 'X-Forwarded-Proto: https'"
            may_help = f"; {header if is_live else '--https'} may help"
        else:
            may_help = _MAY_HELP if is_login else ""
        return f"{status} to {where}{may_help}"
    if status == 400:
        return "400; if the app checks the host, --header 'Host: its.name' may help"
    if 400 <= status < 500:
        return f"{status}{_MAY_HELP if status in (401, 403) else ''}"
    return None


def _finding(
    id_: str, seen: Observation, what: str, fix: str, cost: str = "", saves_s: float = 0.0
) -> Finding:
    return finding_at(id_, seen.endpoint, what, fix, cost, saves_s)


def finding_at(
    id_: str, endpoint: Endpoint, what: str, fix: str, cost: str = "", saves_s: float = 0.0
) -> Finding:
    """Return a finding about an endpoint, with the severity from the catalogue."""
    return Finding(id_, CATALOGUE[id_].severity, endpoint, what, cost, fix, saves_s)


def _failure(seen: Observation) -> Finding | None:
    raw, wrapped = seen.raw, seen.wrapped
    if raw.timed_out:
        if is_event_stream(raw.headers):
            return _finding("WF023", seen, "an event stream without end", "nothing to do")
        id_ = slow_shape(_body(seen))
        if id_ in ("WF003", "WF030"):  # too many chunks for the time limit
            what = f"{raw.chunks.count:,} chunks so far, median {size_text(raw.chunks.median)}"
            fix = _ASGI_WRAP if id_ == "WF030" else _COALESCE
            return _finding(id_, seen, what, fix, "no end in time")
        what = raw.returned or "nothing yet"
        return _finding("WF016", seen, what, "see what it waits for, or set a longer --timeout")
    if raw.error is not None and raw.problem is None:
        return _finding("WF015", seen, raw.error, "see its traceback")
    if raw.problem is None:
        return answers_error(seen)
    is_fixed = not wrapped.failed
    cost = "fails as it is"
    if raw.problem.startswith("a bare"):
        kind = raw.returned
        return _finding("WF011", seen, f"a bare {kind}", f"{_WRAP}, or return [body]", cost)
    if raw.problem.startswith("a chunk is"):
        fix = f"{_WRAP}, or yield bytes" if is_fixed else "yield bytes"
        return _finding("WF012", seen, raw.problem, fix, cost)
    if raw.problem.startswith("Content-Length"):
        fix = f"{_WRAP}, or count bytes, not characters" if is_fixed else "count the bytes"
        return _finding("WF013", seen, raw.problem, fix, "waits or cuts")
    return _finding("WF014", seen, raw.problem, "return a list of bytes", cost)


def _changed(seen: Observation) -> Iterator[Finding]:
    """Yield findings about responses that the middleware changes. Yield at most one for each id."""
    by_id: dict[str, list[str]] = {}
    for kind, change in seen.changes.items():
        id_ = "WF024" if kind in ("coding", "size") else "WF017"
        by_id.setdefault(id_, []).append(change)
    for id_, changes in by_id.items():
        what = f"wrapped: {'; '.join(changes)}"
        fix = "do not wrap it, and report a bug"
        if seen.raw.returned == "messages":
            fix = "ASGIFast(app, pathsend=False), or report a bug"
        elif set(seen.changes) == {"size"} and is_many_and_small(seen.raw.chunks):
            fix = f"{_COALESCE} joins chunks before it compresses them"
        yield _finding(id_, seen, what, fix)


def _shape(seen: Observation) -> Iterator[Finding | None]:
    """Yield at most one finding about the type and the chunks of the body."""
    raw, chunks = seen.raw, seen.raw.chunks
    pieces = "messages" if raw.returned == "messages" else "chunks"
    block = size_text(chunks.median)
    many = f"{chunks.count:,} {pieces}, median {block}"
    id_ = slow_shape(_body(seen))
    if id_ == "WF001":
        yield _gain_finding(id_, seen, many, f"{_WRAP}, or return [b''.join(parts)]", "wrapped")
    elif id_ == "WF003":
        yield _gain_finding(id_, seen, many, _COALESCE, "coalesced")
    elif id_ == "WF007" and chunks.count > 1:
        what = f"a file, read {block} at a time"
        fix = f"{_WRAP}, or {_file_advice(seen)}"
        # If the server iterates over the lines of a file, a wrapper always gains time.
        yield _gain_finding(id_, seen, what, fix, "wrapped", any_gain=is_many_and_small(chunks))
    elif id_ == "WF007":  # small enough for one block
        yield _finding(
            id_, seen, "a file in a foreign wrapper", f"{_WRAP}, or {_file_advice(seen)}"
        )
    elif id_ == "WF008":
        what = f"a file behind a {_kind(raw)}, {block} at a time"
        yield _finding(id_, seen, what, _file_advice(seen), _cost_as_it_is(seen))
    elif id_ == "WF009":
        what = f"a file of {size_text(raw.chunks.total)}, read into memory"
        yield _finding(id_, seen, what, _file_advice(seen))
    elif id_ == "WF023":
        yield _finding(id_, seen, f"{chunks.count} {pieces}, with pauses", "nothing to do")
    elif id_ == "WF030" and raw.from_threads >= chunks.count * _MIN_THREAD_SHARE:
        # The body is a sync generator. For each message the event loop waits for a thread, and
        # ASGIFast cannot avoid this cost.
        what = f"{many}, each from a thread"
        fix = "yield joined rows, or use an async generator"
        yield _finding(id_, seen, what, fix, _cost_as_it_is(seen))
    elif id_ == "WF030":
        yield _gain_finding(id_, seen, many, _ASGI_WRAP, "wrapped")
    elif id_ == "WF031":
        what = f"a file, {block} at a time"
        if "pathsend=True" in seen.costs:
            yield _gain_finding(id_, seen, what, _REQUESTED_PROTOCOL, "pathsend=True")
        else:
            yield _gain_finding(id_, seen, what, _PROTOCOL, "sendfile")


def _body(seen: Observation) -> BodySeen:
    """Return the properties of the body that slow_shape() needs."""
    raw, sent_as = seen.raw, seen.wrapped.sent_as
    is_events = is_event_stream(raw.headers)
    if raw.by_sendfile:
        return BodySeen(raw.chunks, "iterator", is_events)
    kind: BodyKind = "list" if sent_as == "joined" else "iterator"
    if raw.returned == "messages":
        kind = "messages"
    elif sent_as in ("file", "blocks", "segments"):
        kind = "wrapped-file" if _kind(raw) == "FileWrapper" else "file"
    return BodySeen(raw.chunks, kind, is_events, raw.file_bytes)


def _remarks(seen: Observation) -> Iterator[Finding]:
    """Yield the other findings. An endpoint may have several."""
    raw = seen.raw
    if raw.blocked_s > BLOCKED_S:
        what = f"it blocks the event loop for {_ms(raw.blocked_s)} ms"
        yield _finding("WF032", seen, what, "def in place of async def, or a thread")
    if raw.blocks_thread:
        size = size_text(raw.declared or raw.chunks.total)
        yield _finding("WF010", seen, f"{size}: a slow client occupies a thread", _FASTWORKER)
    if raw.coding:
        what = f"a body in {raw.coding}"
        yield _finding("WF022", seen, what, "compress static files beforehand")
    if raw.is_file and raw.status == 200 and not _has_validator(raw):
        wrap = _ASGI_WRAP if raw.returned == "messages" else _WRAP
        fix = wrap if _has_validator(seen.wrapped) else "return the file, or set an ETag"
        yield _finding("WF020", seen, "a file without ETag or Last-Modified", fix)
    if raw.status == 200 and raw.declared is None and raw.returned in ("list", "tuple"):
        # WSGIFast cannot set Content-Length if the app has already sent bytes by write().
        fix = _WRAP if seen.wrapped.declared is not None else "send Content-Length"
        yield _finding("WF021", seen, "a complete body without Content-Length", fix)
    if _repeats_without_tag(seen):
        what = f"{size_text(raw.sent_bytes)}, the same each time, without ETag"
        wrap = "ASGIFast" if raw.returned == "messages" else "WSGIFast"
        yield _finding("WF034", seen, what, f"{wrap}(app, etag=True)")


def coding_findings(seen: Observation) -> Iterator[Finding]:
    """Yield findings about the response to a browser, which accepts content codings."""
    raw, compressed = seen.raw, seen.compressed
    if compressed is None or compressed.failed or compressed.status != 200:
        return
    coding = compressed.coding
    kind = (compressed.header("Content-Type") or "a body").partition(";")[0]
    wrap = "ASGIFast" if raw.returned == "messages" else "WSGIFast"
    fix = f"{wrap}(app, compress=True)"
    if raw.returned == "response":  # the response of a running server, whose app is unknown
        fix = "compress it in the app, the server or a proxy"
    if seen.compressed_sizes:
        first = (
            ""
            if compressed.sent_bytes <= MAX_STORED_BYTES
            else f"of {size_text(MAX_STORED_BYTES)}: "
        )
        (name, size), *others = seen.compressed_sizes.items()
        sizes = f"{name} {_kib(size.bytes)} KiB in {_ms(size.cpu_s)} ms"
        sizes += "".join(f", {n} {_kib(c.bytes)} in {_ms(c.cpu_s)}" for n, c in others)
        what = f"{size_text(compressed.sent_bytes)} of {kind}, not compressed"
        yield _finding("WF025", seen, what, fix, first + sizes)
    if "," in coding:
        yield _finding("WF026", seen, f"compressed twice: {coding}", "leave one of them out")
    if not coding or raw.coding:  # the app sends the same body to all clients
        return
    if raw.sent_bytes >= _SMALL_BYTES and compressed.sent_bytes > raw.sent_bytes * _MAX_SIZE_RATIO:
        sizes = f"{size_text(raw.sent_bytes)} become {size_text(compressed.sent_bytes)}"
        yield _finding("WF026", seen, f"{kind} in {coding}: {sizes}", "leave such types out")
    varies = {"*", "accept-encoding"} & _members(compressed, "Vary")
    if not varies and not {"no-store", "private"} & _members(compressed, "Cache-Control"):
        what = f"{coding} without Vary: Accept-Encoding"
        yield _finding("WF027", seen, what, "send Vary: Accept-Encoding")
    etag = compressed.header("ETag")
    if etag is not None and etag == raw.header("ETag") and not etag.startswith("W/"):
        what = f"the same ETag in {coding} and without a coding: {etag}"
        yield _finding("WF028", seen, what, "send another tag with each, or a weak one")
    cost, other = (seen.costs.get(name) for name in ("raw", "coded"))
    if cost and other and other.cpu_s > max(cost.cpu_s + _MIN_GAIN_S, cost.cpu_s * _MAX_COST_RATIO):
        what = f"a file of {size_text(raw.sent_bytes)}, compressed anew each time"
        text = f"{_ms(cost.cpu_s)} ms as it is -> {_ms(other.cpu_s)} ms in {coding}"
        yield _finding("WF029", seen, what, f"{fix} in its place", text, other.cpu_s - cost.cpu_s)


def _members(recording: Recording, name: str) -> set[str]:
    lines = [value for field, value in recording.headers if field.lower() == name.lower()]
    return {member.partition("=")[0].strip() for member in list_members(",".join(lines))}


def unlimited_uploads(endpoints: Sequence[tuple[str, str]]) -> Finding:
    """Return the finding about endpoints that accept request bodies of any size.

    :param endpoints: the method and the pattern of each endpoint, at least one.
    """
    (method, pattern), *others = endpoints
    names = ", ".join(f"{m} {p}" for m, p in others)
    endpoint = Endpoint(pattern, pattern, "framework", method)
    what = "accepts a body of any size" + (f", like {names}" if others else "")
    return finding_at("WF033", endpoint, what, "body_limit_bytes=...")


def _repeats_without_tag(seen: Observation) -> bool:
    """Return whether `etag=True` would save the transfer of a large body in memory."""
    raw = seen.raw
    is_whole = raw.chunks.count == 1 or seen.wrapped.sent_as in ("as-is", "joined")
    return (
        seen.endpoint.method == "GET"
        and raw.sent_bytes >= LARGE_BYTES
        and is_whole
        and not (raw.is_file or _has_validator(raw))
        # The raw and the wrapped response are equal.
        and raw.digest.digest() == seen.wrapped.digest.digest()
        and may_have_tag(raw.status or 0, raw.sent_bytes, raw.headers)
    )


def _has_validator(recording: Recording) -> bool:
    return bool(recording.header("ETag") or recording.header("Last-Modified"))


def _gain_finding(
    id_: str, seen: Observation, what: str, fix: str, contender: str, *, any_gain: bool = False
) -> Finding | None:
    """Return the finding.

    Return None if the fix saves too little, because the app itself needs most of the CPU time.

    :param contender: the contender that has the fix, as a key of `costs`.
    :param any_gain: whether to return the finding for any gain.
    """
    raw, other = seen.costs.get("raw"), seen.costs.get(contender)
    if raw is None or other is None:
        return None
    saved = raw.cpu_s - other.cpu_s
    if not any_gain and (saved < _MIN_GAIN_S or raw.cpu_s < other.cpu_s * _MIN_GAIN):
        return None
    label = _CONTENDERS.get(contender, contender)
    cost = f"{_ms(raw.cpu_s)} ms as it is -> {_ms(other.cpu_s)} ms {label}"
    return _finding(id_, seen, what, fix, cost, saved)


def _cost_as_it_is(seen: Observation) -> str:
    cost = seen.costs.get("raw")
    return "" if cost is None else f"{_ms(cost.cpu_s)} ms"


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.0f}" if ms >= 20 else f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"


def _kib(size: int) -> str:
    kib = size / 1024
    return f"{kib:,.0f}" if kib >= 10 else f"{kib:.1f}"


def _file_advice(seen: Observation) -> str:
    returned = seen.raw.returned
    if returned == "messages":
        return "FileResponse"
    if returned.startswith("werkzeug"):
        return "return send_file(path)"
    return "return FileResponse(f)" if returned.startswith("django") else "return the file itself"


def _kind(raw: Recording) -> str:
    return raw.returned.rpartition(".")[2]

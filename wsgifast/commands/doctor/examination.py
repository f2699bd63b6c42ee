"""Request an endpoint in this process, raw and wrapped in turn, and compare the responses.

Many responses differ at each request: they contain the time, a token, a counter. So a difference
counts only under two conditions. It must occur each time that both are requested. And the raw
responses must not differ from each other in the same respect.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ...checks import Interface, size_text
from ...compression import Compression
from ...compression.codings import MAX_PADDING_BYTES, available_codings, compressor
from ...compression.response import ResponseCoding
from ...files.compressed_copies import MIN_SAVING
from ...http.fields import HOP_BY_HOP
from ...http.framing import list_members
from ...middleware import WSGIFast
from ..client import BROWSER_ACCEPT_ENCODING, decoded
from .findings import BLOCKED_S
from .model import LARGE_BYTES, CompressedSize, Cost, Endpoint, Observation, Recording
from .recording import record_wsgi

# A contender is a variant of the app, such as raw or wrapped. To measure costs, each contender is
# requested in up to this number of rounds.
_ROUNDS = 12
# After the first rounds, no further round begins if all requests took this time together.
_MIN_ROUNDS = 5
_COSTS_S = 0.1
# In the first rounds, no further round begins after this time.
_MAX_COSTS_S = 3.0
# After this time an endpoint gets only one more request for each missing cost.
MAX_S = 8.0
# A smaller body fits into socket buffers, so a slow client blocks no thread.
_BLOCKING_BYTES = 512 * 1024
# Options for the recordings of contenders that are offered http.response.pathsend.
_OPTIONS = {name: {"pathsend": True} for name in ("sendfile", "pathsend=True")}
# The event loop must be blocked in this number of requests. Otherwise a busy machine may be the
# cause.
_BLOCKED_REQUESTS = 4

# A function that records one request: (endpoint, *, reads=True, inspect=True) -> Recording.
Record = Callable[..., Recording]
# A function that requests an endpoint three to sixty times.
Observe = Callable[[Endpoint], Observation]


@contextlib.contextmanager
def observer(
    app: Any, interface: Interface, wrapped: Any = None, *, limit_s: float
) -> Iterator[tuple[Record, Observe]]:
    """Yield a function that records one request, and a function that observes an endpoint.

    :param wrapped: the app in a WSGIFast or ASGIFast with its options. None for the default
        options.
    :param limit_s: the most seconds for one request.
    :raises WSGIFastError: if an ASGI app does not start.
    """
    with contextlib.ExitStack() as stack:
        if interface == "WSGI":
            record: Record = record_wsgi
            coalesced = WSGIFast(app, coalesce=True)
            ways = {"raw": app, "wrapped": wrapped or WSGIFast(app), "coalesced": coalesced}
        else:
            from asgifast import ASGIFast

            from .asgi_recording import StartedApp

            record = stack.enter_context(StartedApp(app)).record
            wrapped = wrapped or ASGIFast(app)
            ways = {"raw": app, "wrapped": wrapped}
            # asgifast's protocols and ASGIFast offer pathsend to the same apps.
            if wrapped.pathsend_decision.offered:
                ways["sendfile"] = wrapped
            else:
                ways["pathsend=True"] = ASGIFast(app, pathsend=True)
        contenders: dict[str, Record] = {
            name: partial(record, one, limit_s=limit_s, **_OPTIONS.get(name, {}))
            for name, one in ways.items()
        }
        yield contenders["raw"], partial(_observe, contenders)


def _observe(contenders: dict[str, Record], endpoint: Endpoint) -> Observation:
    ends = time.monotonic() + MAX_S

    def is_late() -> bool:
        return time.monotonic() > ends

    record = contenders["raw"]
    raw = record(endpoint)
    seen = Observation(endpoint, raw, Recording())
    if raw.timed_out:
        return seen
    seen.wrapped = contenders["wrapped"](endpoint)
    if raw.failed:
        return seen
    browsers = replace(endpoint, headers=(*endpoint.headers, BROWSER_ACCEPT_ENCODING))
    known = {("raw", endpoint): raw, ("wrapped", endpoint): seen.wrapped}
    seen.changes = changes(contenders, (endpoint, browsers), known, is_late)
    seen.compressed, seen.wrapped_compressed = (
        known.get((w, browsers)) for w in ("raw", "wrapped")
    )
    if seen.wrapped.failed:
        return seen
    if seen.compressed is not None:
        seen.compressed_sizes = compressed_sizes(seen.compressed)
    raw.blocked_s = min(raw.blocked_s, seen.wrapped.blocked_s)
    if not is_late():
        raw.blocked_s = _least_blocked_s(seen, record)
    measured = dict(contenders)
    requested = measured.pop("pathsend=True", None)
    if requested is not None and raw.file_bytes and not is_late():
        # The option is recommended only if it does not change responses.
        ways = {"raw": record, "wrapped": requested}
        if not changes(ways, (endpoint, browsers), {("raw", endpoint): raw}):
            measured["pathsend=True"] = requested
    if "coalesced" in measured and (raw.chunks.count < 2 or raw.by_sendfile):
        del measured["coalesced"]
    compressed = seen.compressed
    if (
        raw.is_file
        and compressed is not None
        and compressed.coding
        and not (raw.coding or compressed.is_file)
    ):
        measured["coded"] = lambda _, **options: record(browsers, **options)
    if raw.chunks.count > 1 or raw.is_file:
        first = {"raw": raw, "wrapped": seen.wrapped} if is_late() else {}
        seen.costs = _costs(measured, endpoint, first)
    # Under ASGI, a slow client delays a task, but no thread.
    is_wsgi = raw.returned != "messages"
    seen.cut_short = is_late()
    if is_wsgi and not is_late() and (raw.declared or raw.chunks.total) >= _BLOCKING_BYTES:
        raw.blocks_thread = record(endpoint, reads=False, inspect=False).blocks_thread
    return seen


def compressed_sizes(response: Recording) -> dict[str, CompressedSize]:
    """Compress a large uncompressed body, and return its sizes by content coding.

    :returns: an empty dict if compression would not save enough.
    """
    body = bytes(response.body)
    coding = ResponseCoding(Compression(), "GET", "gzip", [])
    decision = coding.decide(response.status or 0, response.headers)
    if len(body) < LARGE_BYTES or decision is None or decision.coding is None:
        return {}
    found = {}
    for name in available_codings():
        began = time.thread_time()
        size = len(compressor(name, size=len(body)).whole(body))
        found[name] = CompressedSize(size, time.thread_time() - began)
    smallest = min(each.bytes for each in found.values())
    return found if smallest <= len(body) * (1 - MIN_SAVING) else {}


def _least_blocked_s(seen: Observation, record: Record) -> float:
    """Return the longest time that each request blocks the event loop.

    If that time is long, further requests are made. On a busy machine some of them block the event
    loop longer than the app does.
    """
    least = min(seen.raw.blocked_s, seen.wrapped.blocked_s)
    for _ in range(2, _BLOCKED_REQUESTS):
        if least <= BLOCKED_S:
            break
        again = record(seen.endpoint, inspect=False)
        if not again.failed:
            least = min(least, again.blocked_s)
    return least


def _costs(
    contenders: dict[str, Record], endpoint: Endpoint, first: Mapping[str, Recording]
) -> dict[str, Cost]:
    """Measure the costs of the contenders.

    :param first: earlier recordings, if there is no more time. Contenders without an earlier
        recording then get one request.
    :returns: an empty dict if a request fails.
    """
    runs = {name: [first[name]] if name in first else [] for name in contenders}
    spent = 0.0
    for round_ in range(1, _ROUNDS + 1 if not first else 2):
        for name, record in contenders.items():
            if name in first:
                continue
            run = record(endpoint, inspect=False)
            if run.failed:
                return {}
            runs[name].append(run)
            spent += run.wall_s
        if spent > (_COSTS_S if round_ >= _MIN_ROUNDS else _MAX_COSTS_S):
            break
    # The minimum of several runs: other work on the machine can only increase the time.
    return {
        name: Cost(min(r.cpu_s for r in of), min(r.wall_s for r in of), min(r.sends for r in of))
        for name, of in runs.items()
    }


# If the responses differ, both contenders are requested again, three times. True: the raw app is
# the first of them. Together with the first requests (raw, wrapped) this is the Thue-Morse
# sequence. An app that alternates between two responses then sends both to each contender.
_AGAIN_RAW_FIRST = (False, False, True)
# Headers that the server adds, or that belong to one connection.
_SERVER_HEADERS = HOP_BY_HOP | {"date", "server"}
# Headers that a wrapper may add to a response without them.
_ADDED = frozenset({"accept-ranges", "content-length", "etag", "last-modified"})
# The ratio from which a body counts as larger. Two compressed bodies may differ by their random
# padding, which prevents BREACH.
_GROWN = 1.1


def changes(
    contenders: Mapping[str, Record],
    requests: Iterable[Endpoint],
    known: dict[tuple[str, Endpoint], Recording],
    is_late: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Return the lasting differences of the wrapped app's responses: the first one of each kind.

    :param contenders: "raw", "wrapped", and for ASGI "sendfile".
    :param requests: the endpoint, and the same endpoint with other headers.
    :param known: the recordings so far, by contender and endpoint. New recordings are added.
    :param is_late: a function that returns whether there is no time for further requests.
    """
    ways = [way for way in ("wrapped", "sendfile") if way in contenders]
    found: dict[str, str] = {}

    def first(way: str, requested: Endpoint) -> Recording:
        if (way, requested) not in known:
            known[way, requested] = contenders[way](requested)
        return known[way, requested]

    for requested in requests:
        if "failure" in found or ((("raw", requested) not in known) and is_late()):
            break
        own = first("raw", requested)
        if own.failed:
            continue
        for way in ways:
            for kind, what in _lasting(
                contenders, way, requested, own, first(way, requested)
            ).items():
                found.setdefault(kind, what)
    return found


def _lasting(
    contenders: Mapping[str, Record],
    way: str,
    requested: Endpoint,
    own: Recording,
    other: Recording,
) -> dict[str, str]:
    """Return the differences that occur each time, by their kinds."""
    found = _differences(own, other)
    for raw_first in _AGAIN_RAW_FIRST[: 1 if other.timed_out else None]:
        if not found:
            break
        order = ("raw", way) if raw_first else (way, "raw")
        both = {name: contenders[name](requested) for name in order}
        again = both["raw"]
        if again.failed:
            return {}
        same = {kind for kind in found if _compared(again).get(kind) == _compared(own).get(kind)}
        if "size" in found and not _is_larger(again, own):
            same.add("size")
        differs = _differences(again, both[way])
        found = {kind: what for kind, what in found.items() if kind in same & differs.keys()}
    return found


def _compared(recording: Recording) -> dict[str, object]:
    """Return a value for each kind of difference. It must be the same in all raw responses."""
    fields = _fields(recording)
    return {
        "failure": recording.failed,
        "status": recording.status,
        "coding": fields.pop("content-encoding", None),
        "body": recording.digest.digest(),
        **{f"header {name}": values for name, values in fields.items()},
    }


def _fields(recording: Recording) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for name, value in recording.headers:
        if name.lower() not in _SERVER_HEADERS:
            fields.setdefault(name.lower(), []).append(value.strip())
    return fields


def _differences(own: Recording, other: Recording) -> dict[str, str]:
    """Return the differences of a wrapped app's response, by their kinds."""
    if other.failed:
        why = other.error or other.problem or "it does not end in time"
        return {"failure": f"fails ({why}); as it is: {own.status}"}
    if other.status != own.status:
        return {"status": f"{other.status}; as it is: {own.status}"}
    found = {}
    fields, others = _fields(own), _fields(other)
    # The values of these headers depend on the content coding.
    derived = {"content-length", "content-encoding", "vary", "etag", "accept-ranges"}
    if other.coding and not own.coding:  # the wrapper compresses
        for name in derived:
            fields.pop(name, None)
            others.pop(name, None)
        body = decoded(bytes(other.body), other.coding)
        if body is not None and hashlib.blake2b(body).digest() != own.digest.digest():
            found["body"] = f"other bytes, decoded ({size_text(len(body))}); as it is: {_size(own)}"
    elif fields.get("content-encoding") != others.get("content-encoding"):
        codings = [(each.get("content-encoding") or ["no coding"])[0] for each in (others, fields)]
        found["coding"] = f"{codings[0]}; as it is: {codings[1]}"
    elif own.digest.digest() != other.digest.digest():
        found["body"] = f"other bytes ({_size(other)}); as it is: {_size(own)}"
    if _is_larger(other, own):
        found["size"] = f"{_size(other)}; as it is: {_size(own)}"
    for name in sorted(fields.keys() | others.keys()):
        was, now = fields.get(name), others.get(name)
        is_added = was is None and name in _ADDED
        if name == "vary":  # a wrapper that compresses adds Accept-Encoding, maybe as a new header
            lists = (list_members(",".join(each or ())) for each in (was, now))
            before, after = (set(filter(None, members)) for members in lists)
            is_added = before <= after <= before | {"accept-encoding"}
        if was != now and not is_added and not (found and name in derived):
            shown = [", ".join(each) if each else "none" for each in (now, was)]
            found[f"header {name}"] = f"{name}: {shown[0]}; as it is: {shown[1]}"
    return found


def _is_larger(recording: Recording, own: Recording) -> bool:
    padding_bytes = MAX_PADDING_BYTES if own.coding else 0
    return recording.sent_bytes > _GROWN * own.sent_bytes + padding_bytes


def _size(recording: Recording) -> str:
    return size_text(recording.sent_bytes)

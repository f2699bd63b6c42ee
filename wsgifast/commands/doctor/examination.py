"""Request an endpoint of the raw app and of the wrapped app in turn, and compare the responses.

The raw app has no wrapper of wsgifast. Many responses are different at each request, because they
contain the time, a token or a counter. So a difference between the raw and the wrapped response
counts only under two conditions. The difference must occur each time that both apps are requested.
And that part of the response, such as the body, must be equal in all raw responses.
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

# A contender is a variant of the app, such as the raw or the wrapped app. The costs of contenders
# are measured in rounds, with one request to each contender. This is the maximum number of rounds.
_ROUNDS = 12
# After _MIN_ROUNDS rounds, no further round begins if all requests together took _COSTS_S seconds.
_MIN_ROUNDS = 5
_COSTS_S = 0.1
# Before _MIN_ROUNDS rounds, no further round begins if all requests together took this time.
_MAX_COSTS_S = 3.0
# After this time, the doctor sends one more request to each contender whose cost is unknown, and no
# other requests.
MAX_S = 8.0
# A smaller body fits into socket buffers, so a slow client blocks no thread.
_BLOCKING_BYTES = 512 * 1024
# Options for the recordings of contenders that are offered http.response.pathsend.
_OPTIONS = {name: {"pathsend": True} for name in ("sendfile", "pathsend=True")}
# A finding about a blocked event loop needs this number of requests that blocked it. If fewer
# requests did, a busy machine may be the cause.
_BLOCKED_REQUESTS = 4

# A function that requests an endpoint once: (endpoint, *, reads=True, inspect=True) -> Recording.
Record = Callable[..., Recording]
# A function that requests an endpoint three to sixty times.
Observe = Callable[[Endpoint], Observation]


@contextlib.contextmanager
def observer(
    app: Any, interface: Interface, wrapped: Any = None, *, limit_s: float
) -> Iterator[tuple[Record, Observe]]:
    """Yield a function that records one request, and a function that observes an endpoint.

    :param wrapped: the app in WSGIFast or ASGIFast with the user's options. None to wrap `app` with
        the default options.
    :param limit_s: the time limit of one request in seconds.
    :raises WSGIFastError: if an ASGI app does not start.
    """
    with contextlib.ExitStack() as stack:
        if interface == "WSGI":
            record: Record = record_wsgi
            coalesced = WSGIFast(app, coalesce=True)
            variants = {"raw": app, "wrapped": wrapped or WSGIFast(app), "coalesced": coalesced}
        else:
            from asgifast import ASGIFast

            from .asgi_recording import StartedApp

            record = stack.enter_context(StartedApp(app)).record
            wrapped = wrapped or ASGIFast(app)
            variants = {"raw": app, "wrapped": wrapped}
            # asgifast's protocols offer pathsend to an app if ASGIFast offers it. So this decision
            # also tells whether an app on these protocols sends its files by sendfile.
            if wrapped.pathsend_decision.offered:
                variants["sendfile"] = wrapped
            else:
                variants["pathsend=True"] = ASGIFast(app, pathsend=True)
        contenders: dict[str, Record] = {
            name: partial(record, variant, limit_s=limit_s, **_OPTIONS.get(name, {}))
            for name, variant in variants.items()
        }
        yield contenders["raw"], partial(_observe, contenders)


def _observe(contenders: dict[str, Record], endpoint: Endpoint) -> Observation:
    deadline = time.monotonic() + MAX_S

    def is_late() -> bool:
        return time.monotonic() > deadline

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
        raw.blocked_s = _shortest_block_s(seen, record)
    measured = dict(contenders)
    requested = measured.pop("pathsend=True", None)
    if requested is not None and raw.file_bytes and not is_late():
        # The option is recommended only if it does not change responses.
        pair = {"raw": record, "wrapped": requested}
        if not changes(pair, (endpoint, browsers), {("raw", endpoint): raw}):
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


def _shortest_block_s(seen: Observation, record: Record) -> float:
    """Return the shortest time for which a request blocks the event loop.

    If the first requests block the event loop for long, further requests are made. The shortest
    time counts, because other work on the machine makes some requests slower.
    """
    shortest_s = min(seen.raw.blocked_s, seen.wrapped.blocked_s)
    for _ in range(2, _BLOCKED_REQUESTS):
        if shortest_s <= BLOCKED_S:
            break
        repeat = record(seen.endpoint, inspect=False)
        if not repeat.failed:
            shortest_s = min(shortest_s, repeat.blocked_s)
    return shortest_s


def _costs(
    contenders: dict[str, Record], endpoint: Endpoint, first: Mapping[str, Recording]
) -> dict[str, Cost]:
    """Measure the costs of the contenders.

    :param first: the earlier recordings. If there is no time for rounds, they are used, and only
        contenders without an earlier recording get a request.
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
    # The minimum of several runs counts, because other work on the machine can only increase the
    # time.
    return {
        name: Cost(
            min(r.cpu_s for r in each), min(r.wall_s for r in each), min(r.sends for r in each)
        )
        for name, each in runs.items()
    }


# If the responses differ, both contenders are requested again three times. Each item is True if the
# raw app gets the first of the two requests. Together with the first two requests (raw, wrapped),
# this order is the Thue-Morse sequence. If an app alternates between two responses, each contender
# then gets both responses.
_RAW_FIRST_IN_REPEATS = (False, False, True)
# Headers that the server adds, or that belong to one connection.
_SERVER_HEADERS = HOP_BY_HOP | {"date", "server"}
# Headers that a wrapper may add.
_ADDED = frozenset({"accept-ranges", "content-length", "etag", "last-modified"})
# A body counts as larger from this ratio. The sizes of two compressed bodies may differ by their
# random padding, which prevents the BREACH attack.
_GROWN = 1.1


def changes(
    contenders: Mapping[str, Record],
    requests: Iterable[Endpoint],
    known: dict[tuple[str, Endpoint], Recording],
    is_late: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Return the lasting differences of the wrapped app's responses.

    Of each kind, return the first one.

    :param contenders: the functions that request "raw", "wrapped", and for ASGI "sendfile".
    :param requests: the endpoint once for each set of headers to send.
    :param known: maps contenders and endpoints to the recordings so far. New recordings are added.
    :param is_late: a function that returns whether there is no time for further requests.
    """
    compared = [name for name in ("wrapped", "sendfile") if name in contenders]
    found: dict[str, str] = {}

    def first(name: str, requested: Endpoint) -> Recording:
        if (name, requested) not in known:
            known[name, requested] = contenders[name](requested)
        return known[name, requested]

    for requested in requests:
        if "failure" in found or ((("raw", requested) not in known) and is_late()):
            break
        raw = first("raw", requested)
        if raw.failed:
            continue
        for name in compared:
            for kind, what in _lasting(
                contenders, name, requested, raw, first(name, requested)
            ).items():
                found.setdefault(kind, what)
    return found


def _lasting(
    contenders: Mapping[str, Record],
    name: str,
    requested: Endpoint,
    raw: Recording,
    other: Recording,
) -> dict[str, str]:
    """Return the differences that occur each time. The keys are their kinds."""
    found = _differences(raw, other)
    for raw_first in _RAW_FIRST_IN_REPEATS[: 1 if other.timed_out else None]:
        if not found:
            break
        order = ("raw", name) if raw_first else (name, "raw")
        repeated = {each: contenders[each](requested) for each in order}
        repeat = repeated["raw"]
        if repeat.failed:
            return {}
        stable_kinds = {
            kind for kind in found if _compared(repeat).get(kind) == _compared(raw).get(kind)
        }
        if "size" in found and not _is_larger(repeat, raw):
            stable_kinds.add("size")
        differs = _differences(repeat, repeated[name])
        found = {
            kind: what for kind, what in found.items() if kind in stable_kinds & differs.keys()
        }
    return found


def _compared(recording: Recording) -> dict[str, object]:
    """Return the parts of a response to compare, by kind of difference."""
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


def _differences(raw: Recording, other: Recording) -> dict[str, str]:
    """Return the differences between two responses. The keys are their kinds."""
    if other.failed:
        reason = other.error or other.problem or "it does not end in time"
        return {"failure": f"fails ({reason}); unwrapped: {raw.status}"}
    if other.status != raw.status:
        return {"status": f"{other.status}; unwrapped: {raw.status}"}
    found = {}
    fields, others = _fields(raw), _fields(other)
    # The values of these headers depend on the content coding.
    derived = {"content-length", "content-encoding", "vary", "etag", "accept-ranges"}
    if other.coding and not raw.coding:  # the wrapper compresses
        for name in derived:
            fields.pop(name, None)
            others.pop(name, None)
        body = decoded(bytes(other.body), other.coding)
        if body is not None and hashlib.blake2b(body).digest() != raw.digest.digest():
            size = size_text(len(body))
            found["body"] = f"other bytes, decoded ({size}); unwrapped: {_size(raw)}"
    elif fields.get("content-encoding") != others.get("content-encoding"):
        codings = [(each.get("content-encoding") or ["no coding"])[0] for each in (others, fields)]
        found["coding"] = f"{codings[0]}; unwrapped: {codings[1]}"
    elif raw.digest.digest() != other.digest.digest():
        found["body"] = f"other bytes ({_size(other)}); unwrapped: {_size(raw)}"
    if _is_larger(other, raw):
        found["size"] = f"{_size(other)}; unwrapped: {_size(raw)}"
    for name in sorted(fields.keys() | others.keys()):
        old, new = fields.get(name), others.get(name)
        is_added = old is None and name in _ADDED
        if name == "vary":  # a wrapper that compresses adds the member Accept-Encoding
            lists = (list_members(",".join(each or ())) for each in (old, new))
            before, after = (set(filter(None, members)) for members in lists)
            is_added = before <= after <= before | {"accept-encoding"}
        if old != new and not is_added and not (found and name in derived):
            shown = [", ".join(each) if each else "none" for each in (new, old)]
            found[f"header {name}"] = f"{name}: {shown[0]}; unwrapped: {shown[1]}"
    return found


def _is_larger(recording: Recording, raw: Recording) -> bool:
    padding_bytes = MAX_PADDING_BYTES if raw.coding else 0
    return recording.sent_bytes > _GROWN * raw.sent_bytes + padding_bytes


def _size(recording: Recording) -> str:
    return size_text(recording.sent_bytes)

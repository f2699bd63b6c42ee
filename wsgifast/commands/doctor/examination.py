"""Requests each endpoint of an app in this process, raw and wrapped in turn, and compares both.

Responses change by themselves, too: they have the time in them, a token, a counter. So a difference
counts only if it is there each time that both are requested in turn, and the app's own response is
the same each time in this respect.
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

# Runs of each contender, to measure costs. Quick endpoints get all of them.
_ROUNDS = 12
# Runs that every endpoint gets, and the time for further ones, in seconds.
_LEAST_ROUNDS = 5
_COSTS_S = 0.1
# The most time for these runs of one endpoint.
_MOST_COSTS_S = 3.0
# After this time an endpoint gets no further request, except one for each missing cost.
MOST_S = 8.0
# A smaller body fits into socket buffers, so a slow client occupies no thread.
_HOLDING_BYTES = 512 * 1024
# How some contenders are recorded: http.response.pathsend is offered to them.
_OPTIONS = {way: {"pathsend": True} for way in ("sendfile", "pathsend=True")}
# The app is to blame for a long turn of the event loop if it happens this often in a row.
_LONG_TURNS = 4

# Records one request: (endpoint, *, reads=True, inspect=True) -> Recording.
Record = Callable[..., Recording]
# Requests an endpoint as often as needed, three to sixty times.
Observe = Callable[[Endpoint], Observation]


@contextlib.contextmanager
def observer(
    app: Any, interface: Interface, wrapped: Any = None, *, limit_s: float
) -> Iterator[tuple[Record, Observe]]:
    """Functions that request an endpoint of an app: once, and as often as needed.

    :param wrapped: the app in WSGIFast or ASGIFast, with options. None for their defaults.
    :param limit_s: seconds for one request.
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
            # asgifast's protocols offer pathsend to the same apps as ASGIFast does.
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
    ends = time.monotonic() + MOST_S

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
        # It is recommended only if it was seen to change nothing.
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
    # Under ASGI a client may hold a task, which occupies no thread.
    is_wsgi = raw.returned != "messages"
    seen.cut_short = is_late()
    if is_wsgi and not is_late() and (raw.declared or raw.chunks.total) >= _HOLDING_BYTES:
        raw.blocks_thread = record(endpoint, reads=False, inspect=False).blocks_thread
    return seen


def compressed_sizes(response: Recording) -> dict[str, CompressedSize]:
    """Return the sizes of a large uncompressed body by coding. Empty if that gains nothing."""
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
    """Return the longest turn of the event loop, measured again if it is long.

    On a busy machine some turns take long whatever the app does.
    """
    least = min(seen.raw.blocked_s, seen.wrapped.blocked_s)
    for _ in range(2, _LONG_TURNS):
        if least <= BLOCKED_S:
            break
        again = record(seen.endpoint, inspect=False)
        if not again.failed:
            least = min(least, again.blocked_s)
    return least


def _costs(
    contenders: dict[str, Record], endpoint: Endpoint, first: Mapping[str, Recording]
) -> dict[str, Cost]:
    """The costs of the contenders.

    :param first: earlier runs, which count if there is no time. Others get a single run.
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
        if spent > (_COSTS_S if round_ >= _LEAST_ROUNDS else _MOST_COSTS_S):
            break
    # The minimum of several runs: a busy machine can only add to it.
    return {
        name: Cost(min(r.cpu_s for r in of), min(r.wall_s for r in of), min(r.sends for r in of))
        for name, of in runs.items()
    }


# In which order both are requested again where they differ: whether the app as it is goes first.
# After the first pair this is the Thue-Morse sequence: an app that answers in turns, such as every
# other request in another way, gives each side both responses.
_AGAIN_RAW_FIRST = (False, False, True)
# Of the server, or of one connection.
_NOT_THE_APPS = HOP_BY_HOP | {"date", "server"}
# Headers that wrapping adds, where the app sends none.
_ADDED = frozenset({"accept-ranges", "content-length", "etag", "last-modified"})
# A body that is compressed anew may have another size, and random padding against BREACH.
_GROWN = 1.1


def changes(
    contenders: Mapping[str, Record],
    requests: Iterable[Endpoint],
    known: dict[tuple[str, Endpoint], Recording],
    is_late: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """How the responses of the wrapped app differ: the first change of each kind.

    :param contenders: "raw", "wrapped", for ASGI also "sendfile".
    :param requests: the endpoint, and with other headers.
    :param known: first responses, by contender and endpoint. Others are added.
    :param is_late: whether there is no time for the other headers.
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
    """The differences that are there each time, by their kinds."""
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
    """The values that have to be the same each time for a difference of a kind to count."""
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
        if name.lower() not in _NOT_THE_APPS:
            fields.setdefault(name.lower(), []).append(value.strip())
    return fields


def _differences(own: Recording, other: Recording) -> dict[str, str]:
    """How a wrapped app's response differs, by kinds."""
    if other.failed:
        why = other.error or other.problem or "it does not end in time"
        return {"failure": f"fails ({why}); as it is: {own.status}"}
    if other.status != own.status:
        return {"status": f"{other.status}; as it is: {own.status}"}
    found = {}
    fields, others = _fields(own), _fields(other)
    # Their values follow from the coding.
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
        if name == "vary":  # a wrapper that compresses adds a member, to a line or as one
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

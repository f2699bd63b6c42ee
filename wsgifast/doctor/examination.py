"""Examines an app in this process: each endpoint raw and wrapped, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ..apps import Interface
from ..errors import MissingExtra
from ..middleware import WSGIFast
from .judge import BLOCKED_S
from .model import Cost, Endpoint, Observation, Recording
from .recording import record_wsgi

# Runs of each contender, to measure costs; quick endpoints get all of them.
_ROUNDS = 15
# Runs that every endpoint gets, and the time for further ones, in seconds.
_LEAST_ROUNDS = 5
_COSTS_S = 0.1
# The most time for the runs of one endpoint.
_MOST_COSTS_S = 3.0
# A smaller body fits into socket buffers, so a slow client occupies no thread.
_HOLDING_BYTES = 512 * 1024

# The app is to blame for a long turn of the event loop if it happens this often in a row.
_LONG_TURNS = 4

# Records one request: (endpoint, *, reads=True, inspect=True) -> Recording.
_Record = Callable[..., Recording]
Observer = Callable[[Endpoint], Observation]


@contextmanager
def observer(app: Any, interface: Interface, *, limit_s: float) -> Iterator[Observer]:
    """A function that requests an endpoint as often as needed: three to fifty times.

    :param limit_s: seconds for one request.
    :raises WSGIFastError: if an ASGI app does not start.
    """
    if interface == "WSGI":
        yield lambda endpoint: _observe(_wsgi_contenders(app, limit_s), endpoint)
        return
    from .asgi_recording import ASGISession

    with ASGISession(app) as session:
        contenders = _asgi_contenders(app, session, limit_s)
        yield lambda endpoint: _observe(contenders, endpoint)


def _wsgi_contenders(app: Any, limit_s: float) -> dict[str, _Record]:
    def of(app: Any) -> _Record:
        return partial(record_wsgi, app, limit_s=limit_s)

    return {
        "raw": of(app), "wrapped": of(WSGIFast(app)), "coalesced": of(WSGIFast(app, coalesce=True))
    }  # fmt: skip


def _asgi_contenders(app: Any, session: Any, limit_s: float) -> dict[str, _Record]:
    try:
        from asgifast import ASGIFast
    except ImportError as error:
        raise MissingExtra("wsgifast doctor of ASGI apps", "asgi", str(error)) from None

    def of(app: Any, *, pathsend: bool = False) -> _Record:
        return partial(session.record, app, limit_s=limit_s, pathsend=pathsend)

    wrapped = ASGIFast(app)
    return {"raw": of(app), "wrapped": of(wrapped), "sendfile": of(wrapped, pathsend=True)}


def _observe(contenders: dict[str, _Record], endpoint: Endpoint) -> Observation:
    record = contenders["raw"]
    raw = record(endpoint)
    seen = Observation(endpoint, raw, Recording())
    if raw.timed_out:
        return seen
    seen.wrapped = contenders["wrapped"](endpoint)
    if raw.failed or seen.wrapped.failed:
        return seen
    raw.blocked_s = _least_blocked_s(seen, record)
    measured = dict(contenders)
    if "coalesced" in measured and (raw.chunks.count < 2 or raw.by_sendfile):
        del measured["coalesced"]
    if raw.chunks.count > 1 or raw.file_bytes:
        seen.costs = _costs(measured, endpoint)
    if raw.status == 200 and "sendfile" in contenders:
        seen.lost_coding = _lost_coding(contenders, endpoint)
    if (raw.declared or raw.chunks.total) >= _HOLDING_BYTES:
        raw.held = record(endpoint, reads=False, inspect=False).held
    return seen


def _lost_coding(contenders: dict[str, _Record], endpoint: Endpoint) -> str | None:
    """See Observation.lost_coding: most clients accept gzip, which the other requests do not."""
    asks = replace(endpoint, headers=(*endpoint.headers, ("Accept-Encoding", "gzip")))
    coding = contenders["raw"](asks).header("Content-Encoding")
    if coding is None or contenders["sendfile"](asks).header("Content-Encoding") is not None:
        return None
    return coding


def _least_blocked_s(seen: Observation, record: _Record) -> float:
    """The longest turn of the event loop; measured again if it is long.

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


def _costs(contenders: dict[str, _Record], endpoint: Endpoint) -> dict[str, Cost]:
    runs: dict[str, list[Recording]] = {name: [] for name in contenders}
    spent = 0.0
    for round_ in range(1, _ROUNDS + 1):
        for name, record in contenders.items():
            run = record(endpoint, inspect=False)
            if run.failed:
                return {}
            runs[name].append(run)
            spent += run.wall_s
        if spent > (_COSTS_S if round_ >= _LEAST_ROUNDS else _MOST_COSTS_S):
            break
    return {name: _least(of) for name, of in runs.items()}


def _least(runs: list[Recording]) -> Cost:
    """The minimum of several runs: a busy machine can only add to it."""
    return Cost(
        min(run.cpu_s for run in runs),
        min(run.wall_s for run in runs),
        min(run.sends for run in runs),
    )

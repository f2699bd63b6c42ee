"""Examines an app in this process: each endpoint raw and wrapped, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from ...checks import Interface
from ...errors import MissingExtra
from ...middleware import WSGIFast
from .changes import changes
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


class Observer(Protocol):
    """Requests an endpoint as often as needed: three to sixty times."""

    def __call__(self, endpoint: Endpoint, *, once: bool = False) -> Observation:
        """:param once: from the app as it is, and nothing else."""


@contextmanager
def observer(
    app: Any, interface: Interface, wrapped: Any = None, *, limit_s: float
) -> Iterator[Observer]:
    """A function that requests endpoints of an app.

    :param wrapped: the app in WSGIFast or ASGIFast, with options; None for their defaults.
    :param limit_s: seconds for one request.
    :raises WSGIFastError: if an ASGI app does not start.
    """

    def observe(endpoint: Endpoint, *, once: bool = False) -> Observation:
        return _observe({"raw": contenders["raw"]} if once else contenders, endpoint)

    if interface == "WSGI":
        contenders = _wsgi_contenders(app, wrapped or WSGIFast(app), limit_s)
        yield observe
        return
    from .asgi_recording import StartedApp

    with StartedApp(app) as started:
        contenders = _asgi_contenders(app, wrapped, started, limit_s)
        yield observe


def _wsgi_contenders(app: Any, wrapped: Any, limit_s: float) -> dict[str, _Record]:
    def of(app: Any) -> _Record:
        return partial(record_wsgi, app, limit_s=limit_s)

    return {"raw": of(app), "wrapped": of(wrapped), "coalesced": of(WSGIFast(app, coalesce=True))}


def _asgi_contenders(app: Any, wrapped: Any, started: Any, limit_s: float) -> dict[str, _Record]:
    try:
        from asgifast import ASGIFast
    except ImportError as error:
        raise MissingExtra("wsgifast doctor of ASGI apps", "asgi", str(error)) from None

    def of(app: Any, *, pathsend: bool = False) -> _Record:
        return partial(started.record, app, limit_s=limit_s, pathsend=pathsend)

    wrapped = wrapped or ASGIFast(app)
    contenders = {"raw": of(app), "wrapped": of(wrapped)}
    contenders["without pathsend"] = of(ASGIFast(app, pathsend=False), pathsend=True)
    # asgifast's protocols offer it to the same apps as ASGIFast does.
    if wrapped.pathsend_decision.offered:
        contenders["sendfile"] = of(wrapped, pathsend=True)
    else:
        contenders["pathsend=True"] = of(ASGIFast(app, pathsend=True), pathsend=True)
    return contenders


def _observe(contenders: dict[str, _Record], endpoint: Endpoint) -> Observation:
    record = contenders["raw"]
    raw = record(endpoint)
    seen = Observation(endpoint, raw, Recording())
    if raw.timed_out or "wrapped" not in contenders:
        return seen
    seen.wrapped = contenders["wrapped"](endpoint)
    if raw.failed:
        return seen
    seen.changes = list(changes(contenders, endpoint, raw, seen.wrapped))
    if seen.wrapped.failed:
        return seen
    raw.blocked_s = _least_blocked_s(seen, record)
    measured = {name: of for name, of in contenders.items() if "pathsend" not in name}
    if "pathsend=True" in contenders and raw.file_bytes:
        # It is recommended only if it was seen to change nothing.
        asked = contenders["pathsend=True"]
        ways = {"raw": record, "wrapped": asked}
        if not list(changes(ways, endpoint, raw, asked(endpoint))):
            measured["pathsend=True"] = asked
    if "coalesced" in measured and (raw.chunks.count < 2 or raw.by_sendfile):
        del measured["coalesced"]
    if raw.chunks.count > 1 or raw.file_bytes:
        seen.costs = _costs(measured, endpoint)
    if (raw.declared or raw.chunks.total) >= _HOLDING_BYTES:
        raw.held = record(endpoint, reads=False, inspect=False).held
    return seen


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

"""Requests that wait or run for too long: which of them are refused, and after which time."""

from __future__ import annotations

import struct
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.http2_peer import Begin
from tests.support.calls import raising
from tests.workers.stepped_worker import SteppedWorker
from wsgifast.server.deadlines import Deadlines, Shedding
from wsgifast.server.monitor import Member
from wsgifast.server.receiving import Exchange


def request(*, silent_s: float = 0.0, queued_s: float = 0.0, begun_s: float | None = None) -> Any:
    """Return a request that has just arrived.

    :param silent_s: for how long no byte has arrived on its connection.
    :param queued_s: for how long it has waited for a thread.
    :param begun_s: how long ago its proxy has received it.
    """
    now = time.monotonic()
    fields = {} if begun_s is None else {"HTTP_X_REQUEST_START": f"t={time.time() - begun_s:.3f}"}
    info = struct.pack("=52xI", int(silent_s * 1000))
    accepted = SimpleNamespace(
        peer=("192.0.2.1", 4711),
        sock=SimpleNamespace(getsockopt=lambda *names: info),
        hijacked=False,
    )
    req = SimpleNamespace(cfg=SimpleNamespace(trusts=lambda peer: True), peer_addr=accepted.peer)
    exchange = Exchange(req, 0, b"", fields)
    exchange.queued = now - queued_s if queued_s else 0.0
    exchange.started = now - queued_s
    return SimpleNamespace(
        connection=lambda: accepted,
        exchange=exchange,
    )


@pytest.mark.parametrize(
    ("waits", "is_overdue"),
    [
        ({}, False),
        ({"silent_s": 60}, True),
        ({"queued_s": 60}, True),
        ({"begun_s": 60}, True),
        ({"begun_s": 70, "queued_s": 10}, True),
        # The same time by the proxy's clock and by the kernel's.
        ({"begun_s": 40, "silent_s": 40}, False),
        ({"begun_s": 40, "silent_s": 40, "queued_s": 20}, False),
    ],
)
def test_time_that_a_request_waits_counts_once(waits: dict[str, float], is_overdue: bool) -> None:
    shared: Any = SimpleNamespace(options=SimpleNamespace(queue_timeout_s=50.0))
    assert Shedding(shared).is_overdue(request(**waits)) is is_overdue


def test_deadline_is_not_that_of_the_request_before() -> None:
    ended: list[Any] = []
    member = Member("one", since=time.monotonic() - 60, job=request())
    shared: Any = SimpleNamespace(options=SimpleNamespace(request_timeout_s=50.0))
    deadlines = Deadlines(shared, [member, Member("two")], lambda *job: ended.append(job), list)
    assert deadlines.check(time.monotonic()) > 40
    assert not ended


def test_request_that_may_wait_stays_in_its_place(stepped: SteppedWorker) -> None:
    server = stepped.server
    seen: list[int] = []
    server.pool.ready.append(request())
    server._shedding = SimpleNamespace(
        is_overdue=lambda channel: seen.append(len(server.pool.ready))
    )
    server._shed_overdue()
    assert seen == [1]
    assert len(server.pool.ready) == 1


def test_reset_stream_holds_up_no_refusal(begin: Begin) -> None:
    peer = begin()
    server, ready = peer.stepped.server, peer.stepped.server.pool.ready
    streams = [peer.ask(), peer.ask()]
    peer.send_only()
    peer.stepped.poll()
    while server.pool.work:
        peer.stepped.leave_waiting(peer.stepped.take_up())
    assert len(ready) == len(streams)
    peer.near.mux.streams[streams[0]].fail(ConnectionError("the client has reset it"))
    server._shedding._timeout_s = -1.0
    server._shed_overdue()
    peer.receive()
    assert not ready
    assert peer.responses[streams[1]].status == 503


def test_check_that_raises_ends_its_stream(begin: Begin) -> None:
    peer = begin(attributes={"ready_path": "/readyz"})
    peer.stepped.server.application.probes.answer = raising(ValueError, "no readiness")
    assert peer.get("/readyz").status == 500
    assert not peer.streams

"""The reports of a server: connections by state, waiting requests, and counters."""

from __future__ import annotations

import socket
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.server.connections import KNOWN, MakeStepped, responds_wrapped
from tests.server.pool_harness import Monitored, exhaust
from tests.workers.stepped_worker import GET, LARGE, echo, large
from wsgifast.server.server import Server
from wsgifast.server.shared import _MAX_TIMES, Counters
from wsgifast.workers import FastWorker
from wsgifast.workers.gauges import gauges


def gauges_of(server: Server) -> dict[str, Any]:
    """Return the values by the metric's name without its prefix, and connections by their state."""
    return {
        (labels[0] if labels else metric.name.removeprefix("wsgifast_")): value
        for metric, labels, value in gauges(server)
        if value or not labels
    }


def test_connections_are_counted_by_state(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large)
    stepped.begin(b"")
    stepped.begin(b"GET / HT")
    stepped.begin(KNOWN + b"01234")
    stepped.begin()  # the client does not read its response
    stepped.begin(b"nonsense\r\n\r\n")
    values = gauges_of(stepped.server)
    connections = {"idle": 1, "head": 1, "body": 1, "sending": 1, "closing": 1}
    assert values.items() >= connections.items()
    assert "running" not in values
    assert values["slow_clients"] == 1
    assert 0 < values["output_queued_bytes"] <= LARGE
    assert stepped.server.shared.counters.accepted == 5
    assert stepped.server.shared.counters.refused == {400: 1}


def test_bytes_in_temporary_files_are_counted(make_stepped: MakeStepped) -> None:
    attributes = {"body_memory_bytes": 1000, "output_memory_bytes": 1000}
    stepped = make_stepped(large, attributes=attributes)
    stepped.begin(KNOWN.replace(b"10", b"9000") + bytes(5000))
    stepped.begin()
    values = gauges_of(stepped.server)
    assert values["request_bodies_spooled_bytes"] == 5000
    assert values["output_spooled_bytes"] > LARGE // 2
    assert values["output_queued_bytes"] <= 16 * 1024


def test_timeouts_are_counted_by_cause(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large, keepalive=5)
    answered = stepped.begin(GET.replace(b"GET", b"HEAD"))
    assert answered.receive_all_there_is()
    for sent in (b"", b"GET / HT", KNOWN, GET, GET):
        stepped.begin(sent)
    stepped.pass_time(FastWorker.send_timeout_s + 1)
    timeouts = stepped.server.shared.counters.timeouts
    # One of the two connections with incomplete headers has sent nothing.
    assert timeouts == {"keepalive": 1, "head": 2, "body": 1, "send": 2}
    assert stepped.server.shared.counters.refused == {408: 2}


def test_bytes_sent_by_sendfile_are_counted(make_stepped: MakeStepped, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(500_000))
    stepped = make_stepped(responds_wrapped(lambda: path.open("rb")))
    client = stepped.begin()
    received = 0
    while received < 500_000:
        received += len(client.receive_all_there_is())
        stepped.run()
    assert stepped.server.shared.counters.sendfile_bytes == 500_000


def test_requests_without_a_free_thread_are_counted(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(echo, threads=3)
    client = stepped.connect()
    client.send(GET)
    stepped.poll()
    job = stepped.take_up()
    assert job is not None
    stepped.leave_waiting(job)
    values = gauges_of(stepped.server)
    assert (values["threads"], values["threads_busy"], values["requests_waiting"]) == (3, 0, 1)
    stepped.clock.now += 2.5
    stepped.response(stepped.take_waiting())
    assert stepped.server.shared.counters.waits == deque([2.5])
    assert gauges_of(stepped.server)["requests_waiting"] == 0


def test_thread_taking_a_waiting_request_reports_it(monitored: Monitored) -> None:
    pool = monitored.pool
    taken: list[str] = []
    monitored.at_taking = taken.append
    since = exhaust(monitored)
    pool.ready.append("waited")
    monitored.spare.busy = True
    monitored.come_back(monitored.first)
    monitored.turn(monitored.first)
    assert taken == ["waited"]
    assert pool.exhaustion.seconds(monitored.now + 2) == pytest.approx(monitored.now + 2 - since)
    monitored.now += 5
    monitored.turn(monitored.first)  # the leader polls: the time is over
    assert pool.exhaustion.seconds(monitored.now + 100) == pytest.approx(monitored.now - since)


def test_waits_that_are_not_collected_are_limited() -> None:
    counters = Counters()
    for _ in range(_MAX_TIMES + 5):
        counters.waits.append(0.1)
    assert len(counters.waits) == _MAX_TIMES


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports it")
@pytest.mark.parametrize("waiting", [0, 3])
def test_accept_backlog_is_reported(make_stepped: MakeStepped, waiting: int) -> None:
    stepped = make_stepped(echo)
    with socket.create_server(("127.0.0.1", 0), backlog=17) as listener:
        stepped.begin_anew(listener)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(waiting)]
        values = gauges_of(stepped.server)
        assert (values["accept_backlog"], values["accept_backlog_limit"]) == (waiting, 17)
        for client in clients:
            client.close()
    assert "accept_backlog" not in gauges_of(stepped.server)

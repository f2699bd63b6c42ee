"""The health checks at the metrics address of a FastWorker that is busy, slow, or about to end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from gunicorn.workers.base import Worker

from tests.support.http import Connection, Response, get
from tests.support.servers import free_port, wait_for
from tests.workers.serving import fast_worker, reset
from tests.workers.stepped_worker import LARGE, PEER, MakeStepped, echo, large, request_for
from wsgifast.commands import cli
from wsgifast.workers import FastWorker
from wsgifast.workers.gauges import slowest_clients
from wsgifast.workers.metrics import UNREADY_AFTER_S, state_of

pytestmark = pytest.mark.long


THREADS = 4
# The response does not take seconds in which no thread is free.
_SOON = "import wsgifast.workers.metrics; wsgifast.workers.metrics.UNREADY_AFTER_S = 0.5"


def test_probes_while_every_thread_is_busy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    attributes = {"metrics_bind": f"127.0.0.1:{port}"}

    def ask(path: str) -> Response:
        return get(("127.0.0.1", port), path)

    def says(path: str, status: int, text: str) -> Callable[[], bool]:
        def said() -> bool:
            with contextlib.suppress(OSError):
                response = ask(path)
                return response.status == status and text in response.body.decode()
            return False

        return said

    with (
        contextlib.ExitStack() as stack,
        fast_worker(attributes=attributes, configuration=_SOON) as server,
    ):
        wait_for(says("/readyz", 200, "ready: 1 of 1 workers"), "it is ready")
        assert ask("/readyz").header("Cache-Control") == "no-store"
        slow = Connection(server.address, receive_buffer=4096)
        slow.send_request("/file?secret=1")
        go = tmp_path / "go"
        for _ in range(THREADS):
            busy = stack.enter_context(Connection(server.address))
            busy.send_request(f"/until{go}")
        wait_for(says("/readyz", 503, "no thread of 1 workers has been free"), "it is not ready")
        assert says("/livez", 200, "alive")()

        def top_tells() -> bool:
            """The worker's last report may be older."""
            assert cli.main(["top", f"127.0.0.1:{port}", "--json"]) == 0
            seen = json.loads(capsys.readouterr().out)
            return (
                (seen["threads_busy"], seen["threads"]) == (THREADS, THREADS)
                and [client["path"] for client in seen["clients"]] == ["/file"]
                and seen["clients"][0]["queued_bytes"] > 0
            )

        wait_for(top_tells, "top tells of the threads and of the slow client")
        assert ask("/elsewhere").status == 404
        leaves = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        leaves.sendall(b"GET /met")
        reset(leaves)
        slow.close()
        go.touch()
        wait_for(says("/readyz", 200, "ready"), "it is ready again")
        go.unlink()
        stack.enter_context(Connection(server.address)).send_request(f"/until{go}")
        server.process.send_signal(signal.SIGTERM)
        wait_for(says("/readyz", 503, "no worker accepts connections"), "it ends")
        go.touch()
        assert "Traceback" not in server.log()


# The file that a worker writes.


def test_worker_state_has_beat_and_slow_clients(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large, timeout=20)
    stepped.worker.beaten_at = 12.5
    stepped.begin()
    state = state_of(stepped.server, stepped.worker)
    assert state.pid == os.getpid()
    assert (state.beat_at, state.exhausted_since, state.accepts) == (12.5, None, True)
    assert (state.unready_after_s, state.lost_after_s) == (UNREADY_AFTER_S, 40)
    (client,) = state.slow_clients
    assert client.path == "/"
    stepped.server.pool.exhaustion.since = 3.25
    stepped.server.stop()
    state = state_of(stepped.server, stepped.worker)
    assert (state.exhausted_since, state.accepts) == (3.25, False)


def test_full_worker_does_not_accept_in_its_state(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(echo, worker_connections=2)
    stepped.connect()
    assert state_of(stepped.server, stepped.worker).accepts
    last = stepped.connect()
    assert not state_of(stepped.server, stepped.worker).accepts
    last.close()
    stepped.run()
    assert state_of(stepped.server, stepped.worker).accepts


def test_worker_is_never_lost_without_timeout(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(echo, timeout=0)
    assert state_of(stepped.server, stepped.worker).lost_after_s == math.inf


def test_beat_sets_its_time(make_stepped: MakeStepped, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped = make_stepped(echo)
    monkeypatch.setattr("time.monotonic", lambda: 5.5)
    stepped.worker._beat()
    assert stepped.worker.beaten_at == 5.5


def test_slowest_clients_of_worker_come_first(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large)
    idle = stepped.connect()
    stopped = stepped.begin(request_for("/stopped?secret=1"))
    slow = stepped.begin(request_for("/slow"), peer=("2001:db8::1", 5, 0, 0))
    stepped.clock.now += 10
    taken = len(slow.receive_all_there_is())
    stepped.run()
    found = slowest_clients(stepped.server.connections, stepped.clock.now, limit=10)
    assert [(each.client, each.path) for each in found] == [
        (f"{PEER[0]}:{PEER[1]}", "/stopped"),
        ("[2001:db8::1]:5", "/slow"),
    ]
    first, second = found
    assert first.bytes_per_s == 0
    assert 0 < first.queued_bytes < LARGE
    assert first.waited_s == second.waited_s == 10
    assert 0 < second.bytes_per_s <= taken / 10
    assert slowest_clients(stepped.server.connections, stepped.clock.now, limit=1) == [first]
    assert idle.is_in("idle")
    assert stopped.is_in("sending")


def test_client_that_took_all_is_not_slow(make_stepped: MakeStepped) -> None:
    stepped = make_stepped(large)
    client = stepped.begin(request_for("/"))
    assert len(slowest_clients(stepped.server.connections, stepped.clock.now, limit=10)) == 1
    while len(client.receive_all_there_is()):
        stepped.run()
    assert slowest_clients(stepped.server.connections, stepped.clock.now, limit=10) == []
    stepped.begin(request_for("/"), peer="")
    (other,) = slowest_clients(stepped.server.connections, stepped.clock.now, limit=10)
    assert other.client == "unix"


def test_worker_gives_sign_of_life_before_its_app(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []
    monkeypatch.setattr(Worker, "init_process", lambda worker: seen.append(worker.beaten_at))
    FastWorker.__new__(FastWorker).init_process()
    assert seen[0] > 0

"""Workers without a free thread, beside siblings that have some, and alone."""

from __future__ import annotations

import contextlib
import json
from collections import Counter

import pytest

from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from tests.workers.app import block
from tests.workers.serving import fast_worker, stats

pytestmark = pytest.mark.long

THREADS = 4


def pid_of(connection: Connection) -> int:
    return int(json.loads(connection.request("/stats").body)["pid"])


def saturate_one(server: LiveServer, stack: contextlib.ExitStack) -> int:
    """Let one of the workers run an app that never ends in each of its threads."""
    by_pid: dict[int, list[Connection]] = {}
    while True:
        connection = stack.enter_context(Connection(server.address))
        pid = pid_of(connection)
        by_pid.setdefault(pid, []).append(connection)
        if len(by_pid[pid]) == THREADS:
            for each in by_pid[pid]:
                each.send_request("/stuck")
            return pid


def is_answered(server: LiveServer) -> bool:
    with Connection(server.address) as connection:
        connection.sock.settimeout(1)
        connection.send_request("/small/1")
        try:
            return connection.read_response().status == 200
        except TimeoutError:
            return False


def test_siblings_answer_for_a_worker_without_a_free_thread() -> None:
    with (
        contextlib.ExitStack() as stack,
        fast_worker("--workers=2", "--keep-alive=60", "--graceful-timeout=1") as server,
    ):
        taken = saturate_one(server, stack)
        # Who is accepted just before the worker has noticed waits, as at any app that hangs.
        wait_for(lambda: is_answered(server), "others are served", 10)
        answered = Counter(json.loads(server.get("/stats").body)["pid"] for _ in range(60))
        assert sum(answered.values()) == 60
        assert taken not in answered


def test_idle_workers_share_the_connections() -> None:
    with fast_worker("--workers=2") as server:
        wait_for(lambda: server.log().count("Booting worker") == 2, "both have been started")
        first = stats(server)["pid"]
        wait_for(lambda: stats(server)["pid"] != first, "both serve")
        pids = Counter(stats(server)["pid"] for _ in range(40))
        assert min(pids.values()) >= 8


def test_a_worker_alone_receives_while_every_thread_is_taken() -> None:
    """Whoever comes meanwhile is answered as soon as a thread is free."""
    with contextlib.ExitStack() as stack, fast_worker("--keep-alive=60") as server:
        busy = [stack.enter_context(Connection(server.address)) for _ in range(THREADS)]
        for connection in busy:
            connection.send_request("/sleep/1.5")
        late = [stack.enter_context(Connection(server.address)) for _ in range(8)]
        for connection in late:
            connection.send_request("/small/5")
        for connection in late:
            assert connection.read_response().body == block(5)


def test_a_full_worker_says_so_once() -> None:
    with fast_worker("--worker-connections=20") as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Connection(server.address)) for _ in range(20)]
        wait_for(lambda: "All 20 worker_connections are taken" in server.log(), "it says so")
        late = stack.enter_context(Connection(server.address))
        late.send_request("/small/5")
        clients[0].close()
        assert late.read_response().body == block(5)
        assert server.log().count("worker_connections are taken") == 1

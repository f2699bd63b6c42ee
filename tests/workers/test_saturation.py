"""Workers without a free thread, alone and beside workers with free threads."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from tests.workers.app import block
from tests.workers.serving import fast_worker, stats

pytestmark = pytest.mark.long

THREADS = 4


def pid_of(connection: Connection) -> int:
    return int(json.loads(connection.request("/stats").body)["pid"])


def saturate_one(server: LiveServer, stack: contextlib.ExitStack, never: Path) -> int:
    """In one of the workers, run an app that waits for a file in each thread."""
    by_pid: dict[int, list[Connection]] = {}
    while True:
        connection = stack.enter_context(Connection(server.address))
        pid = pid_of(connection)
        by_pid.setdefault(pid, []).append(connection)
        if len(by_pid[pid]) == THREADS:
            for each in by_pid[pid]:
                each.send_request(f"/until{never}")
            for each in by_pid[pid]:
                assert each.read_headers().status == 200
            return pid


def who_answers(server: LiveServer) -> int | None:
    with Connection(server.address, timeout=2) as connection:
        try:
            return pid_of(connection)
        except TimeoutError:
            return None


def test_other_workers_respond_for_a_saturated_one(tmp_path: Path) -> None:
    with (
        contextlib.ExitStack() as stack,
        fast_worker("--workers=2", "--keep-alive=60", "--graceful-timeout=1") as server,
    ):
        taken = saturate_one(server, stack, tmp_path / "never")

        def other_workers_answer() -> bool:
            """A request that arrives just before the worker has noticed waits, like behind any app
            that hangs.
            """
            answered = {who_answers(server) for _ in range(60)}
            assert taken not in answered
            return None not in answered

        wait_for(other_workers_answer, "all others are served")


def test_idle_workers_share_the_connections() -> None:
    with fast_worker("--workers=2") as server:
        server.wait_for_log("Booting worker", 2)
        first = stats(server)["pid"]
        wait_for(lambda: stats(server)["pid"] != first, "both serve")

        def share() -> bool:
            """A busy machine may run one of them more often for a while."""
            pids = Counter(stats(server)["pid"] for _ in range(40))
            return len(pids) == 2 and min(pids.values()) >= 8

        wait_for(share, "they share the connections")


def test_saturated_worker_alone_keeps_receiving() -> None:
    with contextlib.ExitStack() as stack, fast_worker("--keep-alive=60") as server:
        busy = [stack.enter_context(Connection(server.address)) for _ in range(THREADS)]
        for connection in busy:
            connection.send_request("/sleep/1.5")
        late = [stack.enter_context(Connection(server.address)) for _ in range(8)]
        for connection in late:
            connection.send_request("/small/5")
        for connection in late:
            assert connection.read_response().body == block(5)


def test_endless_empty_blocks_leave_others_their_turns() -> None:
    """Its iterator is written in C, so that no Python code runs between two blocks."""
    with (
        fast_worker("--graceful-timeout=1") as server,
        Connection(server.address) as connection,
    ):
        connection.send_request("/endless")
        for _ in range(20):
            assert server.get("/small/5").body == block(5)

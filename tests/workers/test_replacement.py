"""Workers that are replaced: after max_requests, and when all their threads are stuck."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import STOP_S, wait_for
from tests.workers.app import FILE_BYTES, block
from tests.workers.serving import fast_worker, stats

pytestmark = pytest.mark.long

THREADS = 4


def test_a_slow_download_keeps_no_worker_from_accepting_nor_is_it_cut_off() -> None:
    """Although it has served its max_requests: it is replaced once the download is over."""
    with (
        fast_worker("--max-requests=5", "--graceful-timeout=30") as server,
        Connection(server.address) as slow,
    ):
        first = stats(server)["pid"]
        slow.send_request("/file")
        assert slow.read_head().header("Content-Length") == str(FILE_BYTES)
        while "Autorestarting" not in server.log():
            assert stats(server)["pid"] == first
        end = time.monotonic() + 1
        while time.monotonic() < end:
            # A pause would last as long as the download, or until the worker is killed.
            assert stats(server)["pid"] == first
        assert slow.read(FILE_BYTES) == block(FILE_BYTES)
        wait_for(lambda: stats(server)["pid"] != first, "the worker is replaced")


def test_who_is_kept_alive_keeps_no_worker_from_accepting() -> None:
    with (
        contextlib.ExitStack() as stack,
        fast_worker("--max-requests=20", "--keep-alive=60") as server,
    ):
        first = stats(server)["pid"]
        for _ in range(3):
            kept = stack.enter_context(Connection(server.address))
            assert kept.request("/small/1").keep_alive
        wait_for(lambda: stats(server)["pid"] != first, "the worker is replaced")


def test_a_worker_that_is_replaced_loses_no_request_of_many_clients() -> None:
    failures: list[str] = []

    def ask() -> None:
        for _ in range(40):
            response = server.get("/small/5")
            if response.status != 200 or response.body != block(5):
                failures.append(f"{response.status}")

    with fast_worker("--max-requests=30", "--max-requests-jitter=10") as server:
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert server.log().count("Booting worker") >= 2


GROWING = """
import tests.workers.app

kept = []

def app(environ, start_response):
    if environ["PATH_INFO"] == "/grow":
        kept.append(b"x" * 300_000_000)
    return tests.workers.app.app(environ, start_response)
"""


def test_a_worker_that_has_grown_or_is_old_is_replaced_and_loses_no_request(
    tmp_path: Path,
) -> None:
    (tmp_path / "growing.py").write_text(GROWING)
    limits = {"max_rss_bytes": 250_000_000, "max_lifetime_s": 4.0}
    with (
        fast_worker(f"--pythonpath={tmp_path}", app="growing:app", attributes=limits) as server,
        Connection(server.address) as slow,
    ):
        first = stats(server)["pid"]
        slow.send_request("/file")
        assert slow.read_head().status == 200
        server.get("/grow")
        wait_for(lambda: "max_rss_bytes=250,000,000." in server.log(), "it is told")
        assert stats(server)["pid"] == first  # which goes on while others are served
        assert slow.read(FILE_BYTES) == block(FILE_BYTES)
        slow.close()
        wait_for(lambda: stats(server)["pid"] != first, "it is replaced")
        wait_for(lambda: "max_lifetime_s is over" in server.log(), "the second one is old")


def test_a_limit_that_the_app_alone_exceeds_ends_the_start() -> None:
    with fast_worker(attributes={"max_rss_bytes": 1_000_000}, fails=True) as server:
        assert server.process.wait(STOP_S) == 4  # gunicorn's status where an app cannot be loaded
        assert "FastWorker.max_rss_bytes=1,000,000: with this app a worker has" in server.log()
        assert server.log().count("Booting worker") == 1


def test_threads_that_are_all_stuck_are_told_with_their_stacks() -> None:
    with (
        contextlib.ExitStack() as stack,
        fast_worker("--graceful-timeout=1", attributes={"stuck_after_s": 2.0}) as server,
    ):
        for _ in range(THREADS):
            stack.enter_context(Connection(server.address)).send_request("/stuck")
        wait_for(lambda: server.log().count("in do_stuck") == THREADS, "it is told")
        assert "All 4 threads have been" in server.log()
        assert server.log().count("All 4 threads") == 1


def test_a_worker_whose_threads_are_all_stuck_may_be_replaced() -> None:
    limits = {"stuck_after_s": 1.0, "kill_stuck_after_s": 2.0}
    with contextlib.ExitStack() as stack, fast_worker(attributes=limits) as server:
        first = stats(server)["pid"]
        slow = stack.enter_context(Connection(server.address))
        slow.send_request("/file")
        assert slow.read_head().status == 200
        for _ in range(THREADS):
            stack.enter_context(Connection(server.address)).send_request("/stuck")
        wait_for(lambda: "the worker ends" in server.log(), "it ends")
        # What is on its way is sent to its end.
        assert slow.read(FILE_BYTES) == block(FILE_BYTES)
        assert stats(server)["pid"] != first

"""Clients that stall, send slowly, reset or vanish: other clients are served, and nothing leaks."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from tests.workers.app import FILE_BYTES, block
from tests.workers.serving import (
    POLLERS,
    fast_worker,
    nothing_left_behind,
    reset,
    stats,
)

pytestmark = pytest.mark.long

# Short limits, so that the tests reach them. The sweep runs once a second.
LIMITS = {
    "head_timeout_s": 1.0,
    "body_timeout_s": 1.0,
    "send_timeout_s": 1.0,
    "body_limit_bytes": 2_000_000,
    "body_memory_bytes": 10_000,
}


@pytest.fixture(scope="module", params=POLLERS)
def server(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    with served(poller=request.param, **LIMITS) as running:
        yield running


@pytest.fixture(scope="module", params=POLLERS)
def patient(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    """Limits for clients that continue in the end, also if the machine stalls meanwhile."""
    with served(poller=request.param) as running:
        yield running


def served(**attributes: object) -> AbstractContextManager[LiveServer]:
    return fast_worker("--worker-connections=3000", attributes=attributes)


@pytest.mark.parametrize(
    "stage",
    [
        b"",
        b"GET /sma",
        b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /sleep/0.2 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /chunks/500-100000 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /file HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /segments HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n" + b"a" * 20_000,
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n"
        + b"a" * 20_000,
        b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n" * 20,
    ],
)
def test_vanished_client_leaves_nothing_behind(patient: LiveServer, stage: bytes) -> None:
    with nothing_left_behind(patient):
        for vanish in ("close", "reset") * 5:
            connection = Connection(patient.address)
            connection.send(stage)
            if vanish == "reset":
                reset(connection.sock)
            connection.close()


def test_reset_during_response_leaves_nothing_behind(patient: LiveServer) -> None:
    with nothing_left_behind(patient):
        for target in ("/file", "/segments", "/chunks/100-100000"):
            connection = Connection(patient.address, receive_buffer=4096)
            connection.send_request(target)
            connection.read_headers()
            reset(connection.sock)
            connection.close()


@pytest.mark.parametrize(
    "part",
    [
        b"GET / HT",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n5\r\n",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
    ],
    ids=["head", "body", "chunks"],
)
def test_dripping_request_gets_408_and_holds_no_thread(server: LiveServer, part: bytes) -> None:
    with nothing_left_behind(server), contextlib.ExitStack() as stack:
        drips = [stack.enter_context(Connection(server.address)) for _ in range(20)]
        for connection in drips:
            connection.send(part)
        assert server.get("/small/5").body == block(5)
        for connection in drips:
            assert connection.read_response().status == 408
            assert connection.read_to_end() == b""


FAILING_LOGGER = """
from gunicorn.glogging import Logger

class logger_class(Logger):
    def access(self, resp, req, environ, request_time):
        raise RuntimeError("the log cannot be written")
"""


def test_failing_access_log_costs_no_response() -> None:
    with fast_worker(attributes=LIMITS, configuration=FAILING_LOGGER) as server:
        for framing, body, status in (
            ("Content-Length: 2000001", "", 413),
            ("Content-Length: 10", "short", 408),
            ("Transfer-Encoding: chunked", "nonsense\r\n", 400),
            ("X-Long: " + 10_000 * "a", "", 431),
        ):
            with Connection(server.address) as connection:
                connection.send(
                    f"POST /echo HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{body}".encode()
                )
                assert connection.read_response().status == status
                assert connection.read_to_end() == b""
        with Connection(server.address) as connection:
            assert connection.request("/small/5").body == block(5)
            assert connection.request("/small/6").body == block(6)
            assert connection.request("/raise/before").status == 500
        # Headers that are too long do not count as a request.
        server.wait_for_log("Error in the access log", 6)
        assert "Error in a connection" not in server.log()


def test_refused_request_is_logged_with_client() -> None:
    with (
        fast_worker("--proxy-protocol=auto", attributes=LIMITS) as server,
        Connection(server.address) as connection,
    ):
        connection.send(b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 80\r\n")
        connection.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2000001\r\n\r\n")
        assert connection.read_response().status == 413
        server.wait_for_log('"POST /echo HTTP/1.1" 413')
        assert "192.0.2.1 - - " in server.log()


def test_stalled_readers_hold_no_thread_and_go(server: LiveServer) -> None:
    with nothing_left_behind(server), contextlib.ExitStack() as stack:
        for target in [
            *["/file"] * 10, *["/segments"] * 5, *["/small/5000000"] * 10,
            *["/chunks/100-100000"] * 10, *["/chunks/2000-1000"] * 2,
        ]:  # fmt: skip
            connection = Connection(server.address, receive_buffer=4096)
            stack.enter_context(connection)
            connection.send_request(target)
        assert server.get("/small/5").body == block(5)
        wait_for(lambda: stats(server)["fds"] < 25, "the stalled readers are dropped")


def test_stalled_event_stream_reader_releases_thread(server: LiveServer) -> None:
    with nothing_left_behind(server), Connection(server.address, receive_buffer=4096) as stalled:
        stalled.send_request("/events/500-100000?stalled")
        wait_for(
            lambda: "stalled same thread" in stats(server)["closed"],
            "the generator is closed in its thread",
        )


def test_generator_is_not_far_ahead_in_memory(patient: LiveServer) -> None:
    before = stats(patient)["rss_kib"]
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = Connection(patient.address, receive_buffer=4096)
            stack.enter_context(connection)
            connection.send_request("/chunks/2000-100000")
            connection.read_headers()
        # Downloads of 200 MB each. While the disk is slower than the app, up to 8 MB of each are in
        # memory.
        assert stats(patient)["rss_kib"] - before < 60_000


def test_thousand_dropped_connections_leave_nothing(patient: LiveServer) -> None:
    rss = stats(patient)["rss_kib"]
    with nothing_left_behind(patient):
        for number in range(1000):
            connection = Connection(patient.address)
            if number % 3 == 0:
                connection.send(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
            if number % 2 == 0:
                reset(connection.sock)
            connection.close()
    assert stats(patient)["rss_kib"] - rss < 20_000


@pytest.mark.parametrize("poller", POLLERS)
def test_downloads_go_on_while_all_threads_are_busy(poller: str, tmp_path: Path) -> None:
    release = tmp_path / "release"
    with (
        served(poller=poller, head_timeout_s=1.0) as server,
        contextlib.ExitStack() as stack,
    ):
        download = stack.enter_context(Connection(server.address, receive_buffer=65_536))
        download.send_request("/file")
        assert download.read_headers().status == 200  # its app has run in a thread
        busy = [stack.enter_context(Connection(server.address)) for _ in range(4)]
        for connection in busy:
            connection.send_request(f"/until{release}")
        for connection in busy:
            assert connection.read_headers().status == 200
        # Four threads wait in their apps: no thread is free, and the download still arrives.
        assert download.read(FILE_BYTES) == block(FILE_BYTES)
        # Headers are still received and limited, and complete requests wait for a thread.
        late = stack.enter_context(Connection(server.address))
        late.send(b"GET / HT")
        waiting = stack.enter_context(Connection(server.address))
        waiting.send_request("/small/5")
        assert late.read_response().status == 408
        release.touch()
        assert waiting.read_response().body == block(5)
        for connection in busy:
            assert connection.read_to_end_of_chunks().endswith(b"third")


def test_app_that_never_returns_holds_one_thread(patient: LiveServer) -> None:
    with Connection(patient.address) as stuck:
        stuck.send_request("/sleep/3")
        for _ in range(50):
            assert patient.get("/small/5").body == block(5)
        assert stuck.read_response().body == b"ok"


def test_worker_without_descriptors_recovers() -> None:
    with fast_worker("--worker-connections=3000", attributes=LIMITS) as server:
        worker = stats(server)["pid"]
        _limit_descriptors(worker, stats(server)["fds"] + 10)
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(Connection(server.address))
            assert first.request("/small/5").body == block(5)
            for _ in range(30):
                stack.enter_context(Connection(server.address))
            server.wait_for_log("Cannot accept")
        wait_for(lambda: server.get("/small/5").status == 200, "it recovers")
        assert stats(server)["pid"] == worker


def _limit_descriptors(pid: int, count: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, count))


def test_idle_connections_cost_little_memory() -> None:
    count = 500
    with (
        fast_worker("--worker-connections=3000", "--keep-alive=60") as server,
        contextlib.ExitStack() as stack,
    ):
        server.get("/small/10")
        before = stats(server)["rss_kib"]
        for _ in range(count):
            connection = stack.enter_context(Connection(server.address))
            assert connection.request("/small/10").keep_alive
        assert (stats(server)["rss_kib"] - before) / count < 8

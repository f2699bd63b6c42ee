"""Settings of operators: health checks, drain, shedding by queue time, and deadlines."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import Connection, get
from tests.support.http2 import Connected
from tests.support.programs import program
from tests.support.servers import LiveServer, free_port, wait_for
from tests.workers.serving import fast_worker, refused

pytestmark = pytest.mark.long

APP = "tests.workers.operators_app:app"
VERSIONS = ("HTTP/1.1", "HTTP/2")
PROBES = {"health_path": "/livez", "ready_path": "/readyz"}


@contextlib.contextmanager
def serving(*options: str, **attributes: Any) -> Iterator[LiveServer]:
    """Start FastWorker with both versions of HTTP, without TLS."""
    both = ("--http-protocols=h2,h1", "--http2-cleartext=both")
    with fast_worker(*both, *options, app=APP, attributes=attributes) as server:
        yield server


def ask(server: LiveServer, target: str, version: str, method: str = "GET") -> tuple[int, bytes]:
    """Return the status and the body of a response, with status 0 for an incomplete one."""
    with Connection(server.address) as connection:
        if version == "HTTP/1.1":
            try:
                response = connection.request(target, method=method)
            except (EOFError, ConnectionError):
                return 0, b""
            return response.status, response.body
        client = Connected(connection.sock)
        client.begin()
        received = client.response(client.send(target, method))
        return (0, b"") if received.reset else (received.status, received.body)


@contextlib.contextmanager
def busy(server: LiveServer, count: int, file: Path) -> Iterator[None]:
    """Occupy threads until the end of the block.

    On a slow machine a request may have waited too long before it has a thread: it is sent again.
    """

    def is_more(before: int) -> bool:
        return len([*file.parent.glob("*.waits")]) > before

    with contextlib.ExitStack() as stack:
        for number in range(count):
            while not is_more(number):
                connection = stack.enter_context(Connection(server.address))
                connection.send_request(f"/without?{file}")
                taken = partial(_is_taken, connection.sock, partial(is_more, number))
                wait_for(taken, "a thread takes it")
        yield
        file.touch()


def _is_taken(sock: socket.socket, is_running: Callable[[], bool]) -> bool:
    return is_running() or bool(select.select([sock], [], [], 0)[0])


def test_health_checks_need_no_thread_and_no_log_line(tmp_path: Path) -> None:
    probes = {**PROBES, "access_log_skip": ["/quiet"]}
    with (
        serving("--threads=1", **probes) as server,
        busy(server, 1, tmp_path / "go"),
    ):
        for version in VERSIONS:
            assert ask(server, "/livez?a=b", version) == (200, b"alive\n")
            assert ask(server, "/readyz", version) == (200, b"ready: 1 of 1 workers\n")
            assert ask(server, "/livez", version, "HEAD") == (200, b"")
        with Connection(server.address) as connection:
            for _ in range(2):
                response = connection.request("/livez")
                assert response.keep_alive
                assert response.header("Cache-Control") == "no-store"
    with serving(**probes) as server:
        assert ask(server, "/livez", "HTTP/1.1", "POST") == (200, b"app")
        for target in ("/livez", "/readyz", "/quiet", "/quiet/not", "/end"):
            assert server.get(target).status == 200
        server.wait_for_log('"GET /end ')
        assert '"GET /quiet/not ' in server.log()
        for target in ("/livez", "/readyz", "/quiet"):
            assert f'"GET {target} ' not in server.log()


def test_probe_paths_are_the_apps_by_default() -> None:
    with serving() as server:
        assert server.get("/livez").body == b"app"


@pytest.mark.parametrize("version", VERSIONS)
def test_drain_fails_readiness_and_serves_on(version: str) -> None:
    with serving("--keep-alive=60", drain_delay_s=30, **PROBES) as server:
        with contextlib.ExitStack() as stack:
            idle = stack.enter_context(Connection(server.address))
            assert idle.request("/").keep_alive
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: server.get("/readyz").status == 503, "readiness fails")
            curl = [program("curl"), "--silent", "--fail", "--max-time", "20"]
            if version == "HTTP/2":
                curl.append("--http2-prior-knowledge")
            urls = [f"{server.url}/livez", f"{server.url}/", f"{server.url}/"]
            assert subprocess.run([*curl, *urls], capture_output=True).stdout == b"alive\nappapp"
            response = idle.request("/")
            assert (response.status, response.keep_alive) == (200, False)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGQUIT)  # at once
        assert server.stop() == 0
        assert "The stop begins in 30 s" in server.log()


def test_drain_ends_with_the_server() -> None:
    with serving(drain_delay_s=0.3, **PROBES) as server:
        assert server.get("/readyz").status == 200
        assert server.stop() == 0
        assert "The stop begins in 0.3 s" in server.log()


def test_reload_drains_nothing() -> None:
    with serving(drain_delay_s=60, **PROBES) as server:
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("All workers are replaced")
        assert server.get("/readyz").status == 200
        assert "The stop begins" not in server.log()
        server.process.send_signal(signal.SIGINT)
        server.stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_request_that_waits_too_long_gets_503(version: str, tmp_path: Path) -> None:
    with (
        serving("--threads=1", queue_timeout_s=0.2) as server,
        busy(server, 1, tmp_path / "go"),
    ):
        assert ask(server, "/", version)[0] == 503
        with Connection(server.address) as connection:
            response = connection.request("/")
            assert (response.status, response.header("Retry-After")) == (503, "1")


def test_time_at_a_trusted_proxy_counts_as_waiting() -> None:
    with serving("--forwarded-allow-ips=127.0.0.1", queue_timeout_s=5) as server:
        for ago_s, status in ((0, 200), (9, 503)):
            start = f"t={time.time() - ago_s:.3f}"
            assert server.get("/", headers=[("X-Request-Start", start)]).status == status
    with serving("--forwarded-allow-ips=192.0.2.1", queue_timeout_s=5) as server:
        start = f"t={time.time() - 9:.3f}"
        assert server.get("/", headers=[("X-Request-Start", start)]).status == 200


def test_waiting_request_of_a_gone_client_is_dropped(tmp_path: Path) -> None:
    with serving("--threads=1", **PROBES) as server:
        with busy(server, 1, tmp_path / "go"):
            for number in range(3):
                with Connection(server.address) as connection:
                    connection.send_request(f"/gone/{number}")
            for _ in range(3):  # they wait by then
                server.get("/livez")
            waits = Connection(server.address)
            waits.send_request("/waits")
        assert waits.read_response().body == b"app"
        waits.close()
        server.wait_for_log('"GET /waits ')
        assert '"GET /gone/' not in server.log()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("target", ["/late", "/begun", "/key", "/decorated"])
def test_request_beyond_its_deadline_ends_early(version: str, target: str, tmp_path: Path) -> None:
    own = target in ("/key", "/decorated")
    go = tmp_path / "go"
    with serving("--threads=2", request_timeout_s=60 if own else 0.2) as server:
        status, body = ask(server, f"{target}?{go}", version)
        if target == "/begun":
            assert status == 0
        else:
            assert status == 503
            assert b"too long" in body
        server.wait_for_log("has taken longer than request_timeout_s=0.2")
        assert "in _wait\n" in server.log()
        assert ask(server, "/", version) == (200, b"app")
        go.touch()
        server.wait_for_log(f"GET {target}?{go} HTTP/{2 if version == 'HTTP/2' else 1}")
        shown = 503 if target != "/begun" else 200
        assert any(f" {shown} " in line for line in server.log().splitlines() if target in line)
        assert "Error" not in server.log()


def test_deadline_is_off_by_default_and_for_a_view(tmp_path: Path) -> None:
    go = tmp_path / "go"
    for target, attributes in (("/late", {}), ("/without", {"request_timeout_s": 0.1})):
        go.unlink(missing_ok=True)
        with (
            serving("--threads=2", **attributes) as server,
            Connection(server.address) as connection,
        ):
            connection.send_request(f"{target}?{go}")
            for _ in range(200):  # some of them are later than the deadline of /late would be
                assert server.get("/").status == 200
            go.touch()
            assert connection.read_response().body == b"late"


def test_worker_of_threads_past_deadlines_is_replaced(tmp_path: Path) -> None:
    with serving("--threads=2", request_timeout_s=0.2) as server:
        responses = []
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                connection = stack.enter_context(Connection(server.address))
                connection.send_request(f"/late?{tmp_path / 'never'}")
                responses.append(connection)
            assert [each.read_response().status for each in responses] == [503, 503]
        server.wait_for_log("All 2 threads are past the deadlines of their requests")
        wait_for(lambda: answered(server), "another worker serves")


def answered(server: LiveServer) -> bool:
    with contextlib.suppress(OSError, EOFError):
        return server.get("/").status == 200
    return False


def test_metrics_count_what_operators_set(tmp_path: Path) -> None:
    metrics = ("127.0.0.1", free_port())
    bind = f"{metrics[0]}:{metrics[1]}"
    with serving(
        "--threads=2", metrics_bind=bind, queue_timeout_s=1, request_timeout_s=60, **PROBES
    ) as server:
        with busy(server, 2, tmp_path / "go"):
            assert server.get("/").status == 503
            assert server.get("/livez").status == 200
        assert server.get(f"/key?{tmp_path / 'other'}").status == 503
        expected = (
            'wsgifast_health_checks_total{status="200"} 1.0',
            'wsgifast_requests_shed_total{reason="queue_timeout"} ',
            "wsgifast_request_timeouts_total 1.0",
            "wsgifast_workers_draining 0.0",
        )

        def are_there() -> bool:
            text = get(metrics, "/metrics").body.decode()
            return all(line in text for line in expected)

        (tmp_path / "other").touch()
        wait_for(are_there, "the metrics have them")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("health_path", "livez", "a path such as /livez"),
        ("ready_path", "/readyz?full", "a path such as /livez"),
        ("access_log_skip", "/livez", "a list of paths"),
        ("drain_delay_s", -1, "seconds, 0 or more"),
        ("queue_timeout_s", 0, "seconds above 0"),
        ("request_timeout_s", "30", "seconds above 0"),
    ],
)
def test_wrong_value_is_refused_with_the_way_out(
    name: str, value: object, expected: str, tmp_path: Path
) -> None:
    conf = tmp_path / "conf.py"
    conf.write_text(f'worker_class = "wsgifast.workers.FastWorker"\n{name} = {value!r}\n')
    printed = refused("-c", str(conf))
    assert f"{name}={value!r}: expected {expected}" in printed


def test_one_path_for_both_health_checks_is_refused() -> None:
    env = {"WSGIFAST_HEALTH_PATH": "/up", "WSGIFAST_READY_PATH": "/up"}
    assert "health_path and ready_path are both '/up'" in refused(env=env)

"""Operator settings under asgifast's protocols: health checks, drain, deadlines, shedding."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from asgifast.uvicorn import HttpToolsProtocol

from tests.support.http import Connection, get
from tests.support.programs import program
from tests.support.servers import ROOT, LiveServer, free_port, live_server, wait_for
from tests.workers.test_operators import ask
from wsgifast.errors import ConfigurationError

pytestmark = pytest.mark.long

APP = "tests.asgi.operators_app:app"
PROBES = {"health_path": "/livez", "ready_path": "/readyz"}
UVICORN = "-m uvicorn --port {port} --timeout-keep-alive 60 --http asgifast.uvicorn:"
# The command of the server, and the HTTP version of the request.
STACKS = {
    "httptools": (f"{UVICORN}HttpToolsProtocol", "HTTP/1.1"),
    "h11": (f"{UVICORN}H11Protocol", "HTTP/1.1"),
}
if find_spec("zttp"):
    STACKS["zttp"] = f"{UVICORN}AutoZttpProtocol", "HTTP/1.1"
    STACKS["zttp, HTTP/2"] = f"{UVICORN}AutoZttpProtocol", "HTTP/2"
SUPERVISED = "-m asgifast.uvicorn --port {port} --http asgifast.uvicorn:HttpToolsProtocol"
GUNICORN = (
    "-m gunicorn --no-control-socket -b 127.0.0.1:{port} -k asgifast.workers.FastUvicornWorker "
    "--access-logfile=-"
)
SUPERVISORS = {"uvicorn's": SUPERVISED, "gunicorn": GUNICORN}
each_stack = pytest.mark.parametrize("stack", STACKS)


def variables(options: dict[str, Any]) -> dict[str, str]:
    return {f"WSGIFAST_{name.upper()}": str(value) for name, value in options.items()}


@contextlib.contextmanager
def serving(command: str, *more: str, **options: Any) -> Iterator[LiveServer]:
    argv = ["python", *command.split(), *more, APP]
    with live_server(argv, env=variables(options), forked=False) as server:
        yield server


@each_stack
def test_health_checks_need_no_app_and_no_log_line(stack: str) -> None:
    command, version = STACKS[stack]
    with serving(command, access_log_skip="/quiet", **PROBES) as server:
        assert ask(server, "/livez?a=b", version) == (200, b"alive\n")
        assert ask(server, "/readyz", version) == (200, b"ready\n")
        assert ask(server, "/livez", version, "HEAD") == (200, b"")
        assert ask(server, "/livez", version, "POST") == (200, b"app")
        for target in ("/quiet", "/quiet/not", "/end"):
            assert ask(server, target, version) == (200, b"app")
        server.wait_for_log('"GET /end ')
        assert '"GET /quiet/not ' in server.log()
        for target in ("/livez", "/readyz", "/quiet"):
            assert f'"GET {target} ' not in server.log()
            assert f'"GET {target}?' not in server.log()


def test_probe_paths_are_the_apps_by_default() -> None:
    with serving(STACKS["httptools"][0]) as server:
        assert server.get("/livez").body == b"app"


def test_health_checks_are_below_the_root_path() -> None:
    with serving(STACKS["httptools"][0], "--root-path", "/shop", **PROBES) as server:
        assert server.get("/livez").body == b"alive\n"


@each_stack
def test_health_check_is_beyond_the_concurrency_limit(stack: str) -> None:
    command, version = STACKS[stack]
    with serving(command, "--limit-concurrency", "1", **PROBES) as server:
        assert ask(server, "/", version)[0] == 503
        assert ask(server, "/livez", version) == (200, b"alive\n")
        assert ask(server, "/readyz", version) == (503, b"limit_concurrency=1 is reached\n")


@each_stack
def test_drain_fails_readiness_and_serves_on(stack: str) -> None:
    command, version = STACKS[stack]
    with serving(command, drain_delay_s=30, **PROBES) as server, contextlib.ExitStack() as closes:
        idle = closes.enter_context(Connection(server.address))
        if version == "HTTP/1.1":
            assert idle.request("/").keep_alive
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: ask(server, "/readyz", version)[0] == 503, "readiness fails")
        curl = [program("curl"), "--silent", "--fail", "--max-time", "20"]
        if version == "HTTP/2":
            curl.append("--http2-prior-knowledge")
        urls = [f"{server.url}/livez", f"{server.url}/", f"{server.url}/"]
        assert subprocess.run([*curl, *urls], capture_output=True).stdout == b"alive\nappapp"
        server.wait_for_log("The stop begins in 30 s")
        if version == "HTTP/1.1":
            response = idle.request("/")
            assert (response.status, response.header("Connection")) == (200, "close")
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)  # this request ends the drain
        server.process.wait(20)


def test_gunicorn_worker_ends_after_a_killed_arbiter() -> None:
    with serving(GUNICORN, "--timeout=2") as server:
        assert server.get("/").status == 200
        [worker] = psutil.Process(server.pid).children()
        try:
            server.stop(signal.SIGKILL)
            server.wait_for_log("Parent changed, shutting down")
            wait_for(lambda: not worker.is_running(), "the worker has ended")
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


@pytest.mark.parametrize("command", SUPERVISORS.values(), ids=list(SUPERVISORS))
def test_drain_ends_with_the_server(command: str) -> None:
    with serving(command, drain_delay_s=0.3, **PROBES) as server:
        wait_for(lambda: server.get("/readyz").status == 200, "it is ready")
        server.stop()
        assert "The stop begins in 0.3 s" in server.log()


@pytest.mark.parametrize("command", SUPERVISORS.values(), ids=list(SUPERVISORS))
def test_reload_drains_nothing(command: str) -> None:
    with serving(command, drain_delay_s=20, **PROBES) as server:
        wait_for(lambda: server.get("/readyz").status == 200, "it is ready")
        started = server.log().count("Started server process")
        server.process.send_signal(signal.SIGHUP)
        wait_for(
            lambda: (
                server.log().count("Started server process") > started
                and "Finished server process" in server.log()
            ),
            "another worker serves",
        )
        assert server.get("/readyz").status == 200
        assert "The stop begins" not in server.log()
        # A stop would take as long as the drain.
        for process in psutil.Process(server.pid).children(recursive=True):
            process.kill()
        server.process.kill()


def test_drain_beyond_graceful_timeout_is_refused() -> None:
    argv = [sys.executable, *GUNICORN.replace("{port}", "0").split(), "--graceful-timeout=5", APP]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={**variables({"drain_delay_s": 5}), "PATH": "", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode
    assert "drain_delay_s=5: gunicorn ends a worker after graceful_timeout=5 s" in done.stderr


@each_stack
def test_request_that_waits_too_long_gets_503(stack: str, tmp_path: Path) -> None:
    command, version = STACKS[stack]
    with serving(command, queue_timeout_s=0.2) as server:

        def refused() -> bool:
            with Connection(server.address) as connection:
                for _ in range(100):  # the event loop is known to be idle by then
                    assert version == "HTTP/2" or connection.request("/").status == 200
            began = tmp_path / str(time.monotonic_ns())
            with Connection(server.address) as connection:
                connection.send_request(f"/computes?{began}")
                wait_for(began.exists, "it computes")
                return ask(server, "/", version)[0] == 503

        wait_for(refused, "a request has waited for more than 0.2 s")
        server.wait_for_log("Requests have waited longer than queue_timeout_s=0.2 for the app")
        assert ask(server, "/", version) == (200, b"app")


@each_stack
def test_requests_of_many_new_connections_are_shed(stack: str) -> None:
    """On uvloop the event loop is never late, since uvloop accepts one connection at a time."""
    command, _ = STACKS[stack]
    with serving(command, queue_timeout_s=0.3) as server, contextlib.ExitStack() as closes:
        clients = [closes.enter_context(Connection(server.address)) for _ in range(80)]
        for client in clients:
            client.send_request("/blocks")
        assert {client.read_response().status for client in clients} == {200, 503}


def test_waiting_request_of_a_gone_client_is_dropped(tmp_path: Path) -> None:
    with serving(STACKS["httptools"][0], queue_timeout_s=30) as server:

        def dropped() -> bool:
            """Return whether the request did not reach the app.

            The app waits for 0.4 s, or less on a busy machine.
            """
            number = time.monotonic_ns()
            began = tmp_path / str(number)
            with Connection(server.address) as connection:
                connection.send_request(f"/computes?{began}")
                wait_for(began.exists, "it computes")
                with Connection(server.address) as gone:
                    gone.send_request(f"/gone/{number}")
                assert connection.read_response().status == 200
            assert server.get(f"/end/{number}").status == 200
            server.wait_for_log(f"/end/{number} ")
            return f"/gone/{number}" not in server.log()

        wait_for(dropped, "a request is dropped")


@pytest.mark.parametrize(("proxies", "status"), [("127.0.0.1", 503), ("192.0.2.1", 200)])
def test_time_at_a_trusted_proxy_counts_as_waiting(proxies: str, status: int) -> None:
    trusted = ("--forwarded-allow-ips", proxies)
    with serving(STACKS["httptools"][0], *trusted, queue_timeout_s=5) as server:
        for ago_s, expected in ((0, 200), (9, status)):
            start = f"t={time.time() - ago_s:.3f}"
            response = server.get("/", headers=[("X-Request-Start", start)])
            assert response.status == expected
            if expected == 503:
                assert response.header("Retry-After") == "5"


@each_stack
@pytest.mark.parametrize("target", ["/late", "/begun", "/stubborn", "/key", "/decorated"])
def test_request_beyond_its_deadline_ends_early(stack: str, target: str, tmp_path: Path) -> None:
    command, version = STACKS[stack]
    own = target in ("/key", "/decorated")
    with serving(command, request_timeout_s=60 if own else 0.2) as server:
        status, body = ask(server, f"{target}?{tmp_path / 'never'}", version)
        assert status == (0 if target == "/begun" else 503)
        assert target == "/begun" or b"too long" in body
        server.wait_for_log("has taken longer than request_timeout_s=0.2")
        server.wait_for_log("in _wait\n")
        assert ask(server, "/", version) == (200, b"app")
        assert "Exception" not in server.log()


def test_deadline_is_off_by_default_and_for_a_view(tmp_path: Path) -> None:
    go = tmp_path / "go"
    for target, options in (("/late", {}), ("/without", {"request_timeout_s": 0.1})):
        go.unlink(missing_ok=True)
        with (
            serving(STACKS["httptools"][0], **options) as server,
            Connection(server.address) as connection,
        ):
            connection.send_request(f"{target}?{go}")
            for _ in range(200):
                assert server.get("/").status == 200
            go.touch()
            assert connection.read_response().body == b"late"


def test_deadline_spares_work_after_the_response(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with serving(STACKS["httptools"][0], request_timeout_s=0.1) as server:
        assert server.get(f"/after?{go}").body == b"app"
        for _ in range(200):
            assert server.get("/").status == 200
        go.touch()
        wait_for((tmp_path / "done").exists, "the work goes on")


@each_stack
def test_deadline_spares_a_slow_reader(stack: str) -> None:
    command, version = STACKS[stack]
    curl = [program("curl"), "--silent", "--limit-rate", "32M", "--output", "/dev/null"]
    curl += ["--write-out", "%{size_download}"]
    if version == "HTTP/2":
        curl.append("--http2-prior-knowledge")
    with serving(command, request_timeout_s=1) as server:
        done = subprocess.run([*curl, f"{server.url}/large"], capture_output=True, text=True)
        assert done.stdout == str(2**26)


def test_metrics_count_what_operators_set(tmp_path: Path) -> None:
    metrics = ("127.0.0.1", free_port())
    options = {**PROBES, "request_timeout_s": 60, "metrics": f"127.0.0.1:{metrics[1]}"}
    with serving(STACKS["httptools"][0], drain_delay_s=30, **options) as server:
        assert server.get("/livez").status == 200
        assert server.get(f"/key?{tmp_path / 'never'}").status == 503

        def shows(*lines: str) -> bool:
            text = get(metrics, "/metrics").body.decode()
            return all(line in text for line in lines)

        wait_for(
            lambda: shows(
                'wsgifast_health_checks_total{status="200"} 1.0',
                'wsgifast_requests_shed_total{reason="queue_timeout"} 0.0',
                "wsgifast_request_timeouts_total 1.0",
                "wsgifast_workers_draining 0.0",
            ),
            "the metrics have them",
        )
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: shows("wsgifast_workers_draining 1.0"), "it drains")
        wait_for(lambda: get(metrics, "/readyz").status == 503, "the metrics address says so")
        server.process.send_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("health_path", "livez", "a path such as /livez"),
        ("drain_delay_s", -1, "seconds, 0 or more"),
        ("queue_timeout_s", 0, "seconds above 0"),
    ],
)
def test_wrong_value_is_refused_with_the_way_out(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}={value!r}: expected {expected}"):
        type("Mine", (HttpToolsProtocol,), {name: value})


def test_one_path_for_both_health_checks_is_refused() -> None:
    command = STACKS["httptools"][0].replace("{port}", "0")
    env = variables({"health_path": "/up", "ready_path": "/up"})
    done = subprocess.run(
        [sys.executable, *command.split(), APP], capture_output=True, text=True, timeout=60,
        cwd=ROOT, env={**env, "PATH": "", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 3
    assert "health_path and ready_path are both '/up'" in done.stderr

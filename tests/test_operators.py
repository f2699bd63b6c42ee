"""Settings of operators on each server: health checks, drain, shedding and deadlines."""

from __future__ import annotations

import contextlib
import itertools
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from asgifast.uvicorn import HttpToolsProtocol

from tests.support.http import Connection, get
from tests.support.http2 import Connected
from tests.support.programs import program
from tests.support.servers import ROOT, LiveServer, free_port, live_server, wait_for
from tests.workers.serving import refused
from wsgifast.errors import ConfigurationError

pytestmark = pytest.mark.long

_GUNICORN = "-m gunicorn --no-control-socket -b 127.0.0.1:{port} --access-logfile=- -k "
_UVICORN = "-m uvicorn --port {port} --timeout-keep-alive 60 --http asgifast.uvicorn:"
COMMANDS = {
    # Both versions of HTTP, without TLS.
    "FastWorker": f"{_GUNICORN}wsgifast.workers.FastWorker --threads=4 --keep-alive=60 "
    "--http-protocols=h2,h1 --http2-cleartext=both",
    "httptools": f"{_UVICORN}HttpToolsProtocol",
    "h11": f"{_UVICORN}H11Protocol",
    "zttp": f"{_UVICORN}AutoZttpProtocol",
    "supervisor": "-m asgifast.uvicorn --port {port} --http asgifast.uvicorn:HttpToolsProtocol",
    "FastUvicornWorker": f"{_GUNICORN}asgifast.workers.FastUvicornWorker",
}
# A server, and the HTTP version of the requests.
STACKS = ["FastWorker", "FastWorker HTTP/2", "httptools", "h11"]
if find_spec("zttp"):
    STACKS += ["zttp", "zttp HTTP/2"]
PROBES = {"health_path": "/livez", "ready_path": "/readyz"}
each_stack = pytest.mark.parametrize("stack", STACKS)
each_asgi_stack = pytest.mark.parametrize("stack", STACKS[2:])
each_interface = pytest.mark.parametrize("stack", ["FastWorker", "httptools"])
each_start = pytest.mark.parametrize("stack", ["FastWorker", "supervisor", "FastUvicornWorker"])


def is_wsgi(stack: str) -> bool:
    return stack.startswith("FastWorker")


def command_of(stack: str, *more: str) -> list[str]:
    app = f"tests.support.operators_app:{'wsgi' if is_wsgi(stack) else 'asgi'}"
    return [*COMMANDS[stack.removesuffix(" HTTP/2")].split(), *more, app]


def variables(options: dict[str, Any]) -> dict[str, str]:
    return {f"WSGIFAST_{name.upper()}": str(value) for name, value in options.items()}


@contextlib.contextmanager
def serving(stack: str, *more: str, **options: Any) -> Iterator[LiveServer]:
    """Run the app on a server, with more arguments of its command, and options of wsgifast."""
    argv = ["python", *command_of(stack, *more)]
    # A fork would have read its environment too early.
    with live_server(argv, env=variables(options), forked=is_wsgi(stack)) as server:
        yield server


def ask(server: LiveServer, target: str, stack: str, method: str = "GET") -> tuple[int, bytes]:
    """Return the status and the body of a response, with status 0 for an incomplete one."""
    with Connection(server.address) as connection:
        if not stack.endswith("HTTP/2"):
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
def one_thread_waits(server: LiveServer, folder: Path) -> Iterator[None]:
    """Occupy a thread of FastWorker. At the end, requests that were sent meanwhile have arrived.

    On a slow machine a request may have waited too long before it has a thread: it is sent again.
    """
    file = folder / f"go-{time.monotonic_ns()}"

    def waits() -> bool:
        return any(folder.glob(f"{file.name}-*.waits"))

    with contextlib.ExitStack() as closes:
        while not waits():
            connection = closes.enter_context(Connection(server.address))
            connection.send_request(f"/without?{file}")
            refusal = partial(select.select, [connection.sock], [], [], 0)
            wait_for(lambda refusal=refusal: waits() or refusal()[0], "a thread takes it")  # type: ignore[misc]
        yield
        for _ in range(3):
            server.get("/livez")
        file.touch()


@contextlib.contextmanager
def event_loop_computes(server: LiveServer, folder: Path) -> Iterator[None]:
    """The app blocks the event loop for half a second, or for less on a busy machine."""
    with Connection(server.address) as connection:
        for _ in range(100):  # the event loop is known to be idle by then
            assert connection.request("/").status == 200
    began = folder / str(time.monotonic_ns())
    with Connection(server.address) as connection:
        connection.send_request(f"/computes?{began}")
        wait_for(began.exists, "it computes")
        yield
        assert connection.read_response().status == 200


def is_shed(server: LiveServer, stack: str, folder: Path) -> bool:
    """Return whether a request gets 503 while the only thread or the event loop is busy."""
    occupied = one_thread_waits if is_wsgi(stack) else event_loop_computes
    with occupied(server, folder):
        return ask(server, "/", stack)[0] == 503


def with_one_thread(stack: str) -> list[str]:
    return ["--threads=1"] if is_wsgi(stack) else []


# Health checks


@each_stack
def test_health_checks_need_no_app_and_no_log_line(stack: str, tmp_path: Path) -> None:
    options = {"access_log_skip": "/quiet", **PROBES}
    with serving(stack, *with_one_thread(stack), **options) as server:
        with one_thread_waits(server, tmp_path):
            assert ask(server, "/livez?a=b", stack) == (200, b"alive\n")
            ready = b"ready: 1 of 1 workers\n" if is_wsgi(stack) else b"ready\n"
            assert ask(server, "/readyz", stack) == (200, ready)
            assert ask(server, "/livez", stack, "HEAD") == (200, b"")
            with Connection(server.address) as connection:
                for _ in range(2):
                    response = connection.request("/livez")
                    assert response.keep_alive
                    assert response.header("Cache-Control") == "no-store"
        assert ask(server, "/livez", stack, "POST") == (200, b"app")
        for target in ("/quiet", "/quiet/not", "/end"):
            assert ask(server, target, stack) == (200, b"app")
        server.wait_for_log('"GET /end ')
        assert '"GET /quiet/not ' in server.log()
        for target in ("/livez", "/readyz", "/quiet"):
            assert f'"GET {target} ' not in server.log()
            assert f'"GET {target}?' not in server.log()


@each_interface
def test_probe_paths_are_the_apps_by_default(stack: str) -> None:
    with serving(stack) as server:
        assert server.get("/livez").body == b"app"


def test_health_checks_are_below_the_root_path() -> None:
    with serving("httptools", "--root-path", "/shop", **PROBES) as server:
        assert server.get("/livez").body == b"alive\n"


@each_asgi_stack
def test_health_check_is_beyond_the_concurrency_limit(stack: str) -> None:
    with serving(stack, "--limit-concurrency", "1", **PROBES) as server:
        assert ask(server, "/", stack)[0] == 503
        assert ask(server, "/livez", stack) == (200, b"alive\n")
        assert ask(server, "/readyz", stack) == (503, b"limit_concurrency=1 is reached\n")
        assert server.log().count("Exceeded concurrency limit") == 1  # as uvicorn's warning


# Drain


@each_stack
def test_drain_fails_readiness_and_serves_on(stack: str) -> None:
    with serving(stack, drain_delay_s=30, **PROBES) as server:
        with Connection(server.address) as idle:
            assert idle.request("/").keep_alive
            server.process.send_signal(signal.SIGTERM)
            # The HTTP/2 client ends at the first GOAWAY of FastWorker.
            probing = "FastWorker" if is_wsgi(stack) else stack
            wait_for(lambda: ask(server, "/readyz", probing)[0] == 503, "readiness fails")
            curl = [program("curl"), "--silent", "--fail", "--max-time", "20"]
            if stack.endswith("HTTP/2"):
                curl.append("--http2-prior-knowledge")
            urls = [f"{server.url}/livez", f"{server.url}/", f"{server.url}/"]
            assert subprocess.run([*curl, *urls], capture_output=True).stdout == b"alive\nappapp"
            server.wait_for_log("The stop begins in 30 s")
            response = idle.request("/")
            assert (response.status, response.keep_alive) == (200, False)
        assert server.process.poll() is None
        # The second signal ends the drain.
        server.process.send_signal(signal.SIGQUIT if is_wsgi(stack) else signal.SIGINT)
        status = server.process.wait(20)
        assert status == 0 or not is_wsgi(stack)


@each_start
def test_drain_ends_with_the_server(stack: str) -> None:
    with serving(stack, drain_delay_s=0.3, **PROBES) as server:
        wait_for(lambda: server.get("/readyz").status == 200, "it is ready")
        status = server.stop()
        assert status == 0 or not is_wsgi(stack)
        assert "The stop begins in 0.3 s" in server.log()


@each_start
def test_reload_drains_nothing(stack: str) -> None:
    with serving(stack, drain_delay_s=60 if is_wsgi(stack) else 20, **PROBES) as server:
        wait_for(lambda: server.get("/readyz").status == 200, "it is ready")
        started = server.log().count("Started server process")

        def is_replaced() -> bool:
            log = server.log()
            if is_wsgi(stack):
                return "All workers are replaced" in log
            return (
                "Finished server process" in log and log.count("Started server process") > started
            )

        server.process.send_signal(signal.SIGHUP)
        wait_for(is_replaced, "another worker serves")
        assert server.get("/readyz").status == 200
        assert "The stop begins" not in server.log()
        # A stop would take as long as the drain.
        for process in psutil.Process(server.pid).children(recursive=True):
            process.kill()
        server.process.kill()


def test_gunicorn_worker_ends_after_a_killed_arbiter() -> None:
    with serving("FastUvicornWorker", "--timeout=2") as server:
        assert server.get("/").status == 200
        [worker] = psutil.Process(server.pid).children()
        try:
            server.stop(signal.SIGKILL)
            server.wait_for_log("Parent changed, shutting down")
            wait_for(lambda: not worker.is_running(), "the worker has ended")
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


# Shedding


@each_stack
def test_request_that_waits_too_long_gets_503(stack: str, tmp_path: Path) -> None:
    options = {"queue_timeout_s": 0.2, **PROBES}
    with serving(stack, *with_one_thread(stack), **options) as server:
        wait_for(lambda: is_shed(server, stack, tmp_path), "a request has waited for over 0.2 s")
        server.wait_for_log("Requests have waited longer than queue_timeout_s=0.2 for ")
        assert ask(server, "/", stack) == (200, b"app")


@each_asgi_stack
def test_requests_of_many_new_connections_are_shed(stack: str) -> None:
    """On uvloop the event loop is never late, since uvloop accepts one connection at a time."""
    with serving(stack, queue_timeout_s=0.3) as server, contextlib.ExitStack() as closes:
        clients = [closes.enter_context(Connection(server.address)) for _ in range(80)]
        for client in clients:
            client.send_request("/blocks")
        assert {client.read_response().status for client in clients} == {200, 503}


@pytest.mark.parametrize(("proxies", "status"), [("127.0.0.1", 503), ("192.0.2.1", 200)])
@each_interface
def test_time_at_a_trusted_proxy_counts_as_waiting(stack: str, proxies: str, status: int) -> None:
    with serving(stack, f"--forwarded-allow-ips={proxies}", queue_timeout_s=5) as server:
        for ago_s, expected in ((0, 200), (9, status)):
            start = f"t={time.time() - ago_s:.3f}"
            response = server.get("/", headers=[("X-Request-Start", start)])
            assert response.status == expected
            assert response.header("Retry-After") == ("5" if expected == 503 else None)


@each_interface
def test_waiting_request_of_a_gone_client_is_dropped(stack: str, tmp_path: Path) -> None:
    occupied = one_thread_waits if is_wsgi(stack) else event_loop_computes
    options = {"queue_timeout_s": 30, **PROBES}
    with serving(stack, *with_one_thread(stack), **options) as server:

        def is_dropped() -> bool:
            """Return whether the requests of gone clients did not reach the app."""
            number = time.monotonic_ns()
            with Connection(server.address) as waiting:
                with occupied(server, tmp_path):
                    for _ in range(3):
                        with Connection(server.address) as gone:
                            gone.send_request(f"/gone/{number}")
                    waiting.send_request("/waiting")
                assert waiting.read_response().body == b"app"
            assert server.get(f"/end/{number}").status == 200
            server.wait_for_log(f"/end/{number} ")
            return f"/gone/{number}" not in server.log()

        if is_wsgi(stack):
            assert is_dropped()
        else:  # the event loop may be too quick
            wait_for(is_dropped, "the requests are dropped")


# Deadlines


BEYOND = [*itertools.product(STACKS, ["/late", "/begun", "/key", "/decorated"])]


@pytest.mark.parametrize(("stack", "target"), BEYOND + [(s, "/stubborn") for s in STACKS[2:]])
def test_request_beyond_its_deadline_ends_early(stack: str, target: str, tmp_path: Path) -> None:
    own = target in ("/key", "/decorated")
    go = tmp_path / "go"
    with serving(stack, request_timeout_s=60 if own else 0.2) as server:
        status, body = ask(server, f"{target}?{go}", stack)
        assert status == (0 if target == "/begun" else 503)
        assert target == "/begun" or b"too long" in body
        server.wait_for_log("has taken longer than request_timeout_s=0.2")
        server.wait_for_log("in _wait")
        assert ask(server, "/", stack) == (200, b"app")
        if is_wsgi(stack):
            go.touch()
            shown = 200 if target == "/begun" else 503
            version = "2" if stack.endswith("HTTP/2") else "1"
            server.wait_for_log(f"GET {target}?{go} HTTP/{version}")
            assert any(f" {shown} " in line for line in server.log().splitlines() if target in line)
        assert ("Error" if is_wsgi(stack) else "Exception") not in server.log()


@each_interface
def test_deadline_is_off_by_default_and_for_a_view(stack: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    for target, options in (("/late", {}), ("/without", {"request_timeout_s": 0.1})):
        go.unlink(missing_ok=True)
        with serving(stack, **options) as server, Connection(server.address) as connection:
            connection.send_request(f"{target}?{go}")
            for _ in range(200):  # some of them are later than the deadline of /late would be
                assert server.get("/").status == 200
            go.touch()
            assert connection.read_response().body == b"late"


def test_deadline_spares_work_after_the_response(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with serving("httptools", request_timeout_s=0.1) as server:
        assert server.get(f"/after?{go}").body == b"app"
        for _ in range(200):
            assert server.get("/").status == 200
        go.touch()
        wait_for((tmp_path / "done").exists, "the work goes on")


@each_asgi_stack
def test_deadline_spares_a_slow_reader(stack: str) -> None:
    curl = [program("curl"), "--silent", "--limit-rate", "32M", "--output", "/dev/null"]
    curl += ["--write-out", "%{size_download}"]
    if stack.endswith("HTTP/2"):
        curl.append("--http2-prior-knowledge")
    with serving(stack, request_timeout_s=1) as server:
        done = subprocess.run([*curl, f"{server.url}/large"], capture_output=True, text=True)
        assert done.stdout == str(2**26)


def test_worker_of_threads_past_deadlines_is_replaced(tmp_path: Path) -> None:
    def is_served() -> bool:
        with contextlib.suppress(OSError, EOFError):
            return server.get("/").status == 200
        return False

    with serving("FastWorker", "--threads=2", request_timeout_s=0.2) as server:
        with contextlib.ExitStack() as closes:
            clients = [closes.enter_context(Connection(server.address)) for _ in range(2)]
            for client in clients:
                client.send_request(f"/late?{tmp_path / 'never'}")
            assert [client.read_response().status for client in clients] == [503, 503]
        server.wait_for_log("All 2 threads are past the deadlines of their requests")
        wait_for(is_served, "another worker serves")


# Metrics, and wrong values


@each_interface
def test_metrics_count_what_operators_set(stack: str, tmp_path: Path) -> None:
    metrics = ("127.0.0.1", free_port())
    options: dict[str, Any] = {
        "metrics": f"127.0.0.1:{metrics[1]}", "queue_timeout_s": 0.2, "request_timeout_s": 60,
        "drain_delay_s": 30, **PROBES,
    }  # fmt: skip
    with serving(stack, *with_one_thread(stack), **options) as server:

        def shows(*lines: str) -> bool:
            text = get(metrics, "/metrics").body.decode()
            return all(re.search(f"^wsgifast_{line}$", text, re.MULTILINE) for line in lines)

        assert server.get("/livez").status == 200
        assert server.get(f"/key?{tmp_path / 'go'}").status == 503
        (tmp_path / "go").touch()
        wait_for(lambda: is_shed(server, stack, tmp_path), "a request has waited for over 0.2 s")
        expected = (
            r'health_checks_total\{status="200"\} [1-9].*',
            r'requests_shed_total\{reason="queue_timeout"\} [1-9].*',
            r"request_timeouts_total 1\.0",
            r"workers_draining 0\.0",
        )
        wait_for(lambda: shows(*expected), "the metrics have them")
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: shows(r"workers_draining 1\.0"), "it drains")
        wait_for(lambda: get(metrics, "/readyz").status == 503, "the metrics address says so")
        server.process.send_signal(signal.SIGQUIT if is_wsgi(stack) else signal.SIGINT)


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
    name: str, value: Any, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}={re.escape(repr(value))}: expected"):
        type("Mine", (HttpToolsProtocol,), {name: value})
    conf = tmp_path / "conf.py"
    conf.write_text(f'worker_class = "wsgifast.workers.FastWorker"\n{name} = {value!r}\n')
    assert f"{name}={value!r}: expected {expected}" in refused("-c", str(conf))


ONE_PATH = {"health_path": "/up", "ready_path": "/up"}


@pytest.mark.parametrize(
    ("stack", "options", "status", "text"),
    [
        ("FastWorker", ONE_PATH, 1, "health_path and ready_path are both '/up'"),
        ("httptools", ONE_PATH, 3, "health_path and ready_path are both '/up'"),
        ("FastUvicornWorker", {"drain_delay_s": 30}, 4,
         "drain_delay_s=30: gunicorn ends a worker after graceful_timeout=30 s"),
    ],
    ids=["FastWorker", "httptools", "FastUvicornWorker"],
)  # fmt: skip
def test_wrong_pair_of_options_ends_the_start(
    stack: str, options: dict[str, Any], status: int, text: str
) -> None:
    argv = [word.replace("{port}", "0") for word in command_of(stack)]
    done = subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={**variables(options), "PATH": "", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == status
    assert text in done.stderr

"""What gunicorn promises of a worker: signals, limits, hooks, logs, sockets, protocols."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import (
    PATIENCE_S,
    STOP_S,
    LiveServer,
    free_port,
    wait_for,
)
from tests.workers.app import FILE_BYTES, block
from tests.workers.serving import POLLERS, fast_worker, stats

pytestmark = pytest.mark.long


@pytest.mark.parametrize("poller", POLLERS)
def test_term_lets_downloads_finish(poller: str) -> None:
    with (
        fast_worker("--graceful-timeout=200", attributes={"poller": poller}) as server,
        contextlib.ExitStack() as stack,
    ):
        downloads = []
        for _ in range(100):
            connection = Connection(server.address, receive_buffer=65_536)
            downloads.append(stack.enter_context(connection))
            connection.send_request(f"/file/{FILE_BYTES // 2}")  # more than buffers take
        for connection in downloads:
            assert connection.read_head().header("Content-Length") == str(FILE_BYTES // 2)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Handling signal: term")
        expected = block(FILE_BYTES)[FILE_BYTES // 2 :]
        for connection in downloads:
            assert connection.read(len(expected)) == expected
            connection.close()
        assert server.stop() == 0


def test_term_ends_a_stuck_app_after_graceful_timeout() -> None:
    with fast_worker("--graceful-timeout=1") as server, Connection(server.address) as stuck:
        stuck.send_request("/stuck")
        wait_for(lambda: server.get("/small/1").status == 200, "others are served")
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_int_and_quit_end_worker_at_once(number: signal.Signals) -> None:
    with fast_worker() as server, Connection(server.address) as connection:
        connection.send_request("/sleep/100")
        assert server.get("/small/1").status == 200
        assert server.stop(number) == 0


def test_stopping_worker_answers_with_connection_close() -> None:
    with fast_worker("--keep-alive=60") as server, Connection(server.address) as connection:
        assert connection.request("/small/1").keep_alive
        server.process.send_signal(signal.SIGTERM)

        def says_close() -> bool:
            response = connection.request("/small/2")
            assert response.body == block(2)
            return not response.keep_alive

        # The worker hears of it some time after its arbiter; each request is answered.
        wait_for(says_close, "the worker has heard that it has to stop")
        assert server.stop() == 0


def test_hup_replaces_worker_and_usr1_reopens_log(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with fast_worker(f"--access-logfile={log}") as server:
        first = stats(server)["pid"]
        log.rename(tmp_path / "old.log")
        server.process.send_signal(signal.SIGUSR1)
        wait_for(log.exists, "the log is reopened")
        wait_for(
            lambda: server.get("/errors").status == 200 and "/errors" in log.read_text(),
            "the worker has reopened it too",
        )
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: stats(server)["pid"] != first, "a new worker serves")


EARLY_TERM = """
import os, signal

def post_fork(server, worker):
    if worker.age == 1:
        os.kill(worker.pid, signal.SIGTERM)
"""


def test_term_during_fork_ends_worker() -> None:
    with fast_worker(configuration=EARLY_TERM) as server:
        server.wait_for_log("Booting worker", 2)
        assert server.log().count("Worker exiting") == 1
        assert server.get("/small/5").body == block(5)


def test_max_requests_replaces_worker() -> None:
    with fast_worker("--max-requests=20", "--max-requests-jitter=5") as server:
        pids = set()

        def has_had_three() -> bool:
            pids.add(stats(server)["pid"])
            return len(pids) >= 3

        wait_for(has_had_three, "a third worker has answered", interval=0)
        assert "Autorestarting" in server.log()


def test_worker_connections_limit_kept_connections() -> None:
    with fast_worker("--worker-connections=10", "--keep-alive=1") as server:
        with contextlib.ExitStack() as stack:
            kept = 0
            for _ in range(10):
                connection = stack.enter_context(Connection(server.address))
                kept += connection.request("/small/1").keep_alive
            assert 1 <= kept <= 6  # the rest is left for four threads
        with Connection(server.address) as idle:
            assert idle.request("/small/1").keep_alive
            assert idle.read_to_end() == b""  # after the keep-alive time


def test_full_worker_accepts_again_after_close() -> None:
    with fast_worker("--worker-connections=8", "--keep-alive=60") as server:
        silent = [Connection(server.address) for _ in range(20)]
        for connection in silent:
            connection.close()
        assert server.get("/small/5").body == block(5)


RELOADED = """
import tests.workers.app

def app(environ, start_response):
    if environ["PATH_INFO"] == "/version":
        start_response("200 OK", [("Content-Length", "1")])
        return [b"{version}"]
    return tests.workers.app.app(environ, start_response)
"""


@pytest.mark.parametrize("poller", POLLERS)
def test_reloader_loads_new_app_and_cuts_no_download(tmp_path: Path, poller: str) -> None:
    module = tmp_path / "reloaded.py"
    module.write_text(RELOADED.replace("{version}", "1"))
    options = ["--reload", "--reload-engine=poll", f"--pythonpath={tmp_path}"]
    attributes = {"poller": poller}
    with (
        fast_worker(*options, app="reloaded:app", attributes=attributes) as server,
        Connection(server.address, receive_buffer=65_536) as download,
    ):
        assert server.get("/version").body == b"1"
        download.send_request("/file")
        assert download.read_head().status == 200
        new = tmp_path / "new"
        new.write_text(RELOADED.replace("{version}", "2"))
        new.replace(module)

        def is_seen() -> bool:
            # The reloader takes the first time that it finds for an unchanged file's.
            modified = module.stat().st_mtime + 1
            os.utime(module, (modified, modified))
            return "Worker reloading" in server.log()

        wait_for(is_seen, "the change is seen", interval=0.1)
        # The only worker there is: the next one starts when it has finished.
        assert download.read(FILE_BYTES) == block(FILE_BYTES)
        download.close()
        server.wait_for_log("Booting worker", 2)
        assert server.get("/version").body == b"2"
        assert "cut off" not in server.log()


def test_unix_socket_is_served(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with fast_worker(address=path) as server:
        environ = json.loads(server.get("/environ", headers=[("Host", "a.test:81")]).body)
        assert (environ["SERVER_NAME"], environ["SERVER_PORT"]) == ("a.test", "81")
        assert environ["REMOTE_ADDR"] == ""
        assert server.get("/file").body == block(FILE_BYTES)


def test_proxy_protocol_sets_client_address() -> None:
    # A switch in old versions, a choice in newer ones.
    option = "--proxy-protocol=auto"
    one = b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 80\r\n"
    addresses = socket.inet_aton("192.0.2.1") + socket.inet_aton("192.0.2.2")
    two = b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack(">H", 12)
    two += addresses + struct.pack(">HH", 4711, 80)
    with fast_worker(option) as server:
        for header in (one, two):
            with Connection(server.address) as connection:
                for i in range(len(header)):
                    connection.send(header[i : i + 1])
                for _ in range(2):  # it speaks of the connection, so of every request on it
                    environ = json.loads(connection.request("/environ").body)
                    assert environ["REMOTE_ADDR"] == "192.0.2.1"
                    assert environ["REMOTE_PORT"] == "4711"
        with Connection(server.address) as connection:
            connection.send(b"PROXY TCP9 a b c d\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert connection.read_response().status == 400


def test_forwarded_scheme_is_trusted_from_allowed_ips() -> None:
    for allowed, scheme in (("127.0.0.1", "https"), ("192.0.2.9", "http")):
        with fast_worker(f"--forwarded-allow-ips={allowed}") as server:
            response = server.get("/environ", headers=[("X-Forwarded-Proto", "https")])
            assert json.loads(response.body)["wsgi.url_scheme"] == scheme


HOOKS = {
    "on_starting": "server",
    "when_ready": "server",
    "pre_fork": "server, worker",
    "post_fork": "server, worker",
    "post_worker_init": "worker",
    "pre_request": "worker, req",
    "post_request": "worker, req, environ, resp",
    "worker_int": "worker",
    "child_exit": "server, worker",
    "worker_exit": "server, worker",
    "nworkers_changed": "server, new, old",
    "on_exit": "server",
}


def test_gunicorn_hooks_are_called() -> None:
    said = {"pre_request": "req.path", "post_request": "resp.status"}
    hooks = "import os\n"
    for name, parameters in HOOKS.items():
        hooks += f"def {name}({parameters}):\n"
        hooks += f"    os.write(2, f'hook {name} {{{said.get(name, '0')}}}\\n'.encode())\n"
    with fast_worker(configuration=hooks) as server:
        assert server.get("/small").status == 200
        server.wait_for_log("hook post_request 200 OK")
        assert "hook pre_request /small" in server.log()
        server.stop(signal.SIGINT)
        log = server.log()
        for name in HOOKS:
            assert f"hook {name} " in log, f"{name} was not called:\n{log}"


def test_statsd_gets_request_metrics() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 0))
        sink.settimeout(PATIENCE_S)
        port = sink.getsockname()[1]
        with fast_worker(f"--statsd-host=127.0.0.1:{port}") as server:
            assert server.get("/small").status == 200
            seen = b""
            while b"gunicorn.request.status.200" not in seen:
                seen += sink.recv(1000)
            assert b"gunicorn.request.duration" in seen


def test_request_time_ends_with_last_byte() -> None:
    options = ("--access-logformat=%(U)s took %(L)s", "--access-logfile=-")
    with fast_worker(*options) as server:
        with Connection(server.address, receive_buffer=4096) as connection:
            connection.send_request("/file")
            connection.read_head()
            assert server.get("/small").status == 200
            server.wait_for_log("/small took 0.")
            assert "/file took" not in server.log()
            connection.read(FILE_BYTES)
        server.wait_for_log("/file took")


def test_socket_of_systemd_is_served() -> None:
    """As systemd hands it over (LISTEN_FDS)."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        code = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_FDS='1', "
            "LISTEN_PID=str(os.getpid())); os.execv(sys.executable, [sys.executable, '-m', "
            "'gunicorn', '-k', 'wsgifast.workers.FastWorker', "
            "'tests.workers.app:app'])"
        )
        fd = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(fd)], pass_fds=[fd], stderr=subprocess.DEVNULL
        )
        try:
            with Connection(listener.getsockname()) as connection:
                assert connection.request("/small/5").body == block(5)
        finally:
            process.terminate()
            process.wait(STOP_S)


def test_requests_run_on_all_threads_at_once() -> None:
    with fast_worker() as server:
        barrier = threading.Barrier(4)

        def ask() -> None:
            with Connection(server.address) as connection:
                barrier.wait()
                connection.request("/meet/4")

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.log().count('"GET /meet/4 HTTP/1.1" 200') <= 4
        server.wait_for_log('"GET /meet/4 HTTP/1.1" 200', 4)


def test_old_worker_serves_on_after_abandoned_usr2() -> None:
    port = free_port()
    with fast_worker(address=("127.0.0.1", port)) as server:
        _upgrade(server)


def _upgrade(server: LiveServer) -> None:
    old = stats(server)["pid"]  # before there is another one that may answer
    server.process.send_signal(signal.SIGUSR2)
    server.wait_for_log("Booting worker", 2)
    new_master = int(server.log().rsplit("Listening at: ", 1)[1].split("(")[1].split(")")[0])
    os.kill(new_master, signal.SIGTERM)
    wait_for(lambda: stats(server)["pid"] == old, "the old one serves on")

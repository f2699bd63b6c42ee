"""gunicorn's promises for a worker: signals, limits, hooks, logs, sockets, protocols."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import (
    PATIENCE_S,
    STOP_S,
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
            connection.send_request(f"/file/{FILE_BYTES // 2}")  # more than the buffers contain
        for connection in downloads:
            assert connection.read_headers().header("Content-Length") == str(FILE_BYTES // 2)
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

        # The worker learns of it some time after its arbiter. Each request gets a response.
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
        assert download.read_headers().status == 200
        new = tmp_path / "new"
        new.write_text(RELOADED.replace("{version}", "2"))
        new.replace(module)

        def is_seen() -> bool:
            # The reloader uses the first time that it finds as that of the unchanged file.
            modified = module.stat().st_mtime + 1
            os.utime(module, (modified, modified))
            return "Worker reloading" in server.log()

        wait_for(is_seen, "the change is seen", interval=0.1)
        # This is the only worker: the next one starts when it has finished.
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


def test_socket_of_systemd_is_served() -> None:
    """The socket is passed as systemd does it (LISTEN_FDS)."""
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
    with fast_worker() as server, ThreadPoolExecutor(4) as clients:
        statuses = clients.map(lambda _: server.get("/meet/4").status, range(4))
        assert [*statuses] == [200] * 4


def test_old_worker_serves_on_after_abandoned_usr2() -> None:
    with fast_worker() as server:
        old = stats(server)["pid"]  # before another one may respond
        server.process.send_signal(signal.SIGUSR2)
        server.wait_for_log("Booting worker", 2)
        new_master = int(server.log().rsplit("Listening at: ", 1)[1].split("(")[1].split(")")[0])
        os.kill(new_master, signal.SIGTERM)
        wait_for(lambda: stats(server)["pid"] == old, "the old one serves on")


def test_servers_share_a_port_with_reuse_port() -> None:
    address = ("127.0.0.1", free_port())
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(fast_worker("--reuse-port", address=address)) for _ in range(2)
        ]
        wait_for(lambda: all("Booting worker" in s.log() for s in servers), "both serve")
        pids: set[int] = set()

        def both_answer() -> bool:
            pids.add(stats(servers[0])["pid"])
            return len(pids) == 2

        wait_for(both_answer, "each has answered")


ABORT_HOOK = """
import os
def worker_abort(worker):
    os.write(2, b"hook worker_abort\\n")
"""


def test_abort_calls_hook_and_replaces_worker() -> None:
    with fast_worker(configuration=ABORT_HOOK) as server, Connection(server.address) as connection:
        pid = stats(server)["pid"]
        connection.send_request("/sleep/100")  # no app can delay it
        os.kill(pid, signal.SIGABRT)
        server.wait_for_log("hook worker_abort")
        server.wait_for_log("Booting worker", 2)
        assert stats(server)["pid"] != pid


def test_timeout_replaces_silent_worker_not_slow_app() -> None:
    with fast_worker("--timeout=4") as server:
        pid = stats(server)["pid"]
        assert server.get("/sleep/6").body == b"ok"
        assert stats(server)["pid"] == pid
        os.kill(pid, signal.SIGSTOP)
        server.wait_for_log("Booting worker", 2)
        assert server.get("/small/5").body == block(5)
        assert "WORKER TIMEOUT" in server.log()


def test_ttin_and_ttou_change_number_of_workers() -> None:
    hook = (
        "import os\ndef nworkers_changed(server, new, old):\n"
        "    os.write(2, f'workers {old} to {new}\\n'.encode())\n"
    )
    with fast_worker(configuration=hook) as server:
        server.process.send_signal(signal.SIGTTIN)
        server.wait_for_log("workers 1 to 2")
        server.wait_for_log("Booting worker", 2)
        server.process.send_signal(signal.SIGTTOU)
        server.wait_for_log("workers 2 to 1")
        server.wait_for_log("Worker exiting", 1)
        assert server.get("/small/5").body == block(5)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no files in memory here")
@pytest.mark.parametrize("chosen", [False, True])
def test_heartbeat_file_is_in_memory_by_default(tmp_path: Path, chosen: bool) -> None:
    options = [f"--worker-tmp-dir={tmp_path}"] if chosen else []
    with fast_worker(*options) as server:
        assert stats(server)["pid"]  # there is a worker
        beats = server.open_files("*wgunicorn-*")
        assert beats
        assert all(path.startswith(str(tmp_path) if chosen else "/dev/shm/") for path in beats)

"""WSGIFAST_METRICS on uvicorn and on gunicorn's ASGI workers.

The counts of all workers are added.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forkserver
from tests.support.http import Connection, get
from tests.support.servers import ROOT, LiveServer, free_port, live_server, wait_for
from tests.workers.test_metrics import Scrape, scraped_until, workers_of
from wsgifast.commands.bench.processes import HOST, is_listening

from .servers import OURS, asgi_server

pytestmark = pytest.mark.long

UVICORN = "-m uvicorn --http asgifast.uvicorn:{} --port {{port}}"
GUNICORN = "-m gunicorn --no-control-socket -b 127.0.0.1:{{port}} -k asgifast.workers.{}"
APP = "tests.asgi.metered:app"
KINDS = ["H11Protocol", "FastUvicornWorker"]


def _command(kind: str, *options: str) -> list[str]:
    command = (GUNICORN if kind.endswith("Worker") else UVICORN).format(kind)
    return [sys.executable, *command.split(), *options, APP]


@pytest.mark.parametrize("kind", KINDS)
def test_asgi_workers_are_added_up(kind: str, tmp_path: Path) -> None:
    metrics = free_port()
    (tmp_path / "blocking").touch()
    env = {
        "WSGIFAST_METRICS": f"127.0.0.1:{metrics}",
        "ASGIFAST_TEST_FILES": str(tmp_path),
        "ASGIFAST_TEST_BLOCKING": str(tmp_path / "blocking"),
    }
    # Uvicorn reads the setting when it first looks up the protocol
    forked = kind.endswith("Worker")
    with live_server(_command(kind, "--workers", "2"), env=env, forked=forked) as server:
        scraped_until(metrics, "wsgifast_workers", 2)
        wait_for(
            lambda: get(("127.0.0.1", metrics), "/readyz").body == b"ready: 2 of 2 workers\n",
            "both are ready",
        )
        assert get(("127.0.0.1", metrics), "/livez").status == 200
        for _ in range(4):
            assert server.get("/hello").status == 200
        # A request is counted once, although the app's own ASGIFast would count it too.
        name = "http_server_request_duration_seconds_count"
        scraped_until(metrics, name, 4, http_response_status_code="200", http_request_method="GET")
        _a_request_is_active_until_its_client_leaves(server, metrics)
        _a_worker_is_killed(metrics)
    wait_for(lambda: not is_listening((HOST, metrics)), "the exporter has gone")


def _a_request_is_active_until_its_client_leaves(server: LiveServer, metrics: int) -> None:
    assert isinstance(server.address, tuple)
    post = {"http_request_method": "POST"}
    with Connection(server.address) as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        scraped_until(metrics, "http_server_active_requests", 1, **post)
    scraped_until(metrics, "http_server_active_requests", 0, **post)


def _a_worker_is_killed(metrics: int) -> None:
    before = workers_of(Scrape(metrics))
    os.kill(min(before), signal.SIGKILL)

    def is_replaced() -> bool:
        now = workers_of(Scrape(metrics))
        return len(now) == 2 and now != before

    wait_for(is_replaced, "another worker has its place")
    # The counters of the old worker are preserved.
    name = "http_server_request_duration_seconds_count"
    scraped_until(metrics, name, 4, http_response_status_code="200", http_request_method="GET")
    scraped_until(metrics, "wsgifast_worker_starts_total", 3)


def test_metrics_address_of_gunicorn_conf_is_used(tmp_path: Path) -> None:
    metrics = free_port()
    conf = tmp_path / "gunicorn.conf.py"
    conf.write_text(f"metrics_bind = '127.0.0.1:{metrics}'\n")
    argv = _command("FastUvicornWorker", "-c", str(conf))
    env = {"ASGIFAST_TEST_FILES": str(tmp_path)}
    with live_server(argv, env=env):
        scraped_until(metrics, "wsgifast_workers", 1)
    conf.write_text("metrics_bind = 'nonsense'\n")
    argv = [word.format(port=free_port()) for word in argv]
    done = forkserver.run(argv, cwd=ROOT, env={**os.environ, **env}, timeout=60)
    assert done.returncode == 4
    assert "metrics_bind='nonsense': expected a host and a port such as" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("address", ["nonsense", "taken"])
def test_metrics_address_that_fails_ends_asgi_servers(kind: str, address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if address == "taken":
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            said = f"WSGIFAST_METRICS={address!r}: Address already in use"
        else:
            said = "WSGIFAST_METRICS='nonsense': expected a host and a port such as"
        argv = [word.format(port=free_port()) for word in _command(kind)]
        env = {**os.environ, "WSGIFAST_METRICS": address, "ASGIFAST_TEST_FILES": "/tmp"}
        env.pop("PROMETHEUS_MULTIPROC_DIR", None)
        if kind.endswith("Worker"):
            done = forkserver.run(argv, cwd=ROOT, env=env, timeout=60)
        else:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)
    # Uvicorn and gunicorn do not read it again
    assert done.returncode == (3 if kind == "H11Protocol" else 4)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_import_in_an_event_loop_starts_nothing() -> None:
    code = (
        "import asyncio, threading\n"
        "async def main():\n"
        "    from asgifast.uvicorn import H11Protocol, HttpToolsProtocol\n"
        "    import asgifast.uvicorn.protocol\n"
        "    print(threading.active_count())\n"
        "asyncio.run(main())\n"
    )
    for address in ("nonsense", f"127.0.0.1:{free_port()}"):
        env = {**os.environ, "WSGIFAST_METRICS": address}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
        assert (done.stdout, done.stderr) == ("1\n", "")


# One process


FILE_BYTES = 64 * 1024 * 1024


@pytest.mark.parametrize("name", ["ours-h11-asyncio", "ours-httptools-uvloop"])
def test_connections_of_uvicorn_are_counted_by_state(name: str, tmp_path: Path) -> None:
    assert name in OURS
    with (tmp_path / "large").open("wb") as file:
        file.truncate(FILE_BYTES)
    with asgi_server(name, "tests.asgi.metered:app", tmp_path) as server:
        _look_at(server)


def _look_at(server: LiveServer) -> None:
    assert isinstance(server.address, tuple)
    port = server.address[1]
    # The connection of the scrape itself is open.
    running = Scrape(port)
    assert running.value("wsgifast_connections", state="running") == 1
    with contextlib.ExitStack() as stack:
        stack.enter_context(Connection(server.address))
        upload = stack.enter_context(Connection(server.address))
        upload.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        slow = stack.enter_context(Connection(server.address, receive_buffer=4096))
        slow.send_request("/pathsend?file=large")

        def states() -> dict[str, float]:
            found = Scrape(port).samples("wsgifast_connections")
            return {labels["state"]: value for labels, value in found if value}

        wait_for(
            lambda: states() == {"idle": 1, "body": 1, "sending": 1, "running": 1},
            f"each is in its state: {states()}",
        )

        def is_slow() -> bool:
            scrape = Scrape(port)
            sent = scrape.value("wsgifast_sendfile_bytes_total")
            assert sent < FILE_BYTES
            return scrape.value("wsgifast_slow_clients") == 1 and sent > 0

        wait_for(is_slow, "the slow one has taken some of its file")
    wait_for(lambda: states() == {"running": 1}, "the others have gone")
    scrape = Scrape(port)
    assert scrape.value("wsgifast_connections_accepted_total") >= 5
    assert scrape.value("wsgifast_responses_total", wsgifast_sent_as="file") == 1

"""`wsgifast run` of an ASGI app, with one worker and with two: signals, failures, addresses."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.http import get
from tests.support.servers import PATIENCE_S, ROOT, LiveServer, free_port, live_server, wait_for

WORKERS = pytest.mark.parametrize("workers", [1, 2])
SERVES = """\
import os


async def app(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError(scope["type"])
    body = str(os.getpid()).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})
"""
STARTUP_FAILS = """\
async def app(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})
"""
# The first import chooses the server, and works. The worker's import fails.
IMPORT_FAILS = """\
import os

if "WSGIFAST_RUN" in os.environ:
    raise RuntimeError("no database")


async def app(scope, receive, send): ...
"""
STARTUP_WAITS = """\
import asyncio
from pathlib import Path


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await asyncio.to_thread(Path("go").read_text)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
"""
WSGI = """\
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""


@contextlib.contextmanager
def run(
    folder: Path,
    code: str,
    *arguments: str,
    fails: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator[LiveServer]:
    (folder / "own.py").write_text(code)
    bind = [] if any(word.startswith("--bind") for word in arguments) else ["--bind={address}"]
    address = ("127.0.0.1", free_port())
    words = [word.replace("{address}", f"127.0.0.1:{address[1]}") for word in [*bind, *arguments]]
    command = ["python", "-m", "wsgifast", "run", "own:app", *words]
    env = {"PYTHONPATH": str(ROOT), **(env or {})}
    with live_server(command, address, cwd=folder, env=env, fails=fails) as server:
        yield server


@contextlib.contextmanager
def notified_at(address: str) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """Return a socket like systemd's, and the environment of a service that notifies systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(PATIENCE_S)
        yield systemd, {"NOTIFY_SOCKET": address.replace("\0", "@", 1)}


@WORKERS
def test_hangup_of_asgi_server_reloads(workers: int, tmp_path: Path) -> None:
    with run(tmp_path, SERVES, f"--workers={workers}") as server:
        before = int(server.get().body)
        assert before != server.pid
        os.kill(server.pid, signal.SIGHUP)
        server.wait_for_log("Terminated child process", times=workers)

        def is_new() -> bool:
            # uvicorn resets a connection that the old worker has just accepted.
            with contextlib.suppress(ConnectionResetError):
                return int(server.get().body) != before
            return False

        wait_for(is_new, server.log)
        assert server.process.poll() is None
        assert server.stop() == 0


@WORKERS
@pytest.mark.parametrize("code", [SERVES, WSGI])
def test_systemd_is_notified_once_when_app_serves(code: str, workers: int, tmp_path: Path) -> None:
    with notified_at(str(tmp_path / "notify")) as (systemd, env):
        with run(tmp_path, code, f"--workers={workers}", env=env) as server:
            assert systemd.recv(4096).startswith(b"READY=1\n")
            assert server.get().status == 200
            os.kill(server.pid, signal.SIGHUP)
            hangup = "Handling signal: hup" if code == WSGI else "Terminated child process"
            server.wait_for_log(hangup, times=1 if code == WSGI else workers)
            assert server.stop() == 0
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(4096)


def test_systemd_is_notified_at_abstract_socket(tmp_path: Path) -> None:
    name = f"wsgifast-{os.getpid()}"
    with notified_at(f"\0{name}") as (systemd, env), run(tmp_path, SERVES, env=env):
        assert env["NOTIFY_SOCKET"] == f"@{name}"
        assert systemd.recv(4096).startswith(b"READY=1\n")


def test_systemd_is_notified_after_startup(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    with (
        notified_at(str(tmp_path / "notify")) as (systemd, env),
        # The server does not listen before its startup is over.
        run(tmp_path, STARTUP_WAITS, "--workers=1", env=env, fails=True) as server,
    ):
        server.wait_for_log("Waiting for application startup")
        # The supervisor checks its workers after each signal.
        os.kill(server.pid, signal.SIGTTOU)
        server.wait_for_log("Already reached one process")
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(4096)
        (tmp_path / "go").write_text("go")
        systemd.settimeout(PATIENCE_S)
        assert systemd.recv(4096).startswith(b"READY=1\n")


def test_unreachable_systemd_is_named_in_error_log(tmp_path: Path) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path / "nobody")}
    with run(tmp_path, SERVES, "--workers=1", env=env) as server:
        server.wait_for_log(f"Cannot notify systemd at NOTIFY_SOCKET={tmp_path / 'nobody'}")
        assert server.get().status == 200


@WORKERS
@pytest.mark.parametrize(
    ("code", "more"),
    [(STARTUP_FAILS, ()), (IMPORT_FAILS, ()), (SERVES, ("--", "--ws=no_such_module:Protocol"))],
)
def test_failed_startup_of_asgi_app_ends_with_3(
    workers: int, code: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    with run(tmp_path, code, f"--workers={workers}", *more, fails=True) as server:
        assert server.process.wait(60) == 3, server.log()


@WORKERS
def test_bind_to_all_ipv6_addresses_takes_ipv4(workers: int, tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        except OSError:
            pytest.skip("this machine has no IPv6")
        (tmp_path / "own.py").write_text(SERVES)
        command = ["python", "-m", "wsgifast", "run", "own:app", f"--bind=[::]:{port}"]
        server = stack.enter_context(
            live_server(
                [*command, f"--workers={workers}"], ("127.0.0.1", port), cwd=tmp_path,
                env={"PYTHONPATH": str(ROOT)},
            )
        )  # fmt: skip
        forwarded = (("X-Forwarded-For", "192.0.2.1"),)
        assert server.get(headers=forwarded).status == 200
        with socket.create_connection(("::1", port), 10) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
        # forwarded_allow_ips contains 127.0.0.1, and not ::ffff:127.0.0.1.
        server.wait_for_log('"client.address":"192.0.2.1"')


@WORKERS
@pytest.mark.parametrize("code", [SERVES, WSGI])
@pytest.mark.parametrize("bind", ["--bind=unix:{}", "--bind=unix://{}"])
def test_bind_to_plain_file_is_refused(workers: int, code: str, bind: str, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("kept")
    with run(tmp_path, code, bind.format(file), f"--workers={workers}", fails=True) as server:
        assert server.process.wait(60) == 2, server.log()
        assert "is not a socket" in server.log()
    assert file.read_text() == "kept"


@pytest.mark.parametrize("more", ["--workers=1", "--workers=2", "--reload"])
def test_uds_that_is_a_plain_file_stays(more: str, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("kept")
    (tmp_path / "own.py").write_text(SERVES)
    command = ["python", "-P", "-m", "asgifast.uvicorn", f"--uds={file}", more, "own:app"]
    with live_server(command, str(file), cwd=tmp_path, fails=True) as server:
        assert server.process.wait(60) == 1, server.log()
        assert "is not a socket" in server.log()
    assert file.read_text() == "kept"


@pytest.mark.parametrize("code", [SERVES, WSGI])
def test_unix_socket_left_behind_is_replaced(code: str, tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
        left.listen()
        with run(tmp_path, code, f"--bind=unix:{path}", "--workers=1", fails=True) as refused:
            assert refused.process.wait(60) == 2
            assert "another server listens on it" in refused.log()
    (tmp_path / "own.py").write_text(code)
    command = ["python", "-m", "wsgifast", "run", "own:app", f"--bind=unix:{path}", "--workers=1"]
    with live_server(command, path, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}) as server:
        assert get(path, "/").status == 200, server.log()
    assert not os.path.exists(path)

"""gunicorn with asgifast's workers: their listeners, from start to end."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from asgifast.workers import FastUvicornH11Worker, FastUvicornWorker

from tests.support.servers import free_port, live_server
from tests.support.socket_options import congestion_control, needs_bbr, use_bbr


@pytest.mark.parametrize("worker", ["FastUvicornWorker", "FastUvicornH11Worker"])
def test_a_listener_is_closed_once(worker: str, files: Path) -> None:
    port = free_port()
    options = f"-k asgifast.workers.{worker} --bind 127.0.0.1:{port} --no-control-socket"
    argv = [sys.executable, "-m", "gunicorn", *options.split(), "tests.asgi.app:app"]
    env = {"ASGIFAST_TEST_FILES": str(files)}
    with live_server(argv, ("127.0.0.1", port), env=env) as server:
        assert server.get("/hello").body == b"hello"
        server.stop()
        log = server.log()
    assert "Finished server process" in log
    assert "Error while closing socket" not in log


@needs_bbr
@pytest.mark.parametrize(
    ("worker", "method"),
    [(FastUvicornWorker, "run"), (FastUvicornH11Worker, "run")],
)
def test_listeners_within_the_host_are_not_paced(
    worker: type[Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = next(
        each for each in worker.__mro__ if each.__module__.startswith(("uvicorn", "gunicorn"))
    )
    monkeypatch.setattr(base, method, lambda self: None)  # it would serve
    with socket.create_server(("127.0.0.1", 0)) as listener:
        use_bbr(listener)
        made: Any = object.__new__(worker)
        made.sockets = [listener]
        getattr(made, method)()
        assert congestion_control(listener) == b"reno"

"""gunicorn with asgifast's workers: their listeners, from start to end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.servers import free_port, live_server


@pytest.mark.parametrize("worker", ["FastUvicornWorker", "FastUvicornH11Worker"])
def test_listener_is_closed_once(worker: str, files: Path) -> None:
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

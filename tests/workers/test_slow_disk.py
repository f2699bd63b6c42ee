"""Downloads from a disk that is slow, real to the worker: everybody else is served meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import Connection
from tests.support.servers import PATIENCE_S
from tests.support.slow_disk import has_slow_disk, slow_disk

from .serving import fast_worker

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not has_slow_disk(), reason="only root can mount a slow disk, and only where /dev/fuse is"
    ),
]

FILE_BYTES = 64 * 1024 * 1024
# One read-ahead window takes half a second, and the first of each download's one and a half.
BYTES_PER_S = 256 * 1024
REQUESTS = 200


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/slow":
        start_response("200 OK", [("Content-Length", str(FILE_BYTES))])
        file = open(os.environ["SLOW_FILE"], "rb")
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](file)
        return wrapped
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


def test_slow_disk_delays_its_own_files_only(tmp_path: Path) -> None:
    """More downloads than threads, and a timeout that kills a worker whose main thread waits."""
    (tmp_path / "mnt").mkdir()
    with (
        slow_disk(tmp_path / "mnt", size=FILE_BYTES, bytes_per_s=BYTES_PER_S) as path,
        fast_worker(
            "--threads=2",
            "--timeout=4",
            f"--env=SLOW_FILE={path}",
            app="tests.workers.test_slow_disk:app",
        ) as server,
        contextlib.ExitStack() as stack,
    ):
        assert isinstance(server.address, tuple)
        downloads = []
        for _ in range(3):
            download = stack.enter_context(socket.create_connection(server.address, PATIENCE_S))
            download.sendall(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
            assert download.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
            downloads.append(download)
        # Of the disk, each request would cost half a second and more.
        with Connection(server.address) as client:
            for _ in range(REQUESTS):
                client.send_request("/")
                assert client.read_response().body == b"ok"
        received = 0
        for download in downloads:
            download.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while block := download.recv(1 << 20):
                    received += len(block)
        assert received < REQUESTS * 128 * 1024 / 4, "the disk was not slow"
        assert "WORKER TIMEOUT" not in server.log()

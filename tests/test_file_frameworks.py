"""Files of WhiteNoise, ServeStatic, Flask, Falcon and Django in WSGIFast, on every server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import WSGI_SERVERS
from tests.support.file_frameworks import FRAMEWORKS
from tests.support.http import Connection
from tests.support.servers import LiveServer, free_port, live_server, wait_for

CONTENT = os.urandom(700_001)
SIZE = len(CONTENT)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=WSGI_SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A live server with one file behind every framework."""
    root = tmp_path_factory.mktemp("files")
    Path(root, "file.bin").write_bytes(CONTENT)
    port = free_port()
    command = WSGI_SERVERS[request.param](port, "tests.support.file_frameworks:app")
    with live_server(command, ("127.0.0.1", port), env={"FILES_ROOT": str(root)}) as started:
        yield started


def test_file_arrives_whole(server: LiveServer) -> None:
    for framework in FRAMEWORKS:
        response = server.get(f"/{framework}/file.bin")
        assert (response.status, response.body) == (200, CONTENT), f"{framework}: {response}"
        assert response.header("Content-Length") == str(SIZE), f"{framework}: {response}"


@pytest.mark.parametrize(
    ("ranges", "start", "stop"),
    [
        ("bytes=0-1", 0, 2),
        ("bytes=1000-300000", 1000, 300_001),
        (f"bytes={SIZE - 5}-", SIZE - 5, SIZE),
        ("bytes=-70000", SIZE - 70_000, SIZE),
    ],
)
def test_range_arrives(server: LiveServer, ranges: str, start: int, stop: int) -> None:
    for framework in FRAMEWORKS:
        with Connection(server.address) as connection:
            for _ in range(2):  # and what follows on the connection is in step
                response = connection.request(f"/{framework}/file.bin", headers=[("Range", ranges)])
                told = f"{framework}: {response}"
                assert response.status == 206, told
                assert response.body == CONTENT[start:stop], told
                assert response.header("Content-Range") == f"bytes {start}-{stop - 1}/{SIZE}", told
                assert response.header("Content-Length") == str(stop - start), told
                if not response.keep_alive:
                    break


def test_range_that_cannot_be_satisfied(server: LiveServer) -> None:
    for framework in FRAMEWORKS:
        response = server.get(f"/{framework}/file.bin", headers=[("Range", f"bytes={SIZE}-")])
        assert response.status == 416, f"{framework}: {response}"


def test_head_has_no_body(server: LiveServer) -> None:
    for framework in FRAMEWORKS:
        response = server.get(f"/{framework}/file.bin", method="HEAD")
        assert (response.status, response.body) == (200, b""), f"{framework}: {response}"


def test_no_file_stays_open(server: LiveServer) -> None:
    for framework in FRAMEWORKS:
        for range_ in ("bytes=0-9", "bytes=9-"):
            server.get(f"/{framework}/file.bin", headers=[("Range", range_)])
    main = psutil.Process(server.pid)

    def opened() -> list[str]:
        processes = [main, *main.children(recursive=True)]
        return [file.path for process in processes for file in process.open_files()]

    wait_for(
        lambda: not any(path.endswith("file.bin") for path in opened()),
        "every framework's file is closed",
    )

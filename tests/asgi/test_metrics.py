"""What asgifast's protocols for uvicorn tell: their connections, and the bytes by sendfile."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from tests.workers.test_metrics import Scrape

from .servers import OURS, asgi_server

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
    # The scrape's own connection runs.
    running = Scrape(port)
    assert running.value("wsgifast_connections", state="running") == 1
    with contextlib.ExitStack() as stack:
        stack.enter_context(Connection(server.address))
        upload = stack.enter_context(Connection(server.address))
        upload.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        slow = stack.enter_context(socket.socket())
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(server.address)
        slow.sendall(b"GET /pathsend?file=large HTTP/1.1\r\nHost: a\r\n\r\n")

        def states() -> dict[str, float]:
            scrape = Scrape(port)
            return {
                labels["state"]: value
                for labels, value in scrape.samples("wsgifast_connections")
                if value
            }

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

"""The crowd of slow clients works and ends, and the slow disk is slow."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests import slow
from tests.support.crowds import Kind
from tests.support.crowds import slow_clients as crowd_of
from tests.support.servers import PATIENCE_S, wait_for
from tests.support.slow_clients import KINDS, opening, others, slow_clients
from tests.support.slow_disk import has_slow_disk, slow_disk
from tests.support.tls import server_context
from wsgifast.commands.bench.processes import HOST

pytestmark = pytest.mark.long

RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Listener(socketserver.ThreadingTCPServer):
    """Accept all clients, record their bytes, and perhaps respond to complete requests."""

    daemon_threads = True
    request_queue_size = 200

    def __init__(self, *, responses: bytes = b"", tls: ssl.SSLContext | None = None) -> None:
        self.received: list[bytearray] = []
        self._responses, self._tls = responses, tls
        super().__init__((HOST, 0), socketserver.BaseRequestHandler)

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    def finish_request(self, request: Any, client_address: Any) -> None:
        self.received.append(received := bytearray())
        with contextlib.suppress(OSError):
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            with request:
                while data := request.recv(65_536):
                    received += data
                    if self._responses and received.endswith(b"\r\n\r\n"):
                        request.sendall(self._responses)


@contextlib.contextmanager
def listening(**options: Any) -> Iterator[Listener]:
    with Listener(**options) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield listener
        finally:
            listener.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", KINDS)
def test_crowd_sends_its_opening(kind: str) -> None:
    with listening() as listener:
        with slow_clients(kind, listener.port, clients=2, seconds=20, path="/there") as crowd:
            sent = opening(kind, "/there")
            wait_for(
                lambda: (
                    len(listener.received) >= 2
                    and all(one.startswith(sent) for one in listener.received[:2])
                ),
                "both have sent it",
            )
            if not KINDS[kind].leaves:
                assert crowd.gathered == 2
            counted = crowd.end()
        assert counted["opened"] >= 2


def test_crowd_keeps_its_pace() -> None:
    def pace() -> float:
        with (
            listening() as listener,
            slow_clients("one-byte chunks", listener.port, clients=3) as crowd,
        ):
            wait_for(
                lambda: len(listener.received) == 3 and min(map(len, listener.received)) > 17_000,
                "a second of it",
            )
            counted: float = crowd.end()["sent B/s each"]
        for one in listener.received:
            _, _, chunks = one.partition(b"\r\n\r\n")
            assert (b"1\r\nx\r\n" * len(chunks)).startswith(chunks)
        return counted

    # On a machine that stalls they are late once.
    wait_for(lambda: pace() == pytest.approx(17_000, rel=0.3), "they keep their pace")


def test_dropped_client_comes_back() -> None:
    with (
        socket.create_server((HOST, 0)) as server,
        slow_clients("silent connections", server.getsockname()[1], clients=1) as crowd,
    ):
        server.settimeout(PATIENCE_S)
        server.accept()[0].close()
        back, _ = server.accept()
        with back:
            counted = crowd.end()
    assert (counted["opened"], counted["ended"]) == (2, 1)


def test_crowd_and_others_speak_tls() -> None:
    with listening(responses=RESPONSE, tls=server_context()) as listener:
        with slow_clients("slow readers", listener.port, clients=2, tls=True) as crowd:
            assert crowd.gathered == 2
            assert others(listener.port, seconds=0.1, tls=True).failures == 0
            wait_for(lambda: all(b"GET" in one for one in listener.received), "they have asked")
            counted = crowd.end()
        assert counted["opened"] == 2


def test_silent_crowd_under_tls_stays() -> None:
    """The client checks whether it was disconnected, since TLS has no flag for it."""
    with listening(tls=server_context()) as listener:
        with slow_clients("silent connections", listener.port, clients=2, tls=True) as crowd:
            wait_for(lambda: len(listener.received) == 2, "both have come")
            counted = crowd.end()
        assert counted["opened"] == 2


def test_crowd_that_leaves_waits_for_a_response() -> None:
    asks = Kind(b"GET / HTTP/1.1\r\n\r\n", receive_bytes_per_s=1 << 20, leaves=True)
    with listening() as silent, crowd_of(asks, (HOST, silent.port), 2, seconds=0.5) as crowd:
        crowd.process.wait(PATIENCE_S)
        assert crowd.end()["opened"] == 2
    with listening(responses=RESPONSE) as server, crowd_of(asks, (HOST, server.port), 2) as crowd:
        wait_for(lambda: len(server.received) > 4, "they come again and again")
        crowd.end()


def test_crowd_ends_at_its_time() -> None:
    with (
        listening() as listener,
        slow_clients("idle", listener.port, clients=1, seconds=0.2) as crowd,
    ):
        crowd.process.wait(PATIENCE_S)  # its own time, if it receives none


def test_failures_of_others_are_counted() -> None:
    with listening(responses=RESPONSE) as listener:
        seen = others(listener.port, seconds=0.3)
    assert seen.failures == 0
    assert len(seen.times_ms) > 0
    assert seen.percentile(50) <= seen.percentile(99)
    with listening(responses=RESPONSE.replace(b"200 OK", b"503 No")) as listener:
        seen = others(listener.port, seconds=0.05)
    assert seen.failures == len(seen.times_ms) > 0


@pytest.mark.skipif(not has_slow_disk(), reason="a slow disk needs root and /dev/fuse")
def test_slow_disk_keeps_its_rate(tmp_path: Path) -> None:
    with slow_disk(tmp_path, size=300_000, bytes_per_s=500_000) as path:
        assert path.stat().st_size == 300_000
        for _ in range(2):  # each open() begins with an empty cache
            with path.open("rb") as file:
                begun = time.monotonic()
                assert file.read() == bytes(300_000)
                assert time.monotonic() - begun > 0.5
                assert os.pread(file.fileno(), 10, 0) == bytes(10)
    assert not os.path.ismount(tmp_path)


def test_costs_of_server_include_its_temporary_files() -> None:
    before = slow.costs(os.getpid())
    with tempfile.TemporaryFile() as file:
        file.write(bytes(1_000_000))
        file.flush()
        os.fsync(file.fileno())
        after = slow.costs(os.getpid())
    assert after["disk "] - before["disk "] >= 1_000_000
    assert after[""] > 0
    assert after["kernel "] >= 0

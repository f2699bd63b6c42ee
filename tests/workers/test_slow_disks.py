"""Disks that hang or are slow: only requests that use the disk wait."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import Connection
from tests.support.http2 import Connected
from tests.support.servers import PATIENCE_S, LiveServer, wait_for
from tests.support.slow_disk import has_slow_disk, slow_disk

from .serving import fast_worker

THREADS = 4
CLIENTS = 12
# More than sockets and windows take, and together below output_memory_bytes.
BLOCK, BLOCKS = bytes(range(256)) * 64, 256
RESPONSE = BLOCK * BLOCKS
BODY = bytes(range(255)) * 8_000
REQUESTS = 100
# A file, and the speed of the slow disk: one read-ahead window takes half a second, and the first
# one of each download one and a half.
FILE_BYTES = 64 * 1024 * 1024
BYTES_PER_S = 256 * 1024


def _hang() -> None:
    """Wait as long as the disk hangs, and record that a request waits."""
    folder = Path(os.environ["DISK"])
    if not (folder / "goes").exists():
        (folder / f"waits-{threading.get_native_id()}").touch()
    while not (folder / "goes").exists():
        time.sleep(0.005)


class _HangingFile:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        _hang()
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _HangingFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


if "DISK" in os.environ:  # in the worker, at the calls that write
    _pwritev, _temporary_file = os.pwritev, tempfile.TemporaryFile

    def _slow_pwritev(fd: int, data: list[memoryview], offset: int) -> int:
        _hang()
        return _pwritev(fd, data, offset)

    def _slow_file(*arguments: Any, **more: Any) -> Any:
        return _HangingFile(_temporary_file(*arguments, **more))

    slow: Any = _slow_pwritev
    os.pwritev, tempfile.TemporaryFile = slow, _slow_file


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if path == "/slow":
        start_response("200 OK", [("Content-Length", str(FILE_BYTES))])
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](open(os.environ["SLOW_FILE"], "rb"))
        return wrapped
    if path == "/generator":
        start_response("200 OK", [])
        return (BLOCK for _ in range(BLOCKS))
    body = b"ok"
    if path == "/upload":
        body = hashlib.sha256(environ["wsgi.input"].read()).hexdigest().encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[LiveServer, Path]]:
    http2 = ("--http-protocols=h2,h1", "--http2-cleartext=both")
    with fast_worker(
        f"--threads={THREADS}",
        *http2,
        app="tests.workers.test_slow_disks:app",
        env={"DISK": str(tmp_path)},
    ) as served:
        yield served, tmp_path


def others_are_answered(server: LiveServer, disk: Path) -> None:
    """A request while the disk hangs."""
    wait_for(lambda: any(disk.glob("waits-*")), "somebody waits for the disk")
    with Connection(server.address) as client:
        for _ in range(REQUESTS):
            client.send_request("/")
            assert client.read_response().body == b"ok"
    assert not (disk / "goes").exists()


@contextlib.contextmanager
def connected(server: LiveServer) -> Iterator[socket.socket]:
    assert isinstance(server.address, tuple)
    with socket.create_connection(server.address, PATIENCE_S) as sock:
        yield sock


def test_hanging_disk_delays_slow_readers_only(server: tuple[LiveServer, Path]) -> None:
    served, disk = server
    with contextlib.ExitStack() as stack:
        readers = []
        for _ in range(CLIENTS):
            reader = stack.enter_context(Connection(served.address, receive_buffer=4096))
            reader.send_request("/generator")
            readers.append(reader)
        others_are_answered(served, disk)
        (disk / "goes").touch()
        for reader in readers:
            assert reader.read_response().body == RESPONSE


def test_hanging_disk_delays_slow_http2_readers_only(server: tuple[LiveServer, Path]) -> None:
    served, disk = server
    with contextlib.ExitStack() as stack:
        readers = []
        for _ in range(3):
            reader = Connected(stack.enter_context(connected(served)))
            reader.begin()
            readers.append((reader, [reader.send("/generator") for _ in range(CLIENTS // 3)]))
        others_are_answered(served, disk)
        # Other streams of the same connection do not wait, either.
        reader, _ = readers[0]
        reader.open(1 << 20)
        assert reader.response(reader.send("/")).body == b"ok"
        (disk / "goes").touch()
        for reader, streams in readers:
            for stream in streams:
                assert reader.response(stream).body == RESPONSE


def test_hanging_disk_delays_uploads_only(server: tuple[LiveServer, Path]) -> None:
    served, disk = server
    headers = b"POST /upload HTTP/1.1\r\nHost: a\r\n"
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    framed = [b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)]
    framed += [b"Transfer-Encoding: chunked\r\n\r\n%b" % chunks]
    with contextlib.ExitStack() as stack:
        clients = []
        for number in range(CLIENTS):
            client = stack.enter_context(Connection(served.address))
            sender = threading.Thread(
                target=client.sock.sendall, args=(headers + framed[number % 2],)
            )
            sender.start()
            clients.append((client, sender))
        others_are_answered(served, disk)
        (disk / "goes").touch()
        for client, sender in clients:
            assert client.read_response().body == hashlib.sha256(BODY).hexdigest().encode()
            sender.join()


def test_hanging_disk_delays_http2_uploads_only(server: tuple[LiveServer, Path]) -> None:
    served, disk = server

    def upload(_: int) -> bytes:
        with connected(served) as sock:
            client = Connected(sock)
            client.begin()
            return client.response(client.send("/upload", "POST", BODY)).body

    with ThreadPoolExecutor(CLIENTS) as clients:
        responses = clients.map(upload, range(CLIENTS))
        others_are_answered(served, disk)
        (disk / "goes").touch()
        assert [*responses] == [hashlib.sha256(BODY).hexdigest().encode()] * CLIENTS


def test_client_leaving_a_hanging_disk_is_no_error(server: tuple[LiveServer, Path]) -> None:
    served, disk = server
    for target in (b"GET /generator", b"POST /upload"):
        for waits in disk.glob("waits-*"):
            waits.unlink()
        with Connection(served.address, receive_buffer=4096) as client:
            size = len(BODY) if target.startswith(b"POST") else 0
            headers = b"%b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (target, size)
            client.sock.sendall(headers + BODY[: size // 2])
            others_are_answered(served, disk)
    (disk / "goes").touch()
    with Connection(served.address) as client:
        client.send_request("/")
        assert client.read_response().body == b"ok"
    assert "Traceback" not in served.log()


@pytest.mark.long
@pytest.mark.skipif(
    not has_slow_disk(), reason="only root can mount a slow disk, and only where /dev/fuse is"
)
def test_slow_disk_delays_its_own_files_only(tmp_path: Path) -> None:
    """There are more downloads than threads, and a timeout that kills a worker whose main thread
    waits.
    """
    (tmp_path / "mnt").mkdir()
    with (
        slow_disk(tmp_path / "mnt", size=FILE_BYTES, bytes_per_s=BYTES_PER_S) as path,
        fast_worker(
            "--threads=2",
            "--timeout=4",
            f"--env=SLOW_FILE={path}",
            app="tests.workers.test_slow_disks:app",
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
        # With the disk, each request would take more than half a second.
        with Connection(server.address) as client:
            for _ in range(2 * REQUESTS):
                client.send_request("/")
                assert client.read_response().body == b"ok"
        received = 0
        for download in downloads:
            download.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while block := download.recv(1 << 20):
                    received += len(block)
        assert received < 2 * REQUESTS * 128 * 1024 / 4, "the disk was not slow"
        assert "WORKER TIMEOUT" not in server.log()

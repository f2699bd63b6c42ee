"""Faults of clients, files and apps, and faults at shutdown, on every server with ASGIFast.

Some tests use Starlette's BaseHTTPMiddleware, which runs the app in a separate task.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.support.http import Connection, reset_on_close
from tests.support.servers import STOP_S, LiveServer, wait_for
from wsgifast.commands.bench.processes import is_listening

from .protocols import WEBSOCKET
from .servers import BARE, OURS, OURS_ON_GUNICORN, SERVERS, asgi_server

pytestmark = pytest.mark.long
# Not daphne, which has three faults without ASGIFast. It never sends 100 Continue. It does not
# close the connection when the app fails midway. It shuts down during a download.
NAMES = sorted(SERVERS.keys() - {"daphne"})
each = pytest.mark.parametrize("server", NAMES, indirect=True)
each_and_bare = pytest.mark.parametrize("server", [*NAMES, *BARE], indirect=True)

# A download of this size does not end before its client reads: buffers contain 4 MiB at most.
HUGE_BYTES = 16 * 1024 * 1024
# The client's receive buffer for a slow download.
SMALL_WINDOW = 16 * 1024
# Requests for the whole file, and for a part of it. ASGIFast makes the part, not the server or the
# app.
DOWNLOADS = [
    ("/pathsend?file=huge", ""),
    ("/pathsend?file=huge", "bytes=1-"),
    ("/stack/base/static/huge", ""),
    ("/stack/base/ours/huge", "bytes=1-"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sparse file `huge`: zeros, and a mark at the end."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "small").write_bytes(b"a small file")
    make_huge(folder)
    return folder


def make_huge(folder: Path) -> None:
    with (folder / "huge").open("wb") as file:
        file.seek(HUGE_BYTES - 3)
        file.write(b"end")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file in which the app records its events."""
    path = tmp_path_factory.mktemp("events") / "events"
    path.touch()
    return path


@pytest.fixture(scope="module")
def environment(events: Path) -> dict[str, str]:
    return {"ASGIFAST_TEST_EVENTS": str(events)}


def download(server: LiveServer, target: str, range_: str = "") -> Connection:
    """Begin a download, and read the headers.

    A small receive buffer takes only the start of the body.
    """
    connection = Connection(server.address, receive_buffer=SMALL_WINDOW)
    connection.send_request(target, headers=[("Range", range_)] if range_ else [])
    assert connection.read_headers().status in (200, 206)
    return connection


def read_what_comes(connection: Connection) -> bytes:
    """Read to the end. A reset counts as the end, too."""
    try:
        return connection.read_to_end()
    except ConnectionResetError:
        return b""


@each_and_bare
def test_clients_that_leave_midway_leave_nothing_open(
    server: LiveServer, folder: Path, events: Path, is_bare: bool
) -> None:
    server.get("/hello")
    log, returned = len(server.log()), events.read_text().count("pathsend returned")
    before = len(server.open_files())
    leavers = [download(server, *how) for how in DOWNLOADS for _ in range(2)]
    assert server.open_files(str(folder / "huge"))
    assert server.get("/hello").body == b"hello", "stalled downloads hold nobody up"
    for number, connection in enumerate(leavers):
        connection.read(1000 * number)
        if number % 2:
            reset_on_close(connection.sock)
        connection.close()
    wait_for(lambda: not server.open_files(str(folder / "huge")), "the file is closed")
    if is_bare:
        wait_for(
            lambda: events.read_text().count("pathsend returned") == returned + 4,
            "every app's send() has returned",
        )
        wait_for(lambda: len(server.open_files()) <= before, "all descriptors are free")
    assert server.get("/hello").body == b"hello"
    assert "Traceback" not in server.log()[log:]


@each_and_bare
def test_file_that_shrinks_midway_ends_early(
    server: LiveServer, folder: Path, is_bare: bool
) -> None:
    try:
        for target, range_ in DOWNLOADS:
            make_huge(folder)
            with download(server, target, range_) as connection:
                os.truncate(folder / "huge", 1_000_000)
                body = read_what_comes(connection)
            assert len(body) < HUGE_BYTES - 1, f"{target} {range_}"
            assert server.get("/hello").body == b"hello"
    finally:
        make_huge(folder)
    if is_bare:
        wait_for(lambda: "the file shrank" in server.log(), "the log says why")


@each_and_bare
def test_pipelined_responses_stay_in_order(server: LiveServer, is_bare: bool) -> None:
    with Connection(server.address) as connection:
        connection.send(
            b"GET /pathsend?file=huge HTTP/1.1\r\nHost: x\r\n\r\n"
            b"HEAD /pathsend?file=huge HTTP/1.1\r\nHost: x\r\n\r\n"
            b"GET /pathsend?file=huge HTTP/1.1\r\nHost: x\r\nRange: bytes=-3\r\n\r\n"
            b"GET /stack/base/static/small HTTP/1.1\r\nHost: x\r\n\r\n"
            b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        body = connection.read_response().body
        assert (len(body), body[-3:]) == (HUGE_BYTES, b"end")
        assert connection.read_response("HEAD").header("content-length") == str(HUGE_BYTES)
        body = connection.read_response().body
        assert (len(body), body[-3:]) == (HUGE_BYTES if is_bare else 3, b"end")
        assert connection.read_response().body == b"a small file"
        assert connection.read_response().body == b"hello"


@each
def test_upload_that_waits_for_100_continue(server: LiveServer) -> None:
    start_message = b" HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    with Connection(server.address) as connection:
        connection.send(b"POST /echo" + start_message)
        assert connection.read_headers().status == 100
        connection.send(b"12345")
        assert connection.read_response().body == b"12345"
    with Connection(server.address) as connection:
        connection.send(
            b"POST /pathsend?file=huge" + start_message
        )  # the file is complete whether the body is requested or not
        response = connection.read_headers()
        if response.status == 100:
            response = connection.read_headers()
        assert response.status == 200
        assert not connection.read(HUGE_BYTES - 3).strip(b"\0")
        assert connection.read(3) == b"end"


@each
def test_app_that_fails_before_its_body(server: LiveServer) -> None:
    for target in ("/raises_first", "/raises_behind_its_head", "/returns"):
        assert server.get(target).status == 500, target
    assert server.get("/hello").body == b"hello"


@each_and_bare
@pytest.mark.parametrize(
    ("target", "sent"),
    [("/raises", b"sent before it failed"), ("/returns_midway", b"sent before it returned")],
)
def test_app_that_fails_midway(server: LiveServer, target: str, sent: bytes) -> None:
    with Connection(server.address) as connection:
        connection.send_request(target)
        response = connection.read_to_end()
    assert sent in response
    assert not response.endswith(b"0\r\n\r\n"), "the body must not look complete"


@each
def test_app_that_goes_on_behind_its_response(server: LiveServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    try:
        assert server.get(f"/goes_on?file={go}").body == b"hello"
    finally:
        go.touch()


@each_and_bare
def test_websocket_is_served(server: LiveServer, is_bare: bool) -> None:
    with Connection(server.address) as connection:
        if is_bare:
            assert connection.request("/pathsend?file=huge").status == 200, "sent by the protocol"
        connection.send(WEBSOCKET)
        assert connection.read_headers().status == 101
        connection.send(b"\x81\x83\0\0\0\0abc")  # a WebSocket text frame, masked with zeros
        assert connection.read(5) == b"\x81\x03cba", "the app answers with its reverse"


@pytest.mark.parametrize("server", BARE, indirect=True)
def test_malformed_request_is_not_answered_in_download(server: LiveServer) -> None:
    with download(server, "/pathsend?file=huge") as connection:
        connection.send(b"NOT HTTP AT ALL\r\n\r\n")
        body = read_what_comes(connection)
    # If the download breaks off, the file's bytes contain no byte of an error message.
    assert not body[: HUGE_BYTES - 3].strip(b"\0")
    assert server.get("/hello").body == b"hello"


@pytest.mark.parametrize("name", [*NAMES, *BARE])
def test_shutdown_waits_for_a_download(name: str, folder: Path, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.touch()
    env = {"ASGIFAST_TEST_EVENTS": str(events)}
    # The other servers wait for 30 s or for ever, these servers for 3 s.
    extra = ("--graceful-timeout", "30") if name.startswith(("hypercorn", "anycorn")) else ()
    app, size = ("app", HUGE_BYTES) if name in BARE else ("fast", HUGE_BYTES - 1)
    app, name = f"tests.asgi.app:{app}", name.removeprefix("bare ")
    with asgi_server(name, app, folder, env=env, extra=extra) as server:
        with download(server, "/pathsend?file=huge", "bytes=1-") as connection:
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: not is_listening(server.address), "no new connection is taken")
            body = connection.read_to_end()
        assert (len(body), body[-3:]) == (size, b"end")
        server.process.wait(STOP_S)
        assert "lifespan.shutdown" in events.read_text()


@pytest.mark.parametrize("name", sorted(OURS))
def test_shutdown_ends_a_download_after_its_timeout(name: str, folder: Path) -> None:
    extra = ("--timeout-graceful-shutdown", "1")
    with (
        asgi_server(name, "tests.asgi.app:app", folder, extra=extra) as server,
        download(server, "/pathsend?file=huge") as connection,
    ):
        server.stop()
        assert len(read_what_comes(connection)) < HUGE_BYTES


@pytest.mark.parametrize("server", sorted({**OURS, **OURS_ON_GUNICORN}), indirect=True)
@pytest.mark.parametrize("pipelined", [False, True])
def test_response_reaches_a_client_that_still_sends(
    server: LiveServer, folder: Path, pipelined: bool
) -> None:
    """The app does not receive the upload, and the server closes the connection.

    :param pipelined: whether the upload belongs to the next request.
    """
    data = (folder / "huge").read_bytes()
    close = {"Connection": "close", "Content-Length": "20000000"}
    for _ in range(3):
        with Connection(server.address, receive_buffer=SMALL_WINDOW) as connection:
            if pipelined:
                connection.send_request("/pathsend?file=huge")
            target = "/hello" if pipelined else "/pathsend?file=huge"
            upload = threading.Thread(target=_upload, args=[connection, target, close])
            upload.start()
            assert connection.read_headers().status == 200
            for at in range(0, len(data), 1 << 18):
                assert connection.read(1 << 18) == data[at : at + (1 << 18)]
                time.sleep(0.001)
            if pipelined:
                with contextlib.suppress(EOFError):  # zttp rejects so much data after a request
                    assert connection.read_response().status == 200
            connection.sock.shutdown(socket.SHUT_RDWR)
            upload.join()


def _upload(connection: Connection, target: str, headers: dict[str, str]) -> None:
    with contextlib.suppress(OSError):
        connection.send_request(target, method="POST", headers=list(headers.items()))
        connection.send(bytes(20_000_000))

"""What goes wrong, on every server: with clients, files, apps and at shutdown; ASGIFast is around.

Some of it through Starlette's BaseHTTPMiddleware, behind which an app is a task of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http import Connection, reset_on_close
from tests.support.servers import STOP_S, LiveServer, wait_for

from .servers import OURS, OURS_ON_GUNICORN, SERVERS, asgi_server
from .support import expect_websocket, processes

pytestmark = pytest.mark.long
# daphne, by itself: asks for no body that waits to be asked for, keeps a connection open whose app
# has failed midway, and shuts down in the middle of a download.
NAMES = sorted(SERVERS.keys() - {"daphne"})
each = pytest.mark.parametrize("server", NAMES, indirect=True)

# So large that it stays under way until its client reads: buffers hold 4 MiB at most.
HUGE_BYTES = 16 * 1024 * 1024
# The client's receive buffer for a slow download.
SMALL_WINDOW = 16 * 1024
# The whole file, and a part of it, which no server sends by itself.
DOWNLOADS = [
    ("/pathsend?file=huge", ""),
    ("/pathsend?file=huge", "bytes=1-"),
    ("/stack/base/static/huge", ""),
    ("/stack/base/ours/huge", "bytes=1-"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sparse file `huge`: zeros, and a mark at the end."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "small").write_bytes(b"a small file")
    make_huge(folder)
    return folder


def make_huge(folder: Path) -> None:
    with (folder / "huge").open("wb") as file:
        file.seek(HUGE_BYTES - 3)
        file.write(b"end")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[LiveServer]:
    with asgi_server(request.param, "tests.asgi.app:fast", folder) as server:
        yield server


def download(server: LiveServer, target: str, range_: str) -> Connection:
    """Begin a download; its head is read, and little of its body has found room."""
    connection = Connection(server.address, receive_buffer=SMALL_WINDOW)
    connection.send_request(target, headers=[("Range", range_)] if range_ else [])
    assert connection.read_head().status in (200, 206)
    return connection


def has_open(server: LiveServer, path: Path) -> bool:
    for pid in processes(server.pid):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(f"/proc/{pid}/fd/{fd}") == str(path):
                    return True
            except FileNotFoundError:
                pass  # closed meanwhile
    return False


@each
def test_clients_that_leave(server: LiveServer, folder: Path) -> None:
    before = len(server.log())
    leavers = [download(server, *how) for how in DOWNLOADS for _ in range(2)]
    assert has_open(server, folder / "huge")
    assert server.get("/hello").body == b"hello", "stalled downloads hold nobody up"
    for number, connection in enumerate(leavers):
        connection.read(1000 * number)
        if number % 2:  # RST instead of FIN
            reset_on_close(connection.sock)
        connection.close()
    wait_for(lambda: not has_open(server, folder / "huge"), "the file is closed for all of them")
    assert server.get("/hello").body == b"hello"
    assert "Traceback" not in server.log()[before:]


@each
def test_a_file_that_shrinks_midway(server: LiveServer, folder: Path) -> None:
    try:
        for target, range_ in DOWNLOADS:
            make_huge(folder)
            with download(server, target, range_) as connection:
                os.truncate(folder / "huge", 1_000_000)
                try:
                    body = connection.read_to_end()
                except ConnectionResetError:
                    body = b""
            assert len(body) < HUGE_BYTES - 1, f"{target} {range_}"
            assert server.get("/hello").body == b"hello"
    finally:
        make_huge(folder)


@each
def test_pipelined_requests_stay_in_order(server: LiveServer) -> None:
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
        assert connection.read_response().body == b"end"
        assert connection.read_response().body == b"a small file"
        assert connection.read_response().body == b"hello"


@each
def test_an_upload_that_waits_to_be_asked_for(server: LiveServer) -> None:
    head = b" HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    with Connection(server.address) as connection:
        connection.send(b"POST /echo" + head)
        assert connection.read_head().status == 100
        connection.send(b"12345")
        assert connection.read_response().body == b"12345"
    with Connection(server.address) as connection:
        connection.send(b"POST /pathsend?file=huge" + head)  # asked for or not, the file is whole
        answer = connection.read_head()
        if answer.status == 100:
            answer = connection.read_head()
        assert answer.status == 200
        assert not connection.read(HUGE_BYTES - 3).strip(b"\0")
        assert connection.read(3) == b"end"


@each
def test_an_app_that_fails_before_its_body(server: LiveServer) -> None:
    for target in ("/raises_first", "/raises_behind_its_head", "/returns"):
        assert server.get(target).status == 500, target
    assert server.get("/hello").body == b"hello"


@each
@pytest.mark.parametrize(
    ("target", "sent"),
    [("/raises", b"sent before it failed"), ("/returns_midway", b"sent before it returned")],
)
def test_an_app_that_fails_midway(server: LiveServer, target: str, sent: bytes) -> None:
    with Connection(server.address) as connection:
        connection.send_request(target)
        answer = connection.read_to_end()
    assert sent in answer
    assert not answer.endswith(b"0\r\n\r\n"), "the body must not look complete"


@each
def test_an_app_that_goes_on_behind_its_answer(server: LiveServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    try:
        assert server.get(f"/goes_on?file={go}").body == b"hello"
    finally:
        go.touch()


@each
def test_websockets(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        expect_websocket(connection)


@pytest.mark.parametrize("name", NAMES)
def test_shutdown_waits_for_a_download(name: str, folder: Path, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.touch()
    env = {"ASGIFAST_TEST_EVENTS": str(events)}
    # The others wait for 30 s or for ever, these for 3 s.
    extra = ("--graceful-timeout", "30") if name.startswith(("hypercorn", "anycorn")) else ()
    with asgi_server(name, "tests.asgi.app:fast", folder, env=env, extra=extra) as server:
        with download(server, "/pathsend?file=huge", "bytes=1-") as connection:
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: refuses(server), "no new connection is taken")
            body = connection.read_to_end()
        assert (len(body), body[-3:]) == (HUGE_BYTES - 1, b"end")
        server.process.wait(STOP_S)
        assert "lifespan.shutdown" in events.read_text()


def refuses(server: LiveServer) -> bool:
    assert isinstance(server.address, tuple)
    try:
        with socket.create_connection(server.address, 1.0):
            return False
    except OSError:
        return True


@pytest.mark.parametrize("server", sorted({**OURS, **OURS_ON_GUNICORN}), indirect=True)
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_response_comes_whole_to_a_client_that_is_still_sending(
    server: LiveServer, folder: Path, pipelined: bool
) -> None:
    """The app receives none of the upload, behind which the connection is closed.

    :param pipelined: the upload is that of the next request.
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
            assert connection.read_head().status == 200
            for at in range(0, len(data), 1 << 18):
                assert connection.read(1 << 18) == data[at : at + (1 << 18)]
                time.sleep(0.001)
            if pipelined:
                with contextlib.suppress(EOFError):  # zttp refuses so much behind a request
                    assert connection.read_response().status == 200
            connection.sock.shutdown(socket.SHUT_RDWR)
            upload.join()


def _upload(connection: Connection, target: str, headers: dict[str, str]) -> None:
    with contextlib.suppress(OSError):
        connection.send_request(target, method="POST", headers=list(headers.items()))
        connection.send(bytes(20_000_000))

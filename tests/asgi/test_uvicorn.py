"""uvicorn with our protocols and a plain app: sendfile, framing, TLS, Unix sockets."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from tests.support.http import Connection, get, reset_on_close
from tests.support.servers import LiveServer, live_server, wait_for
from tests.support.tls import client_context, write_certificate

from .servers import BARE, OURS, OURS_ON_GUNICORN, asgi_server

pytestmark = pytest.mark.long
ours = pytest.mark.parametrize("server", BARE, indirect=True)
each = pytest.mark.parametrize("name", sorted(OURS | OURS_ON_GUNICORN))
each_uvicorn = pytest.mark.parametrize("name", sorted(OURS))


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """The file in which the app records its events."""
    path = tmp_path / "events"
    path.touch()
    return path


@pytest.fixture
def tls(tmp_path: Path) -> tuple[str, ...]:
    """Options of uvicorn."""
    pem = write_certificate(tmp_path / "key.pem")
    return ("--ssl-certfile", pem, "--ssl-keyfile", pem)


@ours
def test_headers_and_body_leave_in_one_packet(server: LiveServer) -> None:
    def first_packet(target: str) -> bytes:
        with Connection(server.address) as connection:
            connection.send_request(target)
            return connection.sock.recv(64 * 1024)

    for target in ("/hello", "/pathsend?file=size-1024", "/crumbs", "/pathsend"):
        # The headers of a file that is not in memory may leave alone. So repeat the request.
        packets = (first_packet(target) for _ in range(3))
        assert any(len(packet.partition(b"\r\n\r\n")[2]) > 4 for packet in packets), target


@ours
def test_http_1_0_client_gets_a_whole_file(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        response = connection.request("/pathsend", version="1.0")
        assert response.body == (files / "large").read_bytes()


@ours
@pytest.mark.parametrize("size", [1024, 262_145])
def test_file_shorter_than_declared_is_logged(server: LiveServer, files: Path, size: int) -> None:
    declared = size + 100_000
    with Connection(server.address) as connection:
        connection.send_request(f"/pathsend?file=size-{size}&declared={declared}")
        assert connection.read_headers().status == 200
        assert connection.read_to_end() == (files / f"size-{size}").read_bytes()
    wait_for(lambda: f"but its headers declare {declared}" in server.log(), "the log says why")


@ours
def test_file_that_is_not_in_memory_is_sent(server: LiveServer, files: Path) -> None:
    data = (files / "large").read_bytes()
    cold = files.parent / f"cold-{server.address[1]}"
    cold.write_bytes(data)
    with cold.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert server.get(f"/pathsend?file={cold}").body == data


@ours
def test_aborted_downloads_leave_no_trace(server: LiveServer, files: Path) -> None:
    """The next connection gets the number of a closed descriptor. The loop must not watch it."""
    large = (files / "large").read_bytes()
    for _ in range(20):
        with Connection(server.address) as connection:
            connection.send_request("/pathsend")
            connection.read(1000)
            reset_on_close(connection.sock)
        with Connection(server.address) as connection:
            assert connection.request("/pathsend").body == large


@ours
def test_many_clients_at_once_get_their_own_responses(server: LiveServer, files: Path) -> None:
    large = (files / "large").read_bytes()
    middle = (files / "size-262145").read_bytes()
    failures: list[BaseException] = []

    def client(seed: int) -> None:
        try:
            with Connection(server.address) as connection:
                for step in range(12):
                    match (seed + step) % 4:
                        case 0:
                            assert connection.request("/pathsend").body == large
                        case 1:
                            target = "/pathsend?file=size-262145&chunked=1"
                            assert connection.request(target).body == middle
                        case 2:
                            assert connection.request("/crumbs").body[-3:] == b"end"
                        case _:
                            body = connection.request("/zerocopy").body
                            assert body[3:-4] == large[500:201_500]
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=client, args=[seed]) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@each
def test_kernel_sends_large_files(name: str, files: Path, events: Path) -> None:
    environment = {"ASGIFAST_TEST_EVENTS": str(events)}
    with asgi_server(name, "tests.asgi.app:app", files, env=environment) as server:
        server.get("/pathsend?file=size-1024")
        assert "sendfile" not in events.read_text(), "a small file is read"
        server.get("/pathsend")
        assert "sendfile" in events.read_text()
        events.write_text("")
        server.get("/stack/base/static/large", headers=[("Range", "bytes=100000-399999")])
        assert "sendfile" in events.read_text(), "BaseHTTPMiddleware passes a file on"
    events.write_text("")
    with asgi_server(name, "tests.asgi.app:fast", files, env=environment) as server:
        server.get("/pathsend", headers=[("Range", "bytes=100000-399999")])
        assert "sendfile" in events.read_text()


@each_uvicorn
def test_middleware_unaware_of_pathsend_is_a_500(name: str, tmp_path: Path) -> None:
    with asgi_server(name, "tests.asgi.app:ignorant", tmp_path) as server:
        assert server.get("/").status == 500
        wait_for(lambda: "ASGIFast(app, pathsend=False)" in server.log(), "the log says how")
    with asgi_server(name, "tests.asgi.app:ignored", tmp_path) as server:
        assert server.get("/").body == Path(__file__).with_name("app.py").read_bytes()


@each_uvicorn
def test_files_and_messages_arrive_over_tls(name: str, files: Path, tls: tuple[str, ...]) -> None:
    large = (files / "large").read_bytes()
    with (
        asgi_server(name, "tests.asgi.app:app", files, extra=tls) as server,
        Connection(server.address, tls=client_context()) as connection,
    ):
        assert connection.request("/pathsend").body == large
        assert connection.request("/zerocopy").body[3:-4] == large[500:201_500]
        small = connection.request("/pathsend?file=size-1024").body
        assert small == (files / "size-1024").read_bytes()
        assert connection.request("/crumbs").body[-3:] == b"end"


@each_uvicorn
def test_clients_leaving_tls_uploads_leave_nothing(
    name: str, files: Path, tmp_path: Path, tls: tuple[str, ...]
) -> None:
    """Without a close_notify, while the protocol has paused reading: the app reads no body."""
    with asgi_server(name, "tests.asgi.app:app", files, extra=tls) as server:

        def sockets() -> int:
            return len(server.open_files("socket:*"))

        with Connection(server.address, tls=client_context()) as connection:
            connection.request("/hello")
            before = sockets()
        headers = [("Connection", "close"), ("Content-Length", "200000")]
        go = tmp_path / "go"
        for _ in range(3):
            with Connection(server.address, tls=client_context()) as connection:
                connection.send_request(f"/late?file={go}", method="POST", headers=headers)
                connection.send(bytes(100_000))
        with Connection(server.address, tls=client_context()) as connection:
            connection.request("/hello")  # then the server has detected the other disconnects
            go.touch()
            wait_for(lambda: sockets() == before, "no connection but this one is open")


@each_uvicorn
def test_kernel_sends_a_file_to_a_unix_socket(
    name: str, files: Path, tmp_path: Path, events: Path
) -> None:
    path = str(tmp_path / "socket")
    environment = {"ASGIFAST_TEST_EVENTS": str(events)}
    with asgi_server(name, "tests.asgi.app:app", files, env=environment, unix_socket=path):
        assert get(path, "/pathsend").body == (files / "large").read_bytes()
        assert "sendfile" in events.read_text()


def test_listener_is_closed_once(files: Path) -> None:
    options = "-k asgifast.workers.FastUvicornWorker --bind 127.0.0.1:{port} --no-control-socket"
    argv = [sys.executable, "-m", "gunicorn", *options.split(), "tests.asgi.app:app"]
    env = {"ASGIFAST_TEST_FILES": str(files)}
    with live_server(argv, env=env) as server:
        assert server.get("/hello").body == b"hello"
        server.stop()
        log = server.log()
    assert "Finished server process" in log
    assert "Error while closing socket" not in log

"""uvicorn with our protocols: sendfile, order, faults, shutdown.

Over h11 and httptools, asyncio and uvloop, with the app as it is.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.support.http import Connection, get, reset_on_close
from tests.support.servers import STOP_S, LiveServer, wait_for
from tests.support.tls import client_context, write_certificate

from .app import crumbs
from .servers import OURS, OURS_ON_GUNICORN, asgi_server
from .support import expect_files_through, expect_websocket, processes

pytestmark = pytest.mark.long
ours = pytest.mark.parametrize("server", sorted(OURS | OURS_ON_GUNICORN), indirect=True)
each = pytest.mark.parametrize("name", sorted(OURS | OURS_ON_GUNICORN))
each_uvicorn = pytest.mark.parametrize("name", sorted(OURS))

# So large that it stays under way until its client reads: socket buffers hold 4 MiB at most.
HUGE_BYTES = 16 * 1024 * 1024
# The client's receive buffer for a slow download.
SMALL_WINDOW = 16 * 1024


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sparse file `huge`: zeros, and a mark at the end."""
    folder = tmp_path_factory.mktemp("huge")
    with (folder / "huge").open("wb") as file:
        file.seek(HUGE_BYTES - 3)
        file.write(b"end")
    return folder


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Where the app says what happened to it."""
    path = tmp_path / "events"
    path.touch()
    return path


def open_descriptors(server: LiveServer) -> list[str]:
    found = []
    for pid in processes(server.pid):
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
            except FileNotFoundError:
                pass  # closed meanwhile
    return found


def reset(connection: Connection) -> None:
    """Close with RST instead of FIN."""
    reset_on_close(connection.sock)
    connection.close()


@ours
def test_extensions_are_offered(server: LiveServer) -> None:
    names = server.get("/extensions").body.split()
    assert {b"http.response.pathsend", b"http.response.zerocopysend"} <= set(names)


@ours
def test_bodies_without_the_middleware(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        for file in sorted(files.iterdir()):
            assert connection.request(f"/pathsend?file={file.name}").body == file.read_bytes()
        large = (files / "large").read_bytes()
        assert connection.request("/pathsend?chunked=1").body == large
        assert connection.request("/pathsend?relative=1").body == large
        run = "/pathsend?offset=1000&count=200000&declared=200000"
        assert connection.request(run).body == large[1000:201_000]
        assert connection.request("/pathsend?offset=5000000&chunked=1").body == large[5_000_000:]
        assert connection.request("/zerocopy").body == b"<1>" + large[500:201_500] + b"</1>"
        assert connection.request("/zerocopy?chunked=1").body[3:-4] == large[500:201_500]
        assert connection.request("/zerocopy_fd").body == large[-100_000:]
        assert connection.request("/crumbs").body == b"".join(crumbs()) + b"end"
        assert connection.request("/mixed").body == b"m" * 170_018 + b"!"
        assert connection.request("/pathsend", method="HEAD").body == b""
        assert connection.request("/echo", body=b"12345", method="POST").body == b"12345"
        assert connection.request("/hello").body == b"hello"


@ours
def test_files_through_middleware(server: LiveServer, files: Path) -> None:
    for stack in ("base", "base-fast", "gzip", "gzip-fast", "fast-base-gzip"):
        expect_files_through(stack, server, files)


@ours
def test_head_and_body_leave_in_one_packet(server: LiveServer) -> None:
    def first_packet(target: str) -> bytes:
        with Connection(server.address) as connection:
            connection.send_request(target)
            return connection.sock.recv(64 * 1024)

    for target in ("/hello", "/pathsend?file=size-1024", "/crumbs", "/pathsend"):
        # The head of a file that must come from the disk first may leave alone: ask again.
        packets = (first_packet(target) for _ in range(3))
        assert any(len(packet.partition(b"\r\n\r\n")[2]) > 4 for packet in packets), target


@ours
def test_what_was_sent_leaves_while_the_app_waits(server: LiveServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Connection(server.address) as connection:
        connection.send_request(f"/slow_crumbs?file={go}")
        assert connection.read_head().status == 200
        assert connection.read(len(b"6\r\nbefore\r\n")) == b"6\r\nbefore\r\n"
        go.touch()
        assert connection.read(len(b"5\r\nafter\r\n")) == b"5\r\nafter\r\n"


@ours
def test_pipelined_requests_stay_in_order(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        connection.send(
            b"GET /pathsend HTTP/1.1\r\nHost: x\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
            b"GET /pathsend?file=size-65537 HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert connection.read_response().body == (files / "large").read_bytes()
        assert connection.read_response().body == b"hello"
        assert connection.read_response().body == (files / "size-65537").read_bytes()


@ours
def test_http_1_0(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        answer = connection.request("/pathsend", version="1.0")
        assert answer.body == (files / "large").read_bytes()


@ours
def test_more_than_the_content_length_is_an_error(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        connection.send_request("/too_long")
        answer = connection.read_to_end()
        assert not answer.endswith(b"cdef")
    assert server.get("/hello").body == b"hello"


@ours
def test_an_app_that_fails_midway(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        connection.send_request("/raises")
        answer = connection.read_to_end()
        assert b"sent before it failed" in answer
        assert not answer.endswith(b"0\r\n\r\n"), "the body must not look complete"


@ours
def test_a_file_longer_than_declared_sends_no_byte_more(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        answer = connection.request("/pathsend?declared=200000")
        assert answer.body == (files / "large").read_bytes()[:200_000]
        assert connection.request("/hello").body == b"hello"


@ours
@pytest.mark.parametrize("file", ["size-1024", "size-262145"])
def test_a_file_shorter_than_declared_closes(server: LiveServer, files: Path, file: str) -> None:
    data = (files / file).read_bytes()
    with Connection(server.address) as connection:
        connection.send_request(f"/pathsend?file={file}&declared={len(data) + 100_000}")
        assert connection.read_head().status == 200
        assert connection.read_to_end() == data


@ours
def test_a_page_that_is_not_in_memory(server: LiveServer, files: Path, tmp_path: Path) -> None:
    data = (files / "large").read_bytes()
    cold = files.parent / f"cold-{server.address[1]}"
    cold.write_bytes(data)
    with cold.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert server.get(f"/pathsend?file={cold}").body == data


@each
def test_the_kernel_sends_large_files(name: str, files: Path, events: Path) -> None:
    with asgi_server(name, "tests.asgi.app:app", files, env=_events(events)) as server:
        server.get("/pathsend?file=size-1024")
        assert "sendfile" not in events.read_text(), "a small file is read"
        server.get("/pathsend")
        assert "sendfile" in events.read_text()
        events.write_text("")
        server.get("/stack/base/static/large", headers=[("Range", "bytes=100000-399999")])
        assert "sendfile" in events.read_text(), "BaseHTTPMiddleware passes a file on"
    events.write_text("")
    with asgi_server(name, "tests.asgi.app:fast", files, env=_events(events)) as server:
        server.get("/pathsend", headers=[("Range", "bytes=100000-399999")])
        assert "sendfile" in events.read_text()


@each
def test_clients_that_leave(name: str, huge: Path, events: Path) -> None:
    with asgi_server(name, "tests.asgi.app:app", huge, env=_events(events)) as server:
        server.get("/hello")
        before = len(open_descriptors(server))
        leavers = []
        for number in range(6):
            connection = Connection(server.address, receive_buffer=SMALL_WINDOW)
            connection.send_request("/pathsend?file=huge")
            connection.read_head()
            connection.read(1000 * number)
            leavers.append(connection)
        assert any(path.endswith("/huge") for path in open_descriptors(server))
        assert server.get("/hello").body == b"hello", "stalled downloads hold nobody up"
        for number, connection in enumerate(leavers):
            if number % 2:
                reset(connection)
            else:
                connection.close()
        wait_for(lambda: events.read_text().count("pathsend returned") == 6, "every app was told")
        wait_for(lambda: len(open_descriptors(server)) <= before, "all descriptors are free")
        assert server.get("/hello").body == b"hello"
        assert "Traceback" not in server.log()


@each
def test_a_file_that_shrinks_midway(name: str, files: Path, tmp_path: Path) -> None:
    (tmp_path / "shrinking").write_bytes(bytes(HUGE_BYTES))
    with asgi_server(name, "tests.asgi.app:app", tmp_path) as server:
        with Connection(server.address, receive_buffer=SMALL_WINDOW) as connection:
            connection.send_request("/pathsend?file=shrinking")
            connection.read_head()
            os.truncate(tmp_path / "shrinking", 1_000_000)
            assert len(connection.read_to_end()) < HUGE_BYTES
        wait_for(lambda: "the file shrank" in server.log(), "the log says why")


@each_uvicorn
def test_a_middleware_that_does_not_know_pathsend(name: str, tmp_path: Path) -> None:
    with asgi_server(name, "tests.asgi.app:ignorant", tmp_path) as server:
        assert server.get("/").status == 500
        wait_for(lambda: "ASGIFast(app, pathsend=False)" in server.log(), "the way out is told")
    with asgi_server(name, "tests.asgi.app:ignored", tmp_path) as server:
        assert server.get("/").body == Path(__file__).with_name("app.py").read_bytes()


@each
def test_a_head_that_is_longer_than_its_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"12345")
    with asgi_server(name, "tests.asgi.app:app", tmp_path) as server:
        with Connection(server.address) as connection:
            connection.send_request("/pathsend?file=short&declared=9")
            assert connection.read_to_end().endswith(b"12345")
        wait_for(lambda: "where its head says 9" in server.log(), "the log says why")


@each
def test_shutdown_waits_for_a_download(name: str, huge: Path) -> None:
    with asgi_server(name, "tests.asgi.app:app", huge) as server:
        with Connection(server.address, receive_buffer=SMALL_WINDOW) as connection:
            connection.send_request("/pathsend?file=huge")
            connection.read_head()
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: _refuses(server), "no new connection is taken")
            data = connection.read_to_end()
        assert len(data) == HUGE_BYTES
        assert data.endswith(b"end")
        server.process.wait(STOP_S)


@each_uvicorn
def test_shutdown_gives_up_after_its_timeout(name: str, huge: Path) -> None:
    extra = ("--timeout-graceful-shutdown", "1")
    with (
        asgi_server(name, "tests.asgi.app:app", huge, extra=extra) as server,
        Connection(server.address, receive_buffer=SMALL_WINDOW) as connection,
    ):
        connection.send_request("/pathsend?file=huge")
        connection.read_head()
        server.stop()
        try:
            assert len(connection.read_to_end()) < HUGE_BYTES
        except ConnectionResetError:
            pass


@each
def test_a_malformed_request_behind_a_download(name: str, huge: Path) -> None:
    with asgi_server(name, "tests.asgi.app:app", huge) as server:
        with Connection(server.address, receive_buffer=SMALL_WINDOW) as connection:
            connection.send_request("/pathsend?file=huge")
            connection.read_head()
            connection.send(b"NOT HTTP AT ALL\r\n\r\n")
            try:
                body = connection.read_to_end()
            except ConnectionResetError:
                body = b""
        # Whatever became of the download: no byte of an error message is in the file's place.
        assert not body[: HUGE_BYTES - 3].strip(b"\0")
        assert server.get("/hello").body == b"hello"


@each
def test_many_at_once(name: str, files: Path) -> None:
    """Clients that ask for everything at once get what they asked for."""
    large = (files / "large").read_bytes()
    middle = (files / "size-262145").read_bytes()
    failures: list[BaseException] = []

    def client(server: LiveServer, seed: int) -> None:
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
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            failures.append(error)

    with asgi_server(name, "tests.asgi.app:app", files) as server:
        threads = [threading.Thread(target=client, args=(server, seed)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


@each_uvicorn
def test_tls(name: str, files: Path, tmp_path: Path) -> None:
    pem = write_certificate(tmp_path / "key.pem")
    context = client_context()
    extra = ("--ssl-certfile", pem, "--ssl-keyfile", pem)
    with asgi_server(name, "tests.asgi.app:app", files, extra=extra) as server:
        large = (files / "large").read_bytes()
        with Connection(server.address, tls=context) as connection:
            assert connection.request("/pathsend").body == large
            assert connection.request("/zerocopy").body[3:-4] == large[500:201_500]
            assert (
                connection.request("/pathsend?file=size-1024").body
                == (files / "size-1024").read_bytes()
            )
            assert connection.request("/crumbs").body[-3:] == b"end"


@each_uvicorn
def test_who_leaves_amid_an_upload_over_tls_leaves_nothing_open(
    name: str, files: Path, tmp_path: Path
) -> None:
    """Without a close_notify, while the protocol has paused reading: the app reads no body."""
    pem = write_certificate(tmp_path / "key.pem")
    extra = ("--ssl-certfile", pem, "--ssl-keyfile", pem)
    with asgi_server(name, "tests.asgi.app:app", files, extra=extra) as server:

        def sockets() -> int:
            return sum(each.startswith("socket:") for each in open_descriptors(server))

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
            connection.request("/hello")  # then the server has seen that the others have left
            go.touch()
            wait_for(lambda: sockets() == before, "no connection but this one is open")


@each_uvicorn
def test_unix_socket(name: str, files: Path, tmp_path: Path, events: Path) -> None:
    path = str(tmp_path / "socket")
    with asgi_server(name, "tests.asgi.app:app", files, env=_events(events), unix_socket=path):
        assert get(path, "/pathsend").body == (files / "large").read_bytes()
        assert "sendfile" in events.read_text()


def _events(path: Path) -> dict[str, str]:
    return {"ASGIFAST_TEST_EVENTS": str(path)}


def _refuses(server: LiveServer) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", server.address[1]), 1.0):
            return False
    except OSError:
        return True


@ours
def test_aborted_downloads_leave_no_trace(server: LiveServer, files: Path) -> None:
    """The number of a closed descriptor is the next connection's: nothing may still watch it."""
    large = (files / "large").read_bytes()
    for _ in range(20):
        with Connection(server.address) as connection:
            connection.send_request("/pathsend")
            connection.read(1000)
            reset(connection)
        with Connection(server.address) as connection:
            assert connection.request("/pathsend").body == large


@ours
def test_websockets_are_uvicorns(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        assert connection.request("/pathsend").status == 200  # a file went out on it before
        expect_websocket(connection)


def test_a_uvicorn_that_is_built_differently_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from asgifast.uvicorn import protocol as ours_module
    from uvicorn.protocols.http import h11_impl

    def expect(message: str) -> None:
        with pytest.raises(ours_module.UnsupportedUvicorn, match=message):
            ours_module.check(h11_impl, "H11Protocol", {"conn"}, "handle_websocket_upgrade")

    class Cycle:
        def __init__(self, scope: object, conn: object) -> None:
            self.scope, self.conn, self.flow = scope, conn, None

    def fails(self: object, flow: object) -> None:
        raise LookupError("another kind of flow")

    ours_module.check(h11_impl, "H11Protocol", {"conn"}, "handle_websocket_upgrade")
    with monkeypatch.context() as patch:
        patch.delattr(h11_impl.H11Protocol, "handle_websocket_upgrade")
        expect(
            r"does not fit uvicorn .*\(H11Protocol has no handle_websocket_upgrade\); it is tested"
        )
    with monkeypatch.context() as patch:
        patch.setattr("uvicorn.protocols.http.h11_impl.FlowControl.__init__", fails)
        expect("another kind of flow")
    with monkeypatch.context() as patch:
        patch.setattr(h11_impl, "RequestResponseCycle", Cycle)
        expect("Cycle has no body, disconnected, message_event, more_body, on_response, receive, ")
    monkeypatch.delattr(h11_impl, "RequestResponseCycle")
    expect("has no RequestResponseCycle")

"""HTTP/2 on FastWorker, with and without TLS, compared with gthread's responses."""

from __future__ import annotations

import contextlib
import json
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from h2.connection import ConnectionState

from tests.support.http import Connection
from tests.support.http2 import Connected as Client
from tests.support.http2 import Response
from tests.support.programs import program
from tests.support.servers import LiveServer, free_port, live_server, wait_for
from tests.support.tls import client_context, write_certificate
from tests.workers.app import FILE_BYTES, block
from tests.workers.serving import fast_worker, gunicorn_command, stats

pytestmark = pytest.mark.long


@contextlib.contextmanager
def tls_server(worker: str, folder: Path) -> Iterator[tuple[LiveServer, ssl.SSLContext]]:
    pem = write_certificate(folder / "server.pem")
    context = client_context("h2")
    options = [f"--certfile={pem}", f"--keyfile={pem}", "--http-protocols=h2,h1"]
    with contextlib.ExitStack() as stack:
        if worker == "FastWorker":
            server = stack.enter_context(fast_worker(*options))
        else:
            address = ("127.0.0.1", free_port())
            bind = f"{address[0]}:{address[1]}"
            argv = gunicorn_command(
                "-k", "gthread", "-b", bind, "--access-logfile=-", *options, "tests.workers.app:app"
            )
            server = stack.enter_context(live_server(argv, address))
        yield server, context


REQUESTS = [
    ("/small/0", "GET", b""),
    ("/small/100", "HEAD", b""),
    ("/small/300000", "GET", b""),  # beyond the first window
    ("/chunks/50-3000", "GET", b""),
    ("/file", "GET", b""),
    ("/echo", "POST", block(200_000)),
    ("/status/204", "GET", b""),
    ("/nowhere", "GET", b""),
    ("/hints", "GET", b""),
    ("/raise/before", "GET", b""),
    ("/raise/first", "GET", b""),
    ("/environ?a=b", "GET", b""),
]
# Keys of the environ that differ between servers or connections.
CHANGING = {"SERVER_PORT", "REMOTE_PORT", "thread"}


def responses(worker: str, folder: Path) -> dict[str, object]:
    said: dict[str, object] = {}
    with (
        tls_server(worker, folder) as (server, context),
        Connection(server.address, tls=context) as connection,
    ):
        client = Client(connection.sock)
        client.begin()
        for path, method, body in REQUESTS:
            response = client.response(client.send(path, method, body))
            response.headers.pop("date", None)
            said[path] = response
            if path.startswith("/environ"):
                environ = json.loads(response.body)
                said[path] = {k: v for k, v in environ.items() if k not in CHANGING}
        # Several streams at once. The connection still works after all of these requests.
        streams = [client.send(f"/small/{size}") for size in range(5)]
        said["at once"] = [client.response(stream).body for stream in streams]
        server.wait_for_log('"GET /small/4 HTTP/2.0" 200')
    return said


def test_http2_over_tls_gets_responses_of_gthread(tmp_path: Path) -> None:
    expected = responses("gthread", tmp_path)
    said = responses("FastWorker", tmp_path)
    for path in ("/raise/before", "/raise/first"):
        # The client does not see the errors of an app.
        logged, unlogged = expected.pop(path), said[path]
        assert isinstance(logged, Response)
        assert isinstance(unlogged, Response)
        assert unlogged.headers[":status"] == logged.headers[":status"] == "500"
        assert logged.body != unlogged.body
        assert b"<p>Internal Server Error</p></h1>\n    \n" in unlogged.body
    for path, response in expected.items():
        if isinstance(response, Response):
            response.headers.setdefault("server", "gunicorn")  # gthread of 26.2 leaves it out
        assert said[path] == response, path
    large, echoed = said["/small/300000"], said["/echo"]
    assert isinstance(large, Response)
    assert large.body == block(300_000)
    assert isinstance(echoed, Response)
    assert echoed.body == block(200_000)


def test_http2_and_http_1_share_a_tls_listener(tmp_path: Path) -> None:
    with tls_server("FastWorker", tmp_path) as (server, context):
        with Connection(server.address, tls=context) as connection:
            client = Client(connection.sock)
            client.begin()
            context.set_alpn_protocols(["http/1.1"])
            assert server.get("/small/5", tls=context).body == block(5)
            assert client.response(client.send("/small/6")).body == block(6)
        # A client that has left releases its thread and its descriptor.
        before = stats(server, tls=context)
        context.set_alpn_protocols(["h2"])
        for _ in range(10):
            with Connection(server.address, tls=context) as connection:
                client = Client(connection.sock)
                client.begin()
                client.send("/small/300000")
        context.set_alpn_protocols(["http/1.1"])
        wait_for(
            lambda: stats(server, tls=context)["fds"] <= before["fds"],
            "their descriptors are closed",
            interval=0.1,
        )


@pytest.fixture(scope="module")
def cleartext() -> Iterator[LiveServer]:
    with fast_worker("--http-protocols=h2,h1", "--http2-cleartext=both") as server:
        yield server


def test_http2_with_prior_knowledge_is_served(cleartext: LiveServer) -> None:
    with Connection(cleartext.address) as connection:
        client = Client(connection.sock)
        client.begin()
        for size in (1000, 100_000):
            assert client.response(client.send(f"/small/{size}")).body == block(size)


def test_nonsense_after_preface_ends_its_connection(cleartext: LiveServer) -> None:
    for nonsense in (bytes(64), b"\xff" * 64):
        with Connection(cleartext.address) as connection:
            connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + nonsense)
            try:
                while connection.sock.recv(65_536):
                    pass  # its settings, and perhaps the reason
            except ConnectionResetError:
                pass
    # No other thread used the connection when it ended.
    assert "Error in a connection" not in cleartext.log()
    test_http2_with_prior_knowledge_is_served(cleartext)


def test_request_with_upgrade_stays_http_1(cleartext: LiveServer) -> None:
    for headers in (
        [("Connection", "Upgrade"), ("Upgrade", "h2c")],
        [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "!")],
        [("Connection", "Upgrade"), ("Upgrade", "websocket")],
    ):
        response = cleartext.get("/small/5", headers=headers)
        assert (response.status, response.body) == (200, block(5))


# No thread is blocked, and no byte is lost


SLOW = ("/small/300000", "/chunks/100-3000", "/file")


@contextlib.contextmanager
def slow_readers(server: LiveServer, count: int) -> Iterator[list[tuple[Client, list[int]]]]:
    """Return clients that have requested all of SLOW, with windows too small for the responses."""
    with contextlib.ExitStack() as stack:
        readers = []
        for _ in range(count):
            sock = stack.enter_context(Connection(server.address)).sock
            client = Client(sock, window=1000, reads=False)
            client.begin()
            streams = [client.send(path) for path in SLOW]
            while any(len(client.responses[each].body) < 1000 for each in streams):
                client.receive()
            readers.append((client, streams))
        yield readers


def read_all(client: Client, streams: list[int]) -> None:
    """Open the windows, and check that all bytes arrive."""
    client.open(1 << 30)
    for stream in streams:
        client.open(1 << 30, stream)
    client.flush()
    expected = (block(300_000), b"".join(block(3000, i) for i in range(100)), block(FILE_BYTES))
    for stream, body in zip(streams, expected, strict=True):
        assert client.response(stream).body == body


def test_slow_http2_readers_hold_no_thread(cleartext: LiveServer) -> None:
    before = stats(cleartext)
    with contextlib.ExitStack() as stack, slow_readers(cleartext, 3) as readers:
        for _ in range(8):
            idle = Client(stack.enter_context(Connection(cleartext.address)).sock)
            idle.begin()
            assert idle.response(idle.send("/small/1")).body == block(1)
        with Connection(cleartext.address) as connection:
            other = Client(connection.sock)
            other.begin()
            assert other.response(other.send("/echo", "POST", block(100_000))).body == block(
                100_000
            )
        for client, streams in readers:
            read_all(client, streams)
    wait_for(
        lambda: all(stats(cleartext)[what] <= before[what] for what in ("fds", "threads")),
        "their descriptors are closed",
        interval=0.1,
    )


def test_replaced_worker_completes_http2_streams() -> None:
    options = ("--http-protocols=h2,h1", "--http2-cleartext=both", "--graceful-timeout=30")
    with fast_worker(*options) as server, slow_readers(server, 3) as readers:
        first = stats(server)["pid"]
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: stats(server)["pid"] != first, "there is another worker", interval=0.1)
        for client, _ in readers:
            # The first GOAWAY announces that no more streams are accepted. The second names the
            # last one.
            while len(client.goaways) < 2:
                client.receive()
            assert client.goaways == [(2**31 - 1, 0), (2 * len(SLOW) - 1, 0)]
            client.state.state_machine.state = ConnectionState.CLIENT_OPEN
        for client, streams in readers:
            read_all(client, streams)
            with contextlib.suppress(ConnectionResetError):
                assert client.sock.recv(1) == b""


def test_h2spec_passes(tmp_path: Path) -> None:
    """Run h2spec, the conformance tests of HTTP/2 and HPACK."""
    h2spec = program("h2spec")
    with tls_server("FastWorker", tmp_path) as (server, _):
        port = str(server.address[1])
        command = [h2spec, "-t", "-k", "-o", "20", "-p", port, "-P", "/small/1000"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=280)
        assert " 0 failed" in ran.stdout, ran.stdout
        assert "Error in a connection" not in server.log()

"""HTTP/2 on FastWorker: over TLS and in the clear, with gthread's answers to the same requests."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest
import trustme

from tests.support.http import Connection
from tests.support.servers import LiveServer, free_port, live_server, wait_for
from tests.workers.app import block
from tests.workers.serving import fast_worker, gunicorn_command, has_setting, stats

pytestmark = pytest.mark.long


@dataclass
class Answer:
    """What has come on a stream."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    early: list[dict[str, str]] = field(default_factory=list)
    ended: bool = False


class Client:
    """An HTTP/2 connection on a socket on which HTTP/2 is agreed."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._answers: dict[int, Answer] = {}

    def begin(self) -> None:
        self.state.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self._sock.sendall(self.state.data_to_send())

    def send(self, path: str, method: str = "GET", body: bytes = b"") -> int:
        """Send a request, whole; returns its stream."""
        stream: int = self.state.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "https"), (":authority", "a")]
        self.state.send_headers(stream, headers, end_stream=not body)
        while body:
            room = self.state.local_flow_control_window(stream)
            if not room:
                self._receive()
                continue
            size = min(room, self.state.max_outbound_frame_size)
            self.state.send_data(stream, body[:size], end_stream=size >= len(body))
            body = body[size:]
            self.flush()
        self.flush()
        return stream

    def answer(self, stream: int) -> Answer:
        """Receive until a stream has ended."""
        while not self._answers.setdefault(stream, Answer()).ended:
            self._receive()
        return self._answers[stream]

    def _receive(self) -> None:
        data = self._sock.recv(65_536)
        assert data, f"the connection has ended, with {self._answers}"
        for event in self.state.receive_data(data):
            answer = self._answers.setdefault(getattr(event, "stream_id", None) or 0, Answer())
            if isinstance(event, h2.events.ResponseReceived):
                answer.headers = _text(event.headers)
            elif isinstance(event, h2.events.InformationalResponseReceived):
                answer.early.append(_text(event.headers))
            elif isinstance(event, h2.events.DataReceived):
                answer.body += event.data
                self.state.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id or 0
                )
            elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                answer.ended = True
        self.flush()


def _text(headers: object) -> dict[str, str]:
    pairs: list[tuple[bytes | str, bytes | str]] = list(headers)  # type: ignore[call-overload]
    return {_str(name): _str(value) for name, value in pairs}


def _str(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextlib.contextmanager
def tls_server(
    worker: str, authority: trustme.CA, folder: Path
) -> Iterator[tuple[LiveServer, ssl.SSLContext]]:
    pem = folder / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2"])
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
# Versions before 26.2 send a body where there must be none.
BODYLESS = {"/small/100", "/status/204"}
# Of the environ: what differs from one server or connection to the next.
CHANGING = {"SERVER_PORT", "REMOTE_PORT", "thread"}


def answers(worker: str, authority: trustme.CA, folder: Path) -> dict[str, object]:
    said: dict[str, object] = {}
    with (
        tls_server(worker, authority, folder) as (server, context),
        Connection(server.address, tls=context) as connection,
    ):
        client = Client(connection.sock)
        client.begin()
        for path, method, body in REQUESTS:
            if path in BODYLESS and not has_setting("http2_cleartext"):
                continue
            answer = client.answer(client.send(path, method, body))
            answer.headers.pop("date", None)
            said[path] = answer
            if path.startswith("/environ"):
                environ = json.loads(answer.body)
                said[path] = {k: v for k, v in environ.items() if k not in CHANGING}
        # Several at once, and a connection that goes on after all of these.
        streams = [client.send(f"/small/{size}") for size in range(5)]
        said["at once"] = [client.answer(stream).body for stream in streams]
        wait_for(lambda: '"GET /small/4 HTTP/2.0" 200' in server.log(), "it is in the access log")
    return said


def test_over_tls_as_gthread_answers(authority: trustme.CA, tmp_path: Path) -> None:
    expected = answers("gthread", authority, tmp_path)
    said = answers("FastWorker", authority, tmp_path)
    for path in ("/raise/before", "/raise/first"):
        # What an app has raised is not for its client.
        told, untold = expected.pop(path), said[path]
        assert isinstance(told, Answer)
        assert isinstance(untold, Answer)
        assert untold.headers[":status"] == told.headers[":status"] == "500"
        assert told.body != untold.body == b"Internal Server Error"
    for path, answer in expected.items():
        assert said[path] == answer, path
    large, echoed = said["/small/300000"], said["/echo"]
    assert isinstance(large, Answer)
    assert large.body == block(300_000)
    assert isinstance(echoed, Answer)
    assert echoed.body == block(200_000)


def test_over_tls_beside_http_1(authority: trustme.CA, tmp_path: Path) -> None:
    with tls_server("FastWorker", authority, tmp_path) as (server, context):
        with Connection(server.address, tls=context) as connection:
            client = Client(connection.sock)
            client.begin()
            context.set_alpn_protocols(["http/1.1"])
            assert server.get("/small/5", tls=context).body == block(5)
            assert client.answer(client.send("/small/6")).body == block(6)
        # A client that has gone gives its thread and its descriptor back.
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
            15,
            0.1,
        )


needs_cleartext = pytest.mark.skipif(
    not has_setting("http2_cleartext"), reason="came with gunicorn 26.2"
)


@pytest.fixture(scope="module", params=["prior-knowledge", "upgrade", "both"])
def cleartext(request: pytest.FixtureRequest) -> Iterator[tuple[str, LiveServer]]:
    mode = request.param
    with fast_worker("--http-protocols=h2,h1", f"--http2-cleartext={mode}") as server:
        yield mode, server


@needs_cleartext
def test_prior_knowledge(cleartext: tuple[str, LiveServer]) -> None:
    mode, server = cleartext
    with Connection(server.address) as connection:
        client = Client(connection.sock)
        if mode == "upgrade":
            client.state.initiate_connection()
            connection.sock.sendall(client.state.data_to_send())
            assert connection.read_response().status in (400, 505)
            return
        client.begin()
        for size in (1000, 100_000):
            assert client.answer(client.send(f"/small/{size}")).body == block(size)
    with Connection(server.address) as connection:  # and byte by byte
        client = Client(connection.sock)
        client.state.initiate_connection()
        for byte in client.state.data_to_send():
            connection.send(bytes([byte]))
        assert client.answer(client.send("/small/10")).body == block(10)


@needs_cleartext
def test_nonsense_behind_the_preface(cleartext: tuple[str, LiveServer]) -> None:
    mode, server = cleartext
    if mode == "upgrade":
        return
    for nonsense in (bytes(64), b"\xff" * 64):
        with Connection(server.address) as connection:
            connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + nonsense)
            try:
                while connection.sock.recv(65_536):
                    pass  # its settings, and perhaps why
            except ConnectionResetError:
                pass
    # An end that no other thread has taken the connection over from.
    assert "Error in a connection" not in server.log()
    test_prior_knowledge(cleartext)


@needs_cleartext
@pytest.mark.parametrize("body", [b"", b"a body"])
@pytest.mark.parametrize("eager", [False, True])
def test_upgrade(cleartext: tuple[str, LiveServer], body: bytes, eager: bool) -> None:
    """RFC 7540 section 3.2: the request itself becomes stream 1.

    :param eager: the client's preface and its next request follow at once, before the 101.
    """
    mode, server = cleartext
    with Connection(server.address) as connection:
        client = Client(connection.sock)
        settings = (client.state.initiate_upgrade_connection() or b"").decode()
        request = (
            f"POST /echo HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
            f"Upgrade: h2c\r\nHTTP2-Settings: {settings}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        if mode == "prior-knowledge":
            connection.send(request)
            assert connection.read_response().status == 400
            return
        if eager:
            connection.send(request + client.state.data_to_send())
            _read_switch(connection.sock)
        else:
            connection.send(request)
            _read_switch(connection.sock)
            client.flush()
        assert client.answer(1).body == body
        assert client.answer(client.send("/small/100000")).body == block(100_000)


def _read_switch(sock: socket.socket) -> None:
    """Read the 101, and not a byte of what follows it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        assert byte, f"the connection has ended after {head!r}"
        head += byte
    assert head.startswith(b"HTTP/1.1 101 "), head
    assert b"Upgrade: h2c\r\n" in head


@needs_cleartext
def test_requests_that_ask_for_no_valid_upgrade_stay_http_1(
    cleartext: tuple[str, LiveServer],
) -> None:
    mode, server = cleartext
    for headers in (
        [("Connection", "Upgrade"), ("Upgrade", "h2c")],
        [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "!")],
        [("Connection", "Upgrade"), ("Upgrade", "websocket")],
    ):
        response = server.get("/small/5", headers=headers)
        if mode == "prior-knowledge":
            assert response.status == 400
        else:
            assert (response.status, response.body) == (200, block(5))

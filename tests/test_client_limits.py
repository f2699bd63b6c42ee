"""Size and time limits of requests, on FastWorker and under uvicorn with asgifast's protocols."""

from __future__ import annotations

import asyncio
import json
import math
import select
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from asgifast.counters import counters
from asgifast.messages import Message, Receive, Scope, Send
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol

from tests.asgi.servers import asgi_server
from tests.asgi.support import body as part
from tests.asgi.support import chunk, start_message
from tests.asgi.support import length as declared
from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from tests.support.tls import client_context, write_certificate
from tests.workers.serving import fast_worker
from wsgifast.errors import ConfigurationError, RequestError

LIMIT_BYTES = 20_000
HEADER_BYTES = 30_000
TIMEOUT_S = 1.0
LIMITS = {
    "WSGIFAST_BODY_LIMIT_BYTES": str(LIMIT_BYTES),
    "WSGIFAST_HEAD_LIMIT_BYTES": str(HEADER_BYTES),
    "WSGIFAST_HEAD_TIMEOUT_S": str(TIMEOUT_S),
    "WSGIFAST_BODY_TIMEOUT_S": str(TIMEOUT_S),
}
SERVERS = {
    "h11": "ours-h11-asyncio",
    "httptools": "ours-httptools-uvloop",
    "httptools-asyncio": "ours-httptools-asyncio",
}
if find_spec("zttp") and find_spec("uvicorn.protocols.http.zttp_impl"):
    SERVERS["zttp"] = "ours-ZttpProtocol-asyncio"
    SERVERS["auto"] = "ours-AutoZttpProtocol-uvloop"
# FastWorker calls its app with a complete body. The other servers call it before.
each_asgi = pytest.mark.parametrize("name", SERVERS, scope="module")
SLOW_HEADERS = [bytes([each]) for each in b"GET /" + b"a" * 500]

called: list[str] = []
errors: list[str] = []


def wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Respond to GET /seen with the calls, and else with the size of the request's body."""
    path = environ["PATH_INFO"]
    if path == "/seen":
        body = json.dumps({"called": called}).encode()
    else:
        called.append(path)
        body = b"%d" % len(environ["wsgi.input"].read())
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to GET /seen with the calls, errors and counters.

    Any other path selects an action.
    """
    path = scope["path"]
    if path == "/seen":
        seen = {
            "called": called, "errors": errors, "timeouts": counters.timeouts,
            "refused": counters.refused,
        }  # fmt: skip
        await _answer(send, json.dumps(seen).encode())
        return
    called.append(path)
    size = 0
    try:
        if "/late" in path:  # the app begins to receive when a slow client would be late
            await asyncio.sleep(2.5 * TIMEOUT_S)
        if "/started" in path:
            await send(start_message(declared(5)))
            await send(part(b"1"))
        while "/unread" not in path:
            message: Message = await receive()
            if message["type"] != "http.request":
                errors.append(f"{path} disconnect")
                return
            size += len(message["body"])
            if not message["more_body"]:
                break
    except RequestError as error:
        errors.append(f"{path} {error.status}")
        raise
    if "/started" in path:
        await send(part(b"2345", False))
    else:
        await _answer(send, b"%d" % size)


async def _answer(send: Send, body: bytes) -> None:
    await send(start_message(declared(len(body))))
    await send(part(body, False))


@pytest.fixture(scope="module", params=["FastWorker", *SERVERS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def serve(
    name: str, folder: Path, certificate: str | None = None
) -> AbstractContextManager[LiveServer]:
    of_gunicorn, of_uvicorn = (
        [f"--{prefix}{what}file={certificate}" for what in ("cert", "key") if certificate]
        for prefix in ("", "ssl-")
    )
    if name == "FastWorker":
        return fast_worker(*of_gunicorn, "--keep-alive=5", app=f"{__name__}:wsgi", env=LIMITS)
    return asgi_server(
        SERVERS[name], f"{__name__}:asgi", folder, extra=tuple(of_uvicorn), env=LIMITS,
        forked=False,  # a fork would have read its environment too early
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(name, tmp_path_factory.mktemp("files")) as server:
        yield server


class Peer(Connection):
    """A client that a test controls."""

    def post(self, path: str, framing: bytes, *lines: bytes, data: bytes = b"") -> None:
        start_message = [
            b"POST %b HTTP/1.1" % path.encode(),
            b"Host: x",
            framing,
            *lines,
            b"",
            data,
        ]
        self.send(b"\r\n".join(start_message))

    def trickle(self, pieces: Iterable[bytes]) -> None:
        """Send pieces one by one, until the server sends something, or has closed its side."""
        for piece in pieces:
            self.send(piece)
            if select.select([self.sock], [], [], 0.05)[0]:
                break

    def received(self) -> tuple[int, bytes]:
        """Return the status and the body of the next response."""
        response = self.read_response()
        return response.status, response.body

    def is_closed(self) -> bool:
        """Wait until the server has closed its side."""
        try:
            return not self.stream.read(1)
        except ConnectionResetError:
            return True


@pytest.fixture
def peer(server: LiveServer) -> Iterator[Peer]:
    with closing(Peer(server.address)) as peer:
        yield peer


def seen(server: LiveServer) -> Any:
    return json.loads(server.get("/seen").body)


@contextmanager
def counted(server: LiveServer, kind: str, name: str, times: int = 1) -> Iterator[None]:
    """Require that a counter of our protocols increases. FastWorker's are in its metrics."""
    before = seen(server).get(kind)
    yield
    if before is not None:
        assert seen(server)[kind].get(name, 0) == before.get(name, 0) + times


CHUNKED = b"Transfer-Encoding: chunked"


def length(size: int) -> bytes:
    return b"Content-Length: %d" % size


# Too long


@pytest.mark.parametrize("expects", [False, True])
def test_declared_body_over_limit_is_413_without_app(
    server: LiveServer, peer: Peer, expects: bool
) -> None:
    path = f"/declared-{expects}"
    lines = [b"Expect: 100-continue"] if expects else []
    with counted(server, "refused", "413"):
        peer.post(path, length(LIMIT_BYTES + 1), *lines)
        status, body = peer.received()
        assert status == 413
        assert b"The request body is longer than 20000 bytes" in body
        assert peer.is_closed()
    assert path not in seen(server)["called"]


@pytest.mark.parametrize("size", [0, 1, LIMIT_BYTES])
def test_body_within_the_limit_is_received(peer: Peer, size: int) -> None:
    peer.post("/whole", length(size), data=bytes(size))
    assert peer.received() == (200, b"%d" % size)
    peer.post("/whole", CHUNKED, data=(chunk(bytes(size)) if size else b"") + b"0\r\n\r\n")
    assert peer.received() == (200, b"%d" % size), "and the connection goes on"


def test_chunks_over_the_limit_are_413_in_mid_body(
    server: LiveServer, name: str, peer: Peer
) -> None:
    """The client sends far more than the kernel's buffers contain. Then it reads the response."""
    peer.post("/chunks", CHUNKED)
    if name in SERVERS:
        wait_for(lambda: "/chunks" in seen(server)["called"], "the app")
    for _ in range(100):
        peer.send(chunk(bytes(100_000)))
    peer.send(b"0\r\n\r\n")
    assert peer.received()[0] == 413
    assert peer.is_closed()
    if name in SERVERS:
        assert "/chunks 413" in seen(server)["errors"]
    assert "Traceback" not in server.log()


def test_chunks_over_the_limit_in_one_packet_are_413(peer: Peer) -> None:
    peer.post("/packet", CHUNKED, data=chunk(bytes(LIMIT_BYTES + 1)) + b"0\r\n\r\n")
    assert peer.received()[0] == 413
    assert peer.is_closed()


@each_asgi
def test_response_begun_breaks_off_over_the_limit(peer: Peer) -> None:
    peer.post("/started", CHUNKED)
    peer.read_headers()
    assert peer.read(1) == b"1"
    peer.send(chunk(bytes(2 * LIMIT_BYTES)))
    assert peer.is_closed()


# Too slow


def test_headers_byte_by_byte_are_408(server: LiveServer, peer: Peer) -> None:
    peer.post("/first", length(0))
    assert peer.received()[0] == 200
    with counted(server, "timeouts", "head"):
        peer.trickle(SLOW_HEADERS)
        status, body = peer.received()
        assert status == 408
        assert b"The request did not arrive in time" in body
        assert peer.is_closed()


@each_asgi
def test_headers_behind_an_unread_body_are_408(peer: Peer) -> None:
    peer.post("/unread", length(5))
    assert peer.received() == (200, b"0")
    peer.send(b"12345")
    peer.trickle(SLOW_HEADERS)
    assert peer.received()[0] == 408


@pytest.mark.parametrize("pieces", [SLOW_HEADERS, [b"P"]], ids=["slow", "may be HTTP/2"])
def test_first_headers_too_late_are_408(peer: Peer, pieces: list[bytes]) -> None:
    peer.trickle(pieces)
    assert peer.received()[0] == 408
    assert peer.is_closed()


def test_silent_connections_close_without_a_response(server: LiveServer) -> None:
    with counted(server, "timeouts", "head", 20):
        for peer in [Peer(server.address) for _ in range(20)]:
            with closing(peer):
                assert peer.is_closed()


def test_idle_connection_is_not_late(peer: Peer) -> None:
    peer.post("/idle", length(0))
    assert peer.received()[0] == 200
    time.sleep(2 * TIMEOUT_S)  # uvicorn's keep-alive timeout is 5 s
    peer.post("/idle", length(0))
    assert peer.received()[0] == 200


def test_later_headers_have_their_own_time(peer: Peer) -> None:
    """They begin before the server's first check of the connection, and end after it."""
    peer.post("/first", length(0))
    assert peer.received()[0] == 200
    time.sleep(0.7 * TIMEOUT_S)
    peer.send(b"POST /second HTTP/1.1\r\nHost: x\r\n")
    time.sleep(0.5 * TIMEOUT_S)
    peer.send(length(0) + b"\r\n\r\n")
    assert peer.received()[0] == 200


@pytest.mark.parametrize("framing", [length(LIMIT_BYTES), CHUNKED])
def test_body_that_stops_is_408(server: LiveServer, name: str, peer: Peer, framing: bytes) -> None:
    path = "/stops-chunked" if framing == CHUNKED else "/stops"
    with counted(server, "timeouts", "body"):
        peer.post(path, framing, data=chunk(b"12345"))
        status, body = peer.received()
        assert status == 408
        assert b"did not arrive in time" in body
        assert peer.is_closed()
    if name in SERVERS:
        assert f"{path} 408" in seen(server)["errors"]


def test_one_byte_chunks_are_late(peer: Peer) -> None:
    peer.post("/dribbles", CHUNKED)
    peer.trickle([chunk(b"x")] * 1000)
    assert peer.received()[0] == 408


def test_slow_but_steady_body_is_not_late(peer: Peer) -> None:
    """It takes thrice as long as one piece of it may."""
    peer.post("/steady", length(10_000))
    for _ in range(100):
        peer.send(bytes(100))
        time.sleep(0.03)
    assert peer.received() == (200, b"10000")


@each_asgi
def test_nobody_is_late_while_the_app_does_not_receive(peer: Peer) -> None:
    peer.post("/late", length(10), data=b"12345")
    time.sleep(2 * TIMEOUT_S)
    peer.send(b"67890")
    assert peer.received() == (200, b"10")


@each_asgi
def test_body_of_a_begun_response_is_waited_for(peer: Peer) -> None:
    peer.post("/started", length(5))
    time.sleep(2 * TIMEOUT_S)
    peer.send(b"12345")
    assert peer.received() == (200, b"12345")


@each_asgi
def test_unread_slow_body_ends_the_connection(peer: Peer) -> None:
    peer.post("/unread", length(LIMIT_BYTES))
    assert peer.received() == (200, b"0")
    peer.trickle([b"x"] * 1000)
    assert peer.is_closed()


def test_limits_hold_over_tls(name: str, tmp_path: Path) -> None:
    with serve(name, tmp_path, write_certificate(tmp_path / "certificate.pem")) as server:

        def peer() -> Any:
            return closing(Peer(server.address, tls=client_context()))

        with peer() as first:
            first.post("/tls", length(LIMIT_BYTES + 1))
            assert first.received()[0] == 413
        with peer() as second:
            second.post("/tls", CHUNKED)
            for _ in range(20):
                second.send(chunk(bytes(100_000)))
            assert second.received()[0] == 413
        with peer() as third:
            third.post("/tls", length(10), data=b"12345")
            assert third.received()[0] == 408
        with peer() as fourth:
            fourth.post("/tls", length(0))
            assert fourth.received()[0] == 200
            fourth.trickle(SLOW_HEADERS)
            assert fourth.received()[0] == 408


# Options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("body_limit_bytes", -1),
        ("head_timeout_s", 0),
        ("head_timeout_s", None),
        ("body_timeout_s", "30"),
        ("body_timeout_s", None),
        ("connections_per_address", 0),
        ("connections_per_address", None),
    ],
)
def test_protocol_with_an_impossible_option_is_refused(option: str, value: object) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"Mine\.{option}={value!r}: expected (bytes|sec|a number)"
    ):
        type("Mine", (HttpToolsProtocol,), {option: value})


def test_body_limits_are_off_until_set() -> None:
    assert H11Protocol.body_limit_bytes is None
    assert H11Protocol.body_timeout_s == math.inf
    assert H11Protocol.head_timeout_s == 20.0


def test_environment_comes_before_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LIMITS.items():
        monkeypatch.setenv(name, value)
    mine: Any = type("Mine", (HttpToolsProtocol,), {"body_limit_bytes": 5, "head_timeout_s": 7})
    config = uvicorn.Config(asgi)
    config.load()
    served = mine.served_by(config)
    assert served.body_limit_bytes == LIMIT_BYTES
    assert served.head_timeout_s == served.body_timeout_s == TIMEOUT_S


def test_expect_continue_is_answered_within_the_limit(peer: Peer) -> None:
    peer.post("/expected", length(5), b"Expect: 100-continue")
    assert peer.read_headers().status == 100
    peer.send(b"12345")
    assert peer.received() == (200, b"5")


def long_headers(path: str, size: int) -> bytes:
    """Return a request of about `size` bytes without a body."""
    line = b"X-%05d: " + b"a" * 990 + b"\r\n"
    fields = b"".join(line % number for number in range(size // 1000))
    return b"GET %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (path.encode(), fields)


@pytest.mark.parametrize("step", [1 << 20, 4000], ids=["whole", "pieces"])
@pytest.mark.parametrize("number", [1, 2])
def test_headers_over_the_limit_get_431(server: LiveServer, step: int, number: int) -> None:
    with closing(Peer(server.address)) as peer:
        for _ in range(number - 1):
            peer.send(long_headers("/first", 12_000))
            assert peer.received() == (200, b"0")
        data = long_headers("/too-long", HEADER_BYTES + 5000)
        peer.trickle(data[start : start + step] for start in range(0, len(data), step))
        status, text = peer.received()
        assert status == 431, text
        assert peer.is_closed()
    assert "/too-long" not in seen(server)["called"]


def test_endless_header_is_refused_soon(server: LiveServer) -> None:
    with closing(Peer(server.address)) as peer:
        peer.send(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
        peer.trickle([b"a" * 4000] * 30)
        assert peer.received()[0] == 431


@pytest.mark.parametrize("step", [1 << 20, 1000], ids=["whole", "pieces"])
def test_long_upload_does_not_count_as_headers(server: LiveServer, step: int) -> None:
    body = b"a" * (LIMIT_BYTES - 1)
    with closing(Peer(server.address)) as peer:
        for _ in range(3):
            peer.post("/", b"Content-Length: %d" % len(body))
            for start in range(0, len(body), step):
                peer.send(body[start : start + step])
            assert peer.received() == (200, b"%d" % len(body))

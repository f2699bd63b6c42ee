"""Large bodies over TLS and HTTP/2, which asgifast's protocols hand over in blocks."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.http import Connection
from tests.support.http2 import Connected
from tests.support.servers import PATIENCE_S, LiveServer, live_server, wait_for
from tests.support.tls import client_context, write_certificate

from .large_bodies_app import BODY, SHAPES, SIZE, WRONG

pytestmark = pytest.mark.long

# The protocol, the event loop, the HTTP version, and where large bodies wait.
STACKS = [
    ("HttpToolsProtocol", "asyncio", "HTTP/1.1", "memory"),
    ("HttpToolsProtocol", "uvloop", "HTTP/1.1", "memory"),
    ("HttpToolsProtocol", "uvloop", "HTTP/1.1", "disk"),
    ("HttpToolsProtocol", "uvloop", "HTTP/1.1", "full disk"),
    ("H11Protocol", "asyncio", "HTTP/1.1", "memory"),
    ("H11Protocol", "asyncio", "HTTP/1.1", "disk"),
]
if find_spec("zttp") and find_spec("uvicorn.protocols.http.zttp_impl"):
    STACKS += [
        ("AutoZttpProtocol", loop, version, place)
        for loop, place in (("asyncio", "memory"), ("uvloop", "memory"), ("asyncio", "disk"))
        for version in ("HTTP/1.1", "HTTP/2")
    ] + [("AutoZttpProtocol", "uvloop", "HTTP/2", "full disk")]


@pytest.fixture(scope="module", params=STACKS, ids=" ".join)
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveServer, str]]:
    """A server over TLS, and the HTTP version of its client."""
    protocol, loop, version, place = request.param
    certificate = str(write_certificate(tmp_path_factory.mktemp("tls") / "both.pem"))
    argv = ["python", "-m", "uvicorn", "--no-access-log", "--port", "{port}", "--loop", loop]
    argv += ["--http", f"asgifast.uvicorn:{protocol}", "--ssl-certfile", certificate]
    argv += ["--ssl-keyfile", certificate, "tests.asgi.large_bodies_app:app"]
    env = {} if place == "memory" else {"TEST_PLACE": place}
    with live_server(argv, env=env) as server:
        yield server, version
        assert ("Output stays in memory" in server.log()) == (place == "full disk")


class Client:
    """A client of either version on one connection."""

    def __init__(self, server: LiveServer, version: str) -> None:
        self.is_http1 = version == "HTTP/1.1"
        self._server = server

    def __enter__(self) -> Client:
        if self.is_http1:
            self._connection = Connection(self._server.address, tls=client_context())
            self._sock: socket.socket = self._connection.sock
        else:
            assert isinstance(self._server.address, tuple)
            plain = socket.create_connection(self._server.address, PATIENCE_S)
            self._sock = client_context("h2").wrap_socket(plain, server_hostname="localhost")
            self._client = Connected(self._sock)
            self._client.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._sock.close()

    def begin(self, target: str, method: str = "GET") -> None:
        if self.is_http1:
            self._connection.send_request(target, method=method)
        else:
            self._stream = self._client.send(target, method)

    def body(self, method: str = "GET") -> bytes | None:
        """Return the body of the response, or None if it is cut off."""
        if self.is_http1:
            try:
                return self._connection.read_response(method).body
            except (EOFError, ConnectionError):
                return None
        response = self._client.response(self._stream)
        return None if response.reset else response.body

    def ask(self, target: str, method: str = "GET") -> bytes | None:
        self.begin(target, method)
        return self.body(method)


@pytest.mark.parametrize("target", SHAPES)
def test_large_body_arrives_whole(stack: tuple[LiveServer, str], target: str) -> None:
    with Client(*stack) as client:
        assert client.ask(target) == BODY[:SIZE]
        assert client.ask(target, "HEAD") == b""
        assert client.ask(target) == BODY[:SIZE]


@pytest.mark.parametrize("target", WRONG)
def test_large_body_of_wrong_length_is_cut_off(stack: tuple[LiveServer, str], target: str) -> None:
    with Client(*stack) as client:
        assert client.ask(target) is None
    stack[0].wait_for_log("Exception in ASGI application")


@pytest.mark.parametrize("target", ["/whole", "/unknown-length"])
def test_app_ends_before_its_slow_reader(
    stack: tuple[LiveServer, str], target: str, tmp_path: Path
) -> None:
    ended = tmp_path / "ended"
    with Client(*stack) as client:
        client.begin(f"{target}?{ended}")
        wait_for(ended.exists, "the app has returned")
        assert client.body() == BODY[:SIZE]


def test_client_that_leaves_ends_its_large_body(stack: tuple[LiveServer, str]) -> None:
    server, _ = stack
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    before = len(os.listdir(descriptors))
    with contextlib.ExitStack() as closes:
        for _ in range(5):
            closes.enter_context(Client(*stack)).begin("/whole")
    wait_for(lambda: len(os.listdir(descriptors)) <= before, "all connections are closed")

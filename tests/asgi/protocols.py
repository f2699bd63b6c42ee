"""An app under a uvicorn protocol of ours in this process, and its client."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import uvicorn
import uvloop
from asgifast.messages import ASGIApp, Receive, Scope, Send
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol
from asgifast.uvicorn.protocol import FileSending
from asgifast.whole_responses import UVICORN
from uvicorn.server import ServerState

from tests.support.process import open_descriptors

PATHSEND = "http.response.pathsend"
ZEROCOPYSEND = "http.response.zerocopysend"
# Far more than all buffers between an app and a client that reads nothing.
TOO_MUCH = 30_000_000
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE_BYTES = 3_000_000
is_sent_whole = pytest.mark.skipif(
    uvicorn.__version__ not in UVICORN.known_send, reason="this uvicorn's send() is another one"
)


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol], ids=["h11", "httptools"])
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(LARGE_BYTES))
    return path


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    _open_those_of_libuv()
    before = open_descriptors()
    yield
    assert open_descriptors() <= before


@functools.cache
def _open_those_of_libuv() -> None:
    """Its first loop opens descriptors that stay."""
    uvloop.run(asyncio.sleep(0))


class Client:
    """The other end of a connection whose protocol runs in this event loop."""

    def __init__(self, sock: socket.socket, state: ServerState) -> None:
        self.sock = sock
        self.state = state
        self._read = b""

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.sock, 1_000_000)

    async def until(self, end: bytes) -> bytes:
        """Everything up to and with `end`."""
        data = bytearray(self._read)
        start = 0
        while (found := data.find(end, start)) < 0:
            start = max(0, len(data) - len(end))
            part = await self.receive()
            assert part, f"the connection ended after {bytes(data[-200:])!r}, before {end!r}"
            data += part
        self._read = bytes(data[found + len(end) :])
        return bytes(data[: found + len(end)])

    async def exactly(self, size: int) -> bytes:
        data = bytearray(self._read)
        while len(data) < size:
            part = await self.receive()
            assert part, f"the connection ended after {len(data)} of {size} bytes"
            data += part
        self._read = bytes(data[size:])
        return bytes(data[:size])

    async def to_end(self) -> bytes:
        data = bytearray(self._read)
        while part := await self.receive():
            data += part
        return bytes(data)

    async def hello(self) -> None:
        """What went before has left the connection as it should be."""
        await self.send(HELLO)
        answer = await self.until(b"hello")
        assert answer.startswith(b"HTTP/1.1 200 "), answer


@asynccontextmanager
async def serving(
    protocol: Any, app: ASGIApp, *, pathsend: bool | None = True, **options: Any
) -> AsyncIterator[Client]:
    """One connection; GET /hello is answered for the app.

    :param pathsend: True: the app is offered the extensions for files, whatever it is. None: it is
        served as it is.
    """

    async def with_hello(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/hello":
            await start(send, length=5)
            await body(send, b"hello")
        else:
            await app(scope, receive, send)

    config = uvicorn.Config(
        app if pathsend is None else with_hello,
        log_config=None,
        proxy_headers=False,
        lifespan="off",
        **options,
    )
    config.load()
    loop = asyncio.get_running_loop()
    state = ServerState()
    ours, theirs = socket.socketpair()
    with ours, theirs, patch.object(FileSending, "pathsend", pathsend):
        for sock in (ours, theirs):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        transport, made = await loop.connect_accepted_socket(
            lambda: protocol(config=config, server_state=state, app_state={}), theirs
        )
        del made  # a test asks for when it is gone
        try:
            yield Client(ours, state)
        finally:
            if not transport.is_closing():
                transport.abort()
            ours.close()
            await asyncio.wait_for(_all_over(state), 60)


async def _all_over(state: ServerState) -> None:
    while state.tasks or state.connections:
        await asyncio.sleep(0)


async def start(send: Send, *, length: int | None = None, status: int = 200) -> None:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def body(send: Send, data: bytes, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def two_bytes(scope: Scope, receive: Receive, send: Send) -> None:
    """An app whose response is a head and one message."""
    await start(send, length=2)
    await body(send, b"ok")


def talk(
    protocol: Any,
    app: ASGIApp,
    conversation: Callable[[Client], Awaitable[None]],
    **options: Any,
) -> None:
    async def run() -> None:
        async with serving(protocol, app, **options) as client:
            await asyncio.wait_for(conversation(client), 60)

    asyncio.run(run())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Upgraded(asyncio.Protocol):
    """Stands for uvicorn's WebSocket protocol: says what it was made of, and answers."""

    transports: list[Any]

    def __init__(self, **made_of: Any) -> None:
        assert sorted(made_of) == ["app_state", "config", "server_state"]

    def connection_made(self, transport: Any) -> None:
        self.transports.append(transport)

    def data_received(self, data: bytes) -> None:
        self.transports[-1].write(b"upgraded")


def refuse_sendfile(*args: Any) -> int:
    raise OSError(errno.EINVAL, "not on this file system")

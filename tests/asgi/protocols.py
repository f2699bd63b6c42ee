"""An app under one of asgifast's uvicorn protocols in this process, and its client."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import pytest
import uvicorn
from asgifast.messages import ASGIApp, Receive, Scope, Send
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol
from asgifast.uvicorn.protocol import FileSending
from asgifast.whole_responses import KNOWN_SENDS, digest_of_send
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

from tests.support.tls import server_context

from .support import raising

# Far more than the buffers between an app and a client that reads nothing can contain.
TOO_MUCH = 30_000_000
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
WEBSOCKET = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
LARGE_BYTES = 3_000_000
is_sent_whole = pytest.mark.skipif(
    digest_of_send(httptools_impl) not in KNOWN_SENDS, reason="this uvicorn's send() is another one"
)


class Client:
    """The client of a connection. The protocol runs in the same event loop."""

    def __init__(self, sock: socket.socket, state: ServerState) -> None:
        self.sock = sock
        self.state = state
        self._read = b""

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.sock, 1_000_000)

    async def until(self, end: bytes) -> bytes:
        """Receive up to and including `end`, and return all bytes."""
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

    async def ask(self, request: bytes = GET) -> bytes:
        """Send a request. Return the status line and headers of its response."""
        await self.send(request)
        return await self.until(b"\r\n\r\n")

    async def body(self, size: int) -> bytes:
        """Return the body of a response after its headers."""
        await self.until(b"\r\n\r\n")
        return await self.exactly(size)

    async def chunks(self) -> list[bytes]:
        """Return the chunks of a body, up to its end."""
        found = []
        while size := int(await self.until(b"\r\n"), 16):
            found.append(await self.exactly(size))
            assert await self.exactly(2) == b"\r\n"
        assert await self.exactly(2) == b"\r\n"
        return found

    async def hello(self) -> None:
        """Check that the connection still works after an exchange."""
        await self.send(HELLO)
        response = await self.until(b"hello")
        assert response.startswith(b"HTTP/1.1 200 "), response


PROTOCOLS: dict[str, Any] = {"h11": H11Protocol, "httptools": HttpToolsProtocol}
if find_spec("zttp") and find_spec("uvicorn.protocols.http.zttp_impl"):
    from asgifast.uvicorn import ZttpProtocol

    PROTOCOLS["zttp"] = ZttpProtocol
# With zttp. The fixture `protocol` has only the two protocols that are always installed.
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))


@asynccontextmanager
async def serving(
    protocol: Any, app: ASGIApp, *, pathsend: bool | None = True, **options: Any
) -> AsyncIterator[Client]:
    """Open one connection. The test's app serves GET /hello itself, unless `pathsend` is None.

    :param pathsend: True offers the extensions for files to any app. With None the protocol
        decides, and the app is not wrapped.
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
        del made  # a test waits until it is deleted
        try:
            yield Client(ours, state)
        finally:
            if not transport.is_closing():
                transport.abort()
            ours.close()
            await asyncio.wait_for(_all_over(state), 60)


@asynccontextmanager
async def serving_over_tls(protocol: Any, app: ASGIApp) -> AsyncIterator[tuple[Any, ServerState]]:
    """Serve the app. Yield its address and the server state. No callback of the loop may fail."""
    failed: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: failed.append(context))
    config = uvicorn.Config(app, log_config=None, proxy_headers=False, lifespan="off")
    config.load()
    state = ServerState()
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}),
        "127.0.0.1",
        ssl=server_context(),
    )
    async with server:
        yield server.sockets[0].getsockname(), state
        while state.connections:
            await asyncio.sleep(0)
    assert not failed


async def served(
    protocol: Any, app: ASGIApp, path: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes] | None:
    """Return a response with header names in lower case, or None if it is incomplete."""
    lines = [f"GET {path} HTTP/1.1", "Host: a", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    async with serving(protocol, app, pathsend=None) as client:
        await client.send("\r\n".join([*lines, "", ""]).encode())
        response = await asyncio.wait_for(client.to_end(), 60)
    start_message, _, body = response.partition(b"\r\n\r\n")
    status, *fields = start_message.decode("latin-1").split("\r\n")
    found = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
    if "transfer-encoding" in found:
        data, left = b"", body
        while left:
            size, _, left = left.partition(b"\r\n")
            count = int(size, 16)
            data, left = data + left[:count], left[count + 2 :]
        if not body.endswith(b"0\r\n\r\n"):
            return None
        body = data
    elif len(body) != int(found["content-length"]):
        return None
    return int(status.split()[1]), found, body


async def _all_over(state: ServerState) -> None:
    while state.tasks or state.connections:
        await asyncio.sleep(0)


async def start(send: Send, *, length: int | None = None, status: int = 200) -> None:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def body(send: Send, data: bytes, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def two_bytes(scope: Scope, receive: Receive, send: Send) -> None:
    """Return an app that sends the headers and one body message."""
    await start(send, length=2)
    await body(send, b"ok")


async def refusal_of(sending: Awaitable[None]) -> str:
    """Return the message of the error that a call of send() raises."""
    with pytest.raises(RuntimeError) as refused:
        await sending
    return str(refused.value)


async def iterations(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Upgraded(asyncio.Protocol):
    """A replacement for uvicorn's WebSocket protocol. It checks its arguments, and responds."""

    transports: list[Any]

    def __init__(self, **made_of: Any) -> None:
        assert sorted(made_of) == ["app_state", "config", "server_state"]

    def connection_made(self, transport: Any) -> None:
        self.transports.append(transport)

    def data_received(self, data: bytes) -> None:
        self.transports[-1].write(b"upgraded")


refuse_sendfile = raising(OSError, errno.EINVAL, "not on this file system")

"""Connections that are closed behind what their clients are still sending."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
import uvloop
from asgifast.messages import Receive, Scope, Send
from uvicorn.server import ServerState

from tests.support.tls import client_context, server_context
from wsgifast.sockets import closing

from .protocols import Client, _no_descriptor_is_left, body, protocol, serving, start, turns

__all__ = ["_no_descriptor_is_left", "protocol"]

UPLOAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n"


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    await start(send, length=2)
    await body(send, b"no")


async def send_until_closed(client: Client) -> int:
    """Send on and on; return how many bytes were sent."""
    sent = 0
    while client.state.connections:
        try:
            await client.send(bytes(1000))
        except OSError:
            break
        sent += 1000
        await asyncio.sleep(0.001)
    return sent


@pytest.mark.parametrize("headers", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
def test_a_server_that_ends_does_not_wait_for_all_that_a_client_would_send(
    protocol: Any, headers: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the connection is open until then, or lingers already."""
    monkeypatch.setattr(closing, "_LINGERS_MOST_S", 600.0)

    async def run() -> None:
        async with serving(protocol, refusing) as client:
            await client.send(UPLOAD + headers + b"\r\n" + bytes(1000))
            await client.until(b"no")
            await turns()
            assert client.state.connections
            monkeypatch.setattr(closing, "LINGER_S", 0.3)
            for connection in client.state.connections:
                connection.shutdown()
            await asyncio.wait_for(send_until_closed(client), 60)

    asyncio.run(run())


def test_a_client_is_given_up_that_sends_more_than_an_upload(
    protocol: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "_LINGER_BYTES", 50_000)

    async def run() -> None:
        async with serving(protocol, refusing) as client:
            await client.send(UPLOAD + b"Connection: close\r\n\r\n")
            await client.until(b"no")
            assert 50_000 <= await asyncio.wait_for(send_until_closed(client), 60) < 1_000_000

    asyncio.run(run())


UPLOADED = 20_000_000


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_early_answer_over_tls_arrives_behind_the_upload(run: Any, protocol: Any) -> None:
    """Its client reads when it has sent all."""
    failed: list[Any] = []

    def upload(address: Any) -> bytes:
        with (
            socket.create_connection(address, 60) as plain,
            client_context().wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % UPLOADED)
            for _ in range(UPLOADED // 100_000):
                sock.sendall(bytes(100_000))
            answer = b""
            while not answer.endswith(b"too large"):
                part = sock.recv(10_000)
                assert part, answer
                answer += part
            return answer

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"9"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await body(send, b"too large")

    async def talk() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: failed.append(context))
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        config.load()
        state = ServerState()
        server = await loop.create_server(
            lambda: protocol(config=config, server_state=state, app_state={}),
            "127.0.0.1",
            ssl=server_context(),
        )
        async with server:
            address = server.sockets[0].getsockname()
            answer = await loop.run_in_executor(None, upload, address)
            assert answer.startswith(b"HTTP/1.1 413 ")
            while state.connections:
                await asyncio.sleep(0.01)
        await loop.shutdown_default_executor()

    async def bounded() -> None:
        await asyncio.wait_for(talk(), 60)

    run(bounded())
    assert not failed


def test_a_connection_over_tls_is_closed_without_an_error(protocol: Any) -> None:
    """uvicorn closes it behind the response, and once more when it is lost."""
    failed: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: failed.append(context))
        config = uvicorn.Config(refusing, log_config=None, lifespan="off")
        config.load()
        state = ServerState()
        server = await loop.create_server(
            lambda: protocol(config=config, server_state=state, app_state={}),
            "127.0.0.1",
            ssl=server_context(),
        )
        async with server:
            address = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(*address, ssl=client_context())
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"\r\n\r\nno")
            for connection in state.connections:
                connection.shutdown()
            writer.close()
            while state.connections:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert not failed

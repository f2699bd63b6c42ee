"""Connections that are closed while their clients are still sending."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.support.tls import client_context
from wsgifast.sockets import closing

from .protocols import Client, iterations, serving, serving_over_tls
from .support import body as message
from .support import length, sending, start_message

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

UPLOAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n"


refusing = sending(start_message(length(2)), message(b"no", False))


async def send_until_closed(client: Client) -> int:
    """Send until an error. Return how many bytes were sent."""
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
async def test_shutdown_waits_for_no_sending_client(
    protocol: Any, headers: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is open before, and may linger."""
    monkeypatch.setattr(closing, "_MAX_LINGER_S", 600.0)
    async with serving(protocol, refusing) as client:
        await client.send(UPLOAD + headers + b"\r\n" + bytes(1000))
        await client.until(b"no")
        await iterations()
        assert client.state.connections
        monkeypatch.setattr(closing, "LINGER_S", 0.3)
        for connection in client.state.connections:
            connection.shutdown()
        await send_until_closed(client)


async def test_client_sending_more_than_an_upload_is_dropped(
    protocol: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "_LINGER_BYTES", 50_000)
    async with serving(protocol, refusing) as client:
        await client.send(UPLOAD + b"Connection: close\r\n\r\n")
        await client.until(b"no")
        assert 50_000 <= await send_until_closed(client) < 1_000_000


UPLOADED = 20_000_000


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"], indirect=True)
@pytest.mark.usefixtures("loop")
async def test_early_tls_response_arrives_behind_the_upload(protocol: Any) -> None:
    """The client reads its response after it has sent all data."""

    def upload(address: Any) -> bytes:
        with (
            socket.create_connection(address, 60) as plain,
            client_context().wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % UPLOADED)
            for _ in range(UPLOADED // 100_000):
                sock.sendall(bytes(100_000))
            response = b""
            while not response.endswith(b"too large"):
                part = sock.recv(10_000)
                assert part, response
                response += part
            return response

    headers = length(9), (b"connection", b"close")
    app = sending(start_message(*headers, status=413), message(b"too large", False))
    async with serving_over_tls(protocol, app) as (address, _):
        response = await asyncio.get_running_loop().run_in_executor(None, upload, address)
        assert response.startswith(b"HTTP/1.1 413 ")


async def test_tls_connection_closes_without_an_error(protocol: Any) -> None:
    """uvicorn closes the connection after the response, and again when the connection is lost."""
    async with serving_over_tls(protocol, refusing) as (address, state):
        reader, writer = await asyncio.open_connection(*address, ssl=client_context())
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nno")
        for connection in state.connections:
            connection.shutdown()
        writer.close()

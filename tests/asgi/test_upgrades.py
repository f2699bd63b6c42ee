"""Upgrade requests: to h2c with a body, and to a WebSocket with frames."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

import pytest
from asgifast.messages import ASGIApp, Receive, Scope, Send
from asgifast.uvicorn import HttpToolsProtocol
from hypothesis import given, settings
from hypothesis import strategies as st

from .protocols import WEBSOCKET, Upgraded, iterations, serving

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

H2C = (
    b"Host: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n"
)
POST = b"POST /upload HTTP/1.1\r\n" + H2C
NEXT = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n"
FRAME = b"\x81\x83\0\0\0\0abc"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    data = scope["path"].encode() + b"="
    more = True
    while more:
        message = await receive()
        data += message.get("body", b"?")
        more = message.get("more_body", False)
    headers = [(b"content-length", b"%d" % len(data))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data})


async def exchanged(
    protocol: Any, pieces: list[bytes], ends: list[bytes], app: ASGIApp = echo
) -> list[bytes]:
    async with serving(protocol, app, pathsend=None, ws="none") as client:
        for piece in pieces:
            await client.send(piece)
            await iterations()
        return [await asyncio.wait_for(client.until(end), 60) for end in ends]


@pytest.mark.parametrize(
    ("start_message", "data"),
    [
        (POST + b"Content-Length: 5\r\n\r\n", b"hello"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
    ],
    ids=["length", "chunked"],
)
@pytest.mark.parametrize("cut", [0, 2, 5, None])
def test_request_for_h2c_keeps_its_body(
    protocol: Any, start_message: bytes, data: bytes, cut: int | None
) -> None:
    whole = start_message + data + NEXT
    at = len(start_message) + (cut or 0)
    pieces = [whole] if cut is None else [whole[:at], whole[at:]]
    asyncio.run(exchanged(protocol, pieces, [b"/upload=hello", b"/next="]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 320), max_size=5), st.binary(max_size=30))
def test_body_behind_h2c_is_never_a_request(cuts: list[int], data: bytes) -> None:
    """In any pieces, and with any bytes."""
    data += b"\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    whole = POST + b"Content-Length: %d\r\n\r\n" % len(data) + data + NEXT
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    responses = asyncio.run(exchanged(HttpToolsProtocol, pieces, [b"/next="]))
    assert responses[0].count(b"HTTP/1.1 200 OK") == 2
    assert b"/upload=" + data in responses[0]


def test_request_for_h2c_without_a_body_is_answered(protocol: Any) -> None:
    get = b"GET /first HTTP/1.1\r\n" + H2C + b"\r\n"
    asyncio.run(exchanged(protocol, [get + NEXT, get], [b"/first=", b"/next=", b"/first="]))


async def test_many_h2c_requests_at_once_are_answered(protocol: Any) -> None:
    get = b"GET /first HTTP/1.1\r\n" + H2C + b"\r\n"
    await exchanged(protocol, [get * 600 + NEXT], [b"/next="])


async def test_error_behind_h2c_is_logged_once(
    protocol: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The transfer coding is gzip instead of chunked."""
    async with serving(protocol, echo, pathsend=None, ws="none") as client:
        await client.send(POST + b"Transfer-Encoding: gzip\r\n\r\nhello")
        await client.to_end()
    assert caplog.text.count("Invalid HTTP request received.") == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in Python 3.12")
async def test_app_that_starts_at_once_sees_upgrade() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append({**scope, "headers": [*scope["headers"]]})
        await echo(scope, receive, send)

    eager: Any = asyncio.eager_task_factory  # type: ignore[attr-defined, unused-ignore]
    asyncio.get_running_loop().set_task_factory(eager)
    request = POST + b"Content-Length: 2\r\n\r\nhi"
    responses = await exchanged(HttpToolsProtocol, [request], [b"=hi"], app)
    assert responses[0].startswith(b"HTTP/1.1 200 OK")
    assert (b"upgrade", b"h2c") in seen[0]["headers"]


async def test_headers_of_no_http_without_upgrade_refused() -> None:
    async with serving(HttpToolsProtocol, echo, pathsend=None, ws="none") as client:
        await client.send(b"DESCRIBE /x RTSP/1.0\r\n" + H2C + b"\r\n")
        assert b" 400 " in await client.to_end()


async def test_malformed_body_behind_h2c_is_refused(protocol: Any) -> None:
    async with serving(protocol, echo, pathsend=None, ws="none") as client:
        await client.send(POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n")
        assert b" 400 " in await client.to_end()


class Accepting(Upgraded):
    """Accepts, then returns the bytes that follow the request."""

    got: bytes

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.got = b""

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET "):
            asyncio.get_running_loop().call_soon(
                self.transports[-1].write, b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
            )
            return
        self.got += data
        self.transports[-1].write(data.upper())


@pytest.mark.parametrize("cut", [0, 1, len(FRAME)])
async def test_frames_that_come_with_the_request_follow_it(protocol: Any, cut: int) -> None:
    Accepting.transports = []
    async with serving(protocol, echo, pathsend=None, ws=Accepting) as client:
        await client.send(WEBSOCKET + FRAME[:cut])
        await client.ask(FRAME[cut:])
        assert await client.exactly(len(FRAME)) == FRAME.upper()
        await client.send(b"more")
        assert await client.exactly(4) == b"MORE"


async def test_frames_behind_refused_request_are_dropped(protocol: Any) -> None:
    class Refusing(Upgraded):
        def data_received(self, data: bytes) -> None:
            assert data.startswith(b"GET ")
            self.transports[-1].write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            self.transports[-1].close()

    Refusing.transports = []
    async with serving(protocol, echo, pathsend=None, ws=Refusing) as client:
        await client.send(WEBSOCKET + FRAME)
        assert (await client.to_end()).startswith(b"HTTP/1.1 403 ")


async def test_frames_reach_app_behind_uvicorns_protocol(protocol: Any) -> None:
    pytest.importorskip("wsproto")
    messages: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        messages.append(await receive())
        await send({"type": "websocket.close"})

    async with serving(protocol, app, pathsend=None, ws="wsproto") as client:
        await client.send(WEBSOCKET + FRAME)
        await client.until(b"\x88\x02\x03\xe8")
    assert messages[0]["text"] == "abc"

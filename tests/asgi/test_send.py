"""Uses of send() by apps, under ASGIFast on uvicorn's protocols, and under asgifast's protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.messages import ASGIApp, Message, Receive, Scope, Send
from asgifast.uvicorn import HttpToolsProtocol
from uvicorn.protocols.http import httptools_impl

from .protocols import (
    GET,
    Client,
    body,
    refusal_of,
    serving,
    start,
    two_bytes,
)
from .support import body as message
from .support import length, raising, sending, start_message

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")

STACKS = {
    "uvicorn": (httptools_impl.HttpToolsProtocol, None),
    "uvicorn+ASGIFast": (httptools_impl.HttpToolsProtocol, ASGIFast),
    "ours": (HttpToolsProtocol, None),
    "ours+ASGIFast": (HttpToolsProtocol, ASGIFast),
}
Stack = Callable[[ASGIApp], AbstractAsyncContextManager[Client]]


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> Stack:
    protocol, wrap = STACKS[request.param]
    return lambda app: serving(protocol, wrap(app) if wrap else app)


async def _answer(stack: Stack, app: ASGIApp, end: bytes = b"ok", request: bytes = GET) -> bytes:
    """Return the response up to `end`. Check that the connection accepts another request."""
    async with stack(app) as client:
        await client.send(request)
        response = await client.until(end)
        await client.hello()
        return response


async def test_whole_body_waits_for_no_end_of_response(stack: Stack) -> None:
    """The response is complete after the app's last message, and receive() waits for the end."""
    has_arrived = asyncio.Event()
    received: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        if scope["path"] == "/":
            await receive()
            listens = asyncio.ensure_future(receive())
            await body(send, b"ok", more=True)
            await has_arrived.wait()
            assert not listens.done()
            await body(send, b"")
            received.append(await listens)
        else:
            await body(send, b"2!")

    async with stack(app) as client:
        await client.send(GET + GET.replace(b"/", b"/2", 1))
        first = await client.until(b"ok")
        assert first.count(b"HTTP/1.1 200 OK") == 1
        has_arrived.set()
        assert (await client.until(b"2!")).count(b"HTTP/1.1 200 OK") == 1
    assert received == [{"type": "http.disconnect"}]


async def test_whole_body_without_an_end_is_logged(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack(sending(start_message(length(2)), message(b"ok"))) as client:
        await client.send(GET)
        assert (await client.to_end()).endswith(b"\r\n\r\nok")
    assert "without completing response" in caplog.text


async def test_empty_body_is_whole(stack: Stack) -> None:
    app = sending(start_message(length(0), status=307), message(b"", False))
    assert b"content-length: 0\r\n" in await _answer(stack, app, end=b"\r\n\r\n")


@pytest.mark.parametrize(("protocol", "wrap"), STACKS.values(), ids=STACKS)
async def test_head_taken_for_get_by_app_has_no_body(protocol: Any, wrap: Any) -> None:
    app = wrap(two_bytes) if wrap else two_bytes

    async def as_get(scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await app({**scope, "method": method}, receive, send)

    async with serving(protocol, as_get) as client:
        response = await client.ask(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"content-length: 2\r\n" in response
        await client.hello()


@pytest.mark.parametrize("status", [204, 304])
async def test_status_without_a_body_is_answered_at_once(stack: Stack, status: int) -> None:
    app = sending(start_message(length(20_000), status=status), message(b"x" * 20_000, False))
    async with stack(app) as client:
        assert b" %d " % status in await client.ask()


async def test_headers_changed_later_are_sent_as_they_were(stack: Stack) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        start = start_message(length(2), (b"x", b"first"))
        headers = start["headers"]
        await send(start)
        headers.append((b"y", b"late"))
        start.clear()
        await body(send, b"ok")

    response = await _answer(stack, app)
    assert b"x: first\r\n" in response
    assert b"late" not in response


@pytest.mark.parametrize("declared", [True, False])
async def test_headers_of_any_iterable_are_sent_by_uvicorn(stack: Stack, declared: bool) -> None:
    """Sanic passes a generator as the headers."""
    headers = (each for each in [(b"x", b"y"), *[length(2)] * declared])
    app = sending({**start_message(), "headers": headers}, message(b"ok", False))
    response = await _answer(stack, app, end=b"ok" if declared else b"ok\r\n0\r\n\r\n")
    assert b"x: y\r\n" in response
    assert (b"content-length: 2\r\n" in response) == declared


async def test_second_response_is_refused_when_it_begins(stack: Stack) -> None:
    refused: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await two_bytes(scope, receive, send)
        refused.append(await refusal_of(two_bytes(scope, receive, send)))

    await _answer(stack, app)
    assert len(refused) == 1


async def test_response_without_the_body_asks_for_none() -> None:
    """The headers are the response to Expect, delayed or not (RFC 9110, section 10.1.1)."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2)
        listens = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        await body(send, b"ok")
        listens.cancel()

    async with serving(HttpToolsProtocol, app) as client:
        await client.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
        )
        assert b"100 Continue" not in await client.until(b"ok")


@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_headers_without_body_wait_until_app_ended(
    ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn then logs an incomplete response, or sends a 500."""
    fails = [raising(RuntimeError, "of the app")] if ends == "raises" else []
    app = sending(start_message(length(2)), *fails)
    async with serving(HttpToolsProtocol, app) as client:
        await client.send(GET)
        response = await client.to_end()
    status, logged = {
        "returns": (b"200", "without completing response"),
        "raises": (b"500", "of the app"),
    }[ends]
    assert response.startswith(b"HTTP/1.1 %b " % status)
    assert logged in caplog.text

"""The uvicorn protocols in this process: messages in and out of order, and their clients."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from asgifast.coalescing import SMALL_MESSAGE_BYTES
from asgifast.messages import PATHSEND, ZEROCOPYSEND, Message, Receive, Scope, Send
from asgifast.protocols.output import OutputQueue

from tests.support.process import open_descriptors

from .protocols import (
    GET,
    HELLO,
    LARGE_BYTES,
    TOO_MUCH,
    WEBSOCKET,
    Upgraded,
    body,
    iterations,
    refusal_of,
    serving,
    start,
    two_bytes,
)
from .support import body as part
from .support import length, pathsend, sending, start_message

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


@pytest.mark.parametrize("size", [100, 100_000])
@pytest.mark.parametrize("chunked", [True, False])
async def test_client_that_does_not_read_holds_up_the_app(
    protocol: Any, size: int, chunked: bool
) -> None:
    sent = 0
    started = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await start(send, length=None if chunked else TOO_MUCH)
        started.set()
        while sent < TOO_MUCH:
            await body(send, b"x" * size, more=True)
            sent += size
        await body(send, b"")

    async with serving(protocol, app) as client:
        await client.send(GET)
        await started.wait()
        await iterations()
        assert sent < 1_000_000
        await client.until(b"\r\n\r\n")
        if chunked:
            assert (await client.until(b"\r\n0\r\n\r\n")).count(b"x") == TOO_MUCH
        else:
            assert await client.exactly(TOO_MUCH) == b"x" * TOO_MUCH
        await client.hello()


@pytest.mark.parametrize(
    "message",
    [
        {"type": "http.response.body", "body": b"late", "more_body": True},
        {"type": PATHSEND, "path": __file__},
        {"type": ZEROCOPYSEND, "file": 0, "offset": 0, "count": 1},
    ],
    ids=["body", "path", "file"],
)
async def test_message_behind_the_last_is_refused(protocol: Any, message: Message) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=4)
        await body(send, b"body")
        try:
            await send(message)
            await iterations()
            await body(send, b"")
        except RuntimeError as error:
            seen.append(str(error))

    async with serving(protocol, app) as client:
        await client.send(GET)
        assert (await client.until(b"body")).count(b"HTTP/1.1 ") == 1
        await client.hello()
        assert len(seen) == 1
        assert "Unexpected ASGI message" in seen[0]


@pytest.mark.parametrize(
    "message",
    [
        {"type": "http.response.body", "body": b"early", "more_body": True},
        {"type": PATHSEND, "path": __file__},
        {"type": PATHSEND},
        {"type": ZEROCOPYSEND, "offset": 0, "count": 1},
    ],
    ids=["body", "path", "large", "file"],
)
async def test_message_before_the_headers_is_refused(
    protocol: Any, message: Message, large: Path
) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with large.open("rb") as file:
            seen.append(await refusal_of(send({"path": str(large), "file": file, **message})))
        await two_bytes(scope, receive, send)

    async with serving(protocol, app) as client:
        await client.send(GET)
        await client.until(b"\r\n\r\nok")
        assert len(seen) == 1
        assert "http.response.start" in seen[0]


@pytest.mark.parametrize("chunked", [True, False])
async def test_messages_for_a_gone_client_are_dropped(
    protocol: Any, large: Path, chunked: bool
) -> None:
    """Later messages are dropped without an error, like in uvicorn's own send()."""
    finished = asyncio.Event()
    size = 1000 * 100 + 2 * LARGE_BYTES

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=None if chunked else size)
        await body(send, b"x" * 100, more=True)
        while (await receive())["type"] != "http.disconnect":
            pass
        for number in range(999):
            await body(send, b"x" * 100, more=True)
            if number % 100 == 0:
                await iterations(2)
        with large.open("rb") as file:
            await send({"type": ZEROCOPYSEND, "file": file, "offset": 0, "more_body": True})
        await send({"type": PATHSEND, "path": str(large)})
        await body(send, b"")
        finished.set()

    async with serving(protocol, app) as client:
        await client.send(GET)
        await client.until(b"x" * 100)
        client.sock.close()
        await finished.wait()


@pytest.mark.parametrize(("method", "data"), [("HEAD", b"12345"), ("GET", b""), ("GET", b"12345")])
async def test_simple_response_leaves_while_its_app_goes_on(
    protocol: Any, method: str, data: bytes
) -> None:
    """An app with a background task sends two messages.

    A response without a body takes one write.
    """
    arrived = asyncio.Event()
    app = sending(start_message(length(len(data))), part(data, False), arrived.wait)
    async with serving(protocol, app) as client:
        await client.send(f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await client.until(b"\r\n\r\n" + (b"" if method == "HEAD" else data))
        arrived.set()


async def test_messages_for_nobody_are_not_stored(protocol: Any) -> None:
    """The client leaves after a small message, before the end of the iteration of the loop."""
    finished = asyncio.Event()
    peak = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal peak
        await start(send)
        listening = asyncio.ensure_future(receive())
        while not listening.done():
            await body(send, b"small", more=True)
            await asyncio.sleep(0)
        tracemalloc.start()
        try:
            for number in range(1000):
                await body(send, b"%8000d" % number, more=True)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        await body(send, b"")
        finished.set()

    async with serving(protocol, app) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
        await client.until(b"small")
        client.sock.close()
        await finished.wait()
        assert peak < 1_000_000


async def test_small_response_schedules_nothing(
    protocol: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled: list[OutputQueue] = []
    monkeypatch.setattr(OutputQueue, "_schedule", scheduled.append)
    async with serving(protocol, sending()) as client:
        for _ in range(3):
            await client.hello()
    assert scheduled == []


async def test_refused_headers_hold_nothing_back(protocol: Any) -> None:
    piece = bytes(SMALL_MESSAGE_BYTES + 1)
    may_go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await iterations()
        with pytest.raises(RuntimeError, match=r"http\.response\.start"):
            await start(send, length=5)
        await body(send, piece, more=True)
        await may_go_on.wait()
        await body(send, b"")

    async with serving(protocol, app) as client:
        await client.send(GET)
        await asyncio.wait_for(client.until(piece), 60)
        may_go_on.set()
        await client.until(b"0\r\n\r\n")


async def test_extensions_are_each_requests_own(protocol: Any) -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(set(scope["extensions"]))
        scope["extensions"]["of.this.request"] = {}
        await two_bytes(scope, receive, send)

    async with serving(protocol, app) as client:
        for _ in range(2):
            await client.send(GET)
            await client.until(b"\r\n\r\nok")
    assert seen[0] == seen[1] >= {PATHSEND, ZEROCOPYSEND}


async def test_upgraded_connection_is_uvicorns_alone(protocol: Any, large: Path) -> None:
    """The WebSocket protocol gets the real transport.

    No descriptor stays open, even after a file.
    """
    transports: list[Any] = []
    Upgraded.transports = transports
    app = sending(start_message(length(LARGE_BYTES)), pathsend(large))
    async with serving(protocol, app, ws=Upgraded) as client:
        await client.hello()
        before = open_descriptors()
        await client.ask()
        await client.exactly(LARGE_BYTES)
        await client.hello()
        assert open_descriptors() <= before
        await client.send(WEBSOCKET)
        assert await client.exactly(8) == b"upgraded"
        [transport] = transports
        assert not isinstance(transport, OutputQueue)


async def test_client_leaving_pipeline_disconnects_the_first(
    protocol: Any,
) -> None:
    """Otherwise the app would send to a closed connection for ever."""
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on() -> None:
            await start(send)
            while True:
                await body(send, b"x" * 1000, more=True)
                await asyncio.sleep(0)

        sending = asyncio.get_running_loop().create_task(send_on())
        while (message := await receive())["type"] != "http.disconnect":
            pass
        seen.append(message["type"])
        sending.cancel()

    async with serving(protocol, app) as client:
        await client.send(GET + HELLO)
        await client.until(b"x" * 1000)
        client.sock.close()
        while client.state.tasks:
            await asyncio.sleep(0)
        assert seen == ["http.disconnect"]

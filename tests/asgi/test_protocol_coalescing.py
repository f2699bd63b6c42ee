"""Small messages under the uvicorn protocols in this process: which of them are delayed, and how
long.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.coalescing import DELAY_ITERATIONS, SINGLE_ITERATIONS
from asgifast.messages import Receive, Scope, Send
from asgifast.protocols.output import OutputQueue
from asgifast.protocols.queue_wire import QueueWire

from tests.support.calls import recorded

from .protocols import GET, iterations, serving
from .support import body, length, sending, start_message, zerocopy

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


async def test_coalesced_messages_are_whole_chunks(protocol: Any, tmp_path: Path) -> None:
    """Messages keep their order with files of both kinds.

    An empty message does not end the response.
    """
    sizes = {"small": 1000, "large": 100_000}
    data = {name: os.urandom(size) for name, size in sizes.items()}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await sending(start_message(), body(b""), iterations)(scope, receive, send)
        for name in (*sizes, *sizes):
            for piece in (b"be", b"", b"fore"):
                await send(body(piece))
            with (tmp_path / name).open("rb") as file:
                await send(zerocopy(file, more_body=True))
        await send(body(b"the"))
        await send(body(b" end", False))

    async with serving(protocol, app) as client:
        assert b"transfer-encoding: chunked" in (await client.ask()).lower()
        expected = [part for name in (*sizes, *sizes) for part in (b"before", data[name])]
        assert await client.chunks() == [*expected, b"the end"]
        await client.hello()


async def test_small_message_leaves_while_the_app_waits(protocol: Any) -> None:
    arrived = asyncio.Event()
    # The headers have been sent, and the loop is idle again.
    app = sending(
        start_message(length(10)), iterations, body(b"small"), arrived.wait, body(b"-last", False)
    )
    async with serving(protocol, app) as client:
        await client.send(GET)
        await client.until(b"\r\n\r\nsmall")
        arrived.set()
        await client.until(b"-last")


async def test_empty_message_ends_no_passed_on_stream(
    protocol: Any,
) -> None:
    lone = [step for _ in range(SINGLE_ITERATIONS + 1) for step in (body(b"."), iterations)]
    app = sending(start_message(), *lone, body(b""), body(b"end", False))
    async with serving(protocol, app) as client:
        await client.send(GET)
        await client.until(b"3\r\nend\r\n0\r\n\r\n")
        await client.hello()


async def test_refused_delayed_message_is_logged_at_the_end(
    protocol: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = sending(start_message(length(2)), body(b"ok"), iterations, body(b"too much"))
    async with serving(protocol, app) as client:
        await client.send(GET)
        assert (await client.to_end()).endswith(b"\r\n\r\nok")
    seen = ("longer than Content-Length", "Too much data for declared Content-Length")
    assert any(line in caplog.text for line in seen), caplog.text


@pytest.mark.parametrize("size", [5, 20_000])
async def test_buffer_reused_by_the_app_is_sent_as_it_was(protocol: Any, size: int) -> None:
    """ASGI requires bytes. uvicorn sends a bytearray as well."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message(length(3 * size)))
        buffer: Any = bytearray(size)
        for letter in b"abc":
            buffer[:] = bytes([letter]) * size
            await send(body(buffer))
        buffer[:] = b"-" * size
        await send(body(b"", False))

    async with serving(protocol, app) as client:
        await client.ask()
        received = await client.exactly(3 * size)
        assert received == b"a" * size + b"b" * size + b"c" * size


@pytest.mark.usefixtures("timeless_coalescing")
async def test_protocol_coalesces_messages_iterations_apart(protocol: Any) -> None:
    """Middleware that passes messages between tasks has this effect."""
    sent = [b"<%d>" % number for number in range(200)]
    steps = [step for each in sent for step in (body(each), partial(iterations, 3))]
    app = sending(start_message(), *steps, body(b"", False))
    async with serving(protocol, app) as client:
        await client.ask()
        chunks = (await client.until(b"\r\n0\r\n\r\n")).split(b"\r\n")[1:-3:2]
        assert b"".join(chunks) == b"".join(sent)
        assert len(chunks) < len(sent) / 4 + 10
        await client.hello()


async def test_small_messages_of_asgifast_pass_no_send(
    protocol: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the protocol delays the messages. So a stock protocol is not faster."""
    passed = recorded(monkeypatch, QueueWire, "send")
    sent = [b"<%d>" % number for number in range(1000)]
    app = ASGIFast(sending(start_message(), *map(body, sent), body(b"end", False)))
    async with serving(protocol, app) as client:
        await client.ask()
        assert b"".join(await client.chunks()) == b"".join(sent) + b"end"
        await client.hello()
    assert len(passed) < 10


async def test_lone_messages_schedule_nothing(
    protocol: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app that waits before each message sends lone messages.

    Many messages in one iteration are joined again.
    """
    number = 0
    scheduled = recorded(monkeypatch, OutputQueue, "_schedule", lambda _: number)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal number
        await send(start_message())
        for number in range(10):
            await send(body(b"<%d>" % number))
            await iterations(DELAY_ITERATIONS + 4)
        await sending(*[body(b"burst")] * 200, body(b"", False))(scope, receive, send)

    async with serving(protocol, app) as client:
        await client.ask()
        chunks = (await client.until(b"\r\n0\r\n\r\n")).split(b"\r\n")[1:-3:2]
        singles = [b"<%d>" % each for each in range(10)]
        assert chunks[:10] == singles
        assert b"".join(chunks) == b"".join(singles) + b"burst" * 200
        assert len(chunks) < 10 + 20
        await client.hello()
    assert set(scheduled[:-1]) <= {*range(SINGLE_ITERATIONS + 1)}

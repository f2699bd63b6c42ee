"""Files by uvicorn's zttp protocol over HTTP/2, in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast, FileResponse
from asgifast.messages import Message, Receive, Scope, Send

from tests.support.http2 import Client
from tests.support.process import open_descriptors

from .http2_wire import connected, part, sending, settled, stands_still, start
from .protocols import LARGE_BYTES, PATHSEND, ZEROCOPYSEND, large

__all__ = ["large"]


def file_messages(path: Path, kind: str) -> list[Message]:
    if kind == PATHSEND:
        return [start(LARGE_BYTES), {"type": PATHSEND, "path": str(path)}]
    return [
        start(LARGE_BYTES + 2),
        part(b"<"),
        {"type": ZEROCOPYSEND, "file": path.open("rb"), "more_body": True},
        part(b">", more=False),
    ]


@pytest.mark.parametrize("wrap", [ASGIFast, lambda app: app], ids=["wrapped", "bare"])
@pytest.mark.parametrize("kind", [PATHSEND, ZEROCOPYSEND])
@pytest.mark.parametrize("window", [None, 1000])
def test_files(large: Path, kind: str, wrap: Any, window: int | None) -> None:
    async def run() -> None:
        client = Client(window=window)
        messages = file_messages(large, kind)
        async with connected(wrap(sending(messages)), client) as wire:
            stream = client.ask()
            await settled(lambda: client.answers[stream].ended, wire)
            expected = large.read_bytes()
            if kind == ZEROCOPYSEND:
                expected = b"<" + expected + b">"
                messages[2]["file"].close()
            assert client.answers[stream].body == expected

    asyncio.run(run())


def test_a_slow_client_holds_no_app_and_little_memory(large: Path) -> None:
    said: list[str] = []

    async def run() -> None:
        client = Client(window=5000, reads=False)
        async with connected(sending(file_messages(large, PATHSEND), said), client) as wire:
            slow = client.ask()
            await settled(lambda: PATHSEND in said, wire)
            await settled(lambda: len(client.answers[slow].body) >= 5000, wire)
            assert await stands_still(lambda: len(client.answers[slow].body)) == 5000
            [cycle] = wire.protocol.cycles.values()
            assert cycle.stream.pending_bytes <= 16 * 1024, "no more was read than one frame"
            client.reads = True
            client.open(LARGE_BYTES)
            client.open(LARGE_BYTES, slow)
            await settled(lambda: client.answers[slow].ended, wire)
            assert client.answers[slow].body == large.read_bytes()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["reset", "left"])
def test_a_client_that_does_not_want_the_rest(large: Path, how: str) -> None:
    async def run() -> None:
        before = open_descriptors()
        client = Client(window=5000, reads=False)
        async with connected(sending(file_messages(large, PATHSEND)), client) as wire:
            stream = client.ask()
            wire.pump()
            await stands_still(lambda: len(client.answers[stream].body))
            if how == "reset":
                client.state.reset_stream(stream)
                wire.pump()
            else:
                wire.is_closed = True
                wire.protocol.connection_lost(None)
            await settled(lambda: open_descriptors() <= before, wire)

    asyncio.run(run())


def test_a_file_that_ends_early_resets_its_stream_alone(large: Path) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/file":
            await sending([start(LARGE_BYTES + 1), {"type": PATHSEND, "path": str(large)}])(
                scope, receive, send
            )
        else:
            await sending([start(5), part(b"hello", more=False)])(scope, receive, send)

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            short = client.ask("/file")
            await settled(lambda: client.answers[short].reset is not None, wire)
            assert not client.answers[short].ended
            other = client.ask("/")
            await settled(lambda: client.answers[other].ended, wire)
            assert client.answers[other].body == b"hello"
            assert not wire.is_closed

    asyncio.run(run())


@pytest.mark.parametrize("wrap", [ASGIFast, lambda app: app], ids=["wrapped", "bare"])
def test_early_hints_and_trailers(large: Path, wrap: Any) -> None:
    hint = {"type": "http.response.early_hint", "links": [b"</a.css>; rel=preload"]}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert "http.response.early_hint" in scope["extensions"]
        await send(hint)
        await send({**start(LARGE_BYTES), "trailers": True})
        await send({"type": PATHSEND, "path": str(large)})
        await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"7")]})

    async def run() -> None:
        client = Client()
        async with connected(wrap(app), client) as wire:
            stream = client.ask(headers=[("te", "trailers")])
            await settled(lambda: client.answers[stream].ended, wire)
            answer = client.answers[stream]
            assert answer.early == [{":status": "103", "link": "</a.css>; rel=preload"}]
            assert answer.body == large.read_bytes()
            assert answer.trailers == {"x-sum": "7"}

    asyncio.run(run())


def test_head_and_statuses_without_a_body(large: Path) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/304":
            await send({**start(), "status": 304})
            await send(part(b"x"))
            await send({"type": PATHSEND, "path": str(large)})
        else:
            await FileResponse(large)(scope, receive, send)

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            for path, method, status in (("/", "HEAD", 200), ("/304", "GET", 304)):
                stream = client.ask(path, method)
                await settled(lambda: client.answers[stream].ended, wire)  # noqa: B023
                answer = client.answers[stream]
                assert (answer.status, answer.body) == (status, b"")

    asyncio.run(run())


@pytest.mark.parametrize("wrap", [ASGIFast, lambda app: app], ids=["wrapped", "bare"])
def test_a_file_that_has_gone_is_a_500_and_no_head(large: Path, wrap: Any) -> None:
    gone = {"type": PATHSEND, "path": str(large.parent / "gone")}

    async def run() -> None:
        client = Client()
        async with connected(wrap(sending([start(LARGE_BYTES), gone])), client) as wire:
            stream = client.ask()
            await settled(lambda: client.answers[stream].ended, wire)
            answer = client.answers[stream]
            assert (answer.status, answer.body) == (500, b"Internal Server Error")

    asyncio.run(run())


@pytest.mark.parametrize("value", [b"a\r\nevil: 1", b"a\nb", b"a\rb", b"a\0b"])
def test_header_values_with_line_ends_do_not_pass(value: bytes) -> None:
    async def run() -> None:
        client = Client()
        head = {**start(2), "headers": [(b"content-length", b"2"), (b"x", value)]}
        async with connected(sending([head, part(b"ok", more=False)]), client) as wire:
            stream = client.ask()
            answer = client.answers[stream]
            await settled(lambda: answer.reset is not None, wire)
            assert not answer.headers

    asyncio.run(run())

"""Several send() of one response at a time, some of which wait for the client or are given up.

Behind uvicorn's flow control: under our protocols, and with ASGIFast also under uvicorn's own.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.messages import ASGIApp, Message, Receive, Scope, Send, SendOrder
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol
from uvicorn.protocols.http import h11_impl, httptools_impl

from .messages import body as part
from .protocols import GET, TOO_MUCH, ZEROCOPYSEND, Client, body, start, talk, turns

STACKS = {
    "h11": (H11Protocol, False),
    "h11 + ASGIFast": (H11Protocol, True),
    "httptools": (HttpToolsProtocol, False),
    "httptools + ASGIFast": (HttpToolsProtocol, True),
    "uvicorn's h11 + ASGIFast": (h11_impl.H11Protocol, True),
    "uvicorn's httptools + ASGIFast": (httptools_impl.HttpToolsProtocol, True),
}
SHORT_S = 0.05


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> Callable[..., None]:
    protocol, with_asgifast = STACKS[request.param]

    def run(app: ASGIApp, conversation: Callable[[Client], Awaitable[None]]) -> None:
        talk(protocol, ASGIFast(app) if with_asgifast else app, conversation)

    return run


def task(send: Send, message: Message) -> asyncio.Task[None]:
    async def sending() -> None:
        await send(message)

    return asyncio.create_task(sending())


async def is_given_up(send: Send, message: Message) -> bool:
    """Not by wait_for(), which takes a turn of the loop even if nothing is waited for."""
    this = asyncio.current_task()
    assert this is not None
    giving_up = asyncio.get_running_loop().call_later(SHORT_S, this.cancel)
    try:
        await send(message)
    except asyncio.CancelledError:
        return True
    finally:
        giving_up.cancel()
    return False


async def body_of(client: Client, *, chunked: bool, size: int = 0) -> bytes:
    await client.until(b"\r\n\r\n")
    if not chunked:
        return await client.exactly(size)
    data = b""
    while length := int(await client.until(b"\r\n"), 16):
        data += await client.exactly(length)
        assert await client.exactly(2) == b"\r\n"
    assert await client.exactly(2) == b"\r\n"
    return data


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
@pytest.mark.parametrize("head_first", [False, True], ids=["together", "behind the head"])
def test_messages_that_are_gathered(
    stack: Callable[..., None], chunked: bool, head_first: bool
) -> None:
    """All send() are called before any of them runs."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sending = [start(send, length=None if chunked else 4)]
        if head_first:
            await sending.pop()
        await asyncio.gather(
            *sending, *(send(part(data, data != b"")) for data in (b"ab", b"cd", b""))
        )

    async def conversation(client: Client) -> None:
        await client.send(GET)
        assert await body_of(client, chunked=chunked, size=4) == b"abcd"
        await client.hello()

    stack(app, conversation)


@pytest.mark.parametrize("count", range(4))
def test_a_task_for_each_message(stack: Callable[..., None], count: int) -> None:
    """So many turns of the loop apart."""
    messages = [b"<%d>" % number for number in range(12)]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        sending = []
        for message in messages:
            sending.append(task(send, part(message)))
            await turns(count)
        await asyncio.gather(*sending)
        await body(send, b"")

    async def conversation(client: Client) -> None:
        await client.send(GET)
        assert await body_of(client, chunked=True) == b"".join(messages)
        await client.hello()

    stack(app, conversation)


def test_what_comes_behind_the_end_is_refused(stack: Callable[..., None]) -> None:
    """The end waits for the client when another task sends, and the client reads again."""
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await body(send, b"x" * TOO_MUCH, more=True)
        end = task(send, part(b"<end>", False))
        await turns()
        late = task(send, part(b"<late>"))
        waits.set()
        await end
        try:
            await late
        except RuntimeError as error:
            told.append(str(error))

    async def conversation(client: Client) -> None:
        await client.send(GET)
        await waits.wait()
        data = await body_of(client, chunked=True)
        assert data[TOO_MUCH:] == b"<end>"
        await client.hello()
        assert len(told) == 1
        assert "after response already completed" in told[0]

    waits = asyncio.Event()
    stack(app, conversation)


@pytest.mark.parametrize("given_up", ["many", "large", "end"])
def test_what_was_sent_before_is_not_given_up_with_a_message(
    stack: Callable[..., None], given_up: str
) -> None:
    sent: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await body(send, b"x" * TOO_MUCH, more=True)

        async def try_to(data: bytes, more: bool = True) -> None:
            if not await is_given_up(send, part(data, more)):
                sent.append(data[:4])

        if given_up == "many":
            for number in range(18):
                await try_to(b"<%02d>" % number + b"." * 4000)
        else:
            await try_to(b"<01>")
            await try_to(b"<02>" + b"." * (20_000 if given_up == "large" else 0), given_up != "end")
        waits.set()
        await has_read.wait()
        await body(send, b"<99>")

    async def conversation(client: Client) -> None:
        await client.send(GET)
        await waits.wait()
        reading = asyncio.create_task(body_of(client, chunked=True))
        await asyncio.sleep(SHORT_S)
        has_read.set()
        found = re.findall(rb"<\d\d>", (await reading)[TOO_MUCH:])
        assert found == sorted(found)
        assert b"<99>" in found
        assert not set(sent) - set(found)
        await client.hello()

    waits, has_read = asyncio.Event(), asyncio.Event()
    stack(app, conversation)


@pytest.mark.parametrize("parts", [(b"okay",), (b"ok", b"ay", b"")], ids=["whole", "in parts"])
@pytest.mark.parametrize("way", ["tried again", "in tasks"])
def test_a_head_that_has_to_wait(
    stack: Callable[..., None], parts: tuple[bytes, ...], way: str
) -> None:
    """Its request is pipelined behind one whose response is not read."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await start(send, length=TOO_MUCH)
            await body(send, b"x" * TOO_MUCH)
            return
        await start(send, length=4)
        messages = [part(data, number < len(parts)) for number, data in enumerate(parts, 1)]
        if way == "tried again":
            assert await is_given_up(send, messages[0])
            waits.set()
            for message in messages:
                await send(message)
        else:
            sending = [task(send, message) for message in messages]
            await turns()
            waits.set()
            await asyncio.gather(*sending)

    async def conversation(client: Client) -> None:
        await client.send(GET + GET.replace(b"/", b"/second", 1))
        await client.until(b"\r\n\r\n")
        await waits.wait()
        await client.exactly(TOO_MUCH)
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await client.exactly(4) == b"okay"
        await client.hello()

    waits = asyncio.Event()
    stack(app, conversation)


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
def test_a_message_beside_a_file(stack: Callable[..., None], chunked: bool) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(TOO_MUCH)
        descriptor = os.dup(file.fileno())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=None if chunked else TOO_MUCH + 4)
        await turns()
        of_file: dict[str, Any] = {"file": descriptor, "offset": 0, "count": TOO_MUCH}
        sending = task(send, {"type": ZEROCOPYSEND, **of_file, "more_body": True})
        await turns()
        small = task(send, part(b"<m>"))
        await turns()
        waits.set()
        await asyncio.gather(sending, small)
        await small_is_read.wait()
        await body(send, b".")

    async def conversation(client: Client) -> None:
        await client.send(GET)
        await waits.wait()
        if chunked:
            reading = asyncio.create_task(body_of(client, chunked=True))
            await asyncio.sleep(SHORT_S)
            small_is_read.set()
            data = await reading
        else:
            data = await body_of(client, chunked=False, size=TOO_MUCH + 3)
            small_is_read.set()  # it has come without the app's next message
            data += await client.exactly(1)
        assert data[TOO_MUCH:] == b"<m>."
        assert not data[:TOO_MUCH].strip(b"\0")
        await client.hello()

    waits, small_is_read = asyncio.Event(), asyncio.Event()
    try:
        stack(app, conversation)
    finally:
        os.close(descriptor)


async def _pass(order: SendOrder, passed: list[int], number: int, goes: asyncio.Event) -> None:
    if order.is_taken:
        await order.wait()
    order.is_taken = True
    try:
        passed.append(number)
        await goes.wait()
    finally:
        order.release()


def test_who_gives_up_holds_nobody_up() -> None:
    async def run() -> None:
        order, passed, goes = SendOrder(), list[int](), asyncio.Event()
        tasks = [asyncio.create_task(_pass(order, passed, n, goes)) for n in range(5)]
        await turns()
        assert passed == [0]
        tasks[1].cancel()  # while it waits
        await turns()
        tasks[0].cancel()  # lets the next one through,
        await asyncio.sleep(0)
        tasks[2].cancel()  # which is cancelled before it goes on
        await turns()
        assert passed in ([0, 3], [0, 2, 3])
        goes.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert passed[-2:] == [3, 4]
        assert not order.is_taken

    asyncio.run(run())


def test_on_trio() -> None:
    trio = pytest.importorskip("trio")
    testing = pytest.importorskip("trio.testing")
    passed: list[int] = []

    async def run() -> None:
        order = SendOrder()

        async def one(number: int) -> None:
            if order.is_taken:
                await order.wait()
            order.is_taken = True
            try:
                passed.append(number)
                await trio.lowlevel.checkpoint()
            finally:
                order.release()

        async with trio.open_nursery() as nursery:
            order.is_taken = True
            for number in range(3):
                nursery.start_soon(one, number)
                await testing.wait_all_tasks_blocked()
            order.release()
        assert not order.is_taken

    trio.run(run)
    assert passed == [0, 1, 2]

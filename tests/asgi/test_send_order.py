"""Concurrent calls of send() for one response. Some wait for the client or are cancelled.

They use uvicorn's flow control, under our protocols, and with ASGIFast also under uvicorn's own.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.coalescing import DELAY_ITERATIONS, SINGLE_ITERATIONS
from asgifast.messages import ZEROCOPYSEND, ASGIApp, Message, Receive, Scope, Send, SendOrder
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol
from hypothesis import example, given, settings
from hypothesis import strategies as st
from uvicorn.protocols.http import h11_impl, httptools_impl

from .protocols import GET, TOO_MUCH, Client, body, iterations, refusal_of, serving, start
from .support import START, no_body, scope_of
from .support import body as part

STACKS = {
    "h11": (H11Protocol, False),
    "h11 + ASGIFast": (H11Protocol, True),
    "httptools": (HttpToolsProtocol, False),
    "httptools + ASGIFast": (HttpToolsProtocol, True),
    "uvicorn's h11 + ASGIFast": (h11_impl.H11Protocol, True),
    "uvicorn's httptools + ASGIFast": (httptools_impl.HttpToolsProtocol, True),
}
SHORT_S = 0.05
Stack = Callable[[ASGIApp], AbstractAsyncContextManager[Client]]


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> Stack:
    protocol, with_asgifast = STACKS[request.param]
    return lambda app: serving(protocol, ASGIFast(app) if with_asgifast else app)


def task(send: Send, message: Message) -> asyncio.Task[None]:
    async def sending() -> None:
        await send(message)

    return asyncio.create_task(sending())


async def is_given_up(send: Send, message: Message) -> bool:
    """Continue without wait_for(), which takes an iteration of the loop even if nothing waits."""
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
    return b"".join(await client.chunks())


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
@pytest.mark.parametrize("start_first", [False, True], ids=["together", "behind the head"])
async def test_gathered_messages_keep_their_order(
    stack: Stack, chunked: bool, start_first: bool
) -> None:
    """All calls of send() are made before any of them runs."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sending = [start(send, length=None if chunked else 4)]
        if start_first:
            await sending.pop()
        await asyncio.gather(
            *sending, *(send(part(data, data != b"")) for data in (b"ab", b"cd", b""))
        )

    async with stack(app) as client:
        await client.send(GET)
        assert await body_of(client, chunked=chunked, size=4) == b"abcd"
        await client.hello()


@pytest.mark.parametrize("count", range(4))
async def test_messages_of_one_task_each_keep_their_order(stack: Stack, count: int) -> None:
    """The messages are some iterations of the loop apart."""
    messages = [b"<%d>" % number for number in range(12)]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        sending = []
        for message in messages:
            sending.append(task(send, part(message)))
            await iterations(count)
        await asyncio.gather(*sending)
        await body(send, b"")

    async with stack(app) as client:
        await client.send(GET)
        assert await body_of(client, chunked=True) == b"".join(messages)
        await client.hello()


async def test_message_behind_an_end_that_waits_is_refused(stack: Stack) -> None:
    """The end of the response waits for the client.

    Then another task sends, and the client reads again.
    """
    refused: list[str] = []
    waits = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await body(send, b"x" * TOO_MUCH, more=True)
        end = task(send, part(b"<end>", False))
        await iterations()
        late = task(send, part(b"<late>"))
        waits.set()
        await end
        refused.append(await refusal_of(late))

    async with stack(app) as client:
        await client.send(GET)
        await waits.wait()
        data = await body_of(client, chunked=True)
        assert data[TOO_MUCH:] == b"<end>"
        await client.hello()
        assert "after response already completed" in refused[0]


@pytest.mark.parametrize("given_up", ["many", "large", "end"])
async def test_cancelled_send_takes_no_earlier_message(stack: Stack, given_up: str) -> None:
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

    waits, has_read = asyncio.Event(), asyncio.Event()
    async with stack(app) as client:
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


@pytest.mark.parametrize("parts", [(b"okay",), (b"ok", b"ay", b"")], ids=["whole", "in parts"])
@pytest.mark.parametrize("way", ["tried again", "in tasks"])
async def test_headers_that_wait_are_sent_once(
    stack: Stack, parts: tuple[bytes, ...], way: str
) -> None:
    """The request is pipelined after a request whose response the client does not read."""

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
            await iterations()
            waits.set()
            await asyncio.gather(*sending)

    waits = asyncio.Event()
    async with stack(app) as client:
        await client.ask(GET + GET.replace(b"/", b"/second", 1))
        await waits.wait()
        await client.exactly(TOO_MUCH)
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await client.exactly(4) == b"okay"
        await client.hello()


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
async def test_message_beside_a_file_is_sent_behind_it(stack: Stack, chunked: bool) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(TOO_MUCH)
        descriptor = os.dup(file.fileno())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=None if chunked else TOO_MUCH + 4)
        await iterations()
        of_file: dict[str, Any] = {"file": descriptor, "offset": 0, "count": TOO_MUCH}
        sending = task(send, {"type": ZEROCOPYSEND, **of_file, "more_body": True})
        await iterations()
        small = task(send, part(b"<m>"))
        await iterations()
        waits.set()
        await asyncio.gather(sending, small)
        await small_is_read.wait()
        await body(send, b".")

    waits, small_is_read = asyncio.Event(), asyncio.Event()
    try:
        async with stack(app) as client:
            await client.send(GET)
            await waits.wait()
            if chunked:
                reading = asyncio.create_task(body_of(client, chunked=True))
                await asyncio.sleep(SHORT_S)
                small_is_read.set()
                data = await reading
            else:
                data = await body_of(client, chunked=False, size=TOO_MUCH + 3)
                small_is_read.set()  # it arrived although the app sent no other message
                data += await client.exactly(1)
            assert data[TOO_MUCH:] == b"<m>."
            assert not data[:TOO_MUCH].strip(b"\0")
            await client.hello()
    finally:
        os.close(descriptor)


async def _pass(
    order: SendOrder, passed: list[int], number: int, wait: Callable[[], Awaitable[object]]
) -> None:
    if order.is_acquired:
        await order.wait()
    order.is_acquired = True
    try:
        passed.append(number)
        await wait()
    finally:
        order.release()


async def test_cancelled_send_releases_order() -> None:
    order, passed, goes = SendOrder(), list[int](), asyncio.Event()
    tasks = [asyncio.create_task(_pass(order, passed, n, goes.wait)) for n in range(5)]
    await iterations()
    assert passed == [0]
    tasks[1].cancel()  # while it waits
    await iterations()
    tasks[0].cancel()  # lets the next message through,
    await asyncio.sleep(0)
    tasks[2].cancel()  # and is cancelled before it continues
    await iterations()
    assert passed in ([0, 3], [0, 2, 3])
    goes.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert passed[-2:] == [3, 4]
    assert not order.is_acquired


def test_send_order_works_on_trio() -> None:
    trio = pytest.importorskip("trio")
    testing = pytest.importorskip("trio.testing")
    passed: list[int] = []

    async def run() -> None:
        order = SendOrder()
        async with trio.open_nursery() as nursery:
            order.is_acquired = True
            for number in range(3):
                nursery.start_soon(_pass, order, passed, number, trio.lowlevel.checkpoint)
                await testing.wait_all_tasks_blocked()
            order.release()
        assert not order.is_acquired

    trio.run(run)
    assert passed == [0, 1, 2]


# Random tasks, through a server that sometimes pauses them


def pieces_sent_by(app: Callable[[Send, asyncio.Event], Awaitable[None]]) -> list[bytes]:
    """Run an app under ASGIFast. Return the pieces of the body that its tasks sent.

    The app gets an Event. The server waits while the Event is not set.
    """
    sent: list[Message] = []

    async def in_asyncio() -> None:
        has_room = asyncio.Event()
        has_room.set()

        async def send(message: Message) -> None:
            await has_room.wait()
            sent.append(message)

        async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            await app(send, has_room)
            await send(part(b"", False))

        await asyncio.wait_for(ASGIFast(asgi)(scope_of(), no_body, send), 60)

    asyncio.run(in_asyncio())
    joined = b"".join(m["body"] for m in sent if m["type"] == "http.response.body")
    return re.findall(rb"<[^>]*>", joined)


# The state of an earlier message: delayed, about to be sent, or sent.
BEHIND_DELAYED = [
    [[DELAY_ITERATIONS + 5] * (SINGLE_ITERATIONS + 1) + [wait]]
    for wait in range(DELAY_ITERATIONS + 5)
]
WAITS = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 3, DELAY_ITERATIONS + 2]), max_size=60)


def with_examples(test: Callable[..., None]) -> Callable[..., None]:
    for tasks in BEHIND_DELAYED:
        test = example(tasks, [])(test)
    return test


@with_examples
@settings(max_examples=300, deadline=None)
@given(tasks=st.lists(WAITS, min_size=1, max_size=3), pauses=WAITS)
@example([[20] * 6 + [0] * 9, [20] * 6 + [1] * 9], [40, 1, 20, 1, 20, 1])
@example([[20] * 30, [20] * 30, [0]], [40, 3] * 20)
def test_each_task_keeps_its_order_and_loses_nothing(
    tasks: list[list[int]], pauses: list[int]
) -> None:
    """The number of iterations of the loop before each message, and between the server's pauses."""

    async def app(send: Send, has_room: asyncio.Event) -> None:
        async def task(name: int, waits: list[int]) -> None:
            for number, wait in enumerate(waits):
                await iterations(wait)
                await send(part(b"<%d %d>" % (name, number)))

        sending = [asyncio.create_task(task(*given)) for given in enumerate(tasks)]
        for wait in pauses:
            await iterations(wait)
            has_room.clear() if has_room.is_set() else has_room.set()
        has_room.set()
        await asyncio.gather(*sending)

    arrived = pieces_sent_by(app)
    for name, waits in enumerate(tasks):
        mine = [message for message in arrived if message.startswith(b"<%d " % name)]
        assert mine == [b"<%d %d>" % (name, number) for number in range(len(waits))]

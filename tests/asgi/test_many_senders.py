"""Several tasks send one response, through a server that sometimes pauses them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from asgifast import ASGIFast
from asgifast.coalescing import DELAY_ITERATIONS, SINGLE_ITERATIONS
from asgifast.messages import Message, Receive, Scope, Send
from hypothesis import example, given, settings
from hypothesis import strategies as st

from .protocols import turns
from .support import START, body, no_body, scope_of

Test = TypeVar("Test", bound=Callable[..., None])
App = Callable[[Send, asyncio.Event], Awaitable[None]]


def run(app: App, sent: list[Message] | None = None) -> list[Message]:
    """Run an app under ASGIFast.

    The app gets an Event. The server waits while the Event is not set.

    :param sent: receives the messages, so that the app can read them.
    """
    sent = [] if sent is None else sent

    async def in_asyncio() -> None:
        has_room = asyncio.Event()
        has_room.set()

        async def send(message: Message) -> None:
            await has_room.wait()
            sent.append(message)

        async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            await app(send, has_room)
            await send(body(b"", False))

        await asyncio.wait_for(ASGIFast(asgi)(scope_of(), no_body, send), 60)

    asyncio.run(in_asyncio())
    return sent


def sent_by(messages: list[Message]) -> list[bytes]:
    """Return the bodies of the messages, in the pieces that the tasks sent."""
    joined = b"".join(m["body"] for m in messages if m["type"] == "http.response.body")
    return re.findall(rb"<[^>]*>", joined)


# The state of an earlier message: delayed, about to be sent, or sent.
BEHIND_DELAYED = [
    [[DELAY_ITERATIONS + 5] * (SINGLE_ITERATIONS + 1) + [wait]]
    for wait in range(DELAY_ITERATIONS + 5)
]
WAITS = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 3, DELAY_ITERATIONS + 2]), max_size=60)


def with_examples(test: Test) -> Test:
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
    """The number of turns of the loop before each message, and between the server's pauses."""

    async def app(send: Send, has_room: asyncio.Event) -> None:
        async def task(name: int, waits: list[int]) -> None:
            for number, wait in enumerate(waits):
                await turns(wait)
                await send(body(b"<%d %d>" % (name, number)))

        sending = [asyncio.create_task(task(*given)) for given in enumerate(tasks)]
        for wait in pauses:
            await turns(wait)
            has_room.clear() if has_room.is_set() else has_room.set()
        has_room.set()
        await asyncio.gather(*sending)

    arrived = sent_by(run(app))
    for name, waits in enumerate(tasks):
        mine = [message for message in arrived if message.startswith(b"<%d " % name)]
        assert mine == [b"<%d %d>" % (name, number) for number in range(len(waits))]


def test_messages_of_one_task_keep_their_order() -> None:
    """ASGIFast passes messages on at once. One message waits for the server, and others follow."""

    async def app(send: Send, has_room: asyncio.Event) -> None:
        for number in range(SINGLE_ITERATIONS + 1):
            await send(body(b"<lone %d>" % number))
            await turns(DELAY_ITERATIONS + 5)
        has_room.clear()
        other: asyncio.Task[None] = asyncio.create_task(send(body(b"<other>")))  # type: ignore[arg-type]
        await turns(2)
        has_room.set()
        for number in range(3):
            await send(body(b"<%d>" % number))
            await turns(number)
        await other

    arrived = sent_by(run(app))
    assert [message for message in arrived if len(message) == 3] == [b"<0>", b"<1>", b"<2>"]
    assert b"<other>" in arrived


@pytest.mark.parametrize("waits", ["for the head", "for a message"])
def test_send_given_up_takes_no_other_with_it(waits: str) -> None:
    async def app(send: Send, has_room: asyncio.Event) -> None:
        if waits == "for a message":
            await turns()
        has_room.clear()
        if waits == "for a message":
            await send(body(b"<before>"))
        await turns()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(send(body(b"<given up>")), 0.01)
        has_room.set()
        await turns()
        await send(body(b"<after>"))

    messages = run(app)
    assert messages[0] == START
    assert sent_by(messages) == ([b"<before>"] if waits == "for a message" else []) + [b"<after>"]


def test_delayed_message_does_not_wait_for_the_next() -> None:
    sent: list[Message] = []

    async def app(send: Send, has_room: asyncio.Event) -> None:
        await turns()
        has_room.clear()
        sending: list[asyncio.Task[None]] = []
        for name in (b"<x>", b"<a>", b"<b>"):
            sending.append(asyncio.create_task(send(body(name))))  # type: ignore[arg-type]
            await turns()
        has_room.set()
        await asyncio.gather(*sending)
        await turns()
        assert sent_by(sent) == [b"<x>", b"<a>", b"<b>"]

    run(app, sent)

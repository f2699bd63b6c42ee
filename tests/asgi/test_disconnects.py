"""The client, while ASGIFast reads a file and sends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast
from asgifast.messages import Message, Receive, Scope, Send

from .protocols import LARGE_BYTES
from .support import DATA, START, Answer, app_of, pathsend, scope_of

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


def sending_and_receiving(app: Any, incoming: list[Message], scope: Scope) -> Answer:
    """Run an app on a server that answers receive() with these, and allows one at a time."""
    answer = Answer()

    async def run() -> None:
        receiving = 0

        async def receive() -> Message:
            nonlocal receiving
            receiving += 1
            assert receiving == 1, "two wait for the server at once"
            try:
                if incoming[:1] != [GONE]:  # which a server says at once, again and again
                    await asyncio.sleep(0)
                if not incoming:
                    await asyncio.Event().wait()
                return incoming.pop(0)
            finally:
                receiving -= 1

        async def send(message: Message) -> None:
            answer.messages.append(message)
            await asyncio.sleep(0)

        await ASGIFast(app)(scope, receive, send)
        await asyncio.sleep(0)
        assert not receiving, "nobody listens any more"

    asyncio.run(run())
    return answer


REQUEST: Message = {"type": "http.request", "body": b"1", "more_body": True}
REQUEST_END: Message = {"type": "http.request", "body": b"2", "more_body": False}
GONE: Message = {"type": "http.disconnect"}


@pytest.fixture
def large(tmp_path: Path) -> str:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LARGE_BYTES)
    return str(tmp_path / "large")


def test_client_that_leaves_after_the_app_has_received_ends_the_file(large: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == REQUEST_END
        await send(START)
        await send(pathsend(large))
        assert await receive() == GONE

    incoming = [REQUEST_END, GONE, GONE]
    assert len(sending_and_receiving(app, incoming, scope_of()).body) < LARGE_BYTES
    assert incoming == [GONE], "nothing more is listened for"


def test_messages_that_come_during_a_file_are_received_in_order(large: str) -> None:
    received: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(pathsend(large))
        received.extend([await receive(), await receive()])

    answer = sending_and_receiving(app, [REQUEST, REQUEST_END], scope_of())
    assert received == [REQUEST, REQUEST_END]
    assert len(answer.body) == LARGE_BYTES


def test_receive_of_an_app_during_a_file_goes_on_waiting(large: str) -> None:
    """As Starlette's StreamingResponse does: it listens for a disconnect itself."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        listening: asyncio.Task[Message] = asyncio.create_task(receive())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await send(START)
        await send(pathsend(large))
        assert not listening.done()
        listening.cancel()
        await asyncio.wait([listening])

    assert len(sending_and_receiving(app, [], scope_of()).body) == LARGE_BYTES


def test_small_files_are_sent_without_listening(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(DATA * 600)
    incoming = [GONE]
    app = app_of(START, pathsend(str(tmp_path / "small")))
    assert sending_and_receiving(app, incoming, scope_of()).body == DATA * 600
    assert incoming == [GONE]

"""ASGIFast's messages and files in this process on each loop: asyncio's, uvloop and trio."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from asgifast import ASGIFast
from asgifast.messages import PATHSEND, ZEROCOPYSEND, ASGIApp, Message, Receive, Scope, Send

from wsgifast.sockets.sending import FileTruncated

from .support import START, body, checkpoints, pathsend, raising, recording, scope_of, sending

pytestmark = pytest.mark.usefixtures("loop")
FILE_BYTES = 40_000_000


class Server:
    """The server's receive() and send() for an app."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        # The results of receive(). After them it waits for ever.
        self.incoming: list[Message | Exception] = []
        self.on_send: Callable[[Message], None] = self.sent.append

    async def receive(self) -> Message:
        while not self.incoming:
            await anyio.sleep_forever()
        message = self.incoming.pop(0)
        if isinstance(message, Exception):
            raise message
        return message

    async def send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        self.on_send(message)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await anyio.sleep(0.001)

    @property
    def bodies(self) -> list[bytes]:
        return [m["body"] for m in self.sent if m["type"] == "http.response.body"]

    async def call(self, app: Any) -> None:
        wrapped: ASGIApp = ASGIFast(app)
        await wrapped(scope_of(), self.receive, self.send)


async def test_messages_of_one_iteration_become_one() -> None:
    server = Server()
    app = sending(
        START,
        body(b"a"),
        body(b"b"),
        lambda: server.until(lambda: server.bodies == [b"ab"]),  # although no other message is sent
        body(b"c"),
        lambda: server.until(lambda: server.bodies == [b"ab", b"c"]),
        body(b"d"),
        body(b"e", more=False),
    )
    await server.call(app)
    # The task of the app sends the last message.
    assert server.bodies == [b"ab", b"c", b"d", b"e"]
    assert [message["more_body"] for message in server.sent[1:]] == [True, True, True, False]


async def test_headers_of_a_stream_leave_without_a_message() -> None:
    server = Server()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        assert not server.sent
        await server.until(lambda: server.sent == [START])  # although no other message is sent
        await send(body(b"late", more=False))

    await server.call(app)
    assert server.bodies == [b"late"]


async def test_nothing_overtakes_the_headers_of_a_stream() -> None:
    server = Server()
    inside, go_on = anyio.Event(), anyio.Event()

    async def slow_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            inside.set()
            await go_on.wait()
        server.sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await inside.wait()

        async def send_one(data: bytes) -> None:
            await send(body(data))

        async with anyio.create_task_group() as group:
            for data in (b"first", b"second"):
                group.start_soon(send_one, data)
            await checkpoints(10)
            assert server.sent == []
            go_on.set()

    await ASGIFast(app)(scope_of(), server.receive, slow_send)
    assert server.sent[0] == START
    assert sorted(b"".join(server.bodies)) == sorted(b"firstsecond")


async def test_stream_that_is_given_up_sends_no_headers() -> None:
    server = Server()
    with pytest.raises(LookupError):
        await server.call(sending(START, raising(LookupError)))
    await checkpoints(10)
    assert server.sent == [], "the server can still answer 500"


async def test_error_of_sending_the_headers_reaches_the_app() -> None:
    server = Server()
    tried = []

    def fail(message: Message) -> None:
        tried.append(message)
        raise OSError("gone")

    server.on_send = fail

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await server.until(lambda: bool(tried))
        with pytest.raises(OSError, match="gone"):
            await send(body(b"late"))

    await server.call(app)


@pytest.mark.parametrize(
    "following",
    [
        body(b"small"),
        body(b"large" * 10_000),
        body(b"last", more=False),
        pathsend(__file__),
        {"type": ZEROCOPYSEND, "file": None},
        {"type": "http.response.trailers", "headers": []},
    ],
    ids=["small", "large", "last", "file", "run", "other"],
)
async def test_order_stays_behind_a_coalesced_message(following: Message) -> None:
    server = Server()
    inside, go_on = anyio.Event(), anyio.Event()

    async def slow_send(message: Message) -> None:
        if message.get("body") == b"first":
            inside.set()
            await go_on.wait()
        server.sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(body(b"first"))
        await inside.wait()

        async def send_second() -> None:
            with open(__file__, "rb") as file:
                await send({**following, "file": file})

        async with anyio.create_task_group() as group:
            group.start_soon(send_second)
            await checkpoints(10)
            assert len(server.sent) == 1  # backpressure: no message overtakes another
            go_on.set()

    await ASGIFast(app)(scope_of(), server.receive, slow_send)
    assert server.bodies[0] == b"first"
    assert len(server.sent) >= 3


async def test_coalesced_send_error_reaches_the_app() -> None:
    server = Server()
    tried, caught = [], list[str]()

    def fail(message: Message) -> None:
        if message["type"] == "http.response.body":
            tried.append(message)
            raise OSError("gone")

    server.on_send = fail

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(body(b"coalesced"))
        await server.until(lambda: bool(tried))
        try:
            await send(body(b"next"))
        except OSError as error:
            caught.append(str(error))
            raise

    with pytest.raises(OSError, match="gone"):
        await server.call(app)
    assert caught == ["gone"]


async def test_cancelled_app_sends_no_more() -> None:
    server = Server()

    with anyio.CancelScope() as scope_to_cancel:
        # The headers have been sent, and the loop is idle again.
        quiet, cancel = partial(checkpoints, 20), scope_to_cancel.cancel
        await server.call(sending(START, quiet, body(b"coalesced"), cancel, checkpoints))
    await checkpoints(20)
    assert server.bodies == []


@pytest.mark.parametrize("on_its_way", [START, body(b"coalesced")], ids=["head", "body"])
async def test_cancelled_message_on_its_way_is_cancelled(on_its_way: Message) -> None:
    server = Server()
    inside = anyio.Event()

    async def never_sent(message: Message) -> None:
        if message["type"] == on_its_way["type"]:
            inside.set()
            try:
                await anyio.sleep_forever()
            finally:
                server.sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        if on_its_way is not START:
            await send(on_its_way)
        await inside.wait()
        scope_to_cancel.cancel()
        await anyio.lowlevel.checkpoint()

    with anyio.CancelScope() as scope_to_cancel:
        await ASGIFast(app)(scope_of(), server.receive, never_sent)
    await server.until(lambda: server.sent == [on_its_way])


async def test_coalesced_messages_keep_the_apps_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="no")
    seen = []
    server = Server()

    def look(message: Message) -> None:
        server.sent.append(message)
        seen.append(variable.get())

    server.on_send = look
    app = sending(
        lambda: variable.set("the app's"),
        START,
        body(b"x"),
        lambda: server.until(lambda: bool(server.bodies)),
        body(b"", more=False),
    )
    await server.call(app)
    assert seen == ["the app's"] * 3


@pytest.fixture
def sparse(tmp_path: Path) -> str:
    """Return the path of a file of FILE_BYTES zeros."""
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, FILE_BYTES)
    return str(path)


@pytest.mark.parametrize("kind", [PATHSEND, ZEROCOPYSEND])
@pytest.mark.parametrize("came", [[], [{"type": "http.request"}]], ids=["before", "meanwhile"])
async def test_reading_a_file_stops_when_the_client_has_left(
    sparse: str, kind: str, came: list[Message]
) -> None:
    server = Server()
    server.incoming = [*came, {"type": "http.disconnect"}]
    with open(sparse, "rb") as file:
        await server.call(sending(START, {"type": kind, "path": sparse, "file": file}))
    assert 0 < len(b"".join(server.bodies)) < FILE_BYTES


async def test_other_tasks_run_while_a_file_is_sent(sparse: str) -> None:
    """A read from memory never suspends, and this server's send() never suspends."""
    server = Server()
    iterations = 0

    async def others() -> None:
        nonlocal iterations
        while True:
            await anyio.lowlevel.checkpoint()
            iterations += 1

    async with anyio.create_task_group() as group:
        group.start_soon(others)
        await anyio.lowlevel.checkpoint()
        before = iterations
        send_at_once = recording(server.sent)
        await ASGIFast(sending(START, pathsend(sparse)))(scope_of(), server.receive, send_at_once)
        after = iterations
        group.cancel_scope.cancel()
    assert after - before >= len(server.bodies) - 2 > 100


async def test_receive_error_during_a_file_reaches_the_app(sparse: str) -> None:
    server = Server()
    server.incoming = [OSError("the server's receive() has failed")]
    with pytest.raises(OSError, match="has failed"):
        await server.call(sending(START, pathsend(sparse)))


async def test_file_shrinking_raises_while_client_is_watched(sparse: str) -> None:
    server = Server()

    def shrink(message: Message) -> None:
        server.sent.append(message)
        os.truncate(sparse, 1_000_000)

    server.on_send = shrink
    with pytest.raises(FileTruncated):
        await server.call(sending(START, pathsend(sparse)))


async def test_messages_during_a_file_are_received_in_order(sparse: str) -> None:
    server = Server()
    first: Message = {"type": "http.request", "body": b"up", "more_body": True}
    last: Message = {"type": "http.request", "body": b"load", "more_body": False}
    server.incoming = [first, last]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await sending(START, pathsend(sparse))(scope, receive, send)
        assert [await receive(), await receive()] == [first, last]

    await server.call(app)
    assert len(b"".join(server.bodies)) == FILE_BYTES

"""Request bodies that ASGIFast receives before it calls the app."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from asgifast import ASGIFast, request_bodies
from asgifast.messages import Message, Receive, Scope, Send
from asgifast.request_bodies import BufferedBody
from hypothesis import given
from hypothesis import strategies as st

from tests.support.http import Connection
from tests.support.servers import LiveServer, wait_for
from wsgifast import ConfigurationError
from wsgifast.files import temporary
from wsgifast.files.temporary import Budget
from wsgifast.sockets import FileSegment

from .limited_app import BUFFERED
from .servers import servers_with
from .support import nothing, noting, raising, recording, scope_of
from .test_request_bodies import chunked, echo, messages, talk

MIB = 1024 * 1024
PIECE = 100_000


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Buffers end with their request, and descriptors are closed."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert request_bodies.IN_MEMORY.used_bytes == 0
    assert request_bodies.ON_DISK.used_bytes == 0
    assert len(os.listdir("/proc/self/fd")) <= before


def sized(pieces: list[bytes]) -> Scope:
    return scope_of(method="POST", content_length=str(sum(map(len, pieces))))


async def through(pieces: list[bytes]) -> list[bytes]:
    """Buffer a body of these messages. Return the messages that an app then receives."""
    received = messages(pieces)

    async def receive() -> Message:
        return received.pop(0) if received else {"type": "http.disconnect"}

    body = BufferedBody(receive)
    assert await body.fill()
    got = []
    while True:
        message = await body.receive()
        got.append(message["body"])
        assert type(message["body"]) is bytes
        if not message["more_body"]:
            break
    assert await body.receive() == {"type": "http.disconnect"}
    await body.close()
    return got


@given(
    pieces=st.lists(st.binary(max_size=30), min_size=1, max_size=8),
    in_memory=st.integers(0, 60),
    budget=st.integers(0, 60),
    disk=st.sampled_from([0, 20, 1000]),
)
def test_any_body_messages_reach_the_app_unchanged(
    pieces: list[bytes], in_memory: int, budget: int, disk: int
) -> None:
    """The result is equal at any size of the budgets in memory and on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_bodies, "_IN_MEMORY_BYTES", in_memory)
        patch.setattr(request_bodies, "IN_MEMORY", Budget(budget))
        patch.setattr(request_bodies, "ON_DISK", Budget(disk))
        assert b"".join(asyncio.run(through(pieces))) == b"".join(pieces)
        assert request_bodies.IN_MEMORY.used_bytes == request_bodies.ON_DISK.used_bytes == 0


def test_body_of_one_message_is_passed_on_as_it_came() -> None:
    body = b"x" * 1000
    assert asyncio.run(through([body]))[0] is body


def test_body_is_one_message_as_far_as_it_is_in_memory() -> None:
    assert list(map(len, asyncio.run(through([b"x" * 10_000] * 20)))) == [200_000]
    assert len(asyncio.run(through([b"x" * 100_000] * 40))) < 25


async def test_app_runs_once_the_whole_body_has_come() -> None:
    seen: list[str] = []
    sent: list[Message] = []
    queue: asyncio.Queue[Message] = asyncio.Queue()
    pieces = [b"a" * PIECE] * 20
    limited = ASGIFast(noting(seen, "method", echo), buffer_bodies=True)
    task = asyncio.ensure_future(limited(sized(pieces), queue.get, recording(sent)))
    for message in messages(pieces):
        assert not seen
        queue.put_nowait(message)
        while not queue.empty():
            await asyncio.sleep(0.001)
    await task
    assert sent[1]["body"] == b"".join(pieces)


@pytest.mark.parametrize(
    "scope",
    [
        chunked(), chunked(content_length="5"), scope_of(method="POST", content_length="1001"),
        {**scope_of(method="POST"), "http_version": "2"}, scope_of(),
    ],
)  # fmt: skip
async def test_long_or_undeclared_bodies_arrive_in_pieces(
    scope: Scope,
) -> None:
    called: list[str] = []

    async def receive() -> Message:
        assert len(called) == 1, "the app runs"
        return {"type": "http.request"}

    app = noting(called, "method", echo)
    await ASGIFast(app, buffer_bodies=1000)(scope, receive, recording([]))


@pytest.mark.parametrize("pieces", [1, 3, 20])
def test_client_leaving_before_body_starts_no_app(pieces: int) -> None:
    called: list[str] = []
    app = ASGIFast(noting(called, "method", echo), buffer_bodies=True)
    received = messages([b"x" * PIECE] * (pieces + 1))[:-1]
    response = asyncio.run(talk(app, sized([b"x" * PIECE] * 30), received))
    assert response.messages == []
    assert called == []


async def test_request_that_is_cancelled_leaves_nothing() -> None:
    came = asyncio.Event()
    received = messages([b"x" * PIECE] * 20)[:-1]
    sent: list[Message] = []

    async def receive() -> Message:
        if received:
            return received.pop(0)
        came.set()
        return await nothing()

    app = ASGIFast(echo, buffer_bodies=True)
    task = asyncio.ensure_future(app(sized([b"x" * PIECE] * 20), receive, recording(sent)))
    await came.wait()
    assert request_bodies.ON_DISK.used_bytes > 0
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not sent


@pytest.mark.parametrize("loop", ["trio"], indirect=True)
@pytest.mark.usefixtures("loop")
async def test_request_cancelled_on_trio_leaves_nothing() -> None:
    received = messages([b"x" * PIECE] * 20)[:-1]
    sent: list[Message] = []
    with anyio.CancelScope() as cancelled:

        async def receive() -> Message:
            if not received:
                cancelled.cancel()
                await anyio.sleep_forever()
            return received.pop(0)

        scope = sized([b"x" * PIECE] * 20)
        await ASGIFast(echo, buffer_bodies=True)(scope, receive, recording(sent))
    assert not sent
    assert cancelled.cancelled_caught


async def test_memory_is_bounded_over_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "IN_MEMORY", Budget(MIB))
    most = 0

    async def one(limited: ASGIFast, number: int) -> None:
        nonlocal most
        pieces = [bytes([number]) * 40_000] * 10
        received = messages(pieces)

        async def receive() -> Message:
            nonlocal most
            await asyncio.sleep(0)
            most = max(most, request_bodies.IN_MEMORY.used_bytes)
            return received.pop(0)

        sent: list[Message] = []
        await limited(sized(pieces), receive, recording(sent))
        assert sent[1]["body"] == b"".join(pieces)

    limited = ASGIFast(echo, buffer_bodies=True)
    await asyncio.gather(*(one(limited, number) for number in range(50)))
    assert MIB * 0.9 < most <= MIB


def test_disk_that_is_full_leaves_the_rest_to_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", raising(OSError, 28, "No space left on device"))
    pieces = [b"x" * PIECE, b"y" * PIECE] * 20
    assert b"".join(asyncio.run(through(pieces))) == b"".join(pieces)


def test_files_are_written_and_closed_by_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    class Watched(temporary.TemporaryFile):
        def append(self, *buffers: bytes | bytearray | memoryview) -> FileSegment:
            threads.append(threading.get_ident())
            return super().append(*buffers)

        def close(self) -> None:
            if not self.closed:  # the thread that drops the object calls it again
                threads.append(threading.get_ident())
            super().close()

    monkeypatch.setattr(request_bodies, "TemporaryFile", Watched)
    asyncio.run(through([b"x" * PIECE] * 30))
    assert threads
    assert threading.get_ident() not in threads


def test_buffered_body_is_decoded_and_limited() -> None:
    limited = ASGIFast(echo, buffer_bodies=True, decompress=True, body_limit_bytes=2000)
    for size, status in ((2000, 200), (2001, 413)):
        compressed = gzip.compress(b"x" * size)
        scope = sized([compressed])
        scope["headers"].append((b"content-encoding", b"gzip"))
        response = asyncio.run(talk(limited, scope, messages([compressed[:9], compressed[9:]])))
        assert response.status == status


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1", None])
def test_invalid_buffer_bodies_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="buffer_bodies="):
        ASGIFast(echo, buffer_bodies=wrong)


def test_two_tasks_that_receive_get_each_part_once() -> None:
    pieces = [bytes([number]) * PIECE for number in range(20)]
    got: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def some() -> None:
            while (message := await receive())["type"] == "http.request":
                got.append(message["body"])

        await asyncio.gather(some(), some())

    asyncio.run(
        talk(ASGIFast(app, buffer_bodies=True, coalesce=False), sized(pieces), messages(pieces))
    )
    assert sorted(b"".join(got)) == sorted(b"".join(pieces))


# Live servers


server = servers_with("tests.asgi.limited_app:buffered")


@pytest.mark.long
def test_live_body_is_whole_and_was_received_first(server: LiveServer) -> None:
    for size in (1, PIECE, 3 * MIB, BUFFERED + 1):
        response = server.get("/whole", method="POST", body=b"x" * size)
        assert response.body == str(size).encode(), response
    with Connection(server.address) as connection:
        connection.send_request("/whole", method="POST", headers=[("Content-Length", "1000000")])
        connection.send(bytes(600_000))
        wait_for(lambda: server.get("/running").body == b"0", "the app answers others")
        connection.send(bytes(400_000))
        assert connection.read_response().body == b"1000000"


@pytest.mark.long
def test_live_client_that_leaves_never_starts_the_app(server: LiveServer) -> None:
    declared = [("Content-Length", "1000000")]
    started = int(server.get("/started").body)
    for size in (0, 10, 900_000):
        with Connection(server.address) as connection:
            connection.send_request("/whole", method="POST", headers=declared)
            connection.send(bytes(size))
            connection.sock.shutdown(socket.SHUT_RDWR)
    assert server.get("/whole", method="POST", body=b"x" * 10).body == b"10"
    wait_for(lambda: server.get("/open").body == b"0", "the files are closed")
    assert int(server.get("/started").body) == started + 1
    assert "Traceback" not in server.log()

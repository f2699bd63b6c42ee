"""The uvicorn protocols in this process: apps, and clients, that no server survives by luck."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from asgifast import ASGIFast, FileResponse, StaticFiles
from asgifast.coalescing import SMALL_MESSAGE_BYTES
from asgifast.messages import ASGIApp, Message, Receive, Scope, Send
from asgifast.transport import CoalescingTransport
from asgifast.uvicorn import H11Protocol, HttpToolsProtocol
from uvicorn.server import ServerState

from tests.support.descriptors import open_descriptors
from wsgifast.sockets.sendfile import BLOCK_BYTES, FileTruncated

PATHSEND = "http.response.pathsend"
ZEROCOPYSEND = "http.response.zerocopysend"
# Far more than all buffers between an app and a client that reads nothing.
TOO_MUCH = 30_000_000
HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE_BYTES = 3_000_000


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol], ids=["h11", "httptools"])
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(LARGE_BYTES))
    return path


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() <= before


class Client:
    """The other end of a connection whose protocol runs in this event loop."""

    def __init__(self, sock: socket.socket, state: ServerState) -> None:
        self.sock = sock
        self.state = state
        self._read = b""

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.sock, 1_000_000)

    async def until(self, end: bytes) -> bytes:
        """Everything up to and with `end`."""
        data = bytearray(self._read)
        start = 0
        while (found := data.find(end, start)) < 0:
            start = max(0, len(data) - len(end))
            part = await self.receive()
            assert part, f"the connection ended after {bytes(data[-200:])!r}, before {end!r}"
            data += part
        self._read = bytes(data[found + len(end) :])
        return bytes(data[: found + len(end)])

    async def exactly(self, size: int) -> bytes:
        data = bytearray(self._read)
        while len(data) < size:
            part = await self.receive()
            assert part, f"the connection ended after {len(data)} of {size} bytes"
            data += part
        self._read = bytes(data[size:])
        return bytes(data[:size])

    async def to_end(self) -> bytes:
        data = bytearray(self._read)
        while part := await self.receive():
            data += part
        return bytes(data)

    async def hello(self) -> None:
        """What went before has left the connection as it should be."""
        await self.send(HELLO)
        answer = await self.until(b"hello")
        assert answer.startswith(b"HTTP/1.1 200 "), answer


@asynccontextmanager
async def serving(protocol: Any, app: ASGIApp, **options: Any) -> AsyncIterator[Client]:
    """One connection; GET /hello is answered for the app."""

    async def with_hello(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/hello":
            await start(send, length=5)
            await body(send, b"hello")
        else:
            await app(scope, receive, send)

    config = uvicorn.Config(
        with_hello, log_config=None, proxy_headers=False, lifespan="off", **options
    )
    config.load()
    loop = asyncio.get_running_loop()
    state = ServerState()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for sock in (ours, theirs):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        transport, made = await loop.connect_accepted_socket(
            lambda: protocol(config=config, server_state=state, app_state={}), theirs
        )
        del made  # a test asks for when it is gone
        try:
            yield Client(ours, state)
        finally:
            if not transport.is_closing():
                transport.abort()
            ours.close()
            await asyncio.wait_for(_all_over(state), 10)


async def _all_over(state: ServerState) -> None:
    while state.tasks or state.connections:
        await asyncio.sleep(0)


async def start(send: Send, *, length: int | None = None, status: int = 200) -> None:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def body(send: Send, data: bytes, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def talk(
    protocol: Any,
    app: ASGIApp,
    conversation: Callable[[Client], Awaitable[None]],
    **options: Any,
) -> None:
    async def run() -> None:
        async with serving(protocol, app, **options) as client:
            await asyncio.wait_for(conversation(client), 20)

    asyncio.run(run())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [100, 100_000])
@pytest.mark.parametrize("chunked", [True, False])
def test_an_app_is_held_up_by_a_client_that_does_not_read(
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

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await started.wait()
        await turns()
        assert sent < 1_000_000
        await client.until(b"\r\n\r\n")
        if chunked:
            assert (await client.until(b"\r\n0\r\n\r\n")).count(b"x") == TOO_MUCH
        else:
            assert await client.exactly(TOO_MUCH) == b"x" * TOO_MUCH
        await client.hello()

    talk(protocol, app, conversation)


@pytest.mark.parametrize("messages", [(True, False), (False,)], ids=["next", "last"])
def test_what_cannot_be_sent_is_told_to_the_app(protocol: Any, messages: tuple[bool, ...]) -> None:
    """The messages that were too many were coalesced, and the loop's turn ended behind them."""
    told: list[tuple[bool, str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=3)
        await body(send, b"ab", more=True)
        await body(send, b"cdef", more=True)
        await turns()
        for more in messages:
            try:
                await body(send, b"", more=more)
            except Exception as error:
                told.append((more, str(error)))
                raise

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not (await client.to_end()).partition(b"\r\n\r\n")[2]
        [(more, error)] = told
        assert more == messages[0], "it is the next message that says so"
        assert "Content-Length" in error

    talk(protocol, app, conversation)


def test_fewer_bytes_than_declared_are_an_error(protocol: Any) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=10)
        await body(send, b"ab", more=True)
        await turns()
        await body(send, b"cd")

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert len((await client.to_end()).partition(b"\r\n\r\n")[2]) < 10

    talk(protocol, app, conversation)


@pytest.mark.parametrize("path", [True, False])
def test_head_of_small_messages_and_files(protocol: Any, large: Path, path: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await body(send, b"small", more=True)
        await turns()
        with large.open("rb") as file:
            await send({"type": ZEROCOPYSEND, "file": file, "more_body": True})
            await send({"type": ZEROCOPYSEND, "file": file, "count": 5, "more_body": True})
        if path:
            await send({"type": PATHSEND, "path": str(large)})
        else:
            await body(send, b"the end")

    async def conversation(client: Client) -> None:
        await client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n" + HELLO)
        first = await client.until(b"\r\n\r\n")
        second = await client.until(b"hello")
        assert first.startswith(b"HTTP/1.1 200 ")
        assert second.startswith(b"HTTP/1.1 200 "), "no byte of a body between the two"

    talk(protocol, app, conversation)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "http.response.body", "body": b"late", "more_body": True},
        {"type": PATHSEND, "path": __file__},
        {"type": ZEROCOPYSEND, "file": 0, "offset": 0, "count": 1},
    ],
    ids=["body", "path", "file"],
)
def test_a_message_behind_the_last_is_an_error(protocol: Any, message: Message) -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=4)
        await body(send, b"body")
        try:
            await send(message)
            await turns()
            await body(send, b"")
        except RuntimeError as error:
            told.append(str(error))

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.until(b"body")).count(b"HTTP/1.1 ") == 1
        await client.hello()
        assert len(told) == 1
        assert "Unexpected ASGI message" in told[0]

    talk(protocol, app, conversation)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "http.response.body", "body": b"early", "more_body": True},
        {"type": PATHSEND, "path": __file__},
        {"type": PATHSEND},
        {"type": ZEROCOPYSEND, "file": 0, "offset": 0, "count": 1},
    ],
    ids=["body", "path", "large", "file"],
)
def test_a_message_before_the_first_is_an_error(
    protocol: Any, message: Message, large: Path
) -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"path": str(large), **message})
        except RuntimeError as error:
            told.append(str(error))
        await start(send, length=2)
        await body(send, b"ok")

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\nok")
        assert len(told) == 1
        assert "http.response.start" in told[0]

    talk(protocol, app, conversation)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_client_that_leaves_between_messages(protocol: Any, large: Path, chunked: bool) -> None:
    """What is sent for it afterwards is dropped without an error, as uvicorn's own send() does."""
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
                await turns(2)
        with large.open("rb") as file:
            await send({"type": ZEROCOPYSEND, "file": file, "offset": 0, "more_body": True})
        await send({"type": PATHSEND, "path": str(large)})
        await body(send, b"")
        finished.set()

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"x" * 100)
        client.sock.close()
        await finished.wait()

    talk(protocol, app, conversation)


def test_coalesced_messages_are_whole_chunks(protocol: Any, tmp_path: Path) -> None:
    """In order with files of both kinds, and not ended by a message without a byte."""
    sizes = {"small": 1000, "large": 100_000}
    data = {name: os.urandom(size) for name, size in sizes.items()}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await body(send, b"", more=True)
        await turns()
        for name in (*sizes, *sizes):
            await body(send, b"be", more=True)
            await body(send, b"", more=True)
            await body(send, b"fore", more=True)
            with (tmp_path / name).open("rb") as file:
                await send({"type": ZEROCOPYSEND, "file": file, "more_body": True})
        await body(send, b"the", more=True)
        await body(send, b" end")

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await client.until(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        chunks = []
        while size := int(await client.until(b"\r\n"), 16):
            chunks.append(await client.exactly(size))
            assert await client.exactly(2) == b"\r\n"
        assert await client.exactly(2) == b"\r\n"
        expected = [part for name in (*sizes, *sizes) for part in (b"before", data[name])]
        assert chunks == [*expected, b"the end"]
        await client.hello()

    talk(protocol, app, conversation)


def test_a_small_message_leaves_while_the_app_waits(protocol: Any) -> None:
    arrived = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=10)
        await turns()  # the head leaves, and the loop is quiet again
        await body(send, b"small", more=True)
        await arrived.wait()
        await body(send, b"-last")

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\nsmall")
        arrived.set()
        await client.until(b"-last")

    talk(protocol, app, conversation)


@pytest.mark.parametrize("size", [5, 20_000])
def test_a_buffer_that_its_owner_uses_again(protocol: Any, size: int) -> None:
    """No bytes, as ASGI asks for, and sent by uvicorn all the same."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=3 * size)
        buffer: Any = bytearray(size)
        for letter in b"abc":
            buffer[:] = bytes([letter]) * size
            await body(send, buffer, more=True)
        buffer[:] = b"-" * size
        await body(send, b"")

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        received = await client.exactly(3 * size)
        assert received == b"a" * size + b"b" * size + b"c" * size

    talk(protocol, app, conversation)


def test_a_pipe(protocol: Any) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reader, writer = os.pipe()
        try:
            os.write(writer, b"through the pipe")
            os.close(writer)
            await start(send)
            await send({"type": ZEROCOPYSEND, "file": reader, "count": 7, "more_body": True})
            await send({"type": ZEROCOPYSEND, "file": reader})
        finally:
            os.close(reader)

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        chunks = await client.until(b"\r\n0\r\n\r\n")
        assert chunks == b"7\r\nthrough\r\n9\r\n the pipe\r\n0\r\n\r\n"
        await client.hello()

    talk(protocol, app, conversation)


@pytest.mark.parametrize("kind", [PATHSEND, ZEROCOPYSEND])
def test_a_client_that_leaves_while_a_file_is_sent(
    protocol: Any, tmp_path: Path, kind: str
) -> None:
    """The app goes on, as it does when it sends bytes."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(TOO_MUCH)
    finished = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=TOO_MUCH)
        with path.open("rb") as file:
            await send({"type": kind, "path": str(path), "file": file, "more_body": True})
        if kind == ZEROCOPYSEND:
            await body(send, b"")
        finished.set()

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n" + bytes(1000))
        client.sock.close()
        await finished.wait()

    talk(protocol, app, conversation)


@pytest.mark.parametrize("kind", [PATHSEND, ZEROCOPYSEND])
def test_a_client_that_has_left_unnoticed_before_a_file(
    protocol: Any, large: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first byte of the file is what the kernel refuses."""
    finished = asyncio.Event()

    def broken_pipe(*args: Any) -> int:
        raise BrokenPipeError

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=LARGE_BYTES)
        with large.open("rb") as file:
            await send({"type": kind, "path": str(large), "file": file})
        finished.set()

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.to_end()
        await finished.wait()

    monkeypatch.setattr(os, "sendfile", broken_pipe)
    talk(protocol, app, conversation)


def test_what_is_sent_to_nobody_is_not_kept(protocol: Any) -> None:
    """The client leaves between a small message and the end of its turn."""
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

    async def conversation(client: Client) -> None:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
        await client.until(b"small")
        client.sock.close()
        await finished.wait()
        assert peak < 1_000_000

    talk(protocol, app, conversation)


def test_a_small_response_is_one_write_and_makes_nothing_for_the_turns_end(
    protocol: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled: list[CoalescingTransport] = []
    monkeypatch.setattr(CoalescingTransport, "_schedule", scheduled.append)

    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    async def conversation(client: Client) -> None:
        for _ in range(3):
            await client.hello()

    talk(protocol, app, conversation)
    assert scheduled == []


def test_a_head_with_a_length_leaves_with_what_follows_it(protocol: Any, large: Path) -> None:
    """Whatever that is, and however long it takes; alone where nothing follows."""
    may_go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=LARGE_BYTES if scope["path"] == "/file" else 5)
        may_go_on.clear()
        await asyncio.wait_for(may_go_on.wait(), 10)
        if scope["path"] == "/file":
            await send({"type": PATHSEND, "path": str(large)})
        elif scope["path"] == "/pieces":
            await body(send, b"he", more=True)
            await turns()
            await body(send, b"llo")
        elif scope["path"] == "/whole":
            await body(send, b"hello")

    async def conversation(client: Client) -> None:
        for target, first in (("/whole", b"hello"), ("/pieces", b"he"), ("/file", None)):
            await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target.encode())
            for _ in range(20):
                await turns()
                with pytest.raises(BlockingIOError):
                    client.sock.recv(1)
            may_go_on.set()
            answer = await client.receive()
            head, _, begun = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), answer
            if first is not None:
                assert begun == first, answer
                await client.exactly(5 - len(begun))
            else:
                rest = await client.exactly(LARGE_BYTES - len(begun))
                assert begun + rest == large.read_bytes()
        await client.hello()
        await client.send(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        await turns(20)
        may_go_on.set()
        assert (await client.to_end()).startswith(b"HTTP/1.1 200 "), "what was sent is told"

    talk(protocol, app, conversation)


def test_a_head_that_is_refused_holds_nothing_back(protocol: Any) -> None:
    piece = bytes(SMALL_MESSAGE_BYTES + 1)
    may_go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await turns()
        with pytest.raises(RuntimeError, match=r"http\.response\.start"):
            await start(send, length=5)
        await body(send, piece, more=True)
        await may_go_on.wait()
        await body(send, b"")

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(client.until(piece), 10)
        may_go_on.set()
        await client.until(b"0\r\n\r\n")

    talk(protocol, app, conversation)


@pytest.mark.parametrize("target", ["/hello", "/pathsend", "/ours", "/stream"])
def test_nothing_is_left_of_a_client_that_resets(protocol: Any, large: Path, target: str) -> None:
    """Neither the keep-alive timer nor a cycle of references keeps what its connection had."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if target == "/ours":
            await FileResponse(large)(scope, receive, send)
        elif target == "/stream":
            await start(send, length=TOO_MUCH)
            for _ in range(TOO_MUCH // 100_000):
                await body(send, b"x" * 100_000, more=True)
        else:
            await start(send, length=LARGE_BYTES)
            await send({"type": PATHSEND, "path": str(large)})

    async def conversation(client: Client) -> None:
        await client.hello()
        await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target.encode())
        await client.receive()
        await turns()
        if target == "/hello":
            await client.send(HELLO)
            await turns()  # whose answer is left unread: closing is a reset then
        [connection] = client.state.connections
        left = weakref.ref(connection)
        del connection
        gc.collect()
        gc.disable()
        try:
            client.sock.close()
            await turns()
            while client.state.tasks:
                await turns()
            assert left() is None
        finally:
            gc.enable()

    talk(protocol, app, conversation)


@pytest.mark.parametrize("size", [1000, 600_000])
@pytest.mark.parametrize("sendfile", [True, False])
def test_a_file_that_ends_early_closes_whatever_the_app_does(
    protocol: Any, large: Path, size: int, sendfile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end that the app sends would make a body that is short look whole.

    The client reads late: what was written before the file keeps the connection open for a while.
    """
    large.write_bytes(b"f" * size)
    if not sendfile:
        monkeypatch.setattr(os, "sendfile", _refuse_sendfile)
    caught = asyncio.Event()
    written = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal written
        transport = receive.__self__.transport  # type: ignore[attr-defined]
        await start(send)
        while not transport.real.get_write_buffer_size():
            await body(send, b"b" * 10_000, more=True)
            transport.flush()
            written += 10_000
        try:
            with large.open("rb") as file:
                message = {"type": ZEROCOPYSEND, "file": file, "count": size + 1}
                await send({**message, "more_body": True})
        except FileTruncated:
            await body(send, b"")
            caught.set()

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await turns(100)
        await client.until(b"\r\n\r\n")
        received = await client.to_end()
        assert caught.is_set()
        assert received.count(b"b") == written
        assert received.count(b"f") == size
        assert not received.endswith(b"0\r\n\r\n")

    talk(protocol, app, conversation)


@pytest.mark.parametrize("full", [True, False], ids=["before its turn", "midway"])
@pytest.mark.parametrize("sendfile", [True, False])
def test_a_file_that_the_app_gives_up_closes_whatever_it_does(
    protocol: Any, large: Path, full: bool, sendfile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sends next would be taken for the bytes that were announced."""
    if not sendfile:
        monkeypatch.setattr(os, "sendfile", _refuse_sendfile)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        transport = receive.__self__.transport  # type: ignore[attr-defined]
        await start(send)
        while full and not transport.real.get_write_buffer_size():
            await body(send, b"b" * 10_000, more=True)
            transport.flush()
        with large.open("rb") as file:
            message = {"type": ZEROCOPYSEND, "file": file, "more_body": True}
            sending = asyncio.ensure_future(send(message))
            await turns()
            assert not sending.done()
            sending.cancel()
            await asyncio.wait([sending])
        await body(send, b"behind the file")

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await turns(100)
        assert b"behind the file" not in await client.to_end()

    talk(protocol, app, conversation)


def test_headers_of_any_iterable(protocol: Any, large: Path) -> None:
    """A generator is asked once: by us for the length, and by uvicorn for the head."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = ((name, b"%d" % 100_000) for name in (b"content-length",))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": PATHSEND, "path": str(large)})

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await client.until(b"\r\n\r\n")
        assert b"content-length: 100000\r\n" in head.lower()
        assert await client.exactly(100_000) == large.read_bytes()[:100_000]
        await client.hello()

    talk(protocol, app, conversation)


def test_runs_without_an_offset_move_on(protocol: Any, large: Path) -> None:
    data = large.read_bytes()
    positions = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=2 * 200_000 + 10 + 5)
        fd = os.open(large, os.O_RDONLY)
        try:
            os.lseek(fd, 1000, os.SEEK_SET)
            for count in (200_000, 10, 0):
                message: Message = {"type": ZEROCOPYSEND, "file": fd, "count": count}
                await send({**message, "more_body": True})
                positions.append(os.lseek(fd, 0, os.SEEK_CUR))
            with large.open("rb") as file:
                file.seek(7)
                await send(
                    {"type": ZEROCOPYSEND, "file": file, "count": 200_000, "more_body": True}
                )
                positions.append(file.tell())
                await send({"type": ZEROCOPYSEND, "file": file, "offset": 3, "count": 5})
                positions.append(file.tell())
        finally:
            os.close(fd)

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        expected = data[1000:201_010] + data[7:200_007] + data[3:8]
        assert await client.exactly(len(expected)) == expected
        await client.hello()
        assert positions == [201_000, 201_010, 201_010, 200_007, 200_007]

    talk(protocol, app, conversation)


@pytest.mark.parametrize("kind", ["response", "static", "middleware"])
def test_parts_of_files(protocol: Any, large: Path, kind: str) -> None:
    data = large.read_bytes()
    app: Any = {
        "response": FileResponse(large, media_type="text/plain"),
        "static": StaticFiles(directory=large.parent),
        "middleware": ASGIFast(FileResponse(large, media_type="text/plain")),
    }[kind]

    async def conversation(client: Client) -> None:
        async def ask(method: bytes, range_header: bytes) -> bytes:
            request = b"%b /large HTTP/1.1\r\nHost: x\r\nRange: bytes=%b\r\n\r\n"
            await client.send(request % (method, range_header))
            head = await client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 " if method == b"HEAD" else b"HTTP/1.1 206 ")
            return head

        for first, last in ((5, 9), (100_000, 399_999), (0, LARGE_BYTES - 1)):
            await ask(b"GET", b"%d-%d" % (first, last))
            assert await client.exactly(last + 1 - first) == data[first : last + 1]
        head = await ask(b"GET", b"5-9,200000-399999")
        boundary = head.partition(b"boundary=")[2].partition(b"\r\n")[0]
        body = await client.until(b"\r\n--" + boundary + b"--\r\n")
        assert b"\r\n\r\n" + data[5:10] + b"\r\n--" + boundary in body
        assert b"\r\n\r\n" + data[200_000:400_000] + b"\r\n--" + boundary in body
        await ask(b"HEAD", b"5-9")
        await client.hello()
        before = open_descriptors()
        for _ in range(3):
            await ask(b"GET", b"100000-399999")
            await client.exactly(300_000)
            await client.hello()
        assert open_descriptors() <= before

    talk(protocol, app, conversation)


def test_head_whose_app_is_asked_for_get(protocol: Any, large: Path) -> None:
    """As middleware does for apps that know no HEAD."""
    file = FileResponse(large)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await file({**scope, "method": "GET"}, receive, send)

    async def conversation(client: Client) -> None:
        for part in (b"0-99", b"0-99999", b"5-9,200000-399999"):
            request = b"HEAD / HTTP/1.1\r\nHost: x\r\nRange: bytes=%b\r\n\r\n" % part
            await client.send(request + HELLO)
            assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 206 ")
            assert (await client.until(b"hello")).startswith(b"HTTP/1.1 200 ")

    talk(protocol, app, conversation)


def test_a_file_behind_a_body_that_the_client_reads_late(protocol: Any, large: Path) -> None:
    before = b"b" * 500_000
    sent = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=len(before) + LARGE_BYTES)
        await body(send, before, more=True)
        sent.set()
        with large.open("rb") as file:
            await send({"type": ZEROCOPYSEND, "file": file})

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await sent.wait()
        await turns()
        await client.until(b"\r\n\r\n")
        assert await client.exactly(len(before) + LARGE_BYTES) == before + large.read_bytes()
        await client.hello()

    talk(protocol, app, conversation)


def test_extensions_are_each_requests_own(protocol: Any) -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(set(scope["extensions"]))
        scope["extensions"]["of.this.request"] = {}
        await start(send, length=2)
        await body(send, b"ok")

    async def conversation(client: Client) -> None:
        for _ in range(2):
            await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await client.until(b"\r\n\r\nok")

    talk(protocol, app, conversation)
    assert seen[0] == seen[1] >= {PATHSEND, ZEROCOPYSEND}


class Upgraded(asyncio.Protocol):
    """Stands for uvicorn's WebSocket protocol: says what it was made of, and answers."""

    transports: list[Any]

    def __init__(self, **made_of: Any) -> None:
        assert sorted(made_of) == ["app_state", "config", "server_state"]

    def connection_made(self, transport: Any) -> None:
        self.transports.append(transport)

    def data_received(self, data: bytes) -> None:
        self.transports[-1].write(b"upgraded")


def test_an_upgraded_connection_is_uvicorns_alone(protocol: Any, large: Path) -> None:
    """With nothing of ours between, and no descriptor of ours left, though a file went out."""
    transports: list[Any] = []
    Upgraded.transports = transports

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=LARGE_BYTES)
        await send({"type": PATHSEND, "path": str(large)})

    async def conversation(client: Client) -> None:
        await client.hello()
        before = open_descriptors()
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        await client.exactly(LARGE_BYTES)
        await client.hello()
        assert open_descriptors() <= before
        await client.send(
            b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert await client.exactly(8) == b"upgraded"
        [transport] = transports
        assert not isinstance(transport, CoalescingTransport)

    talk(protocol, app, conversation, ws=Upgraded)


# A file system without sendfile


def _refuse_sendfile(*args: Any) -> int:
    raise OSError(errno.EINVAL, "not on this file system")


@pytest.fixture
def no_sendfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sendfile", _refuse_sendfile)


@pytest.mark.usefixtures("no_sendfile")
@pytest.mark.parametrize("chunked", [True, False])
def test_files_are_read_where_there_is_no_sendfile(
    protocol: Any, large: Path, chunked: bool
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=None if chunked else LARGE_BYTES)
        await send({"type": PATHSEND, "path": str(large)})

    async def conversation(client: Client) -> None:
        for _ in range(2):
            await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await client.until(b"\r\n\r\n")
            if chunked:
                assert await client.until(b"\r\n") == b"%x\r\n" % LARGE_BYTES
            assert await client.exactly(LARGE_BYTES) == large.read_bytes()
            if chunked:
                assert await client.exactly(7) == b"\r\n0\r\n\r\n"
        await client.hello()

    talk(protocol, app, conversation)


@pytest.mark.parametrize("chunked", [True, False])
def test_files_are_read_where_sendfile_cannot_be_used_at_all(
    protocol: Any, large: Path, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over TLS."""
    monkeypatch.delattr(os, "sendfile")
    data = large.read_bytes()
    expected = data[1000:1_001_000] + data[5:105] + data

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=None if chunked else len(expected))
        with large.open("rb") as file:
            for offset, count in ((1000, 1_000_000), (5, 100), (0, LARGE_BYTES)):
                message = {"type": ZEROCOPYSEND, "file": file, "offset": offset, "count": count}
                await send({**message, "more_body": count < LARGE_BYTES})

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        if not chunked:
            assert await client.exactly(len(expected)) == expected
        else:
            received = b""
            while size := int(await client.until(b"\r\n"), 16):
                received += await client.exactly(size)
                assert await client.exactly(2) == b"\r\n"
            assert await client.exactly(2) == b"\r\n"
            assert received == expected
        await client.hello()

    talk(protocol, app, conversation)


@pytest.mark.usefixtures("no_sendfile")
def test_others_have_turns_while_a_file_is_read_for_a_quick_client(
    protocol: Any, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes all at once: no write is ever waited for."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=LARGE_BYTES)
        monkeypatch.setattr(CoalescingTransport, "write", lambda transport, data: None)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(others())
        with large.open("rb") as file:
            await send({"type": ZEROCOPYSEND, "file": file})
        beside.cancel()
        assert turns >= LARGE_BYTES // BLOCK_BYTES - 2
        told.append("enough")

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await client.to_end()

    told: list[str] = []
    talk(protocol, app, conversation)
    assert told == ["enough"]


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("sendfile", ["refused", "absent"])
def test_reading_is_held_up_by_a_client_that_does_not_read(
    protocol: Any, tmp_path: Path, leaves: bool, sendfile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sendfile == "refused":
        monkeypatch.setattr(os, "sendfile", _refuse_sendfile)
    else:
        monkeypatch.delattr(os, "sendfile")  # as over TLS
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(TOO_MUCH)
    started, finished = asyncio.Event(), asyncio.Event()
    read = 0
    preadv, pread = os.preadv, os.pread

    def counted_preadv(fd: int, buffers: Any, *args: int) -> int:
        nonlocal read
        count = preadv(fd, buffers, *args)
        read += count
        started.set()
        return count

    def counted_pread(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        read += size
        return pread(fd, size, offset)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=TOO_MUCH)
        try:
            await send({"type": PATHSEND, "path": str(path)})
        finally:
            finished.set()

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await started.wait()
        await turns()
        assert read < 2_000_000
        if leaves:
            client.sock.close()
        else:
            await client.until(b"\r\n\r\n")
            assert await client.exactly(TOO_MUCH) == bytes(TOO_MUCH)
        await finished.wait()
        while leaves and client.state.tasks:  # what the app has handed over
            await asyncio.sleep(0)
        assert (read < 3_000_000) == leaves

    monkeypatch.setattr(os, "preadv", counted_preadv)
    monkeypatch.setattr(os, "pread", counted_pread)
    talk(protocol, app, conversation)


@pytest.mark.usefixtures("no_sendfile")
def test_a_file_that_ends_early_closes_where_there_is_no_sendfile(
    protocol: Any, large: Path
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=LARGE_BYTES + 1)
        await send({"type": PATHSEND, "path": str(large)})

    async def conversation(client: Client) -> None:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        assert await client.to_end() == large.read_bytes()

    talk(protocol, app, conversation)

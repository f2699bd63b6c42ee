"""uvicorn's zttp protocols: HTTP/2 in this process and live, and what HTTP/1.1 has of its own.

HTTP/1.1 is also among the servers of the other suites.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import uvicorn
from asgifast import ASGIFast, FileResponse
from asgifast.messages import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from tests.support.descriptors import open_descriptors
from tests.support.http import Connection
from tests.support.http2 import Client
from tests.support.servers import LiveServer

from . import protocols
from .servers import asgi_server
from .support import Http2, expect_http2

pytest.importorskip("zttp", reason="zttp is not installed (Python 3.11 or newer): pip install zttp")
pytest.importorskip("uvicorn.protocols.http.auto_zttp_impl", reason="this uvicorn has no zttp")

from asgifast.uvicorn import ZttpH2Protocol, ZttpProtocol

from tests.support.tls import client_context, write_certificate

PATHSEND = "http.response.pathsend"
ZEROCOPYSEND = "http.response.zerocopysend"
AUTO = "ours-AutoZttpProtocol-uvloop"
LARGE_BYTES = 3_000_000
PATIENCE_S = 60.0  # a busy machine takes seconds where a quiet one takes tenths


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(LARGE_BYTES))
    return path


@pytest.fixture(scope="module")
def server(files: Path) -> Any:
    with asgi_server(AUTO, "tests.asgi.app:fast", files) as server:
        yield server


# In this process


class Wire:
    """A transport whose other end is a client of HTTP/2 in this process."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.protocol: Any = None
        self.is_closed = self.is_paused = False

    def write(self, data: bytes) -> None:
        self.client.take(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def is_reading(self) -> bool:
        return not self.is_paused

    def pump(self) -> None:
        """Carry over what the client has to say, if it is read."""
        data = b"" if self.is_paused else self.client.state.data_to_send()
        if data and isinstance(self.protocol, asyncio.BufferedProtocol):
            buffer: Any = self.protocol.get_buffer(-1)
            buffer[: len(data)] = data
            self.protocol.buffer_updated(len(data))
        elif data:
            self.protocol.data_received(data)

    async def upload(self, streams: Sequence[int], size: int) -> int:
        """Send so many bytes on each stream, as long as they are read; returns how many were."""
        left = dict.fromkeys(streams, size)
        state = self.client.state
        while not self.is_paused and any(left.values()):
            for stream in streams:
                window = state.local_flow_control_window(stream)
                count = min(left[stream], window, state.max_outbound_frame_size)
                if count:
                    state.send_data(stream, bytes(count))
                    left[stream] -= count
            self.pump()
            await asyncio.sleep(0)  # what it answers is written at the turn's end
        return len(streams) * size - sum(left.values())

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


@asynccontextmanager
async def connected(app: ASGIApp, client: Client) -> AsyncIterator[Wire]:
    config = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    state = ServerState()
    wire = Wire(client)
    wire.protocol = ZttpH2Protocol(config=config, server_state=state, app_state={})
    wire.protocol.connection_made(wire)
    client.begin()
    wire.pump()
    yield wire
    wire.protocol.connection_lost(None)
    async with asyncio.timeout(PATIENCE_S):
        while state.tasks:
            await asyncio.sleep(0)


async def settled(condition: Callable[[], object], wire: Wire) -> None:
    """Go on until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            wire.pump()
            await asyncio.sleep(0)


async def stands_still(measure: Callable[[], int]) -> int:
    """Go on until nothing moves any more."""
    same, last = 0, measure()
    while same < 50:
        await asyncio.sleep(0.001)
        now = measure()
        same, last = (same + 1 if now == last else 0), now
    return last


def start(size: int | None = None) -> Message:
    headers = [] if size is None else [(b"content-length", b"%d" % size)]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def part(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def file_messages(path: Path, kind: str) -> list[Message]:
    if kind == PATHSEND:
        return [start(LARGE_BYTES), {"type": PATHSEND, "path": str(path)}]
    return [
        start(LARGE_BYTES + 2),
        part(b"<"),
        {"type": ZEROCOPYSEND, "file": path.open("rb"), "more_body": True},
        part(b">", more=False),
    ]


def sending(messages: list[Message], said: list[str] | None = None) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
            if said is not None:
                said.append(message["type"])

    return app


def test_metrics_look_at_a_connection_whose_requests_come_and_go() -> None:
    """They do so in another thread, which any instruction may hand the interpreter back from."""
    protocol = ZttpH2Protocol.__new__(ZttpH2Protocol)
    cycles: dict[int, Any] = {1: object()}
    protocol.cycles = cycles
    numbers = itertools.count(2)

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_name != "cycle":
            return None
        frame.f_trace_opcodes = True
        cycles[next(numbers)] = object()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = protocol.cycle
    finally:
        sys.settrace(before)
    assert found is cycles[1]
    assert len(cycles) > 3


def test_an_app_that_asks_for_a_body_that_does_not_come() -> None:
    """uvicorn's own protocol has it wait for as long as the client does."""
    messages = list[Message]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        await send(start(0))
        await send(part(b"", more=False))

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask()
            await settled(lambda: client.answers[stream].ended, wire)

    asyncio.run(run())
    assert messages == [{"type": "http.request", "body": b"", "more_body": False}]


def test_what_comes_of_an_upload_while_the_app_is_busy_is_one_message() -> None:
    size = 200_000
    messages = list[Message]()
    busy = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        await busy.wait()
        messages.append(await receive())
        await send(start(0))
        await send(part(b"", more=False))

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask(method="POST", body=b"first", ends=False)
            await settled(lambda: messages, wire)
            assert await wire.upload([stream], size) == size
            client.state.end_stream(stream)
            wire.pump()
            busy.set()
            await settled(lambda: client.answers[stream].ended, wire)

    asyncio.run(run())
    assert [len(message["body"]) for message in messages] == [5, size]
    assert [message["more_body"] for message in messages] == [True, False]


def test_windows_open_again_without_the_app_having_its_turn() -> None:
    """An app that takes long over each piece would have the client wait for as long."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "http.request":
            pass

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask(method="POST", body=b"", ends=False)
            wire.pump()
            window = client.state.local_flow_control_window(stream)
            for _ in range(3):
                client.state.send_data(stream, bytes(16_384))
            wire.pump()
            assert client.state.local_flow_control_window(stream) > window - 3 * 16_384

    asyncio.run(run())


def test_uploads_that_nobody_receives_hold_their_client_up_together() -> None:
    received = list[int]()
    busy = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await busy.wait()
        more = True
        while more:
            message = await receive()
            received.append(len(message["body"]))
            more = message["more_body"]
        await send(start(0))
        await send(part(b"", more=False))

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            streams = [client.ask(method="POST", ends=False) for _ in range(10)]
            wire.pump()
            await asyncio.sleep(0)
            most = 10 * 64 * 1024 + 192 * 1024 + 10 * 16 * 1024
            sent = await wire.upload(streams, 1_000_000)
            assert sent <= most
            busy.set()
            while sent < 10_000_000:
                await settled(lambda: not wire.is_paused, wire)
                sent += await wire.upload(streams, min(1_000_000, (10_000_000 - sent) // 10))
            for stream in streams:
                client.state.end_stream(stream)
            await settled(lambda: all(client.answers[s].ended for s in streams), wire)
            assert sum(received) == sent

    asyncio.run(run())


def test_streams_that_send_in_one_turn_of_the_loop_wait_for_nobody() -> None:
    """Two event streams on one connection, each of which has a small message."""

    async def run() -> None:
        event, end = asyncio.Event(), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(start())
            await event.wait()
            await send(part(scope["path"].encode()))
            await end.wait()
            await send(part(b"", more=False))

        client = Client()
        async with connected(app, client) as wire:
            streams = {client.ask(path): path.encode() for path in ("/1", "/2", "/3")}
            await settled(lambda: all(client.answers[s].headers for s in streams), wire)
            event.set()
            await settled(lambda: all(client.answers[s].body for s in streams), wire)
            end.set()
            await settled(lambda: all(client.answers[s].ended for s in streams), wire)
            assert {s: client.answers[s].body for s in streams} == streams

    asyncio.run(run())


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


@pytest.mark.parametrize("size", [100, 20_000])
def test_an_app_is_held_up_by_a_window_that_does_not_open(size: int) -> None:
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(start())
        while True:
            await send(part(bytes(size)))
            sent += size
            await asyncio.sleep(0)

    async def run() -> None:
        client = Client(window=5000, reads=False)
        async with connected(app, client) as wire:
            stream = client.ask()
            wire.pump()
            held_at = await stands_still(lambda: sent)
            assert held_at < 300_000
            client.open(100_000)
            client.open(100_000, stream)
            wire.pump()
            assert await stands_still(lambda: sent) > held_at
            client.state.reset_stream(stream)
            wire.pump()
            # uvicorn ignores what is sent after that; the app is not held any more.
            before = sent
            await settled(lambda: sent > before + 1_000_000, wire)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

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


def test_more_than_the_content_length_is_an_error(large: Path) -> None:
    errors: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(3))
        try:
            await send(part(b"ab"))
            await send(part(b"cd"))
            await send(part(b"", more=False))
        except RuntimeError as error:
            errors.append(str(error))
            raise

    async def run() -> None:
        client = Client()
        async with connected(app, client) as wire:
            stream = client.ask()
            await settled(lambda: client.answers[stream].reset is not None, wire)
            assert len(client.answers[stream].body) <= 3

    asyncio.run(run())
    assert errors == ["Response content longer than Content-Length"]


# Live


def test_http_2_with_prior_knowledge(server: LiveServer, files: Path) -> None:
    expect_http2(server, files)


@pytest.mark.parametrize("close", [True, False])
def test_the_head_of_a_large_file_over_http_1_1(large: Path, close: bool) -> None:
    """As that of a small one, which zttp makes."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**start(LARGE_BYTES), "headers": [(b"x-Transfer-Encoding", b"chunked"),
                    (b"content-length", b"%d" % LARGE_BYTES)]})  # fmt: skip
        await send({"type": PATHSEND, "path": str(large)})

    async def conversation(client: protocols.Client) -> None:
        request = b"GET / HTTP/1.1\r\nHost: x\r\n"
        await client.send(request + b"Connection: close\r\n" * close + b"\r\n")
        head = (await client.until(b"\r\n\r\n")).lower().split(b"\r\n")
        assert (b"connection: close" in head) is close
        assert b"content-length: %d" % LARGE_BYTES in head
        assert b"x-transfer-encoding: chunked" in head
        assert b"transfer-encoding: chunked" not in head
        assert await client.exactly(LARGE_BYTES) == large.read_bytes()

    protocols.talk(ZttpProtocol, app, conversation)


def test_http_1_1_beside_it(server: LiveServer, files: Path) -> None:
    with Connection(server.address) as connection:
        assert connection.request("/pathsend").body == (files / "large").read_bytes()
        assert connection.request("/hello").body == b"hello"


def test_http_2_by_alpn(files: Path, tmp_path: Path) -> None:
    context = client_context("h2", "http/1.1")
    extra = ("--ssl-certfile", write_certificate(tmp_path / "cert"))
    with asgi_server(AUTO, "tests.asgi.app:app", files, extra=extra) as server:
        assert isinstance(server.address, tuple)
        plain = socket.create_connection(server.address, 20.0)
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            assert sock.selected_alpn_protocol() == "h2"
            http2 = Http2(sock, Client())
            assert http2.get("/pathsend").body == (files / "large").read_bytes()

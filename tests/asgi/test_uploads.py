"""Request bodies under uvicorn's HTTP/1.1 protocols: delivery to the app, and backpressure."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
import weakref
from typing import Any

import pytest
from asgifast.messages import Message, Receive, Scope, Send
from asgifast.protocols.receiving import ReceivedBody
from starlette.datastructures import UploadFile
from starlette.requests import Request

from tests.support.process import uncollected
from tests.support.tls import client_context

from .protocols import (
    HELLO,
    PROTOCOLS,
    TOO_MUCH,
    WEBSOCKET,
    Client,
    Upgraded,
    body,
    iterations,
    serving,
    serving_over_tls,
    start,
)
from .support import body as part
from .support import chunk, length, sending, start_message

# More than the limit of unread bytes, and than the kernel's buffers between client and server.
UPLOAD = os.urandom(3_000_000)
PIECE_BYTES = 10_000

each_loop = pytest.mark.usefixtures("loop")


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> Any:
    return PROTOCOLS[request.param]


def post(size: int | None, *fields: bytes) -> bytes:
    """Return the headers of an upload of so many bytes, or of a chunked one for None."""
    framing = b"Transfer-Encoding: chunked" if size is None else b"Content-Length: %d" % size
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: x", framing, *fields, b"", b""])


async def all_of(receive: Receive) -> bytes:
    data = bytearray()
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        assert type(message["body"]) is bytes
        data += message["body"]
        if not message["more_body"]:
            return bytes(data)


async def response(send: Send, data: bytes = b"ok") -> None:
    await start(send, length=len(data))
    await body(send, data)


async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that receives UPLOAD."""
    assert await all_of(receive) == UPLOAD
    await response(send, b"whole")


@each_loop
@pytest.mark.parametrize("chunked", [False, True])
async def test_upload_comes_as_it_was_sent(protocol: Any, chunked: bool) -> None:
    """Even if the client stalls, and the next request already follows."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await whole(scope, receive, send)
        assert await receive() == {"type": "http.disconnect"}

    async with serving(protocol, app) as client:
        parts = [UPLOAD[:5], UPLOAD[5:1_000_000], UPLOAD[1_000_000:]]
        await client.send(post(None if chunked else len(UPLOAD)))
        for part in parts:
            await client.send(chunk(part) if chunked else part)
            await iterations()
        await client.send((b"0\r\n\r\n" if chunked else b"") + HELLO)
        await client.until(b"\r\n\r\nwhole")
        await client.until(b"\r\n\r\nhello")
        await client.hello()


@each_loop
async def test_pieces_for_a_busy_app_are_one_message(protocol: Any) -> None:
    busy, messages = asyncio.Event(), list[Message]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        await busy.wait()
        messages.append(await receive())
        await response(send)

    async with serving(protocol, app) as client:
        await client.send(post(21 * PIECE_BYTES))
        for _ in range(21):
            await client.send(bytes(PIECE_BYTES))
            await iterations()
        busy.set()
        await client.until(b"\r\n\r\nok")
        assert sum(len(message["body"]) for message in messages) == 21 * PIECE_BYTES
        assert [message["more_body"] for message in messages] == [True, False]


async def offer(client: Client, data: bytes) -> int:
    """Send the data repeatedly until the socket is full. Return the number of bytes sent."""
    taken = 0
    refused = 0
    while refused < 3 and taken < TOO_MUCH:
        try:
            taken += client.sock.send(data)
            refused = 0
        except BlockingIOError:
            refused += 1
        await iterations()
    return taken


@each_loop
@pytest.mark.parametrize("begun", [False, True], ids=["before the first", "after the first"])
async def test_app_that_does_not_receive_holds_up_its_client(protocol: Any, begun: bool) -> None:
    busy, peaks = asyncio.Event(), list[int]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await receive()
        tracemalloc.start()
        try:
            await busy.wait()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert (await receive())["more_body"]

    async with serving(protocol, app) as client:
        await client.send(post(TOO_MUCH) + b"first")
        await iterations()
        assert await offer(client, UPLOAD[:65_536]) < 2_000_000
        busy.set()
        while client.state.tasks:
            await iterations()
    assert peaks[0] < 1_500_000


def test_received_crumbs_take_no_more_than_their_bytes() -> None:
    crumbs = [b"%02d" % (number % 100) for number in range(50_000)]
    arrived = ReceivedBody()
    tracemalloc.start()
    try:
        for crumb in crumbs:
            arrived += crumb
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    arrived += UPLOAD
    arrived += b"end"
    assert bytes(arrived) == b"".join(crumbs) + UPLOAD + b"end"
    assert arrived.size == 0


def test_body_received_at_once_is_not_copied() -> None:
    arrived = ReceivedBody()
    arrived += UPLOAD
    assert bytes(arrived) is UPLOAD


@each_loop
@pytest.mark.parametrize("waits", [False, True])
async def test_client_leaving_an_upload_disconnects_the_app(protocol: Any, waits: bool) -> None:
    received, has_left = asyncio.Event(), asyncio.Event()
    messages: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        received.set()
        if not waits:
            await has_left.wait()
        messages.extend([await receive(), await receive()])

    async with serving(protocol, app) as client:
        await client.send(post(1000) + b"half")
        await received.wait()
        if not waits:
            await client.send(b"more")
            await iterations()
        client.sock.close()
        await iterations()
        has_left.set()
        while client.state.tasks:
            await iterations()
    assert messages[0] == {"type": "http.request", "body": b"half", "more_body": True}
    assert messages[1:] == [{"type": "http.disconnect"}] * 2


@each_loop
async def test_client_leaving_an_upload_leaves_no_cycle(
    protocol: Any,
) -> None:
    """Even after much data at once, no reference cycle keeps the connection in memory."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "http.request":
            pass

    async with serving(protocol, app) as client:
        await client.send(post(TOO_MUCH) + UPLOAD)
        await iterations()
        connection: Any = next(iter(client.state.connections))
        assert isinstance(connection.transport.real.get_protocol(), asyncio.BufferedProtocol)
        left = weakref.ref(connection)
        del connection
        with uncollected():
            client.sock.close()
            while client.state.tasks or client.state.connections:
                await iterations()
            await iterations()
            assert left() is None


@each_loop
@pytest.mark.parametrize("receives", [False, True])
async def test_expect_continue_is_answered_when_app_receives(protocol: Any, receives: bool) -> None:
    """The server sends 100 Continue when the app calls receive(), and not otherwise."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        data = await all_of(receive) if receives else b""
        await response(send, b"%d" % len(data))

    async with serving(protocol, app) as client:
        first = await client.ask(post(300_000, b"Expect: 100-continue"))
        if receives:
            assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(bytes(300_000))
            await client.until(b"\r\n\r\n300000")
            await client.hello()
        else:
            assert first.startswith(b"HTTP/1.1 200 ")


@each_loop
async def test_app_ignoring_the_body_keeps_the_connection(protocol: Any) -> None:
    """The remaining bytes are read and dropped. The connection stays open."""
    arrived = asyncio.Event()

    app = sending(arrived.wait, start_message(length(13)), part(b"no, thank you", False))
    async with serving(protocol, app) as client:
        await client.send(post(len(UPLOAD)))
        await iterations()
        await client.send(UPLOAD[:100_000])
        await iterations()
        connection: Any = next(iter(client.state.connections))
        arrived.set()
        await client.until(b"no, thank you")
        await iterations()
        assert not bytes(connection.cycle.body)
        await client.send(UPLOAD[100_000:])
        await client.hello()


@each_loop
async def test_upgrade_behind_an_upload_gets_later_bytes(protocol: Any) -> None:
    """Later bytes go to the other protocol, even after much data at once."""
    Upgraded.transports = []
    async with serving(protocol, whole, ws=Upgraded) as client:
        await client.send(post(len(UPLOAD)) + UPLOAD)
        await client.until(b"\r\n\r\nwhole")
        connection: Any = next(iter(client.state.connections))
        assert isinstance(connection.transport.real.get_protocol(), asyncio.BufferedProtocol)
        await client.send(WEBSOCKET)
        assert await client.exactly(8) == b"upgraded"
        await client.send(b"a frame")
        assert await client.exactly(8) == b"upgraded"


@each_loop
async def test_form_with_a_file_is_parsed(protocol: Any) -> None:
    """Starlette's parser writes to a file in a thread while the remaining bytes arrive."""
    pytest.importorskip(
        "python_multipart", reason="python-multipart is missing: pip install python-multipart"
    )
    form = (
        b'--end\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + UPLOAD
        + b'\r\n--end\r\nContent-Disposition: form-data; name="word"\r\n\r\nyes\r\n--end--\r\n'
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with Request(scope, receive).form() as fields:
            file = fields["file"]
            assert isinstance(file, UploadFile)
            assert await file.read() == UPLOAD
            assert fields["word"] == "yes"
        await response(send, b"whole")

    async with serving(protocol, app) as client:
        await client.send(post(len(form), b"Content-Type: multipart/form-data; boundary=end"))
        await client.send(form)
        await client.until(b"\r\n\r\nwhole")
        await client.hello()


@each_loop
async def test_upload_arrives_over_tls(protocol: Any) -> None:
    async with serving_over_tls(protocol, whole) as (address, _):
        reader, writer = await asyncio.open_connection(
            *address, ssl=client_context(), server_hostname="localhost"
        )
        for _ in range(2):
            writer.write(post(len(UPLOAD)) + UPLOAD)
            await reader.readuntil(b"\r\n\r\nwhole")
        writer.close()
        await writer.wait_closed()

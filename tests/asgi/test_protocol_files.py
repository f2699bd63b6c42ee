"""The uvicorn protocols in this process: files, their ranges, and clients that disconnect."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import weakref
from pathlib import Path
from typing import Any

import pytest
from asgifast import FileResponse
from asgifast.messages import PATHSEND, ZEROCOPYSEND, Message, Receive, Scope, Send

from tests.support.process import uncollected
from wsgifast.sockets.sending import FileTruncated

from .protocols import (
    GET,
    HELLO,
    LARGE_BYTES,
    TOO_MUCH,
    body,
    iterations,
    refuse_sendfile,
    serving,
    start,
)
from .support import body as part
from .support import length, pathsend, raising, sending, start_message, zerocopy

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


@pytest.mark.parametrize("path", [True, False])
async def test_head_of_messages_and_files_has_no_body(
    protocol: Any, large: Path, opened: io.BufferedReader, path: bool
) -> None:
    files = zerocopy(opened, more_body=True), zerocopy(opened, count=5, more_body=True)
    end = pathsend(large) if path else part(b"the end", False)
    app = sending(start_message(), part(b"small"), iterations, *files, end)
    async with serving(protocol, app) as client:
        first = await client.ask(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n" + HELLO)
        second = await client.until(b"hello")
        assert first.startswith(b"HTTP/1.1 200 ")
        assert second.startswith(b"HTTP/1.1 200 "), "no byte of a body between the two"


@pytest.mark.parametrize("kind", [PATHSEND, ZEROCOPYSEND])
async def test_client_ending_its_half_gets_the_file(
    protocol: Any, large: Path, opened: io.BufferedReader, kind: str
) -> None:
    app = sending(
        start_message(length(LARGE_BYTES)), {"type": kind, "path": str(large), "file": opened}
    )
    async with serving(protocol, app) as client:
        await client.ask()
        client.sock.shutdown(socket.SHUT_WR)
        await iterations()
        assert await client.to_end() == large.read_bytes()


@pytest.mark.parametrize("behind", [b"", HELLO], ids=["at once", "pipelined"])
@pytest.mark.parametrize("read_first", [True, False])
async def test_malformed_request_behind_keeps_the_response(
    protocol: Any, large: Path, opened: io.BufferedReader, behind: bytes, read_first: bool
) -> None:
    """It is refused after the earlier responses, or the connection is closed after them."""
    start = start_message(length(LARGE_BYTES + 5))
    app = sending(iterations, start, zerocopy(opened, more_body=True), part(b"after", False))
    async with serving(protocol, app) as client:
        get, broken = GET, behind + b"\0no request\r\n\r\n"
        await client.ask(get if read_first else get + broken)
        if read_first:
            await client.send(broken)
        await iterations()
        assert await client.exactly(LARGE_BYTES + 5) == large.read_bytes() + b"after"
        if behind:
            response = await client.until(b"hello")
            assert response.startswith(b"HTTP/1.1 200 ")
        refused = await client.to_end()
        # The httptools protocol closes the connection, like uvicorn's own does after a response.
        is_logged = protocol.__name__ != "HttpToolsProtocol"
        assert refused[:13] == (b"HTTP/1.1 400 " if is_logged else b"")


@pytest.mark.parametrize("kind", [PATHSEND, ZEROCOPYSEND])
async def test_client_leaving_a_file_does_not_stop_the_app(
    protocol: Any, sparse: Path, kind: str
) -> None:
    """The app continues, like an app that sends bytes."""
    finished = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=TOO_MUCH)
        with sparse.open("rb") as file:
            await send({"type": kind, "path": str(sparse), "file": file, "more_body": True})
        if kind == ZEROCOPYSEND:
            await body(send, b"")
        finished.set()

    async with serving(protocol, app) as client:
        await client.send(GET)
        await client.until(b"\r\n\r\n" + bytes(1000))
        client.sock.close()
        await finished.wait()


@pytest.mark.parametrize("kind", [PATHSEND, ZEROCOPYSEND])
async def test_client_gone_before_a_file_does_not_stop_app(
    protocol: Any, large: Path, opened: io.BufferedReader, kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The kernel rejects the first byte of the file."""
    finished = asyncio.Event()

    message = {"type": kind, "path": str(large), "file": opened}
    app = sending(start_message(length(LARGE_BYTES)), message, finished.set)
    monkeypatch.setattr(os, "sendfile", raising(BrokenPipeError))
    async with serving(protocol, app) as client:
        await client.send(GET)
        await client.to_end()
        await finished.wait()


async def test_headers_with_length_leave_with_what_follows(protocol: Any, large: Path) -> None:
    """Delayed messages leave with the next message, whenever it comes.

    They leave alone if no message follows.
    """
    may_go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=LARGE_BYTES if scope["path"] == "/file" else 5)
        may_go_on.clear()
        await asyncio.wait_for(may_go_on.wait(), 60)
        if scope["path"] == "/file":
            await send({"type": PATHSEND, "path": str(large)})
        elif scope["path"] == "/pieces":
            await body(send, b"he", more=True)
            await iterations()
            await body(send, b"llo")
        elif scope["path"] == "/whole":
            await body(send, b"hello")

    async with serving(protocol, app) as client:
        for target, first in (("/whole", b"hello"), ("/pieces", b"he"), ("/file", None)):
            await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target.encode())
            for _ in range(20):
                await iterations()
                with pytest.raises(BlockingIOError):
                    client.sock.recv(1)
            may_go_on.set()
            response = await client.receive()
            start_message, _, begun = response.partition(b"\r\n\r\n")
            assert start_message.startswith(b"HTTP/1.1 200 "), response
            if first is not None:
                assert begun == first, response
                await client.exactly(5 - len(begun))
            else:
                rest = await client.exactly(LARGE_BYTES - len(begun))
                assert begun + rest == large.read_bytes()
        await client.hello()
        await client.send(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        await iterations(20)
        may_go_on.set()
        assert (await client.to_end()).startswith(b"HTTP/1.1 200 "), "its head is sent all the same"


@pytest.mark.parametrize("target", ["/hello", "/pathsend", "/ours", "/stream"])
async def test_reset_connection_leaves_no_cycle(protocol: Any, large: Path, target: str) -> None:
    """The connection is freed at once: no keep-alive timer and no reference cycle refers to it."""

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

    async with serving(protocol, app) as client:
        await client.hello()
        await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target.encode())
        await client.receive()
        await iterations()
        if target == "/hello":
            await client.send(HELLO)
            await iterations()  # the client has not read its response, so it resets the connection
        [connection] = client.state.connections
        left = weakref.ref(connection)
        del connection
        with uncollected():
            client.sock.close()
            await iterations()
            while client.state.tasks:
                await iterations()
            assert left() is None


@pytest.mark.parametrize("size", [1000, 600_000])
@pytest.mark.parametrize("sendfile", [True, False])
async def test_file_ending_early_closes_whatever_app_does(
    protocol: Any, large: Path, size: int, sendfile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last message of the app would make a short body look complete.

    The client reads late. Until then, the data before the file delays the close.
    """
    large.write_bytes(b"f" * size)
    if not sendfile:
        monkeypatch.setattr(os, "sendfile", refuse_sendfile)
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

    async with serving(protocol, app) as client:
        await client.send(GET)
        await iterations(100)
        await client.until(b"\r\n\r\n")
        received = await client.to_end()
        await asyncio.wait_for(caught.wait(), 20)
        assert received.count(b"b") == written
        assert received.count(b"f") == size
        assert not received.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("full", [True, False], ids=["waiting", "midway"])
@pytest.mark.parametrize("sendfile", [True, False])
async def test_file_given_up_by_the_app_closes(
    protocol: Any, large: Path, full: bool, sendfile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would read the bytes that follow as part of the declared body."""
    if not sendfile:
        monkeypatch.setattr(os, "sendfile", refuse_sendfile)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        transport = receive.__self__.transport  # type: ignore[attr-defined]
        await start(send)
        while full and not transport.real.get_write_buffer_size():
            await body(send, b"b" * 10_000, more=True)
            transport.flush()
        with large.open("rb") as file:
            message = {"type": ZEROCOPYSEND, "file": file, "more_body": True}
            sending = asyncio.ensure_future(send(message))
            await iterations()
            assert not sending.done()
            sending.cancel()
            await asyncio.wait([sending])
        await body(send, b"behind the file")

    async with serving(protocol, app) as client:
        await client.send(GET)
        await iterations(100)
        assert b"behind the file" not in await client.to_end()


async def test_headers_of_a_generator_are_read_once(protocol: Any, large: Path) -> None:
    """A generator of headers is read once: asgifast needs the length, and uvicorn the headers."""
    headers = (header for header in [length(100_000)])
    app = sending({**start_message(), "headers": headers}, pathsend(large))
    async with serving(protocol, app) as client:
        assert b"content-length: 100000\r\n" in (await client.ask()).lower()
        assert await client.exactly(100_000) == large.read_bytes()[:100_000]
        await client.hello()


async def test_empty_part_of_file_does_not_end_chunks(protocol: Any, large: Path) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        with large.open("rb") as file:
            for count in (0, 10, 0, 200_000):
                message: Message = {"type": ZEROCOPYSEND, "file": file, "count": count}
                await send({**message, "more_body": count < 200_000})

    async with serving(protocol, app) as client:
        await client.ask()
        assert b"".join(await client.chunks()) == large.read_bytes()[:200_010]
        await client.hello()


async def test_descriptor_without_an_offset_moves_on(protocol: Any, large: Path) -> None:
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

    async with serving(protocol, app) as client:
        await client.ask()
        expected = data[1000:201_010] + data[7:200_007] + data[3:8]
        assert await client.exactly(len(expected)) == expected
        await client.hello()
        assert positions == [201_000, 201_010, 201_010, 200_007, 200_007]


async def test_head_taken_for_get_has_no_file_bytes(protocol: Any, large: Path) -> None:
    """Middleware does this for apps that do not support HEAD."""
    file = FileResponse(large)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await file({**scope, "method": "GET"}, receive, send)

    async with serving(protocol, app) as client:
        for part in (b"0-99", b"0-99999", b"5-9,200000-399999"):
            request = b"HEAD / HTTP/1.1\r\nHost: x\r\nRange: bytes=%b\r\n\r\n" % part
            await client.send(request + HELLO)
            assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 206 ")
            assert (await client.until(b"hello")).startswith(b"HTTP/1.1 200 ")

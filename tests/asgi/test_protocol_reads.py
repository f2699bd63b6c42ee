"""The uvicorn protocols in this process: files without sendfile."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from asgifast.messages import ZEROCOPYSEND, Receive, Scope, Send
from asgifast.protocols import output
from asgifast.protocols.output import OutputQueue

from wsgifast.sockets.sending import BLOCK_BYTES

from .protocols import GET, LARGE_BYTES, TOO_MUCH, iterations, refuse_sendfile, serving, start
from .support import length, pathsend, sending, start_message

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


@pytest.fixture
def no_sendfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sendfile", refuse_sendfile)


@pytest.mark.parametrize("chunked", [True, False])
async def test_files_are_read_where_sendfile_cannot_be_used(
    protocol: Any, large: Path, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS there is no sendfile."""
    monkeypatch.setattr(output, "HAS_EPOLL", False)
    data = large.read_bytes()
    expected = data[1000:1_001_000] + data[5:105] + data

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=None if chunked else len(expected))
        with large.open("rb") as file:
            for offset, count in ((1000, 1_000_000), (5, 100), (0, LARGE_BYTES)):
                message = {"type": ZEROCOPYSEND, "file": file, "offset": offset, "count": count}
                await send({**message, "more_body": count < LARGE_BYTES})

    async with serving(protocol, app) as client:
        await client.ask()
        if not chunked:
            assert await client.exactly(len(expected)) == expected
        else:
            assert b"".join(await client.chunks()) == expected
        await client.hello()


@pytest.mark.usefixtures("no_sendfile")
async def test_other_tasks_run_while_a_file_is_read(
    protocol: Any, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads everything at once, so no write ever waits."""
    iterations = 0

    async def others() -> None:
        nonlocal iterations
        while True:
            await asyncio.sleep(0)
            iterations += 1

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, length=LARGE_BYTES)
        monkeypatch.setattr(OutputQueue, "write", lambda self, data: None)
        tasks.append(asyncio.create_task(others()))
        with large.open("rb") as file:
            await send({"type": ZEROCOPYSEND, "file": file})

    tasks: list[asyncio.Task[None]] = []
    async with serving(protocol, app) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await client.to_end()
        tasks[0].cancel()
    assert iterations >= LARGE_BYTES // BLOCK_BYTES - 2


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("sendfile", ["refused", "absent"])
async def test_client_that_does_not_read_holds_up_reading(
    protocol: Any, sparse: Path, leaves: bool, sendfile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sendfile == "refused":
        monkeypatch.setattr(os, "sendfile", refuse_sendfile)
    else:
        monkeypatch.setattr(output, "HAS_EPOLL", False)  # as if over TLS
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

    app = sending(start_message(length(TOO_MUCH)), pathsend(sparse), finished.set)
    monkeypatch.setattr(os, "preadv", counted_preadv)
    monkeypatch.setattr(os, "pread", counted_pread)
    async with serving(protocol, app) as client:
        await client.send(GET)
        await started.wait()
        await iterations()
        assert read < 2_000_000
        if leaves:
            client.sock.close()
        else:
            assert await client.body(TOO_MUCH) == bytes(TOO_MUCH)
        await finished.wait()
        while leaves and client.state.tasks:  # the task that transfers the file
            await asyncio.sleep(0)
        assert (read < 3_000_000) == leaves

"""The uvicorn protocols in this process: files where there is no sendfile."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from asgifast.messages import Receive, Scope, Send
from asgifast.protocols.transport import CoalescingTransport

from wsgifast.sockets.sending import BLOCK_BYTES

from .protocols import (
    GET,
    LARGE_BYTES,
    PATHSEND,
    TOO_MUCH,
    ZEROCOPYSEND,
    Client,
    _no_descriptor_is_left,
    large,
    protocol,
    refuse_sendfile,
    start,
    talk,
    turns,
)

__all__ = ["_no_descriptor_is_left", "large", "protocol"]


@pytest.fixture
def no_sendfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sendfile", refuse_sendfile)


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
            await client.send(GET)
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
        await client.send(GET)
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
        monkeypatch.setattr(os, "sendfile", refuse_sendfile)
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
        await client.send(GET)
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
        await client.send(GET)
        await client.until(b"\r\n\r\n")
        assert await client.to_end() == large.read_bytes()

    talk(protocol, app, conversation)

"""GatheringTransport in this process: what it does when the socket takes nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asgifast import transport as transport_module
from asgifast.transport import GatheringTransport

from wsgifast.sockets import FileSegment

# More than the socket buffers of both sides together.
FILE_BYTES = 16 * 1024 * 1024


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[GatheringTransport, socket.socket]]:
    """A transport, and the socket of its client, which reads nothing by itself."""
    loop = asyncio.get_running_loop()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        client.setblocking(False)
        accepted, _ = listener.accept()
        accepted.setblocking(False)
        real, _ = await loop.create_connection(asyncio.Protocol, sock=accepted)
        transport = GatheringTransport(real, loop)
        try:
            yield transport, client
        finally:
            transport.lost()
            transport.abort()
            await asyncio.sleep(0)


async def read(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = await asyncio.get_running_loop().sock_recv(client, 1024 * 1024)
        assert part, f"the connection ended after {len(data)} of {size} bytes"
        data += part
    return bytes(data)


@pytest.fixture
def fd(tmp_path: Path) -> Any:
    (tmp_path / "file").write_bytes(os.urandom(FILE_BYTES))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_writable_socket_that_takes_nothing_is_asked_again_later(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = 5
    delays: list[float] = []
    real_sendfile = os.sendfile

    def without_memory(*args: Any) -> int:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise BlockingIOError
        return real_sendfile(*args)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def at_once(delay: float, callback: Callable[..., object], *args: Any, **kw: Any) -> Any:
            delays.append(delay)
            return call_later(0, callback, *args, **kw)

        async with connected() as (transport, client):
            monkeypatch.setattr(loop, "call_later", at_once)
            monkeypatch.setattr(os, "sendfile", without_memory)
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            assert await read(client, FILE_BYTES) == os.pread(fd, FILE_BYTES, 0)
            await sending

    asyncio.run(run())
    # The first refusal is no surprise: nobody had said that the socket is writable.
    assert delays == [transport_module._STARVED_S] * 4


def test_a_starved_connection_that_is_lost_leaves_no_timer(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(*args: Any) -> int:
        raise BlockingIOError

    async def run() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later
        waiting: asyncio.Future[Any] = loop.create_future()

        def noted(*args: Any, **kw: Any) -> Any:
            timer = call_later(*args, **kw)
            waiting.set_result(timer)
            return timer

        async with connected() as (transport, _):
            monkeypatch.setattr(loop, "call_later", noted)
            monkeypatch.setattr(os, "sendfile", without_memory)
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            timer = await waiting
            transport.lost()
            with pytest.raises(ConnectionResetError):
                await sending
            assert timer.cancelled()

    asyncio.run(run())


def test_the_send_buffer_grows_for_a_quick_client_alone(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def buffer_after(quick_s: float) -> int:
        async def run() -> int:
            async with connected() as (transport, client):
                sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
                await read(client, FILE_BYTES)
                await sending
                sock = transport.get_extra_info("socket")
                return int(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

        monkeypatch.setattr(transport_module, "_QUICK_S", quick_s)
        return asyncio.run(run())

    # The kernel doubles what it is given.
    assert buffer_after(0.0) == 2 * transport_module._FIRST_SEND_BUFFER_BYTES
    assert buffer_after(60.0) == 2 * 256 * 1024


def test_no_byte_is_sent_that_the_disk_must_be_waited_for(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose beginning alone is in memory, on a disk that reads nothing ahead."""
    in_memory = 300_000
    beyond: list[int] = []
    preadv, pread, sendfile = os.preadv, os.pread, os.sendfile

    def preadv_of_cached(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags and in_memory <= offset < FILE_BYTES:
            raise BlockingIOError
        return preadv(fd, buffers, offset, flags)

    def pread_into_memory(fd: int, size: int, offset: int) -> bytes:
        nonlocal in_memory
        in_memory = max(in_memory, offset + size)
        return pread(fd, size, offset)

    def sendfile_of_cached(out: int, fd: int, offset: int, count: int) -> int:
        sent = sendfile(out, fd, offset, min(count, 400_000))
        beyond.append(max(0, offset + sent - in_memory))
        return sent

    async def run() -> None:
        async with connected() as (transport, client):
            monkeypatch.setattr(os, "preadv", preadv_of_cached)
            monkeypatch.setattr(os, "pread", pread_into_memory)
            monkeypatch.setattr(os, "sendfile", sendfile_of_cached)
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            assert await read(client, FILE_BYTES) == pread(fd, FILE_BYTES, 0)
            await sending

    asyncio.run(run())
    assert len(beyond) > FILE_BYTES // 400_000
    assert not any(beyond)

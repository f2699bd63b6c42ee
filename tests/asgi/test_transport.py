"""GatheringTransport in this process: what it hands on, and when the socket is full."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asgifast import transport as transport_module
from asgifast.transport import GATHER_BYTES, GatheringTransport, SendfileUnavailable

from wsgifast.sockets import FileSegment
from wsgifast.sockets.options import FIRST_SEND_BUFFER_BYTES
from wsgifast.sockets.sendfile import FileTruncated

# More than the socket buffers of both sides together.
FILE_BYTES = 16 * 1024 * 1024


class Recorded:
    """A transport that remembers the sizes of what was written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes: list[int] = []

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Drained(asyncio.Protocol):
    """What a protocol owes its GatheringTransport."""

    transport: GatheringTransport

    def resume_writing(self) -> None:
        self.transport.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.lost()


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
        real, protocol = await loop.create_connection(Drained, sock=accepted)
        transport = GatheringTransport(Recorded(real), loop)  # type: ignore[arg-type]
        protocol.transport = transport
        try:
            yield transport, client
        finally:
            transport.lost()
            if not real.is_closing():
                transport.abort()
            client.close()
            await asyncio.sleep(0)


async def read(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = await asyncio.get_running_loop().sock_recv(
            client, min(1024 * 1024, size - len(data))
        )
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

        monkeypatch.setattr(transport_module, "QUICK_S", quick_s)
        return asyncio.run(run())

    # The kernel doubles what it is given.
    assert buffer_after(0.0) == 2 * FIRST_SEND_BUFFER_BYTES
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


def writes(transport: GatheringTransport) -> list[int]:
    assert isinstance(transport.real, Recorded)
    return transport.real.writes


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def read_to_end(client: socket.socket) -> bytes:
    data = bytearray()
    while part := await asyncio.get_running_loop().sock_recv(client, 1024 * 1024):
        data += part
    return bytes(data)


def test_writes_of_one_turn_are_one() -> None:
    async def run() -> None:
        async with connected() as (transport, client):
            for _ in range(2):
                transport.write(b"a")
                transport.write(b"")
                transport.writelines([b"b", b"c"])
                assert transport.get_write_buffer_size() == 3
                await turns()
                assert transport.get_write_buffer_size() == 0
            assert writes(transport) == [3, 3]
            assert await read(client, 6) == b"abcabc"

    asyncio.run(run())


def test_what_is_gathered_is_bounded() -> None:
    async def run() -> None:
        async with connected() as (transport, client):
            for _ in range(1000):
                transport.write(b"x" * 1000)
            assert max(writes(transport)) <= GATHER_BYTES + 1000
            assert 15 <= len(writes(transport)) <= 16
            assert await read(client, 1_000_000) == b"x" * 1_000_000

    asyncio.run(run())


def test_a_large_write_leaves_at_once_behind_what_was_gathered() -> None:
    async def run() -> None:
        async with connected() as (transport, client):
            transport.write(b"head")
            transport.write(b"x" * 200_000)
            transport.write(b"y" * 200_000)
            lead, rest, second = writes(transport)
            assert 4 < lead < 64 * 1024
            assert (lead + rest, second) == (200_004, 200_000), "little of it was copied"
            assert await read(client, 400_004) == b"head" + b"x" * 200_000 + b"y" * 200_000

    asyncio.run(run())


def test_the_end_flushes() -> None:
    async def run() -> None:
        for end in ("close", "write_eof"):
            async with connected() as (transport, client):
                transport.write(b"the last words")
                getattr(transport, end)()
                assert await read_to_end(client) == b"the last words"

    asyncio.run(run())


def test_nothing_is_written_to_a_connection_that_is_closing() -> None:
    async def run() -> None:
        async with connected() as (transport, _):
            transport.write(b"too late")
            transport.real.abort()
            await turns()
            transport.close()
            assert not writes(transport)
            with pytest.raises(ConnectionResetError):
                await transport.send_file(FileSegment(0, 0, 1))

    asyncio.run(run())


def test_a_file_waits_for_what_is_gathered_elsewhere(fd: int) -> None:
    async def run() -> None:
        async with connected() as (transport, client):
            transport.gather(lambda: transport.write(b"gathered"))
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, 100_000)))
            assert await read(client, 100_008) == b"gathered" + os.pread(fd, 100_000, 0)
            await sending

    asyncio.run(run())


def test_a_file_keeps_its_place(fd: int) -> None:
    """Behind more than the socket takes, and before everything that is written meanwhile."""
    before, after = b"b" * 5_000_000, b"a" * 200_000

    async def run() -> None:
        async with connected() as (transport, client):
            transport.write(before)
            transport.write(b"head")
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 100, 5_000_000)))
            await turns()
            assert transport.get_write_buffer_size(), "the file waits for it"
            assert await read(client, len(before) + 4) == before + b"head"
            await turns()
            transport.write(b"1")
            transport.write(after)
            transport.flush()
            transport.write(b"2")
            assert await read(client, 5_000_000) == os.pread(fd, 5_000_000, 100)
            await sending
            transport.flush()
            assert await read(client, len(after) + 2) == b"1" + after + b"2"
            assert transport.real.get_write_buffer_limits()[1] > 0

    asyncio.run(run())


@pytest.mark.parametrize("end", ["close", "abort", "lost", "cancel", "client"])
def test_a_file_that_is_cut_off_ends_the_connection(fd: int, end: str) -> None:
    async def run() -> None:
        async with connected() as (transport, client):
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            await read(client, 1000)
            transport.write(b"behind the file")
            if end == "cancel":
                sending.cancel()
            elif end == "client":
                client.close()
            else:
                getattr(transport, end)()
            with pytest.raises(asyncio.CancelledError if end == "cancel" else ConnectionError):
                await sending
            assert transport.is_closing()
            if end == "client":
                return
            await turns()
            try:
                rest = await read_to_end(client)
            except ConnectionResetError:
                return
            assert len(rest) < FILE_BYTES - 1000
            assert not rest.endswith(b"behind the file")

    asyncio.run(run())


@pytest.mark.parametrize("end", ["abort", "client"])
def test_a_file_whose_turn_never_comes(fd: int, end: str) -> None:
    async def run() -> None:
        async with connected() as (transport, client):
            transport.write(bytes(FILE_BYTES))
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            await turns()
            if end == "abort":
                transport.abort()
            else:
                client.close()
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(sending, 10)

    asyncio.run(run())


def test_no_descriptor_is_left(fd: int) -> None:
    async def run() -> None:
        async with connected() as (transport, client):
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, 100_000)))
            await read(client, 100_000)
            await sending

    asyncio.run(run())
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == before


def test_each_call_sends_one_window_at_most(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    sendfile = os.sendfile

    def counted(out: int, fd: int, offset: int, count: int) -> int:
        counts.append(count)
        return sendfile(out, fd, offset, count)

    async def run() -> None:
        async with connected() as (transport, client):
            monkeypatch.setattr(os, "sendfile", counted)
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, 3_000_000)))
            await read(client, 3_000_000)
            await sending

    asyncio.run(run())
    assert max(counts) == transport_module.WINDOW_BYTES


@pytest.mark.parametrize("calls", [0, 2])
def test_an_error_of_sendfile(fd: int, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """At the file's beginning its bytes can still be sent in another way; later they cannot."""
    sendfile = os.sendfile
    left = calls

    def failing(*args: Any) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.EINVAL, "no sendfile")
        left -= 1
        return sendfile(*args)

    async def run() -> None:
        async with connected() as (transport, client):
            monkeypatch.setattr(os, "sendfile", failing)
            transport.write(b"head")
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            if calls:
                received = await read_to_end(client)
                assert 4 < len(received) < FILE_BYTES
                with pytest.raises(OSError, match="no sendfile"):
                    await sending
                return
            with pytest.raises(SendfileUnavailable):
                await sending
            transport.write(b"body")
            assert await read(client, 8) == b"headbody"

    asyncio.run(run())


@pytest.mark.parametrize("cold", [False, True])
def test_a_file_that_ends_early(
    fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    preadv, pread = os.preadv, os.pread

    def preadv_of_cold(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if offset >= 2_000_000 and os.fstat(fd).st_size == FILE_BYTES:
            raise BlockingIOError
        return preadv(fd, buffers, offset, flags)

    def pread_too_late(fd: int, size: int, offset: int) -> bytes:
        if offset + size > 2_000_000:
            os.truncate(tmp_path / "file", 2_000_000)
        return pread(fd, size, offset)

    async def run() -> None:
        async with connected() as (transport, client):
            if cold:
                monkeypatch.setattr(os, "preadv", preadv_of_cold)
                monkeypatch.setattr(os, "pread", pread_too_late)
            else:
                os.truncate(tmp_path / "file", 2_000_000)
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            assert len(await read_to_end(client)) == 2_000_000
            with pytest.raises(FileTruncated, match="shrank"):
                await sending

    asyncio.run(run())

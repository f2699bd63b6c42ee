"""GatheringTransport in this process: what it hands on, and when the socket is full."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import threading
import types
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
    failed: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: failed.append(context))
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
    assert not failed, "no callback of the loop fails"


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
    calls = 0

    def without_memory(*args: Any) -> int:
        nonlocal calls
        calls += 1
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
            await turns()
            assert calls == 2, "at once, and when the socket was said to be writable"
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
    small, large = 2 * FIRST_SEND_BUFFER_BYTES, 2 * 256 * 1024
    assert buffer_after(0.0) == small
    assert buffer_after(60.0) == large
    # Slow when it is first waited for, and quick then.
    clock = itertools.chain([0.0, 1.0], itertools.repeat(1.0))
    monkeypatch.setattr(
        transport_module, "time", types.SimpleNamespace(monotonic=lambda: next(clock))
    )
    assert buffer_after(0.5) == large


@pytest.mark.parametrize("cold", [(300_000, FILE_BYTES), (0, 900_000)], ids=["end", "beginning"])
def test_no_byte_is_sent_that_the_disk_must_be_waited_for(
    fd: int, monkeypatch: pytest.MonkeyPatch, cold: tuple[int, int]
) -> None:
    """A file of which a part is in memory, on a disk that reads nothing ahead."""
    page = 4096
    in_memory = bytearray(b"y" * (FILE_BYTES // page))
    waited: list[bool] = []
    read_by_thread = 0
    preadv, pread, sendfile = os.preadv, os.pread, os.sendfile

    def pages(offset: int, size: int) -> slice:
        return slice(offset // page, -(-(offset + size) // page))

    def preadv_of_cached(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags and b"n" in in_memory[pages(offset, 1)]:
            raise BlockingIOError
        return preadv(fd, buffers, offset, flags)

    def pread_into_memory(fd: int, size: int, offset: int) -> bytes:
        nonlocal read_by_thread
        read_by_thread += size
        touched = pages(offset, size)
        in_memory[touched] = b"y" * len(in_memory[touched])
        return pread(fd, size, offset)

    def sendfile_of_cached(out: int, fd: int, offset: int, count: int) -> int:
        sent = sendfile(out, fd, offset, min(count, 400_000))
        waited.append(b"n" in in_memory[pages(offset, sent)])
        return sent

    async def run() -> None:
        async with connected() as (transport, client):
            monkeypatch.setattr(os, "preadv", preadv_of_cached)
            monkeypatch.setattr(os, "pread", pread_into_memory)
            monkeypatch.setattr(os, "sendfile", sendfile_of_cached)
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            assert await read(client, FILE_BYTES) == pread(fd, FILE_BYTES, 0)
            await sending

    absent = pages(cold[0], cold[1] - cold[0])
    in_memory[absent] = b"n" * len(in_memory[absent])
    asyncio.run(run())
    assert len(waited) > FILE_BYTES // 400_000
    assert not any(waited)
    assert read_by_thread <= FILE_BYTES, "nothing is read twice"


def test_a_head_that_the_socket_takes_in_pieces(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece waits in the kernel for what follows: no packet leaves with the head alone."""
    head = b"head" * 100
    pieces: list[int] = []
    send = socket.socket.send

    def piece(sock: socket.socket, data: bytes, flags: int = 0) -> int:
        pieces.append(flags)
        if len(pieces) % 2:
            raise BlockingIOError
        return send(sock, data[:150], flags)

    async def run() -> None:
        async with connected() as (transport, client):

            async def in_one_turn() -> None:
                transport.write(head)
                await transport.send_file(FileSegment(fd, 0, 100_000))

            monkeypatch.setattr(socket.socket, "send", piece, raising=False)
            sending = asyncio.create_task(in_one_turn())
            assert await read(client, len(head) + 100_000) == head + os.pread(fd, 100_000, 0)
            await sending

    asyncio.run(run())
    assert pieces == [socket.MSG_MORE] * 6


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

            async def in_one_turn() -> None:
                transport.gather(lambda: transport.write(b"gathered"))
                await transport.send_file(FileSegment(fd, 0, 100_000))

            sending = asyncio.create_task(in_one_turn())
            assert await read(client, 100_008) == b"gathered" + os.pread(fd, 100_000, 0)
            await sending

    asyncio.run(run())


def test_a_file_keeps_its_place(fd: int) -> None:
    """Behind more than the socket takes, and before everything that is written meanwhile."""
    before, after = b"b" * 5_000_000, b"a" * 200_000
    size = FILE_BYTES - 100

    async def run() -> None:
        async with connected() as (transport, client):
            transport.write(before)
            transport.write(b"head")
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 100, size)))
            await turns()
            assert transport.get_write_buffer_size(), "the file waits for it"
            assert await read(client, len(before) + 4) == before + b"head"
            await turns()
            transport.write(b"1")
            transport.write(after)
            transport.flush()
            transport.write(b"2")
            assert await read(client, size) == os.pread(fd, size, 100)
            await sending
            transport.flush()
            assert await read(client, len(after) + 2) == b"1" + after + b"2"
            assert transport.real.get_write_buffer_limits()[1] > 0

    asyncio.run(run())


def fill(transport: GatheringTransport) -> None:
    """Write until the socket takes no more, and a little is left in the real transport's buffer."""
    while not transport.real.get_write_buffer_size():
        transport.write(b"x" * 10_000)
        transport.flush()


def test_a_file_waits_for_a_little_that_the_socket_did_not_take(fd: int) -> None:
    """Too little for a pause of the protocol, whose end would tell that it has left."""

    async def run() -> None:
        async with connected() as (transport, client):

            async def behind_a_full_socket() -> None:
                fill(transport)
                await transport.send_file(FileSegment(fd, 0, 100_000))

            sending = asyncio.create_task(behind_a_full_socket())
            received = bytearray()
            while not received.endswith(os.pread(fd, 1000, 99_000)):
                received += await asyncio.get_running_loop().sock_recv(client, 1024 * 1024)
            await asyncio.wait_for(sending, 10)
            assert received.lstrip(b"x")[-100_000:] == os.pread(fd, 100_000, 0)

    asyncio.run(run())


def test_a_connection_that_is_lost_in_the_turn_in_which_it_has_drained(fd: int) -> None:
    async def run() -> None:
        async with connected() as (transport, _):
            transport.write(bytes(FILE_BYTES))
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            await turns()
            transport.drained()
            transport.lost()
            transport.abort()
            with pytest.raises(ConnectionResetError):
                await sending

    asyncio.run(run())


def test_no_file_goes_past_tls(fd: int) -> None:
    class OverTLS(Recorded):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return object() if name == "sslcontext" else self._transport.get_extra_info(name)

    async def run() -> None:
        async with connected() as (plain, _):
            real: Any = OverTLS(plain.real)
            transport = GatheringTransport(real, asyncio.get_running_loop())
            assert not transport.can_sendfile
            with pytest.raises(SendfileUnavailable):
                await transport.send_file(FileSegment(fd, 0, 100_000))

    asyncio.run(run())


def test_no_file_behind_a_connection_that_is_closing_slowly(fd: int) -> None:
    async def run() -> None:
        async with connected() as (transport, _):
            transport.write(bytes(FILE_BYTES))
            transport.close()
            assert transport.real.get_write_buffer_size(), "its client reads nothing"
            before = len(writes(transport))
            transport.write(b"too late")
            transport.close()
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(transport.send_file(FileSegment(fd, 0, FILE_BYTES)), 10)
            await turns()
            assert len(writes(transport)) == before

    asyncio.run(run())


@pytest.mark.parametrize("refused", [1, 2], ids=["first", "grown"])
def test_a_send_buffer_that_cannot_be_set_is_no_hindrance(
    fd: int, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """Some kernels refuse it on a socket whose peer has gone."""
    calls = 0

    def refusing(*args: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == refused:
            raise OSError(errno.EINVAL, "not any more")
        return True

    async def run() -> None:
        async with connected() as (transport, client):
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            assert await read(client, FILE_BYTES) == os.pread(fd, FILE_BYTES, 0)
            await sending

    monkeypatch.setattr(transport_module, "limit_send_buffer", refusing)
    monkeypatch.setattr(transport_module, "QUICK_S", 60.0)
    asyncio.run(run())
    assert calls == refused, "once it has grown it is left alone"


def test_no_descriptor_is_used_once_it_is_closed(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is lost while a thread reads: the number may be another's then."""
    reading, lost = threading.Event(), threading.Event()
    sent_to: list[int] = []
    pread, sendfile = os.pread, os.sendfile

    def cold(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        raise BlockingIOError

    def slow(fd: int, size: int, offset: int) -> bytes:
        reading.set()
        assert lost.wait(10)
        return pread(fd, size, offset)

    def noted(out: int, *args: Any) -> int:
        sent_to.append(out)
        return sendfile(out, *args)

    async def run() -> None:
        async with connected() as (transport, _):
            monkeypatch.setattr(os, "preadv", cold)
            monkeypatch.setattr(os, "pread", slow)
            monkeypatch.setattr(os, "sendfile", noted)
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            while not reading.is_set():
                await asyncio.sleep(0)
            transport.lost()
            lost.set()
            with pytest.raises(ConnectionResetError):
                await sending
            assert not sent_to

    asyncio.run(run())


def test_a_connection_that_is_lost_before_the_rest_of_a_file(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is sent by a task, which has its first turn later."""

    def too_late(*args: Any) -> None:
        raise AssertionError("the descriptor is closed, its number may be another's")

    async def run() -> None:
        async with connected() as (transport, _):
            rest = transport.begin_file(FileSegment(fd, 0, FILE_BYTES))
            assert rest is not None
            transport.lost()
            monkeypatch.setattr(asyncio.get_running_loop(), "add_writer", too_late)
            with pytest.raises(ConnectionResetError):
                await rest()

    asyncio.run(run())


@pytest.mark.parametrize("end", ["close", "abort", "lost", "cancel", "client"])
def test_a_file_that_is_cut_off_ends_the_connection(
    fd: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: set[int] = set()
    closed_while_watched: list[int] = []  # the number may be another connection's next
    close = socket.socket.close

    def noted_close(sock: socket.socket) -> None:
        closed_while_watched.extend(watched & {sock.fileno()})
        close(sock)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        add_writer, remove_writer = loop.add_writer, loop.remove_writer

        def add(fd: int, *args: Any) -> None:
            watched.add(fd)
            add_writer(fd, *args)

        def remove(fd: int) -> bool:
            watched.discard(fd)
            return remove_writer(fd)

        monkeypatch.setattr(loop, "add_writer", add)
        monkeypatch.setattr(loop, "remove_writer", remove)
        monkeypatch.setattr(socket.socket, "close", noted_close)
        async with connected() as (transport, client):
            sending = asyncio.create_task(transport.send_file(FileSegment(fd, 0, FILE_BYTES)))
            await read(client, 1000)
            assert watched
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
    assert not closed_while_watched


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


def test_sendfile_that_is_refused_once_the_socket_has_room(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the file was sent: its bytes can still be sent in another way."""
    answers = iter([BlockingIOError(), OSError(errno.EINVAL, "no sendfile")])

    def failing(*args: Any) -> int:
        raise next(answers)

    async def run() -> None:
        async with connected() as (transport, client):
            monkeypatch.setattr(os, "sendfile", failing)
            transport.write(b"head")
            with pytest.raises(SendfileUnavailable):
                await transport.send_file(FileSegment(fd, 0, FILE_BYTES))
            transport.write(b"body")
            assert await read(client, 8) == b"headbody"

    asyncio.run(run())


def test_a_file_that_has_lost_all_its_bytes(fd: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with connected() as (transport, client):
            os.truncate(tmp_path / "file", 0)
            with pytest.raises(FileTruncated, match="shrank"):
                transport.begin_file(FileSegment(fd, 0, FILE_BYTES))
            transport.write(b"behind the file")
            transport.flush()
            assert await read_to_end(client) == b""

    asyncio.run(run())


def test_the_rest_is_the_real_transports() -> None:
    async def run() -> None:
        async with connected() as (transport, client):
            real = transport.real
            assert transport.is_reading()
            transport.pause_reading()
            assert not real.is_reading()
            transport.resume_reading()
            assert real.is_reading()
            transport.set_write_buffer_limits(high=10, low=5)
            assert real.get_write_buffer_limits() == (5, 10)
            assert transport.can_write_eof()
            assert transport.get_extra_info("peername") == client.getsockname()
            protocol = transport.get_protocol()
            other = asyncio.Protocol()
            transport.set_protocol(other)
            assert real.get_protocol() is other
            transport.set_protocol(protocol)

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

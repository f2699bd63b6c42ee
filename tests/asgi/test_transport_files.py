"""Files on an OutputQueue: their order, slow disks, and full sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import os
import socket
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from asgifast.protocols import file_transfer
from asgifast.protocols.output import OutputQueue

from tests.support.calls import recorded
from tests.support.process import send_buffer_is_limited
from wsgifast.sockets import FileSegment, options

from .support import raising
from .transports import FILE_BYTES, arrives, connected, iterations, read, send_file


async def test_writable_socket_taking_nothing_is_tried_later(
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

    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def at_once(delay: float, callback: Callable[..., object], *args: Any, **kw: Any) -> Any:
        delays.append(delay)
        return call_later(0, callback, *args, **kw)

    async with connected() as (transport, client):
        monkeypatch.setattr(loop, "call_later", at_once)
        monkeypatch.setattr(os, "sendfile", without_memory)
        await arrives(transport, client, fd)
    # The first refusal does not count: the loop had not reported the socket as writable.
    assert delays == [file_transfer._MEMORY_RETRY_S] * 4


def test_send_buffer_grows_for_a_quick_client_alone(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_limited_after(quick_s: float) -> bool:
        async def run() -> bool:
            async with connected() as (transport, client):
                await arrives(transport, client, fd)
                return send_buffer_is_limited(transport.get_extra_info("socket"))

        monkeypatch.setattr(file_transfer, "QUICK_S", quick_s)
        return asyncio.run(run())

    assert is_limited_after(0.0)
    assert not is_limited_after(60.0)
    # The client is slow at the first wait, and quick after that.
    clock = itertools.chain([0.0, 1.0], itertools.repeat(1.0))
    monkeypatch.setattr(file_transfer, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    assert not is_limited_after(0.5)
    # The client is quick and slow alternately, like a slow client with a quick first receive.
    clock = itertools.chain.from_iterable([float(n)] * 2 for n in itertools.count())
    assert is_limited_after(0.5)


@pytest.mark.parametrize("cold", [(300_000, FILE_BYTES), (0, 900_000)], ids=["end", "beginning"])
async def test_byte_not_in_memory_is_not_sent_on_the_loop(
    fd: int, monkeypatch: pytest.MonkeyPatch, cold: tuple[int, int]
) -> None:
    """A part of the file is in the page cache, and the kernel does not read ahead."""
    page = 4096
    in_memory = bytearray(b"y" * (FILE_BYTES // page))
    waited: list[bool] = []
    preadv, sendfile = os.preadv, os.sendfile

    def pages(offset: int, size: int) -> slice:
        return slice(offset // page, -(-(offset + size) // page))

    def preadv_of_cached(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags and b"n" in in_memory[pages(offset, 1)]:
            raise BlockingIOError
        return preadv(fd, buffers, offset, flags)

    def sendfile_of_cached(out: int, fd: int, offset: int, count: int) -> int:
        sent = sendfile(out, fd, offset, min(count, 400_000))
        touched = pages(offset, sent)
        if on_the_loop():
            waited.append(b"n" in in_memory[touched])
        whole = slice(touched.start, (offset + sent) // page)
        in_memory[whole] = b"y" * len(in_memory[whole])
        return sent

    absent = pages(cold[0], cold[1] - cold[0])
    in_memory[absent] = b"n" * len(in_memory[absent])
    async with connected() as (transport, client):
        monkeypatch.setattr(os, "preadv", preadv_of_cached)
        monkeypatch.setattr(os, "sendfile", sendfile_of_cached)
        await arrives(transport, client, fd)
    assert waited or cold[1] == FILE_BYTES
    assert not any(waited)


def on_the_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


async def test_unknown_file_system_is_not_read_on_the_loop(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUSE and other file systems reject RWF_NOWAIT, and may need any time for a page."""
    async with connected() as (transport, client):
        monkeypatch.setattr(os, "preadv", raising(OSError, errno.EOPNOTSUPP, "no RWF_NOWAIT"))
        on_loop = recorded(monkeypatch, os, "sendfile", lambda *_: on_the_loop())
        transport.write(b"head")
        sending = asyncio.create_task(send_file(transport, FileSegment(fd, 0, FILE_BYTES)))
        assert await read(client, FILE_BYTES + 4) == b"head" + os.pread(fd, FILE_BYTES, 0)
        await sending
    assert on_loop
    assert not any(on_loop)


async def test_headers_taken_in_pieces_wait_for_the_file(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel delays each piece until the next one. No packet contains the headers alone."""
    start_message = b"head" * 100
    pieces: list[int] = []
    send = socket.socket.send

    def piece(sock: socket.socket, data: bytes, flags: int = 0) -> int:
        assert sock.gettimeout() == 0, "it must not wait, whatever the process's default is"
        pieces.append(flags)
        if len(pieces) % 2:
            raise BlockingIOError
        return send(sock, data[:150], flags)

    try:
        async with connected() as (transport, client):

            async def in_one_iteration() -> None:
                transport.write(start_message)
                await send_file(transport, FileSegment(fd, 0, 100_000))

            monkeypatch.setattr(socket.socket, "send", piece, raising=False)
            socket.setdefaulttimeout(30)
            sending = asyncio.create_task(in_one_iteration())
            assert await read(client, len(start_message) + 100_000) == start_message + os.pread(
                fd, 100_000, 0
            )
            await sending
    finally:
        socket.setdefaulttimeout(None)
    assert pieces == [socket.MSG_MORE] * 6


async def test_file_keeps_its_place(fd: int) -> None:
    """The file is sent after more data than the socket takes, and before data that is written
    meanwhile.
    """
    before, after = b"b" * 5_000_000, b"a" * 200_000
    size = FILE_BYTES - 100

    async with connected() as (transport, client):
        transport.write(before)
        transport.write(b"head")
        sending = asyncio.create_task(send_file(transport, FileSegment(fd, 100, size)))
        await iterations()
        assert transport.get_write_buffer_size(), "the file waits for it"
        assert await read(client, len(before) + 4) == before + b"head"
        await iterations()
        transport.write(b"1")
        transport.write(after)
        transport.flush()
        transport.write(b"2")
        assert await read(client, size) == os.pread(fd, size, 100)
        await sending
        transport.flush()
        assert await read(client, len(after) + 2) == b"1" + after + b"2"
        assert transport.real.get_write_buffer_limits()[1] > 0


def fill(transport: OutputQueue) -> None:
    """Write until the socket is full and the buffer of the real transport has a few bytes."""
    while not transport.real.get_write_buffer_size():
        transport.write(b"x" * 10_000)
        transport.flush()


async def test_file_waits_for_bytes_that_socket_refused(fd: int) -> None:
    """Too few bytes to pause the protocol, so no resume_writing() reports that they were sent."""

    async with connected() as (transport, client):

        async def behind_a_full_socket() -> None:
            fill(transport)
            await send_file(transport, FileSegment(fd, 0, 100_000))

        sending = asyncio.create_task(behind_a_full_socket())
        received = bytearray()
        while not received.endswith(os.pread(fd, 1000, 99_000)):
            received += await asyncio.get_running_loop().sock_recv(client, 1024 * 1024)
        await asyncio.wait_for(sending, 60)
        assert received[-100_000:] == os.pread(fd, 100_000, 0)
        assert not received[:-100_000].strip(b"x")


@pytest.mark.parametrize("refused", [1, 2], ids=["first", "grown"])
async def test_send_buffer_that_cannot_be_set_is_fine(
    fd: int, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """Some kernels refuse it after the peer has closed the connection."""
    calls = 0

    def refusing(*args: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == refused:
            raise OSError(errno.EINVAL, "not any more")
        return True

    monkeypatch.setattr(options, "round_trip_us", refusing)
    monkeypatch.setattr(file_transfer, "release_send_buffer", refusing)
    monkeypatch.setattr(file_transfer, "QUICK_S", 60.0)
    async with connected() as (transport, client):
        await arrives(transport, client, fd)
    assert calls == refused, "once it has grown it is left alone"


async def test_download_has_two_descriptors(fd: int) -> None:
    def descriptors() -> int:
        gc.collect()  # garbage of another test must not close descriptors meanwhile
        return len(os.listdir("/proc/self/fd"))

    async with connected() as first, connected() as second:
        before = descriptors()
        sending = [
            asyncio.create_task(send_file(transport, FileSegment(fd, 0, FILE_BYTES)))
            for transport, _ in (first, second)
        ]
        await iterations()
        assert descriptors() == before + 1, "one that watches both"
        for _, client in (first, second):
            await read(client, FILE_BYTES)
        await asyncio.gather(*sending)
        assert descriptors() == before


async def test_sendfile_sends_one_window_at_most(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (transport, client):
        counts = recorded(monkeypatch, os, "sendfile", lambda out, fd, offset, count: count)
        await arrives(transport, client, fd, 3_000_000)
    assert max(counts) == file_transfer.WINDOW_BYTES


# Waiting for room in many sockets at once


SOCKETS = 5 * file_transfer.EVENTS_PER_POLL


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """Return the descriptors of writable sockets."""
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(SOCKETS)]
        for sock in (sock for pair in pairs for sock in pair):
            stack.enter_context(sock)
        yield [sock.fileno() for sock, _ in pairs]


async def test_many_sockets_share_the_loop_with_others(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_transfer, "ITERATION_S", 0.0)
    called: Counter[int] = Counter()
    seen: list[int] = []

    loop = asyncio.get_running_loop()
    for fd in descriptors:
        file_transfer.call_while_writable(loop, fd, partial(called.update, [fd]))
    while called.total() < 3 * SOCKETS:
        seen.append(called.total())
        await asyncio.sleep(0)
    for fd in descriptors:
        file_transfer.stop_calling(loop, fd)
    assert max(after - before for before, after in pairwise(seen)) == file_transfer.EVENTS_PER_POLL
    assert set(called.values()) == {3}, "some were called before others that had waited longer"


async def test_callback_may_stop_watching_all_sockets(descriptors: list[int]) -> None:
    called = []

    loop = asyncio.get_running_loop()

    def stop(fd: int) -> None:
        called.append(fd)
        for each in descriptors:
            file_transfer.stop_calling(loop, each)

    for fd in descriptors:
        file_transfer.call_while_writable(loop, fd, partial(stop, fd))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(called) == 1

"""Files on an OutputQueue that are not sent completely: lost connections and errors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgifast.protocols import file_transfer
from asgifast.protocols.file_transfer import call_while_writable, stop_calling

from wsgifast.sockets import FileSegment
from wsgifast.sockets.sending import FileTruncated

from .support import raising
from .transports import FILE_BYTES, connected, iterations, read, read_to_end, send_file, writes


async def test_starved_lost_connection_leaves_no_timer(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def without_memory(*args: Any) -> int:
        nonlocal calls
        calls += 1
        raise BlockingIOError

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
        sending = asyncio.create_task(send_file(transport, FileSegment(fd, 0, FILE_BYTES)))
        timer = await waiting
        await iterations()
        assert calls == 2, "at once, and when the socket was said to be writable"
        transport.on_connection_lost()
        with pytest.raises(ConnectionResetError):
            await sending
        assert timer.cancelled()


async def test_connection_lost_while_draining_raises(fd: int) -> None:
    async with connected() as (transport, _):
        transport.write(bytes(FILE_BYTES))
        sending = asyncio.create_task(send_file(transport, FileSegment(fd, 0, FILE_BYTES)))
        await iterations()
        transport.on_writing_resumed()
        transport.on_connection_lost()
        transport.abort()
        with pytest.raises(ConnectionResetError):
            await sending


async def test_file_behind_slow_close_is_refused(fd: int) -> None:
    async with connected() as (transport, _):
        transport.write(bytes(FILE_BYTES))
        transport.close()
        assert transport.real.get_write_buffer_size(), "its client reads nothing"
        before = len(writes(transport))
        transport.write(b"too late")
        transport.close()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(send_file(transport, FileSegment(fd, 0, FILE_BYTES)), 10)
        await iterations()
        assert len(writes(transport)) == before


async def test_closed_descriptor_is_not_used_by_a_thread(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost while a thread sends.

    Its descriptor's number may then belong to another file.
    """
    sending_begun, lost = threading.Event(), threading.Event()
    sent_to: list[int] = []
    sendfile = os.sendfile

    def slow(out: int, *args: Any) -> int:
        sent_to.append(out)
        sending_begun.set()
        assert lost.wait(60)
        return sendfile(out, *args)

    async with connected() as (transport, _):
        monkeypatch.setattr(os, "preadv", raising(BlockingIOError))
        monkeypatch.setattr(os, "sendfile", slow)
        sending = asyncio.create_task(send_file(transport, FileSegment(fd, 0, FILE_BYTES)))
        while not sending_begun.is_set():
            await asyncio.sleep(0)
        transport.on_connection_lost()
        assert os.fstat(sent_to[0])
        lost.set()
        with pytest.raises(ConnectionResetError):
            await sending
        assert len(sent_to) == 1
        assert sent_to[0] != transport.get_extra_info("socket").fileno()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(sent_to[0])


@pytest.mark.parametrize("end", ["close", "abort", "on_connection_lost", "client"])
async def test_file_that_is_cut_off_ends_the_connection(
    fd: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: set[int] = set()
    closed_while_watched: list[int] = []  # the next connection may get the same number
    close = socket.socket.close

    def noted_close(sock: socket.socket) -> None:
        closed_while_watched.extend(watched & {sock.fileno()})
        close(sock)

    def watch(loop: asyncio.AbstractEventLoop, fd: int, callback: Callable[[], object]) -> None:
        watched.add(fd)
        call_while_writable(loop, fd, callback)

    def unwatch(loop: asyncio.AbstractEventLoop, fd: int) -> None:
        watched.remove(fd)
        stop_calling(loop, fd)

    monkeypatch.setattr(file_transfer, "call_while_writable", watch)
    monkeypatch.setattr(file_transfer, "stop_calling", unwatch)
    monkeypatch.setattr(socket.socket, "close", noted_close)
    async with connected() as (transport, client):
        sending = asyncio.create_task(send_file(transport, FileSegment(fd, 0, FILE_BYTES)))
        await read(client, 1000)
        await iterations()
        assert watched
        transport.write(b"behind the file")
        if end == "client":
            client.close()
        else:
            getattr(transport, end)()
        with pytest.raises(ConnectionError):
            await sending
        assert transport.is_closing()
        if end != "client":
            await iterations()
            with contextlib.suppress(ConnectionResetError):
                rest = await read_to_end(client)
                assert len(rest) < FILE_BYTES - 1000
                assert not rest.endswith(b"behind the file")
    assert not closed_while_watched


@pytest.mark.parametrize("end", ["abort", "client"])
async def test_file_that_is_never_sent_raises(fd: int, end: str) -> None:
    async with connected() as (transport, client):
        transport.write(bytes(FILE_BYTES))
        sending = asyncio.create_task(send_file(transport, FileSegment(fd, 0, FILE_BYTES)))
        await iterations()
        if end == "abort":
            transport.abort()
        else:
            client.close()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(sending, 60)


@pytest.mark.parametrize("before", [[], ["socket full"], ["sent", "sent"]], ids=" then ".join)
async def test_early_sendfile_error_lets_another_way(
    fd: int, monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    """Before the first byte, the queue reads the file instead.

    After a part was sent, the response fails.
    """
    sendfile, outcomes = os.sendfile, iter(before)

    def failing(*args: Any) -> int:
        outcome = next(outcomes, "refused")
        if outcome == "sent":
            return sendfile(*args)
        raise BlockingIOError if outcome == "socket full" else OSError(errno.EINVAL, "no sendfile")

    async with connected() as (transport, client):
        monkeypatch.setattr(os, "sendfile", failing)
        transport.write(b"head")
        sending = asyncio.create_task(send_file(transport, FileSegment(fd, 0, FILE_BYTES)))
        if "sent" in before:
            assert 4 < len(await read_to_end(client)) < FILE_BYTES
            with pytest.raises(OSError, match="no sendfile"):
                await sending
        else:
            received = await read(client, FILE_BYTES + 4)
            assert received == b"head" + os.pread(fd, FILE_BYTES, 0)
            await sending


async def test_file_losing_all_bytes_ends_the_connection(fd: int, tmp_path: Path) -> None:
    async with connected() as (transport, client):
        os.truncate(tmp_path / "file", 0)
        with pytest.raises(FileTruncated, match="shrank"):
            transport.write_file(FileSegment(fd, 0, FILE_BYTES), raising(AssertionError))
        transport.write(b"behind the file")
        transport.flush()
        assert await read_to_end(client) == b""


@pytest.mark.parametrize("cold", [False, True])
async def test_file_that_ends_early_ends_the_connection(
    fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    async with connected() as (transport, client):
        if cold:
            monkeypatch.setattr(os, "preadv", raising(BlockingIOError))
        os.truncate(tmp_path / "file", 2_000_000)
        sending = asyncio.create_task(send_file(transport, FileSegment(fd, 0, FILE_BYTES)))
        assert len(await read_to_end(client)) == 2_000_000
        with pytest.raises(FileTruncated, match="shrank"):
            await sending

"""async_recv_exactly and similar functions, on asyncio's event loop and on uvloop's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.sockets.support import Pair, sending, tcp_pair, tls_pair
from wsgifast.sockets import (
    ClosedEarly,
    ReceiveCount,
    SocketInUse,
    async_recv_exactly,
    async_recv_exactly_into,
    recv_exactly,
)

DATA = bytes(range(256)) * 4096  # 1 MiB: larger than the initial size of a socket's buffer


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(loop: str) -> Iterator[Pair]:
    """Return a pair of sockets, of which the far one is non-blocking."""
    with tcp_pair() as pair:
        pair.far.setblocking(False)
        yield pair


async def test_async_receive_takes_exactly_the_size(pair: Pair) -> None:
    with sending(pair.near, DATA, b"next"):
        assert await async_recv_exactly(pair.far, len(DATA)) == DATA
        assert await async_recv_exactly(pair.far, 4) == b"next"
        assert await async_recv_exactly(pair.far, 0) == b""


async def test_async_early_close_raises_with_what_came(pair: Pair) -> None:
    pair.near.sendall(b"half")
    pair.near.close()
    with pytest.raises(ClosedEarly, match="after 4 of 10") as caught:
        await async_recv_exactly(pair.far, 10)
    assert caught.value.partial == b"half"


async def test_async_receive_after_a_cancelled_one_goes_on(pair: Pair) -> None:
    buffer = bytearray(6)
    count = ReceiveCount()
    pair.near.sendall(b"abc")
    task = asyncio.ensure_future(async_recv_exactly_into(pair.far, buffer, count=count))
    while count.received < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert buffer == b"abc\0\0\0"
    pair.near.sendall(b"def")
    await async_recv_exactly_into(pair.far, memoryview(buffer)[3:], count=count)
    assert buffer == b"abcdef"


async def test_async_receive_lets_other_tasks_run(pair: Pair) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.ensure_future(other())
    count = ReceiveCount()
    with sending(pair.near, DATA * 8):
        await async_recv_exactly(pair.far, len(DATA) * 8, count=count)
    task.cancel()
    assert turns >= count.calls - 1


async def test_async_receive_of_a_negative_size_is_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match="-1"):
        await async_recv_exactly(pair.far, -1)


async def test_async_receive_refuses_blocking_and_tls() -> None:
    with tcp_pair() as pair, pytest.raises(ValueError, match="non-blocking"):
        await async_recv_exactly(pair.far, 1)
    with tls_pair() as pair, pytest.raises(TypeError, match="StreamReader"):
        await async_recv_exactly(pair.far, 1)


async def async_bytes(sock: socket.socket, size: int) -> bytes:
    return bytes(await async_recv_exactly(sock, size))


async def async_into(sock: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    await async_recv_exactly_into(sock, buffer)
    return bytes(buffer)


ASYNC = [async_bytes, async_into]


@pytest.mark.parametrize("second", ASYNC)
@pytest.mark.parametrize("first", ASYNC)
async def test_second_async_receive_is_an_error(
    pair: Pair, first: Callable[..., Any], second: Callable[..., Any]
) -> None:
    task = asyncio.create_task(first(pair.far, 4))
    await asyncio.sleep(0)
    pair.near.sendall(b"ab")
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(SocketInUse, match="another receive"):
            await second(pair.far, 4)
    with pytest.raises(SocketInUse, match="another receive"):
        recv_exactly(pair.far, 4, timeout=1)
    pair.near.sendall(b"cdef")
    assert await task == b"abcd"
    task = asyncio.create_task(second(pair.far, 4))
    await asyncio.sleep(0)
    task.cancel()  # this frees the socket, with or without received bytes
    with contextlib.suppress(asyncio.CancelledError):
        await task
    pair.near.sendall(b"gh")
    assert await first(pair.far, 2) in (b"ef", b"gh")

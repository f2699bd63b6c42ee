"""Coalescing under asyncio: all writes of one turn of the loop leave together."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.sockets.support import NEVER_US, tcp_pair
from wsgifast.sockets import (
    AsyncCoalescingWriter,
    SendFailed,
    WriterClosed,
    recv_exactly,
)


class Sink(asyncio.WriteTransport):
    """A transport that records each write."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing


async def test_async_writes_of_one_turn_are_sent_together() -> None:
    sink = Sink()
    writer = AsyncCoalescingWriter(sink, window_us=NEVER_US)
    for message in (b"a", b"b", bytearray(b"c")):
        writer.write(message)
    assert sink.calls == []
    await asyncio.sleep(0)
    assert sink.calls == [b"abc"]
    writer.write(b"d")
    await asyncio.sleep(0)
    assert sink.calls == [b"abc", b"d"]


async def test_full_or_old_async_batch_is_sent_in_the_turn() -> None:
    sink = Sink()
    writer = AsyncCoalescingWriter(sink, window_us=0)
    writer.write(b"a")
    assert sink.calls == [b"a"]
    writer = AsyncCoalescingWriter(sink, window_us=NEVER_US, max_bytes=2)
    for message in (b"b", b"c", b"d", b"ef"):
        writer.write(message)
    assert sink.calls == [b"a", b"bc", b"def"]
    await asyncio.sleep(0)
    assert sink.calls == [b"a", b"bc", b"def"]


async def test_async_close_sends_the_rest_and_refuses_more() -> None:
    sink = Sink()
    writer = AsyncCoalescingWriter(sink, window_us=NEVER_US)
    writer.write(b"last")
    await writer.close()
    assert sink.calls == [b"last"]
    with pytest.raises(WriterClosed):
        writer.write(b"late")


async def test_async_drain_waits_for_a_full_connection() -> None:
    """drain() waits while the peer reads nothing, and everything arrives in order."""
    with tcp_pair() as pair:
        pair.near.setblocking(False)
        _, stream = await asyncio.open_connection(sock=pair.near)
        writer = AsyncCoalescingWriter(stream)
        block = bytes(1 << 20)
        blocks = 0
        with contextlib.suppress(asyncio.TimeoutError):
            while blocks < 100:
                writer.write(block)
                blocks += 1
                await asyncio.wait_for(writer.drain(), 0.2)
        assert blocks < 100, "drain() never waited"
        assert stream.transport.get_write_buffer_size() <= 2 * len(block)
        loop = asyncio.get_running_loop()
        receiving = loop.run_in_executor(
            None, lambda: recv_exactly(pair.far, blocks * len(block) + 3, timeout=60)
        )
        writer.write(b"end")
        await writer.close()
        assert (await receiving).endswith(b"\0end")
        stream.close()
        await stream.wait_closed()


async def test_async_write_to_a_lost_connection_raises() -> None:
    sink = Sink()
    writer = AsyncCoalescingWriter(sink)
    sink.closing = True
    with pytest.raises(SendFailed):
        writer.write(b"x")

"""How OutputQueue joins the writes of one iteration of the loop."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from asgifast.messages import COALESCED_BYTES
from asgifast.protocols.output import OutputQueue

from tests.support.http import reset_on_close
from wsgifast.sockets import FileSegment, closing

from .support import raising
from .transports import connected, iterations, read, read_to_end, send_file, writes


async def test_writes_of_one_iteration_are_one() -> None:
    async with connected() as (transport, client):
        for _ in range(2):
            transport.write(b"a")
            transport.write(b"")
            transport.writelines([b"b", b"c"])
            assert transport.get_write_buffer_size() == 3
            await iterations()
            assert transport.get_write_buffer_size() == 0
        assert writes(transport) == [3, 3]
        assert await read(client, 6) == b"abcabc"


async def test_headers_leave_with_a_body_of_any_iteration() -> None:
    async with connected() as (transport, client):
        transport.flush_follows = True
        transport.write(b"head")
        await iterations()
        assert writes(transport) == []
        transport.flush_follows = False
        transport.write(b"body")
        await iterations()
        assert writes(transport) == [8]
        assert await read(client, 8) == b"headbody"


async def test_coalesced_writes_are_bounded() -> None:
    async with connected() as (transport, client):
        for _ in range(1000):
            transport.write(b"x" * 1000)
        assert max(writes(transport)) <= COALESCED_BYTES + 1000
        assert 15 <= len(writes(transport)) <= 16
        assert await read(client, 1_000_000) == b"x" * 1_000_000


@pytest.mark.parametrize("follows", [False, True])
async def test_large_write_leaves_behind_coalesced_ones(follows: bool) -> None:
    async with connected() as (transport, client):
        transport.write(b"head")
        transport.flush_follows = follows
        transport.write(b"x" * 200_000)
        transport.write(b"y" * 200_000)
        lead, rest, second = writes(transport)
        assert 4 < lead < 64 * 1024
        assert (lead + rest, second) == (200_004, 200_000), "little of it was copied"
        assert await read(client, 400_004) == b"head" + b"x" * 200_000 + b"y" * 200_000


async def test_close_flushes_coalesced_writes() -> None:
    async with connected() as (transport, client):
        transport.write(b"the last words")
        transport.close()
        assert await read_to_end(client) == b"the last words"


async def test_nothing_is_written_to_a_closing_connection() -> None:
    async with connected() as (transport, _):
        transport.write(b"too late")
        transport.real.abort()
        await iterations()
        transport.close()
        assert not writes(transport)
        with pytest.raises(ConnectionResetError):
            await send_file(transport, FileSegment(0, 0, 1))


async def test_nothing_is_written_after_end_to_a_sender() -> None:
    async with connected() as (transport, client):
        transport.pause_reading()
        await asyncio.get_running_loop().sock_sendall(client, b"what nobody reads")
        transport.write(b"end")
        transport.close()
        transport.close()
        assert transport.is_closing()
        transport.write(b"a")
        transport.write_now(b"b")
        transport.write(bytes(1 << 20))
        assert await read_to_end(client) == b"end"
        assert not transport.real.is_closing()
        client.shutdown(socket.SHUT_WR)
        while not transport.real.is_closing():
            await asyncio.sleep(0)


async def test_reset_connection_is_closed_though_none_reads() -> None:
    async with connected() as (transport, client):
        transport.pause_reading()
        reset_on_close(client)
        client.close()
        transport.close()
        await iterations()
        assert transport.get_extra_info("socket").fileno() == -1


async def test_second_close_waits_for_no_sending_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server shuts down."""
    monkeypatch.setattr(closing, "LINGER_S", 0.5)
    monkeypatch.setattr(closing, "_MAX_LINGER_S", 3600.0)
    async with connected() as (transport, client):
        transport.pause_reading()
        transport.close()
        transport.close()
        while not transport.real.is_closing():
            await asyncio.get_running_loop().sock_sendall(client, b"x")
            await asyncio.sleep(0.001)


class Keeping:
    """A response that delays one message for some iterations."""

    def __init__(self, transport: OutputQueue, message: bytes, iterations: int = 0) -> None:
        self.transport = transport
        self.message = message
        self.iterations = iterations
        stand_in: Any = self
        transport.delay(stand_in)
        transport.delay(stand_in)  # has no effect

    def end_iteration(self) -> bool:
        self.iterations -= 1
        return self.iterations >= 0

    def release(self) -> None:
        self.transport.write(self.message)


async def test_delayed_message_leaves_when_iteration_ends() -> None:
    async with connected() as (transport, client):
        Keeping(transport, b"held")
        await asyncio.sleep(0)
        assert not transport._is_scheduled
        assert await read(client, 4) == b"held"


async def test_delayed_message_leaves_with_a_later_write() -> None:
    async with connected() as (transport, client):
        Keeping(transport, b"held", 2)
        await iterations(2)
        assert transport._is_scheduled
        await iterations(1)
        assert not transport._is_scheduled
        assert await read(client, 4) == b"held"
        Keeping(transport, b" held", 100)
        await iterations(3)
        transport.write(b"written,")
        await iterations(1)
        assert await read(client, 13) == b"written, held"


async def test_message_delayed_by_a_response_is_its_own() -> None:
    """Over HTTP/2, all delayed messages are sent in one write at the end of the shortest delay."""

    async with connected() as (transport, _client):
        written: list[bytes] = []
        transport.real.write = written.append  # type: ignore[method-assign,assignment]
        Keeping(transport, b"<one>", 2)
        Keeping(transport, b"<two>", 3)
        await iterations(2)
        transport.flush()
        assert not written
        await iterations(1)
        assert written == [b"<one><two>"]


async def test_delayed_message_leaves_before_closing() -> None:
    async with connected() as (transport, client):
        Keeping(transport, b"held", 100)
        transport.close()
        assert await read(client, 4) == b"held"


async def test_writes_behind_a_failing_message_are_flushed() -> None:
    async with connected() as (transport, client):
        failed: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failed.append(context["exception"])
        )
        Keeping(transport, b"held").release = raising(MemoryError)  # type: ignore[method-assign]
        await iterations(2)
        assert [type(error) for error in failed] == [MemoryError]
        transport.write(b"next")
        await iterations(2)
        assert writes(transport) == [4]
        assert await read(client, 4) == b"next"


async def test_delayed_message_is_dropped_with_connection() -> None:
    async with connected() as (transport, _client):
        Keeping(transport, b"held", 100).release = pytest.fail  # type: ignore[method-assign]
        await iterations(2)
        transport.on_connection_lost()
        await iterations(2)
        assert not transport._is_scheduled


async def test_other_methods_are_the_real_transports() -> None:
    async with connected() as (transport, client):
        real = transport.real
        transport.pause_reading()
        assert not real.is_reading()
        transport.resume_reading()
        assert real.is_reading()
        assert transport.get_extra_info("peername") == client.getsockname()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_lost_connection_releases_no_send_buffer(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer of a quick client finds a closed socket. uvloop then raises ValueError."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    fired = asyncio.Event()
    monkeypatch.setattr("asgifast.protocols.output.QUICK_S", 0.05)
    release = OutputQueue._release_if_quick

    def released(transport: OutputQueue, most_waiting: int) -> None:
        asyncio.get_running_loop().call_soon(fired.set)
        release(transport, most_waiting)

    monkeypatch.setattr(OutputQueue, "_release_if_quick", released)
    async with connected() as (transport, client):
        transport.write(bytes(10_000_000))
        assert transport.may_grow
        reset_on_close(client)
        client.close()
        await asyncio.wait_for(fired.wait(), 30)
        assert transport.is_closing()

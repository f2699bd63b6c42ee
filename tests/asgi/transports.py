"""An OutputQueue in this process, and the socket of its client."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asgifast.protocols.output import OutputQueue

from wsgifast.sockets import FileSegment

__all__ = [
    "FILE_BYTES",
    "Recorded",
    "arrives",
    "connected",
    "iterations",
    "read",
    "read_to_end",
    "send_file",
    "writes",
]


# More than the socket buffers of both sides together.
FILE_BYTES = 16 * 1024 * 1024


class Recorded:
    """A transport that records the size of each write. An empty write is not recorded."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes: list[int] = []

    def write(self, data: bytes) -> None:
        if data:
            self.writes.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Drained(asyncio.Protocol):
    """The calls that an OutputQueue needs from its protocol."""

    transport: OutputQueue

    def pause_writing(self) -> None:
        self.transport.is_paused = True

    def resume_writing(self) -> None:
        self.transport.on_writing_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.on_connection_lost()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[OutputQueue, socket.socket]]:
    """A transport, and the socket of its client. The client reads only when a test does."""
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
        transport = OutputQueue(Recorded(real), loop)  # type: ignore[arg-type]
        protocol.transport = transport
        try:
            yield transport, client
        finally:
            transport.on_connection_lost()
            if not real.is_closing():
                transport.abort()
            client.close()
            await asyncio.sleep(0)
    assert not failed, "no callback of the loop fails"


async def send_file(transport: OutputQueue, segment: FileSegment) -> None:
    sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_sent(unsent: int, error: Exception | None) -> None:
        if not sent.done():
            sent.set_exception(error) if error is not None else sent.set_result(unsent)

    if not transport.write_file(segment, on_sent):
        assert await sent == 0


async def arrives(
    transport: OutputQueue, client: socket.socket, fd: int, size: int = FILE_BYTES
) -> None:
    """Send the first bytes of a file. The client reads them."""
    sending = asyncio.create_task(send_file(transport, FileSegment(fd, 0, size)))
    assert await read(client, size) == os.pread(fd, size, 0)
    await sending


async def read(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = await asyncio.get_running_loop().sock_recv(
            client, min(1024 * 1024, size - len(data))
        )
        assert part, f"the connection ended after {len(data)} of {size} bytes"
        data += part
    return bytes(data)


def writes(transport: OutputQueue) -> list[int]:
    assert isinstance(transport.real, Recorded)
    return transport.real.writes


async def iterations(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def read_to_end(client: socket.socket) -> bytes:
    data = bytearray()
    while part := await asyncio.get_running_loop().sock_recv(client, 1024 * 1024):
        data += part
    return bytes(data)

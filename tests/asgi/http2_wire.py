"""A client of HTTP/2 and uvicorn's zttp protocol in this process, without a socket.

Without zttp, the tests that import this module are skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from asgifast.messages import ASGIApp
from uvicorn.server import ServerState

from tests.support.http2 import Client, Response

pytest.importorskip("zttp", reason="zttp is not installed: pip install zttp")
pytest.importorskip("uvicorn.protocols.http.auto_zttp_impl", reason="this uvicorn has no zttp")

from asgifast.uvicorn import ZttpH2Protocol

# A busy machine needs seconds for work that takes tenths of a second on a quiet one
PATIENCE_S = 60.0


class Wire:
    """A transport to an HTTP/2 client in this process."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.protocol: Any = None
        self.is_closed = self.is_paused = False

    def write(self, data: bytes) -> None:
        self.client.take(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_closed = True

    def is_reading(self) -> bool:
        return not self.is_paused

    def pump(self) -> None:
        """Pass the data of the client to the protocol, unless the protocol has paused reading."""
        data = b"" if self.is_paused else self.client.state.data_to_send()
        if data and isinstance(self.protocol, asyncio.BufferedProtocol):
            buffer: Any = self.protocol.get_buffer(-1)
            buffer[: len(data)] = data
            self.protocol.buffer_updated(len(data))
        elif data:
            self.protocol.data_received(data)

    async def upload(self, streams: Sequence[int], size: int) -> int:
        """Send bytes on each stream while the protocol reads. Return the number of bytes sent."""
        left = dict.fromkeys(streams, size)
        state = self.client.state
        while not self.is_paused and any(left.values()):
            for stream in streams:
                window = state.local_flow_control_window(stream)
                count = min(left[stream], window, state.max_outbound_frame_size)
                if count:
                    state.send_data(stream, bytes(count))
                    left[stream] -= count
            self.pump()
            await asyncio.sleep(0)  # the protocol writes its response at the end of the iteration
        return len(streams) * size - sum(left.values())

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    async def until(self, condition: Callable[[], object]) -> None:
        """Run the loop until a condition is true."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.pump()
                await asyncio.sleep(0)

    async def response(self, stream: int) -> Response:
        """Run the loop until a response has ended."""
        response = self.client.responses[stream]
        await self.until(lambda: response.ended)
        return response

    async def reset(self, stream: int) -> Response:
        """Run the loop until a stream is reset."""
        response = self.client.responses[stream]
        await self.until(lambda: response.reset is not None)
        return response


@asynccontextmanager
async def connected(app: ASGIApp, **options: Any) -> AsyncIterator[tuple[Wire, Client]]:
    """Run an app under zttp's protocol, for a client with these options."""
    config = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    state = ServerState()
    client = Client(**options)
    wire = Wire(client)
    wire.protocol = ZttpH2Protocol(config=config, server_state=state, app_state={})
    wire.protocol.connection_made(wire)
    client.begin()
    wire.pump()
    yield wire, client
    wire.protocol.connection_lost(None)
    async with asyncio.timeout(PATIENCE_S):
        while state.tasks:
            await asyncio.sleep(0)


async def stands_still(measure: Callable[[], int]) -> int:
    """Run the loop until a value no longer changes."""
    same, last = 0, measure()
    while same < 50:
        await asyncio.sleep(0.001)
        now = measure()
        same, last = (same + 1 if now == last else 0), now
    return last

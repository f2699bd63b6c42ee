"""Frames that a client has sent together with its request for a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Any, cast

_ACCEPTED = b"HTTP/1.1 101 "


class FramesBehindRequest:
    """The transport of a WebSocket protocol, with frames that came before it had begun.

    Not every protocol of uvicorn's takes frames before it has accepted: wsproto drops them. So they
    are delivered behind the 101, and nothing is read before. Everything else is the transport's.
    """

    def __init__(self, transport: asyncio.Transport, frames: bytes) -> None:
        self._transport = transport
        self._frames = frames
        transport.pause_reading()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        if self._frames and data.startswith(_ACCEPTED):
            asyncio.get_running_loop().call_soon(self._deliver, self._frames)
            self._frames = b""

    def _deliver(self, frames: bytes) -> None:
        if not self._transport.is_closing():
            cast("asyncio.Protocol", self._transport.get_protocol()).data_received(frames)
            self._transport.resume_reading()

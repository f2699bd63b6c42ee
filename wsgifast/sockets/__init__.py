"""Sockets: options, sendfile, receives of a known size, coalesced sends."""

from typing import TYPE_CHECKING

from ..checks import exports_on_demand
from .coalescing.blocking import CoalescingWriter
from .coalescing.common import SendFailed, WriterClosed
from .coalescing.shared import SharedCoalescingWriter
from .options import (
    SocketInUse,
    SocketNotFound,
    avoid_pacing,
    limit_send_buffer,
    owned_socket,
    release_send_buffer,
    set_nodelay,
)
from .receive import (
    ClosedEarly,
    IncompleteReceive,
    ReceiveCount,
    ReceiveTimedOut,
    async_recv_exactly,
    async_recv_exactly_into,
    recv_exactly,
    recv_exactly_into,
)
from .send_buffers import send_all, send_some
from .sendfile import FileSegment, FileTruncated, file_segment, send_file_segment

if TYPE_CHECKING:
    from .coalescing.asynchronous import AsyncCoalescingWriter
else:
    # Which needs asyncio: a thing to load for those who use it.
    __getattr__ = exports_on_demand(__name__, {"AsyncCoalescingWriter": ".coalescing.asynchronous"})

__all__ = [
    "AsyncCoalescingWriter",
    "ClosedEarly",
    "CoalescingWriter",
    "FileSegment",
    "FileTruncated",
    "IncompleteReceive",
    "ReceiveCount",
    "ReceiveTimedOut",
    "SendFailed",
    "SharedCoalescingWriter",
    "SocketInUse",
    "SocketNotFound",
    "WriterClosed",
    "async_recv_exactly",
    "async_recv_exactly_into",
    "avoid_pacing",
    "file_segment",
    "limit_send_buffer",
    "owned_socket",
    "recv_exactly",
    "recv_exactly_into",
    "release_send_buffer",
    "send_all",
    "send_file_segment",
    "send_some",
    "set_nodelay",
]

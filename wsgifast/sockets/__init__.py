"""Sockets: options, sendfile, receives of a known size, coalesced sends."""

from typing import TYPE_CHECKING

from ..checks import exports_on_demand
from .coalescing import CoalescingWriter, SendFailed, WriterClosed
from .options import (
    SocketInUse,
    SocketNotFound,
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
from .sending import (
    FileSegment,
    FileTruncated,
    file_segment,
    send_all,
    send_file_segment,
    send_some,
)
from .shared_coalescing import SharedCoalescingWriter

if TYPE_CHECKING:
    from .async_coalescing import AsyncCoalescingWriter
else:
    # Which needs asyncio: a thing to load for those who use it.
    __getattr__ = exports_on_demand(__name__, {"AsyncCoalescingWriter": ".async_coalescing"})

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

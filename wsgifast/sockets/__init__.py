"""Functions and classes for sockets: options, sendfile, exact receives and coalesced sends."""

from .coalescing import AsyncCoalescingWriter, CoalescingWriter, SendFailed, WriterClosed
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

__all__ = [
    "AsyncCoalescingWriter", "ClosedEarly", "CoalescingWriter", "FileSegment", "FileTruncated",
    "IncompleteReceive", "ReceiveCount", "ReceiveTimedOut", "SendFailed", "SharedCoalescingWriter",
    "SocketInUse", "SocketNotFound", "WriterClosed", "async_recv_exactly",
    "async_recv_exactly_into", "file_segment", "limit_send_buffer", "owned_socket", "recv_exactly",
    "recv_exactly_into", "release_send_buffer", "send_all", "send_file_segment", "send_some",
    "set_nodelay",
]  # fmt: skip

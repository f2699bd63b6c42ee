"""What touches a socket: its options, sendfile, whole receives, coalesced sends."""

from .options import limit_send_buffer, owned_socket, set_nodelay
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
from .sendfile import FileSegment, file_segment, send_file_segment

__all__ = [
    "ClosedEarly",
    "FileSegment",
    "IncompleteReceive",
    "ReceiveCount",
    "ReceiveTimedOut",
    "async_recv_exactly",
    "async_recv_exactly_into",
    "file_segment",
    "limit_send_buffer",
    "owned_socket",
    "recv_exactly",
    "recv_exactly_into",
    "send_file_segment",
    "set_nodelay",
]

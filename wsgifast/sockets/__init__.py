"""What touches a socket: its options, sendfile, whole receives, coalesced sends."""

from .coalescing import (
    AsyncCoalescingWriter,
    CoalescingWriter,
    SendFailed,
    SharedCoalescingWriter,
    WriterClosed,
)
from .gathering import send_all, send_some
from .options import SocketNotFound, limit_send_buffer, owned_socket, set_nodelay
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
from .sendfile import FileSegment, FileTruncated, file_segment, send_file_segment

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
    "SocketNotFound",
    "WriterClosed",
    "async_recv_exactly",
    "async_recv_exactly_into",
    "file_segment",
    "limit_send_buffer",
    "owned_socket",
    "recv_exactly",
    "recv_exactly_into",
    "send_all",
    "send_file_segment",
    "send_some",
    "set_nodelay",
]

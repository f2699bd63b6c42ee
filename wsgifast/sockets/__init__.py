"""What touches a socket: its options, sendfile, whole receives, coalesced sends."""

from .options import limit_send_buffer, owned_socket, set_nodelay
from .sendfile import FileSegment, file_segment, send_file_segment

__all__ = [
    "FileSegment",
    "file_segment",
    "limit_send_buffer",
    "owned_socket",
    "send_file_segment",
    "set_nodelay",
]

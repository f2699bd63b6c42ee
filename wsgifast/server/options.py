"""What a server is told."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HTTP2Options", "Options"]


@dataclass(frozen=True)
class Options:
    """A server's options; those that FastWorker has too are told of there.

    :ivar threads: how many apps may run at once.
    :ivar worker_connections: how many clients may be connected.
    :ivar keepalive_s: seconds that an idle connection may stay.
    :ivar graceful_timeout_s: seconds for what runs when the server is to end.
    :ivar has_siblings: whether other processes accept from the same listeners.
    :ivar sendfile: whether the kernel may send files by itself.
    :ivar trailer_line_bytes: the longest line behind a chunked body.
    :ivar trailer_fields: how many there may be.
    """

    threads: int
    worker_connections: int
    keepalive_s: float
    graceful_timeout_s: float
    has_siblings: bool
    sendfile: bool
    trailer_line_bytes: int
    trailer_fields: int
    buffer_bodies: bool
    body_memory_bytes: int
    body_limit_bytes: int
    bodies_on_disk_bytes: int
    body_timeout_s: float
    head_timeout_s: float
    send_timeout_s: float
    send_least_bytes_per_s: float
    output_ahead_bytes: int
    output_memory_bytes: int
    response_on_disk_bytes: int
    responses_on_disk_bytes: int
    stuck_after_s: float
    kill_stuck_after_s: float
    poller_kind: str


@dataclass(frozen=True)
class HTTP2Options:
    """What a server says to clients of HTTP/2 (RFC 9113 section 6.5.2).

    :ivar max_concurrent_streams: of one connection.
    :ivar initial_window_bytes: of a stream.
    :ivar max_frame_bytes: that a client may send; 16384 or more.
    :ivar max_header_list_bytes: of a request, decompressed; 0 for any number.
    """

    max_concurrent_streams: int
    initial_window_bytes: int
    max_frame_bytes: int
    max_header_list_bytes: int

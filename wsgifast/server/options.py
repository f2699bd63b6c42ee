"""The options of a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """A server's options. Those that are not listed here are documented in FastWorker.

    :ivar threads: how many apps run at once.
    :ivar worker_connections: the most open connections.
    :ivar keepalive_s: how long an idle connection is kept open.
    :ivar graceful_timeout_s: how long requests may take to finish when the server ends.
    :ivar has_siblings: whether other processes accept from the same listeners.
    :ivar sendfile: whether to use sendfile.
    :ivar trailer_line_bytes: the longest trailer of a chunked body.
    :ivar trailer_fields: the most trailers.
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
    """The settings sent to HTTP/2 clients (RFC 9113 section 6.5.2).

    :ivar max_concurrent_streams: of one connection.
    :ivar initial_window_bytes: of a stream.
    :ivar max_frame_bytes: of a frame that a client sends; 16384 or more.
    :ivar max_header_list_bytes: of a request, uncompressed; 0 for no limit.
    :ivar max_header_fields: of a request. It is the parser that refuses more; what is received may
        have somewhat more, since cookies may come one by one.
    """

    max_concurrent_streams: int
    initial_window_bytes: int
    max_frame_bytes: int
    max_header_list_bytes: int
    max_header_fields: int

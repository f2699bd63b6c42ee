"""The options of FastWorker's core (wsgifast.server)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..server_options import MIN_BYTES_PER_S


@dataclass(frozen=True)
class Options:
    """A server's options.

    wsgifast/server_options.py describes the options that are not listed here.

    Options with a default are constants. Only tests replace them.

    :ivar threads: the number of apps that can run at once.
    :ivar worker_connections: the maximum number of open connections.
    :ivar max_keepalived: if more connections are open, each is closed after its response.
    :ivar keepalive_s: how long an idle connection stays open.
    :ivar graceful_timeout_s: how long requests may take to finish when the server ends.
    :ivar has_other_workers: whether other processes accept connections from the same listeners.
    :ivar sendfile: whether to use sendfile.
    :ivar trailer_line_bytes: the maximum size of a trailer in a chunked body.
    :ivar max_fields: the maximum number of headers of an HTTP/2 request, or of trailers in a
        chunked body. The parser refuses requests with more headers. HPACK decodes somewhat more
        fields, because a client may split a Cookie header.
    :ivar http2_streams: the maximum number of concurrent streams of a connection. This option and
        the next three are settings sent to HTTP/2 clients (RFC 9113 section 6.5.2).
    :ivar http2_window_bytes: the initial flow-control window of a stream.
    :ivar http2_frame_bytes: the maximum size of a frame that a client may send, at least 16384.
    :ivar http2_header_list_bytes: the maximum size of a request's headers before compression. 0 for
        no limit.
    """

    threads: int
    worker_connections: int
    max_keepalived: int
    keepalive_s: float
    graceful_timeout_s: float
    has_other_workers: bool
    sendfile: bool
    trailer_line_bytes: int
    max_fields: int
    http2_streams: int
    http2_window_bytes: int
    http2_frame_bytes: int
    http2_header_list_bytes: int
    buffer_bodies: bool
    body_limit_bytes: int
    input_memory_bytes: int
    bodies_on_disk_bytes: int
    head_timeout_s: float
    body_timeout_s: float
    connections_per_address: float
    send_timeout_s: float
    output_memory_bytes: int
    responses_on_disk_bytes: int
    kill_stuck_after_s: float
    health_path: str | None
    ready_path: str | None
    access_log_skip: Sequence[str]
    queue_timeout_s: float
    request_timeout_s: float
    # Larger bodies are stored in a temporary file. Most forms are smaller, and most uploads are
    # larger.
    body_memory_bytes: int = 512 * 1024
    # A client is disconnected if it receives fewer bytes on average, after send_timeout_s.
    send_min_bytes_per_s: float = MIN_BYTES_PER_S
    # If more bytes are in memory for one client, further blocks of a generator are written to a
    # temporary file. Up to twice as many bytes may wait in memory. This is several times as much as
    # a socket accepts at once.
    output_ahead_bytes: int = 256 * 1024
    # The maximum size of one response in a temporary file. A generator may be endless. At this
    # limit it waits for its client.
    response_on_disk_bytes: int = 1024 * 1024 * 1024
    # If no thread has finished a request for this time, the stack of each thread is logged. Other
    # threads then call the postponed close() methods of stuck threads. gunicorn's timeout has the
    # same default.
    stuck_after_s: float = 30.0

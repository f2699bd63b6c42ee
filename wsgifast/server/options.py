"""The options of FastWorker's core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..server_options import LEAST_BYTES_PER_S


@dataclass(frozen=True)
class Options:
    """A server's options: those of wsgifast/server_options.py that the server uses, and others.

    Those with a default are constants, which only tests replace.

    :ivar threads: how many apps run at once.
    :ivar worker_connections: the most open connections.
    :ivar max_keepalived: with more open connections, each is closed after its response.
    :ivar keepalive_s: how long an idle connection stays open.
    :ivar graceful_timeout_s: how long requests may take to finish when the server ends.
    :ivar has_other_workers: whether other processes accept from the same listeners.
    :ivar sendfile: whether to use sendfile.
    :ivar trailer_line_bytes: the longest trailer of a chunked body.
    :ivar max_fields: the most headers of an HTTP/2 request, or trailers of a chunked body. It is
        the parser that refuses more headers. A request may be received with somewhat more, since
        cookies may come one by one.
    :ivar http2_streams: the most streams of a connection at once. This and the next three are
        settings sent to HTTP/2 clients (RFC 9113 section 6.5.2).
    :ivar http2_window_bytes: the initial flow-control window of a stream.
    :ivar http2_frame_bytes: the largest frame that a client may send, 16384 or more.
    :ivar http2_header_list_bytes: the most bytes of a request's headers, uncompressed, or 0 for
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
    # Larger bodies go to a temporary file: forms fit in memory, uploads do not.
    body_memory_bytes: int = 512 * 1024
    # A client that takes fewer on average, after send_timeout_s, is disconnected.
    send_least_bytes_per_s: float = LEAST_BYTES_PER_S
    # The bytes in memory for one client, before the next block of a generator goes to a temporary
    # file. Up to twice as much may wait until then. A socket takes several times less at once.
    output_ahead_bytes: int = 256 * 1024
    # The most of one response in a temporary file: beyond it a generator, which may be endless,
    # waits for its client.
    response_on_disk_bytes: int = 1024 * 1024 * 1024
    # After so long in which no thread has ended its request, the stack of each one is logged.
    # Another thread calls the close() that a thread owes. gunicorn's timeout has the same default.
    stuck_after_s: float = 30.0

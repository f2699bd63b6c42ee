"""Which way a body went, and what it took: what an access log prints of it."""

from __future__ import annotations

__all__ = [
    "APP_US",
    "CHUNKS",
    "LENGTH_ERROR",
    "ROUTE",
    "SAMPLED_CHUNKS",
    "SENDFILE_BYTES",
    "SEND_US",
    "WAIT_US",
    "stream_route",
]

# environ[ROUTE] names the way, environ[CHUNKS] says of how many chunks the app made the body; a
# body that is read has none. Of a stream both are known at its end.
ROUTE = "wsgifast.route"
CHUNKS = "wsgifast.chunks"
# Of a body that broke its Content-Length: "short", "long", or "corrected" before it was sent.
LENGTH_ERROR = "wsgifast.length_error"
# Of a request that FastWorker has served, in whole microseconds as gunicorn's %(D)s is: how long it
# waited for a thread, how long it had one without waiting for its client, and what was left then
# until the kernel had the last byte. What D has beyond the three is the request's own body.
WAIT_US = "wsgifast.wait_us"
APP_US = "wsgifast.app_us"
SEND_US = "wsgifast.send_us"
# Bytes of the response that the kernel has sent from files by itself.
SENDFILE_BYTES = "wsgifast.sendfile_bytes"

# So many chunks of a stream tell what it is: of each further one the size is not asked.
SAMPLED_CHUNKS = 32
# Chunks that are smaller than this on average cost more around them than for their bytes.
_SMALL_CHUNK_BYTES = 1024
# Files are read in blocks of a multiple of this many bytes.
_BLOCK_UNIT_BYTES = 1024


def stream_route(chunks: int, first_bytes: int, total_bytes: int) -> str:
    """Tell what a stream of two chunks or more is.

    :param chunks: how many were looked at.
    :param first_bytes: the size of the first.
    :param total_bytes: of all of them.
    :returns: "stream-small" for small chunks, "stream-blocks" for chunks of one round size, as a
        file is read; "stream" for any others.
    """
    if total_bytes < chunks * _SMALL_CHUNK_BYTES:
        return "stream-small"
    is_round = first_bytes % _BLOCK_UNIT_BYTES == 0
    if is_round and (chunks - 1) * first_bytes < total_bytes <= chunks * first_bytes:
        return "stream-blocks"
    return "stream"

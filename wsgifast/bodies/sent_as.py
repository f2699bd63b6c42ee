"""Keys of the environ that say how a response was sent, for access logs."""

from __future__ import annotations

# environ[SENT_AS] is how the body was sent, environ[CHUNKS] the number of chunks in the app's body,
# absent for a file. For a stream both are final at its end.
SENT_AS = "wsgifast.sent_as"
CHUNKS = "wsgifast.chunks"
# What was wrong with a Content-Length: "short", "long", or "corrected" before anything was sent.
LENGTH_ERROR = "wsgifast.length_error"
# FastWorker's, in whole microseconds as gunicorn's %(D)s: how long the request waited for a thread,
# how long it had one without waiting for its client, and how long it took from then until the
# kernel had the last byte. The rest of D is the time that the request's body took to arrive.
WAIT_US = "wsgifast.wait_us"
APP_US = "wsgifast.app_us"
SEND_US = "wsgifast.send_us"
# The content coding that the body was compressed with, and its sizes in bytes without and with it;
# those of a stream are final at its end.
CODING = "wsgifast.coding"
UNCODED_BYTES = "wsgifast.uncoded_bytes"
CODED_BYTES = "wsgifast.coded_bytes"
# Bytes of the response that were sent by sendfile.
SENDFILE_BYTES = "wsgifast.sendfile_bytes"

# How many chunks of a stream are measured to name it.
SAMPLED_CHUNKS = 32
# Chunks below this size, on average, cost more per chunk than per byte.
_SMALL_CHUNK_BYTES = 1024
# Apps read files in blocks of a multiple of this many bytes.
_BLOCK_UNIT_BYTES = 1024


def stream_kind(chunks: int, first_bytes: int, total_bytes: int) -> str:
    """Return how a stream of two chunks or more is sent.

    :param chunks: how many were measured.
    :param first_bytes: the size of the first.
    :param total_bytes: the size of all of them.
    :returns: "stream-small" for small chunks, "stream-blocks" for chunks of one round size, as from
        a file that is read; "stream" for any others.
    """
    if total_bytes < chunks * _SMALL_CHUNK_BYTES:
        return "stream-small"
    is_round = first_bytes % _BLOCK_UNIT_BYTES == 0
    if is_round and (chunks - 1) * first_bytes < total_bytes <= chunks * first_bytes:
        return "stream-blocks"
    return "stream"

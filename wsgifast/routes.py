"""Which way a body went: what an access log prints of it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["CHUNKS", "ROUTE", "SAMPLED_CHUNKS", "stream_route"]

# environ[ROUTE] names the way, environ[CHUNKS] says of how many chunks the app made the body; a
# body that is read has none. Of a stream both are known at its end.
ROUTE = "wsgifast.route"
CHUNKS = "wsgifast.chunks"

# So many of a stream's chunks are looked at, to tell what it is: each further one only counts.
SAMPLED_CHUNKS = 32
# Chunks that are smaller than this on average cost more around them than for their bytes.
_CRUMB_BYTES = 1024
# Files are read in blocks of a multiple of this many bytes.
_BLOCK_UNIT_BYTES = 1024


def stream_route(chunks: int, sizes: Sequence[int]) -> str:
    """Tell what a stream was.

    :param chunks: how many there were.
    :param sizes: of the first ones, bytes.
    :returns: "stream-crumbs" for several small chunks, "stream-blocks" for several of one round
        size, as a file is read; "stream" for any other, a single chunk among them.
    """
    if chunks > 1:
        *full, last = sizes
        if sum(sizes) < len(sizes) * _CRUMB_BYTES:
            return "stream-crumbs"
        if full[0] % _BLOCK_UNIT_BYTES == 0 and {full[0]} == set(full) and last <= full[0]:
            return "stream-blocks"
    return "stream"

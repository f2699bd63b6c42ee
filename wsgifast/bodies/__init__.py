"""What WSGI apps return, and the shapes in which a server sends it fastest."""

from .chunks import charset_of, few_chunks, to_bytes
from .classify import Shape, classify, register_file_wrapper
from .files import (
    BLOCK_BYTES,
    FileReader,
    FileSlice,
    Segment,
    SegmentedBody,
    file_body,
    read_segment,
    read_whole,
    segment_of,
)
from .streams import NoBody, Stream, close_body

__all__ = [
    "BLOCK_BYTES",
    "FileReader",
    "FileSlice",
    "NoBody",
    "Segment",
    "SegmentedBody",
    "Shape",
    "Stream",
    "charset_of",
    "classify",
    "close_body",
    "few_chunks",
    "file_body",
    "read_segment",
    "read_whole",
    "register_file_wrapper",
    "segment_of",
    "to_bytes",
]

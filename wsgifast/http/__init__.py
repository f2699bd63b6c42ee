"""The rules of HTTP, each in one place: sans I/O, and without WSGI."""

from .chunked import ChunkDecoder
from .framing import (
    LAST_CHUNK,
    BodyCounter,
    Framing,
    chunk_size_line,
    frame_response,
    has_body,
    wants_to_persist,
)
from .head import ResponseHead, check_field, declared_length, parse_length, status_code
from .scan import HeadScanner

__all__ = [
    "LAST_CHUNK",
    "BodyCounter",
    "ChunkDecoder",
    "Framing",
    "HeadScanner",
    "ResponseHead",
    "check_field",
    "chunk_size_line",
    "declared_length",
    "frame_response",
    "has_body",
    "parse_length",
    "status_code",
    "wants_to_persist",
]

"""Content codings: which one a client gets, the compressed types, and the compressors."""

from .policy import Compression, compress_response

__all__ = ["Compression", "compress_response"]

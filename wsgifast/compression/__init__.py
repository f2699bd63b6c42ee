"""Content codings: their selection, the compressed content types, and the compressors."""

from .policy import Compression, compress_response

__all__ = ["Compression", "compress_response"]

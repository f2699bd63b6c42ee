"""Content codings: which one a client gets, what is compressed, and the compressors."""

from .policy import Compression

__all__ = ["Compression"]

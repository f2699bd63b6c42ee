"""The content codings of siblings: a new one is a line in each of the three tables here."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Sequence

from ..errors import ConfigurationError

__all__ = [
    "CODING_PACKAGES", "ENCODERS", "SIBLING_SUFFIXES", "available_codings", "checked_codings",
]  # fmt: skip

# Between two siblings of one size the first named is sent.
SIBLING_SUFFIXES = {"zstd": ".zst", "br": ".br", "gzip": ".gz"}

# A decoder of the zstd content coding need not take a larger window than 8 MB (RFC 9659).
_ZSTD_LEVEL = 19
_ZSTD_WINDOW_LOG = 23
# What each coding needs that Python does not bring.
CODING_PACKAGES = {"br": "brotli", "zstd": "zstandard"}


def available_codings() -> tuple[str, ...]:
    """The content codings whose package is installed; gzip always is."""
    return tuple(
        c for c in SIBLING_SUFFIXES if c not in CODING_PACKAGES or _has(CODING_PACKAGES[c])
    )


def checked_codings(codings: Sequence[str] | None) -> Sequence[str]:
    """The codings that are asked for; None for those that are available.

    :raises ConfigurationError: for one that is unknown, or whose package is not installed.
    """
    if codings is None:
        return available_codings()
    for coding in codings:
        if coding not in SIBLING_SUFFIXES:
            raise ConfigurationError(
                f"{coding!r} is no coding known here: {', '.join(SIBLING_SUFFIXES)}"
            )
        if coding in CODING_PACKAGES and not _has(CODING_PACKAGES[coding]):
            package = CODING_PACKAGES[coding]
            raise ConfigurationError(
                f"{coding} needs the package {package}, which is not installed: "
                f"pip install {package}"
            )
    return list(dict.fromkeys(codings))


def _has(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def _gzip(content: bytes) -> bytes:
    # 16 + 15: a gzip frame, whose header zlib writes without a name and with the time 0.
    compressor = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


def _brotli(content: bytes) -> bytes:
    import brotli

    encoded: bytes = brotli.compress(content, quality=11)
    return encoded


def _zstd(content: bytes) -> bytes:
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(
        _ZSTD_LEVEL, source_size=len(content), window_log=_ZSTD_WINDOW_LOG
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


ENCODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": _gzip, "br": _brotli, "zstd": _zstd}

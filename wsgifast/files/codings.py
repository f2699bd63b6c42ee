"""Content codings of siblings (RFC 9110, section 8.4.1): each has a line in the tables here.

A sibling belongs to its original by its modification time, which :func:`is_outdated` compares.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable, Sequence

from ..errors import ConfigurationError
from ..option_checks import list_of_text

# Of two siblings of the same size the first one here is sent.
SIBLING_SUFFIXES = {"zstd": ".zst", "br": ".br", "gzip": ".gz"}

# A decoder of the zstd content coding need not support a larger window than 8 MB (RFC 9659).
_ZSTD_LEVEL = 19
_ZSTD_WINDOW_LOG = 23
# The packages that codings need beside the standard library.
CODING_PACKAGES = {"br": "brotli", "zstd": "zstandard"}

# A time that was copied as a float, as by WhiteNoise and ServeStatic, is off by up to 120 ns, and
# one in microseconds by up to 1000. No file is written twice within that time.
_ROUNDED_NS = 1_000
# Other tools cut the time to one of these units (pigz, brotli, and zstd before 1.5: to seconds).
_CUT_TO_NS = (1_000_000, 1_000_000_000)


def has_same_time(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether two files have the same modification time, or the one is the other's, rounded.

    Not any difference below a second will do: the original may have been written again.
    """
    earlier, later = sorted((one.st_mtime_ns, other.st_mtime_ns))
    difference = later - earlier
    return difference <= _ROUNDED_NS or any(
        difference < unit and earlier % unit == 0 for unit in _CUT_TO_NS
    )


def is_outdated(sibling: os.stat_result, original: os.stat_result) -> bool:
    """Whether a sibling was made from an earlier content of its original."""
    return sibling.st_mtime_ns < original.st_mtime_ns and not has_same_time(sibling, original)


def available_codings() -> tuple[str, ...]:
    """Return the content codings that can be made here; gzip always can."""
    return tuple(
        c for c in SIBLING_SUFFIXES if c not in CODING_PACKAGES or _has(CODING_PACKAGES[c])
    )


def checked_codings(codings: Sequence[str] | None) -> Sequence[str]:
    """Return the codings to make, without repetitions.

    :param codings: None for those that are available.
    :raises ConfigurationError: for one that is unknown, or whose package is not installed.
    """
    if codings is None:
        return available_codings()
    names = list_of_text(codings)
    if names is None:
        raise ConfigurationError(f"codings={codings!r}: a list, such as ['gzip']")
    for coding in names:
        if coding not in SIBLING_SUFFIXES:
            raise ConfigurationError(
                f"{coding!r} is not a known coding: {', '.join(SIBLING_SUFFIXES)}"
            )
        if coding in CODING_PACKAGES and not _has(CODING_PACKAGES[coding]):
            package = CODING_PACKAGES[coding]
            raise ConfigurationError(
                f"{coding} needs the package {package}, which is not installed: "
                f"pip install {package}"
            )
    return list(dict.fromkeys(names))


def _has(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def _gzip(content: bytes) -> bytes:
    # 16 +: gzip's format, with a header that has no name and the time 0.
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

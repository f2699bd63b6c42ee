"""Content codings (RFC 9110, section 8.4.1): packages, levels, compressors and selection.

A compressor makes one compressed body, without I/O. zlib, libdeflate, brotli and zstd release the
GIL while they compress.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from time import thread_time
from typing import Any

from ..checks import list_of_text
from ..errors import ConfigurationError
from ..http.fields import TOKEN

# Maps content codings to the suffixes of precompressed files. The order decides between codings
# that a client prefers equally, and between precompressed files of the same size.
PRECOMPRESSED_SUFFIXES = {"zstd": ".zst", "br": ".br", "gzip": ".gz"}
ZSTD_MODULE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
# Maps content codings to the modules that they need. gzip uses zlib of the standard library.
_MODULES = {"br": "brotli", "zstd": ZSTD_MODULE}
# The packages with these modules. From Python 3.14 on, zstd is in the standard library.
CODING_PACKAGES = {"br": "brotli", "zstd": "backports.zstd"}

# The levels for files that are compressed once and sent often.
_BEST_LEVELS = {"zstd": 19, "br": 11, "gzip": 9}
# The levels for responses that are compressed while a client waits. On a link of 20 Mbit/s, a
# higher level costs more time than it saves.
DEFAULT_LEVELS = {"zstd": 3, "br": 4, "gzip": 4}
LEVELS = {"zstd": range(1, 20), "br": range(12), "gzip": range(1, 10)}
# A decoder of the zstd content coding must support windows of up to 8 MB (RFC 9659).
MAX_ZSTD_WINDOW_LOG = 23
# Binary logarithms of window sizes for streams. A stream's compressor exists as long as the stream.
# With these windows and tables, the measured memory of a compressor is at most 310 KiB for zstd,
# 800 KiB for br, and 210 KiB for gzip. Larger windows save a few per cent of text at most.
_STREAM_WINDOW_LOGS = {"zstd": 17, "br": 18, "gzip": 15}
# The binary logarithm of the sizes of zstd's hash table and chain table. The defaults of level 3,
# 16 and 17, need half a megabyte more.
_ZSTD_STREAM_TABLE_LOG = 14

# The most random bytes of padding. They hide how well a secret in the body was compressed. Django
# adds up to 100 bytes too.
MAX_PADDING_BYTES = 100
# The length of the header of a gzip member without optional fields, as zlib writes it (RFC 1952,
# section 2.3).
_GZIP_HEADER_BYTES = 10
# The header of a member with a file name: deflate, the flag FNAME, no time, system unknown. Padding
# needs a file name, so :class:`_Gzip` replaces zlib's header by this header.
_GZIP_HEADER_WITH_NAME = b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\xff"
# The level of libdeflate for each level of zlib. At the next higher level, libdeflate still needs
# less time than zlib, and its output is smaller. From 10 on, libdeflate needs ten times as long.
_LIBDEFLATE_LEVELS = {level: min(level + 1, 9) for level in range(1, 10)}
# The first magic number for skippable frames (RFC 8878, section 3.1.2).
_SKIPPABLE_FRAME = (0x184D2A50).to_bytes(4, "little")

# The number of parsed Accept-Encoding headers in a cache. Browsers send only a few different ones.
_CACHED_HEADERS = 512
# Longer headers are not cached, so that a client cannot fill the memory.
_MAX_CACHED_CHARACTERS = 128

# A content coding or `*` in Accept-Encoding (section 12.5.3), and its weight with up to three
# decimals. Malformed list elements are ignored.
_MEMBER = re.compile(rf"({TOKEN})(?:[ \t]*;[ \t]*[qQ]=(0(?:\.[0-9]{{0,3}})?|1(?:\.0{{0,3}})?))?")


def available_codings() -> tuple[str, ...]:
    """Return the content codings whose packages are installed. gzip needs no package."""
    return tuple(coding for coding in PRECOMPRESSED_SUFFIXES if _is_available(coding))


def checked_codings(codings: Sequence[str] | None) -> Sequence[str]:
    """Check content codings, and return them without repetitions.

    :param codings: the content codings. None for all that are available.
    :raises ConfigurationError: if a coding is unknown, or its package is not installed.
    """
    if codings is None:
        return available_codings()
    names = list_of_text(codings)
    if names is None:
        raise ConfigurationError(f"codings={codings!r}: must be a list such as ['gzip']")
    for coding in names:
        if coding not in PRECOMPRESSED_SUFFIXES:
            raise ConfigurationError(
                f"{coding!r} is not a known coding: use {', '.join(PRECOMPRESSED_SUFFIXES)}"
            )
        if not _is_available(coding):
            package = CODING_PACKAGES[coding]
            raise ConfigurationError(
                f"{coding} needs the package {package}, which is not installed: "
                f"pip install {package}"
            )
    return list(dict.fromkeys(names))


def preferred_coding(accept_encoding: str, available: tuple[str, ...]) -> str | None:
    """Return the content coding that the client prefers, or None to send an uncompressed body.

    A client that accepts neither identity nor an available coding gets identity. Section 12.4.1
    allows that, and the body is more useful than a 406.

    :param accept_encoding: the value of the header. Do not call this function for a request without
        the header: send an uncompressed body.
    :param available: content codings in lower case. The first ones are preferred if the client
        gives several the same weight.
    """
    if len(accept_encoding) > _MAX_CACHED_CHARACTERS:
        return _preferred(accept_encoding, available)
    return _cached_preferred(accept_encoding, available)


def _preferred(accept_encoding: str, available: Sequence[str]) -> str | None:
    weights: dict[str, float] = {}
    for member in accept_encoding.split(","):
        match = _MEMBER.fullmatch(member.strip(" \t"))
        if match:
            coding = match[1].lower()
            weights["gzip" if coding == "x-gzip" else coding] = float(match[2] or 1)
    others = weights.get("*", 0.0)
    # max() returns the first choice with the highest weight. The choices are: codings that the
    # client names, then identity, then codings that match `*`. Clients that send only `*` often
    # support no content coding.
    choices = [*(c for c in available if c in weights), "identity"]
    choices += (c for c in available if c not in weights)
    best = max(choices, key=lambda coding: weights.get(coding, others))
    return best if best != "identity" and weights.get(best, others) else None


_cached_preferred = lru_cache(_CACHED_HEADERS)(_preferred)


def compress_file(content: bytes, coding: str) -> bytes:
    """Compress a file's content at the highest level. The result depends only on the content."""
    return COMPRESSORS[coding](_BEST_LEVELS[coding], len(content), False).whole(content)


def compressor(
    coding: str, *, level: int | None = None, size: int | None = None, padding: bool = False
) -> Compressor:
    """Return a compressor for one body.

    :param coding: one of :func:`available_codings`.
    :param level: within :data:`LEVELS`. The default is in :data:`DEFAULT_LEVELS`.
    :param size: the size of the body in bytes. None for a stream of unknown size.
    :param padding: hide the exact length: add up to :data:`MAX_PADDING_BYTES` random bytes.
    """
    if level is None:
        level = DEFAULT_LEVELS[coding]
    return COMPRESSORS[coding](level, size, padding)


class Compressor:
    """Compresses one body, as a whole or block by block."""

    def add(self, block: bytes) -> bytes:
        """Compress a block. The compressor may buffer much of the output."""
        raise NotImplementedError

    def flush(self) -> bytes:
        """Return the buffered output, so that the client can decode all blocks so far."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """Return the buffered output and the end of the compressed body."""
        raise NotImplementedError

    def whole(self, content: bytes) -> bytes:
        """Compress a whole body."""
        return self.add(content) + self.finish()

    def flushed(self, block: bytes) -> bytes:
        """Compress a block, and return the whole output for it."""
        return self.add(block) + self.flush()


class Totals:
    """The amounts of data that this process has compressed, for each content coding.

    :ivar uncompressed_bytes: the bytes before compression.
    :ivar compressed_bytes: the bytes after compression.
    :ivar cpu_seconds: the processor time of compression.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self.uncompressed_bytes: Counter[str] = Counter()
        self.compressed_bytes: Counter[str] = Counter()
        self.cpu_seconds: defaultdict[str, float] = defaultdict(float)

    def count(
        self, coding: str, uncompressed_bytes: int, compressed_bytes: int, cpu_seconds: float
    ) -> None:
        with self._lock:
            self.uncompressed_bytes[coding] += uncompressed_bytes
            self.compressed_bytes[coding] += compressed_bytes
            self.cpu_seconds[coding] += cpu_seconds


TOTALS = Totals()
# A forked worker counts from zero, because its parent reports its own counts.
os.register_at_fork(after_in_child=TOTALS.reset)


class Counted(Compressor):
    """Counts the bytes and the processor time of a compressor in :data:`TOTALS`."""

    def __init__(self, coding: str, inner: Compressor) -> None:
        self._coding = coding
        self._inner = inner

    def add(self, block: bytes) -> bytes:
        return self._counted(self._inner.add, block)

    def flush(self) -> bytes:
        return self._counted(lambda _: self._inner.flush(), b"")

    def finish(self) -> bytes:
        return self._counted(lambda _: self._inner.finish(), b"")

    def whole(self, content: bytes) -> bytes:
        began = thread_time()
        compressed = self._inner.whole(content)
        TOTALS.count(self._coding, len(content), len(compressed), thread_time() - began)
        return compressed

    def flushed(self, block: bytes) -> bytes:
        return self._counted(self._inner.flushed, block)

    def _counted(self, call: Callable[[bytes], bytes], block: bytes) -> bytes:
        began = thread_time()
        compressed = call(block)
        TOTALS.count(self._coding, len(block), len(compressed), thread_time() - began)
        return compressed


class _Gzip(Compressor):
    """gzip (RFC 1952). The padding is a file name, which decoders ignore.

    libdeflate compresses whole bodies, if its package is installed. It does not support streams.
    """

    def __init__(self, level: int, size: int | None, padding: bool) -> None:
        self._level = level
        self._libdeflate = _libdeflate() if size is not None else None
        if self._libdeflate is None:
            self._deflate = zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        # Hexadecimal digits: the name must not contain a NUL byte.
        length = _padding_bytes(padding)
        self._name = secrets.token_hex(length)[:length].encode()

    def add(self, block: bytes) -> bytes:
        return self._with_name(self._deflate.compress(block))

    def flush(self) -> bytes:
        return self._with_name(self._deflate.flush(zlib.Z_SYNC_FLUSH))

    def finish(self) -> bytes:
        return self._with_name(self._deflate.flush())

    def whole(self, content: bytes) -> bytes:
        if self._libdeflate is None:
            return super().whole(content)
        level = _LIBDEFLATE_LEVELS[self._level]
        return self._with_name(bytes(self._libdeflate.gzip_compress(content, level)))

    def _with_name(self, data: bytes) -> bytes:
        if not self._name or not data:
            return data
        header = _GZIP_HEADER_WITH_NAME + self._name + b"\0"
        self._name = b""
        return header + data[_GZIP_HEADER_BYTES:]


@lru_cache(1)
def _libdeflate() -> Any:
    """Return the Python binding of libdeflate. None if it is not installed."""
    try:
        return import_module("deflate")
    except ImportError:
        return None


class _Brotli(Compressor):
    """br (RFC 7932). The padding is an empty meta-block with bytes that decoders ignore."""

    def __init__(self, level: int, size: int | None, padding: bool) -> None:
        import brotli

        if size is None:
            self._compressor: Any = brotli.Compressor(
                quality=level, lgwin=_STREAM_WINDOW_LOGS["br"]
            )
        else:
            self._compressor = brotli.Compressor(quality=level)
        self._padding = _padding_bytes(padding)

    def add(self, block: bytes) -> bytes:
        data: bytes = self._compressor.process(block)
        return data

    def flush(self) -> bytes:
        data: bytes = self._compressor.flush()
        return data + self._pad()

    def finish(self) -> bytes:
        data: bytes = self.flush() if self._padding else b""
        data += self._compressor.finish()
        return data

    def whole(self, content: bytes) -> bytes:
        data: bytes = self._compressor.process(content)
        if self._padding:
            data += self._compressor.flush() + self._pad()
        data += self._compressor.finish()
        return data

    def _pad(self) -> bytes:
        """Return the padding. The caller has flushed: the padding must begin at a byte boundary."""
        size, self._padding = self._padding, 0
        if not size:
            return b""
        # Section 9.2, from the lowest bit: ISLAST (0), MNIBBLES for an empty block (11), reserved
        # (0), MSKIPBYTES for a length of one byte (01). Then eight bits with the length minus one,
        # and two unused bits.
        header = 0b01_0_11_0 | (size - 1) << 6
        return header.to_bytes(2, "little") + secrets.token_bytes(size)


class Zstd(Compressor):
    """zstd (RFC 8878). The padding is a skippable frame before the data.

    :param dictionary: a ZstdDict, or None.
    :param header: the bytes before the padding and the data.
    """

    def __init__(
        self,
        level: int,
        size: int | None,
        padding: bool,
        *,
        dictionary: Any = None,
        header: bytes = b"",
    ) -> None:
        zstd = import_module(ZSTD_MODULE)
        parameter = zstd.CompressionParameter
        options = {parameter.compression_level: level}
        if size is None:
            options[parameter.window_log] = _STREAM_WINDOW_LOGS["zstd"]
            options[parameter.hash_log] = options[parameter.chain_log] = _ZSTD_STREAM_TABLE_LOG
        elif size > 1 << MAX_ZSTD_WINDOW_LOG:
            options[parameter.window_log] = MAX_ZSTD_WINDOW_LOG
        if dictionary is not None:
            # A digested dictionary saves 0.2 ms, but needs 0.4 MB more in each compressor.
            dictionary = dictionary.as_prefix if size is None else dictionary.as_digested_dict
        self._compressor: Any = zstd.ZstdCompressor(options=options, zstd_dict=dictionary)
        if size is not None:
            self._compressor.set_pledged_input_size(size)
        self._padding = header
        if length := _padding_bytes(padding):
            header = _SKIPPABLE_FRAME + length.to_bytes(4, "little")
            self._padding += header + secrets.token_bytes(length)

    def add(self, block: bytes) -> bytes:
        return self._padded(self._compressor.compress(block))

    def flush(self) -> bytes:
        return self._padded(self._compressor.flush(self._compressor.FLUSH_BLOCK))

    def finish(self) -> bytes:
        return self._padded(self._compressor.flush())

    def whole(self, content: bytes) -> bytes:
        data: bytes = self._compressor.compress(content)
        return self._padding + data + self._compressor.flush()  # type: ignore[no-any-return]

    def _padded(self, data: bytes) -> bytes:
        if self._padding and data:
            data, self._padding = self._padding + data, b""
        return data


def _padding_bytes(padding: bool) -> int:
    return secrets.randbelow(MAX_PADDING_BYTES + 1) if padding else 0


# Maps content codings to compressors. The arguments are the level, the size of the body (None for a
# stream), and whether to add padding.
COMPRESSORS: dict[str, Callable[[int, int | None, bool], Compressor]] = {
    "zstd": Zstd,
    "br": _Brotli,
    "gzip": _Gzip,
}


def _is_available(coding: str) -> bool:
    module = _MODULES.get(coding)
    if module is None:
        return True
    try:
        import_module(module)
    except ImportError:
        return False
    return True

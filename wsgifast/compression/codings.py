"""Content codings (RFC 9110, section 8.4.1): packages, levels, compressors, and a client's choice.

A compressor makes one compressed body. It has no I/O. zlib, libdeflate, brotli and zstd release the
GIL while they work.
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

# The codings, and the suffix of a precompressed file in each. Of two precompressed files of the
# same size, and of two codings that a client prefers equally, the first one here is sent.
PRECOMPRESSED_SUFFIXES = {"zstd": ".zst", "br": ".br", "gzip": ".gz"}
ZSTD_MODULE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
# The module that a coding needs, and how it is installed. Before Python 3.14 none of them is in the
# standard library. gzip's zlib always is.
_MODULES = {"br": "brotli", "zstd": ZSTD_MODULE}
CODING_PACKAGES = {"br": "brotli", "zstd": "backports.zstd"}

# For files that are compressed once and sent often.
_BEST_LEVELS = {"zstd": 19, "br": 11, "gzip": 9}
# The levels while a client waits. A higher level costs more time than it saves on a link of
# 20 Mbit/s.
DEFAULT_LEVELS = {"zstd": 3, "br": 4, "gzip": 4}
LEVELS = {"zstd": range(1, 20), "br": range(12), "gzip": range(1, 10)}
# A decoder of the zstd content coding need not support a larger window than 8 MB (RFC 9659).
MAX_ZSTD_WINDOW_LOG = 23
# A stream's compressor lives as long as the stream. With these windows and tables one takes at most
# 310 KiB in zstd, 800 in br and 210 in gzip, measured. Larger ones save some per cent of text at
# best.
_STREAM_WINDOW_LOGS = {"zstd": 17, "br": 18, "gzip": 15}
_ZSTD_STREAM_TABLE_LOG = 14  # level 3 has 16 and 17, for half a megabyte more

# The most bytes of padding: its length hides how well a secret compressed. Django adds as many.
MAX_PADDING_BYTES = 100
# A gzip member's header (RFC 1952, section 2.3): deflate, no flags, no time, system unknown. zlib
# writes one of this length, which :class:`_Gzip` replaces by one with a file name.
_GZIP_HEADER_BYTES = 10
_GZIP_HEADER_WITH_NAME = b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\xff"
# libdeflate takes less time than zlib does at the level below, and makes fewer bytes: at 5 about as
# many as zlib at 6, in half its time. From 10 on it takes ten times as long.
_LIBDEFLATE_LEVELS = {level: min(level + 1, 9) for level in range(1, 10)}
# RFC 8878, section 3.1.2: the first of the magic numbers of a skippable frame.
_SKIPPABLE_FRAME = (0x184D2A50).to_bytes(4, "little")

# Parsed headers that are remembered. Browsers send a handful of them. Longer ones are parsed each
# time, so that a client cannot fill the memory.
_REMEMBERED_HEADERS = 512
_REMEMBERED_CHARACTERS = 128

# A coding or `*` in Accept-Encoding (section 12.5.3), and its weight with up to three decimals.
# Malformed members are skipped.
_MEMBER = re.compile(rf"({TOKEN})(?:[ \t]*;[ \t]*[qQ]=(0(?:\.[0-9]{{0,3}})?|1(?:\.0{{0,3}})?))?")


def available_codings() -> tuple[str, ...]:
    """Return the content codings that can be made here. gzip always can."""
    return tuple(coding for coding in PRECOMPRESSED_SUFFIXES if _is_available(coding))


def checked_codings(codings: Sequence[str] | None) -> Sequence[str]:
    """Return the codings to make, without repetitions.

    :param codings: None for all that are available.
    :raises ConfigurationError: for an unknown one, or one without its package.
    """
    if codings is None:
        return available_codings()
    names = list_of_text(codings)
    if names is None:
        raise ConfigurationError(f"codings={codings!r}: a list, such as ['gzip']")
    for coding in names:
        if coding not in PRECOMPRESSED_SUFFIXES:
            raise ConfigurationError(
                f"{coding!r} is not a known coding: {', '.join(PRECOMPRESSED_SUFFIXES)}"
            )
        if not _is_available(coding):
            package = CODING_PACKAGES[coding]
            raise ConfigurationError(
                f"{coding} needs the package {package}, which is not installed: "
                f"pip install {package}"
            )
    return list(dict.fromkeys(names))


def preferred_coding(accept_encoding: str, available: tuple[str, ...]) -> str | None:
    """Return the coding that the client prefers, or None to send the file as it is.

    A client that refuses identity and every available coding gets identity all the same, as section
    12.4.1 allows: the file is more useful than a 406.

    :param accept_encoding: the header's value. Without the header any coding is acceptable (section
        12.5.3), but identity is the safe choice: do not call this.
    :param available: codings in lower case, those that the server prefers first: they decide
        between equal weights.
    """
    if len(accept_encoding) > _REMEMBERED_CHARACTERS:
        return _preferred(accept_encoding, available)
    return _remembered(accept_encoding, available)


def _preferred(accept_encoding: str, available: Sequence[str]) -> str | None:
    weights: dict[str, float] = {}
    for member in accept_encoding.split(","):
        match = _MEMBER.fullmatch(member.strip(" \t"))
        if match:
            coding = match[1].lower()
            weights["gzip" if coding == "x-gzip" else coding] = float(match[2] or 1)
    others = weights.get("*", 0.0)
    # At equal weights, a coding that the client names comes before identity, which is larger, and
    # identity before a coding that only `*` matches: clients that send `*` alone often decode none.
    choices = [*(c for c in available if c in weights), "identity"]
    choices += (c for c in available if c not in weights)
    best = max(choices, key=lambda coding: weights.get(coding, others))
    return best if best != "identity" and weights.get(best, others) else None


_remembered = lru_cache(_REMEMBERED_HEADERS)(_preferred)


def compress_file(content: bytes, coding: str) -> bytes:
    """Compress a file's content at the highest level. Equal content gives equal bytes."""
    return COMPRESSORS[coding](_BEST_LEVELS[coding], len(content), False).whole(content)


def compressor(
    coding: str, *, level: int | None = None, size: int | None = None, padding: bool = False
) -> Compressor:
    """Return a compressor for one body.

    :param coding: one of :func:`available_codings`.
    :param level: within :data:`LEVELS`. By default that of :data:`DEFAULT_LEVELS`.
    :param size: of the body in bytes, if it is compressed as a whole. None for a stream.
    :param padding: hide the exact length behind up to :data:`MAX_PADDING_BYTES` random ones.
    """
    if level is None:
        level = DEFAULT_LEVELS[coding]
    return COMPRESSORS[coding](level, size, padding)


class Compressor:
    """Makes one compressed body, from the whole or block by block."""

    def add(self, block: bytes) -> bytes:
        """Compress a block. Much of it may stay in the compressor."""
        raise NotImplementedError

    def flush(self) -> bytes:
        """Return the bytes in the compressor, so that the client can decode all blocks so far."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """Return the remaining bytes, and the end of the compressed body."""
        raise NotImplementedError

    def whole(self, content: bytes) -> bytes:
        """Compress a whole body."""
        return self.add(content) + self.finish()

    def flushed(self, block: bytes) -> bytes:
        """Compress a block, and hold nothing of it back."""
        return self.add(block) + self.flush()


class Totals:
    """The work of this process by coding: bytes before and after, and CPU seconds."""

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
    """Counts the work of a compressor in :data:`TOTALS`."""

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
    """gzip (RFC 1952). The padding is a file name, which decoders skip.

    A whole body is compressed by libdeflate, if the package is installed. It has no streams.
    """

    def __init__(self, level: int, size: int | None, padding: bool) -> None:
        self._level = level
        self._libdeflate = _libdeflate() if size is not None else None
        if self._libdeflate is None:
            self._deflate = zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        # Letters: the name must not have a NUL in it.
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
    """The package with libdeflate. None without it."""
    try:
        return import_module("deflate")
    except ImportError:
        return None


class _Brotli(Compressor):
    """br (RFC 7932). The padding is an empty meta-block with bytes to skip."""

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
        """The padding, for behind a flush, which ends at a byte's boundary."""
        size, self._padding = self._padding, 0
        if not size:
            return b""
        # Section 9.2, from the lowest bit: not the last (0), no data (11), reserved (0), one byte
        # of a length (01), the length less one in eight bits, and two bits to the byte's end.
        header = 0b01_0_11_0 | (size - 1) << 6
        return header.to_bytes(2, "little") + secrets.token_bytes(size)


class Zstd(Compressor):
    """zstd (RFC 8878). The padding is a skippable frame in front.

    :param dictionary: its object of the library.
    :param header: the first bytes of the compressed body.
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
            # Digested once, it takes 0.4 MB more of each compressor, and as a prefix 0.2 ms.
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


# Make a compressor of a level, for a body of a size or a stream (None), with padding or without.
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

"""Decoders of content codings, for tests."""

from __future__ import annotations

import base64
import hashlib
import sys
import zlib
from importlib import import_module
from typing import Any

import brotli

# The codings that Chromium accepts.
BROWSERS = "gzip, deflate, br, zstd, dcb, dcz"
zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def decoded(coding: str | None, data: bytes) -> bytes:
    """Decode a whole body. It must be complete, and no byte may follow it."""
    if coding == "gzip":
        decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        content = decoder.decompress(data) + decoder.flush()
        assert decoder.eof
        assert not decoder.unused_data
    elif coding == "br":
        content = brotli.decompress(data)
    elif coding == "zstd":
        content = zstd.decompress(data)
    else:
        assert coding is None
        content = data
    return content


def decoded_delta(data: bytes, dictionary: bytes) -> bytes:
    """Decode a whole body in the content coding dcz, with a window no larger than the client's."""
    assert data[:8] == bytes.fromhex("5e2a4d1820000000")
    assert data[8:40] == hashlib.sha256(dictionary).digest()
    window = max(1 << 23, len(dictionary) * 5 // 4)
    raw = zstd.ZstdDict(dictionary, is_raw=True)
    content = b""
    data = data[40:]
    while data:
        decoder = zstd.ZstdDecompressor(
            zstd_dict=raw.as_prefix,
            options={zstd.DecompressionParameter.window_log_max: window.bit_length() - 1},
        )
        content += decoder.decompress(data)
        assert decoder.eof
        data = decoder.unused_data
    return content


def available(dictionary: bytes) -> str:
    """Return the Available-Dictionary header of a client that has this dictionary."""
    return f":{base64.b64encode(hashlib.sha256(dictionary).digest()).decode()}:"


class Decoder:
    """Decode a body as it arrives. The result must contain all sent bytes."""

    def __init__(self, coding: str) -> None:
        self._data = b""
        self._coding = coding
        self._gzip = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._br = brotli.Decompressor()
        self._zstd = zstd.ZstdDecompressor()

    def add(self, data: bytes) -> bytes:
        if self._coding == "gzip":
            return self._gzip.decompress(data)
        if self._coding == "br":
            content: bytes = self._br.process(data)
            return content
        content = b""
        while data:
            content += self._zstd.decompress(data)
            if not self._zstd.eof:
                break
            data = self._zstd.unused_data  # the frame of padding is over
            if data:
                self._zstd = zstd.ZstdDecompressor()
        return content

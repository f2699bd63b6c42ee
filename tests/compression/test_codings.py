"""The compressors of content codings."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.decoders import Decoder, decoded
from wsgifast import Compression, ConfigurationError
from wsgifast.compression import codings
from wsgifast.compression.codings import (
    DEFAULT_LEVELS,
    LEVELS,
    MAX_PADDING_BYTES,
    TOTALS,
    available_codings,
    checked_codings,
    compress_file,
    compressor,
)
from wsgifast.metrics.requests import RequestMetrics

CODINGS = ("zstd", "br", "gzip")
TEXT = b'{"name": "value", "other": [1, 2, 3]}\n' * 400


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("padding", [False, True])
@given(blocks=st.lists(st.binary(max_size=3000), max_size=8))
@settings(max_examples=40, deadline=None)
def test_any_blocks_of_a_compressor_decode_to_the_same(
    coding: str, padding: bool, blocks: list[bytes]
) -> None:
    stream = compressor(coding, padding=padding)
    decoder = Decoder(coding)
    sent = b""
    for block in blocks:
        data = stream.add(block) + stream.flush()
        assert decoder.add(data) == block  # a flush outputs all bytes
        sent += data
    assert decoded(coding, sent + stream.finish()) == b"".join(blocks)
    whole = b"".join(blocks)
    assert (
        decoded(coding, compressor(coding, size=len(whole), padding=padding).whole(whole)) == whole
    )


@pytest.mark.parametrize("coding", CODINGS)
def test_padding_hides_length_of_same_body(coding: str) -> None:
    sizes = {len(compressor(coding, size=len(TEXT), padding=True).whole(TEXT)) for _ in range(400)}
    least = len(compressor(coding, size=len(TEXT)).whole(TEXT))
    # Any length is possible. Lengths in steps of several bytes would reveal too much.
    assert len(sizes) > MAX_PADDING_BYTES * 0.9
    assert min(sizes) >= least
    assert max(sizes) <= least + MAX_PADDING_BYTES + 16


@pytest.mark.parametrize("coding", CODINGS)
def test_compressed_file_of_same_content_is_the_same(coding: str) -> None:
    made = compress_file(TEXT, coding)
    assert made == compress_file(TEXT, coding)
    assert decoded(coding, made) == TEXT


@pytest.mark.parametrize("coding", CODINGS)
def test_every_level_decodes_to_the_same(coding: str) -> None:
    assert DEFAULT_LEVELS[coding] in LEVELS[coding]
    for level in LEVELS[coding]:
        assert decoded(coding, compressor(coding, level=level, size=len(TEXT)).whole(TEXT)) == TEXT
        stream = compressor(coding, level=level)
        assert decoded(coding, stream.add(TEXT) + stream.finish()) == TEXT


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("content", [b"", b"x", TEXT], ids=len)
def test_gzip_of_whole_body_uses_libdeflate(
    content: bytes, padding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compressor("gzip", size=len(content), padding=padding).whole(content)
    monkeypatch.setattr(codings, "_libdeflate", lambda: None)
    zlibs = compressor("gzip", size=len(content), padding=padding).whole(content)
    for compressed in (made, zlibs):
        assert type(compressed) is bytes  # servers require this of a body
        assert decoded("gzip", compressed) == content
    if content == TEXT and not padding:
        assert made != zlibs


def test_zstd_windows_stay_within_what_browsers_accept() -> None:
    content = bytes(20_000_000)
    for size in (None, len(content)):
        stream = compressor("zstd", level=19, size=size)
        frame = stream.add(content[:100]) + stream.flush()
        assert _window_bytes(frame) <= 8 * 1024 * 1024  # RFC 9659 limits the window


def _window_bytes(frame: bytes) -> int:
    """Return the window of a zstd frame (RFC 8878, section 3.1.1.1.2)."""
    assert frame[:4] == b"\x28\xb5\x2f\xfd"
    assert (
        not frame[4] & 0b100000
    )  # the window of a single segment would be as large as the segment
    exponent, mantissa = frame[5] >> 3, frame[5] & 7
    base = 1 << (10 + exponent)
    return base + base // 8 * mantissa


def test_unknown_coding_or_no_list_is_refused() -> None:
    assert checked_codings(["gzip", "br", "gzip"]) == ["gzip", "br"]
    with pytest.raises(ConfigurationError, match="'lzma'"):
        checked_codings(["lzma"])
    with pytest.raises(ConfigurationError, match="a list"):
        checked_codings("gzip")


def test_gzip_alone_is_available_without_packages() -> None:
    script = (
        "import sys\n"
        "for name in 'brotli backports backports.zstd compression compression.zstd'.split():\n"
        "    sys.modules[name] = None\n"
        "sys.modules['deflate'] = None\n"
        "from wsgifast.compression import codings\n"
        "from wsgifast import Compression, ConfigurationError\n"
        "print(codings.available_codings(), Compression().codings)\n"
        "assert codings.compressor('gzip', size=9).whole(b'some text')\n"
        "try: Compression(codings=['br'])\n"
        "except ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "('gzip',) ('gzip',)",
        "br needs the package brotli, which is not installed: pip install brotli",
    ]
    assert available_codings() == CODINGS


def test_totals_count_what_is_compressed() -> None:
    options = Compression(padding=False)
    before = (
        TOTALS.uncompressed_bytes["br"],
        TOTALS.compressed_bytes["br"],
        TOTALS.cpu_seconds["br"],
    )
    whole = options.compressor("br", "text/plain", 5000).whole(b"x" * 5000)
    stream = options.compressor("br", "text/plain", None)
    parts = [stream.add(b"a" * 10), stream.flush(), stream.flushed(b"b" * 20), stream.finish()]
    assert TOTALS.uncompressed_bytes["br"] - before[0] == 5030
    assert TOTALS.compressed_bytes["br"] - before[1] == len(whole) + sum(map(len, parts))
    assert TOTALS.cpu_seconds["br"] > before[2]
    found = {
        (point.metric.name, *point.labels): point.value for point in RequestMetrics().collect()
    }
    assert found["wsgifast_uncoded_bytes_total", "br"] == TOTALS.uncompressed_bytes["br"]
    assert found["wsgifast_coded_bytes_total", "br"] == TOTALS.compressed_bytes["br"]
    assert found["wsgifast_compression_cpu_seconds_total", "br"] == TOTALS.cpu_seconds["br"]

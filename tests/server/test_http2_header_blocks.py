"""HPACK: our encoder and decoder understand hpack's blocks, and reject the same blocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import effort
from wsgifast.http.stream_headers import Field
from wsgifast.server.http2.header_blocks import TABLE_BYTES, Decoder, Encoder

NAMES = [
    b":status", b":path", b"content-type", b"content-length", b"etag", b"set-cookie", b"date",
    b"x-a", b"x-b", b"accept", b"authorization", b"via",
]  # fmt: skip
fields = st.tuples(
    st.sampled_from(NAMES) | st.binary(min_size=1, max_size=20),
    st.sampled_from([b"200", b"/", b"", b"a" * 100]) | st.binary(max_size=60),
)
all_headers = st.lists(st.lists(fields, max_size=12), min_size=1, max_size=8)
sizes = st.lists(st.integers(0, 2 * TABLE_BYTES), max_size=3)


@given(all_headers, st.lists(sizes, max_size=8))
def test_encoded_headers_are_decoded_by_hpack(
    lists: list[list[Field]], changes: list[list[int]]
) -> None:
    encoder, theirs, ours = Encoder(), hpack.Decoder(), Decoder(100)
    theirs.max_header_list_size = 2**16
    for number, fields in enumerate(lists):
        for size in changes[number] if number < len(changes) else ():
            encoder.header_table_size = size
        block = encoder.encode(fields)
        assert [tuple(field) for field in theirs.decode(block, raw=True)] == fields
        assert ours.fields(block) == fields
        assert encoder._size <= encoder.header_table_size <= TABLE_BYTES


@given(all_headers, st.booleans(), st.lists(st.integers(0, TABLE_BYTES), max_size=8))
def test_headers_of_hpack_are_decoded(
    lists: list[list[Field]], huffman: bool, changes: list[int]
) -> None:
    encoder, decoder = hpack.Encoder(), Decoder(100)
    for number, fields in enumerate(lists):
        if number < len(changes):
            encoder.header_table_size = changes[number]
        block = encoder.encode([hpack.HeaderTuple(*field) for field in fields], huffman=huffman)
        assert decoder.fields(block) == fields


def test_repeated_field_takes_one_byte() -> None:
    encoder = Encoder()
    fields = [(b":status", b"200"), (b"content-type", b"text/plain"), (b"date", b"now")]
    assert len(encoder.encode(fields)) > 3
    assert len(encoder.encode(fields)) == 3


@pytest.mark.parametrize("name", [b"set-cookie", b"authorization"])
def test_secret_is_never_indexed(name: bytes) -> None:
    block = Encoder().encode([(name, b"secret")])
    (field,) = hpack.Decoder().decode(block, raw=True)
    assert isinstance(field, hpack.NeverIndexedHeaderTuple)


def outcome(decode: Callable[[bytes], object], block: bytes) -> object:
    try:
        return decode(block)
    except hpack.HPACKError as error:
        return type(error), str(error)
    except (IndexError, TypeError):  # of hpack: h2 treats them as malformed blocks
        return IndexError, ""


def decoded_by_hpack(decoder: hpack.Decoder, block: bytes) -> list[Field]:
    return [(name, value) for name, value in decoder.decode(block, raw=True)]


def test_changed_blocks_are_understood_alike() -> None:
    chance = random.Random(5)
    for _ in range(effort(3000)):
        encoder, theirs, ours = hpack.Encoder(), hpack.Decoder(), Decoder(100)
        theirs.max_header_list_size = 2**16
        for _ in range(3):
            fields = [
                (chance.choice(NAMES), bytes(chance.choices(b"ab/0\xff", k=5))) for _ in "abc"
            ]
            block = bytearray(encoder.encode(fields))
            for _ in range(chance.randrange(3)):
                block[chance.randrange(len(block))] = chance.randrange(256)
            expected = outcome(partial(decoded_by_hpack, theirs), bytes(block))
            found = outcome(ours.fields, bytes(block))
            if isinstance(found, tuple):  # rejected, even if our limit is lower
                assert isinstance(expected, tuple) or "too long" in str(found)
                break
            assert found == expected


@pytest.mark.parametrize(
    "block",
    [
        b"\xff" + b"\xff" * 1000,  # an integer without an end
        b"\xff\x80\x80\x80\x80\x80\x00",  # a long integer
        b"\x80",  # index 0
        b"\xbe",  # an empty table
        b"\x40", b"\x40\x01", b"\x40\x01a", b"\x40\x01a\x05b",  # strings that end early
        b"\x82\x3f\x00",  # the size changes after a field
        b"\x3f\xe2\x1f",  # a table of 4,097 bytes
        b"\x20" * 9 + b"\x82",
        b"\x82" * 101,
    ],
)  # fmt: skip
def test_block_is_refused(block: bytes) -> None:
    with pytest.raises(hpack.HPACKError):
        Decoder(100).fields(block)


def test_headers_over_limit_are_refused_before_the_end() -> None:
    decoder = Decoder(1000)
    decoder.max_header_list_size = 500
    block = b"\x40\x01a\x64" + b"b" * 100 + b"\xbe" * 900
    with pytest.raises(hpack.OversizedHeaderListError):
        decoder.fields(block)

"""Quoting and line ends: the same bytes as with smtplib's regular expressions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.mail import wire

# Only octets with a meaning, so that short examples contain every case.
WIRE_TEXT = st.lists(st.sampled_from(["\r", "\n", "\r\n", ".", "a", "\r\n.", "b" * 40])).map(
    "".join
)
WIRE_BYTES = WIRE_TEXT.map(str.encode)


def smtplib_quotes(data: bytes) -> bytes:
    return re.sub(rb"(?m)^\.", b"..", data)


def smtplib_line_ends(text: str) -> str:
    return re.sub(r"(?:\r\n|\n|\r(?!\n))", "\r\n", text)


@given(WIRE_TEXT)
def test_line_ends_are_made_as_smtplib_does(text: str) -> None:
    assert wire.with_crlf(text.encode()) == smtplib_line_ends(text).encode()


@pytest.mark.parametrize("data", [b"", b"a.b\r\nc.\r\n", b"x" * 5000])
def test_data_that_needs_no_change_is_not_copied(data: bytes) -> None:
    assert wire.Quoter().feed(data) is data
    assert wire.with_crlf(data) is data


@given(WIRE_BYTES, st.sampled_from([b"\n", b"\r\n"]), st.sampled_from([0, 2, 1000]))
def test_first_dot_at_the_start_of_a_line_is_found(
    data: bytes, line_end: bytes, looked_at: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_SEARCHED_DOTS", looked_at)
        assert wire.find_line_dot(data, line_end) == data.find(line_end + b".")


@given(WIRE_BYTES, st.integers(0, 50))
def test_first_end_of_data_is_found(data: bytes, start: int) -> None:
    assert wire.find_end_of_data(data, start) == data.find(b"\r\n.\r\n", start)


@given(WIRE_BYTES, st.sampled_from([(b"\n.", b"\n.."), (b"\r\n.", b"\r\n")]))
def test_replace_in_block_equals_bytes_replace(data: bytes, change: tuple[bytes, bytes]) -> None:
    assert wire.replace_in_block(data, *change) == data.replace(*change)


@given(st.lists(WIRE_BYTES))
def test_quoted_blocks_equal_the_quoted_whole(blocks: list[bytes]) -> None:
    quoter = wire.Quoter()
    sent = b"".join(map(quoter.feed, blocks)) + quoter.finish()
    whole = smtplib_quotes(b"".join(blocks))
    assert sent == (whole if whole.endswith(b"\r\n") else whole + b"\r\n")

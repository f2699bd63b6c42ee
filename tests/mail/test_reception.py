"""The decoder of DATA, compared with a simple one that reads lines, for any split into blocks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wsgifast.mail.reception import ChunkDecoder, DataDecoder, Decoder, Refusal, SmugglingCheck

END = b".\r\n"
LINE_LIMIT = 20  # octets, including CR LF. The real limit is 1001.
PIECES = st.sampled_from(
    [b"\r", b"\n", b"\r\n", b".", b"a", b"\r\n.", b"\n.\r\n", b"\r.\r", b"b" * 7, b"c" * 19]
)
DATA = st.lists(PIECES, max_size=30).map(b"".join)


def plain(data: bytes, size_limit: int | None) -> tuple[bytes, Refusal | None, bytes]:
    """Return the content, the error and the remaining bytes by RFC 5321, line by line."""
    content: list[bytes] = []
    taken = 0
    refusal: Refusal | None = None
    while True:
        line, end, data = data.partition(b"\r\n")
        assert end, "the end of the data is missing"
        if line == b".":
            return (b"".join(content) if refusal is None else b""), refusal, data
        length = len(line + end)
        if refusal is None and length > LINE_LIMIT:
            too_much = size_limit and taken > size_limit
            refusal = Refusal.TOO_MUCH if too_much else Refusal.LINE_TOO_LONG
        taken += length
        if refusal is None and size_limit and taken > size_limit:
            refusal = Refusal.TOO_MUCH
        content.append((line[1:] if line.startswith(b".") else line) + end)


def fed(decoder: Decoder, data: bytes, cuts: list[int]) -> tuple[bytes, Refusal | None, bytes]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    content = rest = b""
    for start, end in itertools.pairwise(borders):
        if decoder.remaining is None:
            content += decoder.feed(data[start:end])
        else:
            rest += data[start:end]
    assert decoder.remaining is not None, "the end was not seen"
    if decoder.refusal is not None:
        content = b""
    return content, decoder.refusal, decoder.remaining + rest


@given(DATA, st.lists(st.integers(0, 300)), st.sampled_from([None, 0, 5, 30, 60]))
@example(b"b" * 7 + b"\r\n" + b"c" * 17 + b"\r\n", [7], None)  # a block begins with a line end
@example(b"..a\r\n\r\n...\r\nb\n.\r\nc\r.\r\n\r\n", [*range(40)], None)
def test_decoder_gives_the_same_as_line_by_line(
    data: bytes, cuts: list[int], size_limit: int | None
) -> None:
    if data and not data.endswith(b"\r\n"):
        data += b"\r\n"
    stream = data + END + b"QUIT\r\n"
    decoder = DataDecoder(size_limit=size_limit, line_limit=LINE_LIMIT)
    assert fed(decoder, stream, cuts) == plain(stream, size_limit)


def test_refused_message_has_no_more_content() -> None:
    decoder = DataDecoder(size_limit=100, line_limit=1001)
    taken = [decoder.feed(b"a" * 76 + b"\r\n") for _ in range(1000)]
    assert len(b"".join(taken)) <= 200
    assert (decoder.feed(END), decoder.refusal, decoder.remaining) == (b"", Refusal.TOO_MUCH, b"")


def test_line_without_end_is_refused() -> None:
    decoder = DataDecoder(size_limit=None, line_limit=1001)
    taken = [decoder.feed(b"a" * 1000) for _ in range(100)]
    assert (decoder.refusal, len(b"".join(taken))) == (Refusal.LINE_TOO_LONG, 1000)


@pytest.mark.parametrize("before", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("after", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("cuts", [[], list(range(30))], ids=["whole", "octets"])
def test_bare_line_ends_around_a_dot_end_no_data(
    before: bytes, after: bytes, cuts: list[int]
) -> None:
    stream = b"hello" + before + b"." + after + b"MAIL FROM:<x@y>\r\n.\r\n"
    proper = before == after == b"\r\n"
    lax = fed(DataDecoder(size_limit=None, line_limit=1001), stream, cuts)
    strict_decoder = DataDecoder(size_limit=None, line_limit=1001, smuggling_check=SmugglingCheck())
    strict = fed(strict_decoder, stream, cuts)
    if proper:
        assert lax == strict == (b"hello\r\n", None, b"MAIL FROM:<x@y>\r\n.\r\n")
    else:
        assert lax[1:] == (None, b"")
        assert b"MAIL FROM" in lax[0]
        assert strict == (b"", Refusal.SMUGGLING, b"")


def test_dot_inside_a_line_is_no_smuggling() -> None:
    stream = b"a.b\nc.\n.d\r\n..\r\n.\r\n"
    decoder = DataDecoder(size_limit=None, line_limit=1001, smuggling_check=SmugglingCheck())
    assert fed(decoder, stream, list(range(20))) == (b"a.b\nc.\n.d\r\n.\r\n", None, b"")


@given(st.binary(max_size=50), st.lists(st.integers(0, 100)), st.integers(1, 50))
def test_chunk_has_the_announced_octets(data: bytes, cuts: list[int], size: int) -> None:
    stream = data.ljust(size, b"\0") + b"NOOP\r\n"
    assert fed(ChunkDecoder(size), stream, cuts) == (stream[:size], None, stream[size:])


def smuggles(message: bytes) -> bool:
    """Return whether a dot is between two line ends (CR LF is one) that are not both CR LF."""
    signs = b"\r\n" + message
    ends = ("\r\n", "\r", "\n")
    text = signs.decode("latin-1")
    tokens, at = [], 0
    while at < len(text):
        token = next((end for end in ends if text.startswith(end, at)), text[at])
        tokens.append(token)
        at += len(token)
    return any(
        before in ends
        and dot == "."
        and after in ends
        and (before, after) != ("\r\n", "\r\n")
        # A CR at the very end may become a CR LF: the result is not known yet.
        and not (after == "\r" and before == "\r\n" and number == len(tokens) - 3)
        for number, (before, dot, after) in enumerate(
            zip(tokens, tokens[1:], tokens[2:], strict=False)
        )
    )


@given(st.lists(st.sampled_from([b"\r", b"\n", b".", b"a", b"\r\n.\r\n"]), max_size=20))
def test_smuggling_is_found_across_chunks(pieces: list[bytes]) -> None:
    message = b"".join(pieces)
    expected = smuggles(message)
    for blocks in ([message], pieces, [message[at : at + 1] for at in range(len(message))]):
        check = SmugglingCheck()
        assert any(check.finds(block) for block in blocks) == expected, blocks


def test_chunk_with_a_smuggled_end_is_read_and_dropped() -> None:
    check = SmugglingCheck()
    first, second = ChunkDecoder(3, check), ChunkDecoder(4, check)
    assert fed(first, b"a\n.", [1, 2]) == (b"a\n.", None, b"")
    assert fed(second, b"\r\nbcNOOP\r\n", []) == (b"", Refusal.SMUGGLING, b"NOOP\r\n")

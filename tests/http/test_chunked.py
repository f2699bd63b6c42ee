"""Chunked bodies: the result depends on no cut, and never accepts more than gunicorn's reader."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.http.body import ChunkedReader
from gunicorn.http.errors import ChunkMissingTerminator, NoMoreData, ParseException
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader
from hypothesis import example, given
from hypothesis import strategies as st

from wsgifast.errors import BodyTooLarge, MalformedRequest
from wsgifast.http.chunked import ChunkDecoder

NEXT = b"GET /next HTTP/1.1\r\n\r\n"
END = b"0\r\n\r\n"

# The body and the bytes after it, None for an incomplete body, or the kind of the error.
Outcome = tuple[bytes, bytes] | None | str


def decode(pieces: list[bytes], *, chunks: int | None = None, **limits: int) -> Outcome:
    """Return the decoder's result for these pieces."""
    decoder = ChunkDecoder(**limits)
    body = b""
    try:
        for number, piece in enumerate(pieces):
            at = 0
            while at < len(piece) and not decoder.done:
                before = at
                if chunks is None:
                    content, at = decoder.decode(piece, at)
                    assert decoder.done or at == len(piece)
                else:
                    content, at = decoder.decode(piece, at, chunks=chunks)
                    assert at > before
                body += content
            if decoder.done:
                assert decoder.size == len(body)
                return body, piece[at:] + b"".join(pieces[number + 1 :])
    except (MalformedRequest, BodyTooLarge) as error:
        return type(error).__name__
    assert len(body) <= decoder.size
    return None


class GunicornsRequest:
    """The attributes of a request that gunicorn's reader needs for its limits and its trailers."""

    parse_headers = Request.parse_headers
    _apply_header_policy = getattr(Request, "_apply_header_policy", None)
    _policy_expect_continue = True
    _expected_100_continue = False
    version = (1, 1)
    peer_addr = ("127.0.0.1", 1)

    def __init__(self, line_limit: int, trailer_limit: int, fields: int) -> None:
        self.limit_request_field_size = line_limit
        self.max_buffer_headers = trailer_limit
        self.limit_request_fields = fields
        self.cfg = SimpleNamespace(
            strip_header_spaces=False, permit_obsolete_folding=False, header_map="drop"
        )


def read_by_gunicorn(
    pieces: list[bytes],
    *,
    line_limit: int = 8190,
    trailer_limit: int = 64 * 1024,
    trailer_fields: int = 100,
) -> Outcome:
    """Return the result of gunicorn's reader for these pieces."""
    unreader = IterUnreader([piece for piece in pieces if piece])
    request = GunicornsRequest(line_limit, trailer_limit, trailer_fields)
    reader: Any = ChunkedReader(request, unreader)
    body = b""
    try:
        while block := reader.read(64 * 1024):
            body += block
    except NoMoreData:
        return None
    except ChunkMissingTerminator as error:
        return None if error.term in (b"", b"\r") else "MalformedRequest"
    except ParseException:
        return "MalformedRequest"
    rest = b""
    while more := unreader.read():
        rest += more
    return body, rest


def every_split(data: bytes) -> list[list[bytes]]:
    """Split bytes in several ways: whole, byte by byte, in two, and in three if there are not too
    many.
    """
    splits = [[data], [data[i : i + 1] for i in range(len(data))]]
    splits += [[data[:i], data[i:]] for i in range(1, len(data))]
    if len(data) <= 40:
        cuts = itertools.combinations(range(1, len(data)), 2)
        splits += [[data[:i], data[i:j], data[j:]] for i, j in cuts]
    return splits


GOOD = [
    (b"", b""),
    (b"5\r\nhello\r\n", b"hello"),
    (b"5\r\nhello\r\n1\r\n!\r\n", b"hello!"),
    (b"A\r\n0123456789\r\n", b"0123456789"),
    (b"a\r\n0123456789\r\n", b"0123456789"),
    (b"0000000000000005\r\nhello\r\n", b"hello"),
    (b"2;a\r\nhi\r\n", b"hi"),
    (b"2;a=b;c=d\r\nhi\r\n", b"hi"),
    (b"2 \t; a = b ; c\r\nhi\r\n", b"hi"),
    (b'2;a="b c;\\"\\\\\xe4\t"\r\nhi\r\n', b"hi"),
    (b"4\r\n\r\n\r\n\r\n", b"\r\n\r\n"),
    (b"5\r\n0\r\n\r\n\r\n", b"0\r\n\r\n"),
]


@pytest.mark.parametrize(("chunks", "body"), GOOD)
@pytest.mark.parametrize("end", [END, b"00;last\r\n\r\n", b"0\r\nX: 1\r\nY-Z:\t \r\n\r\n"])
def test_body_in_every_split_is_decoded(chunks: bytes, body: bytes, end: bytes) -> None:
    data = chunks + end
    for pieces in every_split(data + b"GET"):
        assert decode(pieces) == (body, b"GET"), pieces
        assert decode(pieces, chunks=1) == (body, b"GET"), pieces
        assert read_by_gunicorn(pieces) == (body, b"GET"), pieces
    for length in range(len(data)):
        for cut in range(length):
            assert decode([data[:cut], data[cut:length]]) is None


BAD = [
    b"\r\n" + END,
    b"x\r\n",
    b"-1\r\n",
    b"+1\r\na\r\n" + END,
    b"0x1\r\na\r\n" + END,
    b"1_0\r\n" + bytes(16) + b"\r\n" + END,
    b" 1\r\na\r\n" + END,
    b"1 \r\na\r\n" + END,
    b"1\t\r\na\r\n" + END,
    b"\xb2\r\naa\r\n" + END,
    b";a\r\n" + END,
    b"1;\r\na\r\n" + END,
    b"1;a=\r\na\r\n" + END,
    b"1;=a\r\na\r\n" + END,
    b"1;a b\r\na\r\n" + END,
    b"1;a=b \r\na\r\n" + END,
    b'1;a="\r\na\r\n' + END,
    b'1;a="\\\r\na\r\n' + END,
    b"1;a,b\r\na\r\n" + END,
    b"1;a\x00\r\na\r\n" + END,
    b"1;a\rb\r\na\r\n" + END,
    b"1\na\r\n" + END,
    b"1;a\na\r\n" + END,
    b"1\r\r\na\r\n" + END,
    b"1\r\nab\r\n" + END,
    b"1\r\na\n" + END,
    b"1\r\na\r" + END,
    b"1\r\na" + END,
    b"1\r\na\rX" + END,
    b"2\r\na\r\n" + END,
    b"0\r\n\n",
    b"0\r\n\r\r\n",
    b"0\r\nX: 1\n\r\n",
    b"0\r\nX: 1\n\n",
    b"0\r\nX: 1\r\r\n\r\n",
    b"0\r\nX: a\rb\r\n\r\n",
    b"0\r\n: 1\r\n\r\n",
    b"0\r\nX\r\n\r\n",
    b"0\r\nX : 1\r\n\r\n",
    b"0\r\n X: 1\r\n\r\n",
    b"0\r\nX: 1\r\n folded\r\n\r\n",
    b"0\r\nX: \x00\r\n\r\n",
    b"0\r\nX: \x7f\r\n\r\n",
    b"0\r\nX\xe4: 1\r\n\r\n",
    b"0\r\nContent-Length: 1\r\n\r\n",
    b"0\r\ncontent-length: 1\r\n\r\n",
    b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"0\r\nHost: a\r\n\r\n",
    b"0\r\nAuthorization: a\r\n\r\n",
    b"0\r\nTrailer: a\r\n\r\n",
    b"0\r\nTE: a\r\n\r\n",
    b"0\r\nContent-Type: a\r\nContent-Type: b\r\n\r\n",
]


@pytest.mark.parametrize("data", BAD)
def test_malformed_body_in_any_split_is_refused(data: bytes) -> None:
    for pieces in every_split(data):
        assert decode(pieces) == "MalformedRequest", pieces
        assert decode(pieces, chunks=1) == "MalformedRequest", pieces
        assert not isinstance(read_by_gunicorn(pieces), tuple), pieces


# Bodies that gunicorn's reader accepts, in some split at least. This decoder rejects each of them
# on purpose.
STRICTER = {
    "a size of more than 16 digits": b"00000000000000001\r\na\r\n" + END,
    "a size line over the limit, although it came at once": (
        b"1;" + b"a" * 8190 + b"\r\na\r\n" + END
    ),
    "extensions that outweigh the body": (b"1;" + b"a" * 8000 + b"\r\na\r\n") * 3 + END,
    "a trailer section over the limit, although it came at once": (
        b"0\r\n" + b"X: %b\r\n" % (b"a" * 8000) * 9 + b"\r\n"
    ),
    "content's format in a trailer": b"0\r\nContent-Type: text/plain\r\n\r\n",
    "content's coding in a trailer": b"0\r\nContent-Encoding: gzip\r\n\r\n",
    "content's range in a trailer": b"0\r\nContent-Range: bytes 0-1/2\r\n\r\n",
}


@pytest.mark.parametrize("why", STRICTER)
def test_body_that_gunicorn_takes_is_refused(why: str) -> None:
    data = STRICTER[why]
    assert isinstance(read_by_gunicorn([data]), tuple)
    for size in (1, 7, 1000, len(data)):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert decode(pieces) == "MalformedRequest"


@pytest.mark.parametrize("line", [b"1;" + b"a" * 96, b"0" * 11 + b";" + b"a" * 86])
def test_size_line_has_a_limit(line: bytes) -> None:
    limit = len(line) + 2
    data = line + b"\r\n"
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        assert decode(pieces, line_limit=limit) is None
        assert read_by_gunicorn(pieces, line_limit=limit) is None
        assert decode(pieces, line_limit=limit - 1) == "MalformedRequest"
    # Bodies that are rejected as soon as they cannot become valid.
    assert decode([line + b"a"], line_limit=limit) is None
    assert decode([line + b"aa"], line_limit=limit) == "MalformedRequest"


def test_trailer_section_has_a_limit() -> None:
    section = b"X: 1\r\nY: 2\r\n\r\n"
    data = b"0\r\n" + section
    for pieces in every_split(data):
        exact = {"trailer_limit": len(section)}
        assert decode(pieces, **exact) == read_by_gunicorn(pieces, **exact) == (b"", b"")
        assert decode(pieces, trailer_limit=len(section) - 1) == "MalformedRequest"
        assert decode(pieces, trailer_fields=2) == (b"", b"")
        assert decode(pieces, trailer_fields=1) == "MalformedRequest"
        assert read_by_gunicorn(pieces, trailer_fields=1) == "MalformedRequest"
        assert decode(pieces, line_limit=6) == (b"", b"")
        assert decode(pieces, line_limit=5) == "MalformedRequest"
        assert not isinstance(read_by_gunicorn(pieces, line_limit=5), tuple)


def test_body_has_a_limit() -> None:
    data = b"5\r\nabcde\r\n5\r\nfghij\r\n" + END
    for pieces in every_split(data):
        assert decode(pieces, body_limit=10) == (b"abcdefghij", b"")
        assert decode(pieces, body_limit=9) == "BodyTooLarge"
    assert decode([b"a\r\n"], body_limit=9) == "BodyTooLarge"  # before any byte of it has arrived
    assert decode([b"f" * 16 + b"\r\n"], body_limit=1 << 62) == "BodyTooLarge"


def test_extensions_may_be_as_long_as_the_body() -> None:
    """A chunk extension that is repeated, for instance a signature for each chunk."""
    chunk = b"100;chunk-signature=%b\r\n%b\r\n" % (b"a" * 64, bytes(256))
    assert decode([chunk * 1000 + END]) == (bytes(256_000), b"")


def test_trailers_are_preserved() -> None:
    decoder = ChunkDecoder()
    decoder.decode(b"0\r\nX: 1\r\nY:2\r\n\r\n")
    assert decoder.done
    assert decoder.trailers == [b"X: 1", b"Y:2"]


def test_decode_stops_after_the_given_chunks() -> None:
    data = b"1\r\na\r\n" * 100 + END + NEXT
    decoder = ChunkDecoder()
    at, calls, body = 0, 0, b""
    while not decoder.done:
        content, at = decoder.decode(data, at, chunks=10)
        assert len(content) <= 10
        body += content
        calls += 1
    assert (body, data[at:]) == (bytes(b"a" * 100), NEXT)
    assert calls == 11


class Counted(bytes):
    """Bytes that count how many of them are copied, or searched for the end of a line."""

    seen = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        Counted.seen += len(part) if isinstance(part, bytes) else 1
        return part


@pytest.mark.parametrize("chunk", [b"1\r\na\r\n", b"2\r\nab\r\n", b"1000\r\n%b\r\n" % bytes(4096)])
def test_decoding_is_linear(chunk: bytes) -> None:
    """Copying the remaining bytes for each chunk would copy thousands of times the data."""
    data = Counted(chunk * (256 * 1024 // len(chunk)))
    Counted.seen = 0
    ChunkDecoder().decode(data)
    assert Counted.seen <= 2 * len(data)


def test_decoded_bytes_are_not_stored() -> None:
    decoder = ChunkDecoder()
    for byte in b"fffff\r\n" + bytes(100_000):
        decoder.decode(bytes([byte]))
    assert decoder._partial_line == b""


# Random bytes, and often nearly a chunked body.
_sizes = st.integers(0, 40).map(lambda size: b"%x" % size)
_bits = st.one_of(
    st.integers(0, 20).map(lambda size: b"%x\r\n%b\r\n" % (size, bytes(size))),
    st.integers(0, 20).map(lambda size: b"%x;a=b\r\n%b\r\n" % (size, b"\n" * size)),
    st.sampled_from(
        [
            b"\r\n", b"\n", b"\r", b"0", b"1", b"a", b";", b"=", b'"', b"\\", b" ", b"\t", b":",
            b"X", b"X: 1\r\n", b"0\r\n", b"\r\n\r\n", END, b"\x00", b"\x80", b"_", b"X_Y: 1\r\n",
            b"Host: a\r\n", b"Content-Type: a\r\n",
        ]
    ),
    _sizes,
    st.binary(max_size=3),
)  # fmt: skip
_bodies = st.builds(
    lambda bits, end: b"".join(bits) + end, st.lists(_bits), st.sampled_from([b"", END, END + NEXT])
)
_cuts = st.lists(st.integers(0, 400), max_size=8)


def refused_on_purpose(data: bytes) -> bool:
    """Whether a body holds something of :data:`STRICTER` that the bits above can make."""
    return b"content-type" in data.lower() or b"0" * 17 in data


@given(_bodies, _cuts, st.sampled_from([8190, 12, 5]), st.sampled_from([65536, 10]))
@example(b"1\r\na\r\n" + END, [1, 2, 3], 5, 10)
@example(b"1\r\na\r\n0100\r\n\r\n", [], 5, 65536)
def test_decoder_is_never_laxer_than_gunicorn(
    data: bytes, cuts: list[int], line_limit: int, trailer_limit: int
) -> None:
    limits = {"line_limit": line_limit, "trailer_limit": trailer_limit}
    places = sorted({cut for cut in cuts if cut < len(data)} | {0, len(data)})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    ours = decode(pieces, **limits)
    assert decode([data], **limits) == ours
    assert decode([data[i : i + 1] for i in range(len(data))], chunks=1, **limits) == ours
    theirs = read_by_gunicorn(pieces, **limits)
    if isinstance(ours, tuple):
        assert ours == theirs
    elif ours is None:
        assert theirs is None
    elif line_limit == 8190 and trailer_limit == 65536 and isinstance(theirs, tuple):
        assert refused_on_purpose(data)

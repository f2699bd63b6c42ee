"""Request bodies in pieces: however the bytes are cut, the same body and the same rest."""

from __future__ import annotations

import io
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.http.body import ChunkedReader
from gunicorn.http.errors import ChunkMissingTerminator
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.server.request_body import (
    BodyTooLarge,
    Chunked,
    Collector,
    KnownLength,
    NeedMoreData,
    Received,
)

NEXT = b"GET /next HTTP/1.1\r\n\r\n"


class Pieces:
    """What a socket hands out: one piece for each receive, never more than asked for."""

    def __init__(self, data: bytes, cuts: list[int]) -> None:
        places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
        self._pieces = [data[a:b] for a, b in itertools.pairwise(places)]

    def recv(self, size: int) -> bytes:
        if not self._pieces:
            return b""
        piece, self._pieces[0] = self._pieces[0][:size], self._pieces[0][size:]
        if not self._pieces[0]:
            del self._pieces[0]
        return piece

    def recv_into(self, view: memoryview) -> int:
        piece = self.recv(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def rest(self) -> bytes:
        return b"".join(self._pieces)


def reader(received: Received) -> ChunkedReader:
    request = SimpleNamespace(
        limit_request_field_size=8190,
        max_buffer_headers=65_536,
        parse_headers=lambda data, from_trailer: [data],
    )
    return ChunkedReader(request, received)


def collect(collector: Any, pieces: Pieces) -> bytes:
    whole = collector.begin()
    while not whole:
        whole = collector.receive(pieces)
    with collector.open() as body:
        assert body.readline() + body.read() == (body.seek(0), body.read())[1]
        body.seek(0)
        data: bytes = body.read()
        return data


cuts = st.lists(st.integers(0, 10_000), max_size=12)


@given(st.lists(st.binary(min_size=1, max_size=300)), cuts, st.integers(0, 50), st.integers(0, 600))
def test_chunked(chunks: list[bytes], cuts: list[int], early: int, in_memory: int) -> None:
    data = b"".join(b"%x;a=b\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    data += b"0\r\nX-Trailer: 1\r\n\r\n" + NEXT
    received = Received()
    received.data = data[:early]
    pieces = Pieces(data[early:], cuts)
    collector = Chunked(received, reader(received), in_memory, 1_000_000)
    assert collect(collector, pieces) == b"".join(chunks)
    assert received.data + pieces.rest() == NEXT


@given(st.binary(min_size=1, max_size=3000), cuts, st.integers(0, 50), st.sampled_from([0, 9999]))
def test_known_length(body: bytes, cuts: list[int], early: int, in_memory: int) -> None:
    received = Received()
    received.data = (body + NEXT)[:early]
    pieces = Pieces((body + NEXT)[early:], cuts)
    assert collect(KnownLength(received, len(body), in_memory), pieces) == body
    assert received.data + pieces.rest() == NEXT


@pytest.mark.parametrize("early", [0, 10, 90_000])
@pytest.mark.parametrize("in_memory", [0, 1_000_000])
def test_a_body_longer_than_the_first_buffer(early: int, in_memory: int) -> None:
    body = bytes(range(250)) * 1000
    received = Received()
    received.data = body[:early]
    pieces = Pieces(body[early:] + NEXT, [])
    assert collect(KnownLength(received, len(body), in_memory), pieces) == body
    assert received.data + pieces.rest() == NEXT


def test_a_body_that_is_only_promised_costs_no_memory() -> None:
    promised = 1 << 50
    pieces: Any = Pieces(bytes(100_000), [])
    collector = KnownLength(Received(), promised, promised)
    assert not collector.begin()
    for _ in range(2):
        assert not collector.receive(pieces)


@pytest.mark.parametrize("end", [b"X", b"XY", b"\rX", b"\n"])
def test_a_chunk_that_does_not_end_where_it_should(end: bytes) -> None:
    received = Received()
    received.data = b"1\r\na" + end
    with pytest.raises(ChunkMissingTerminator):
        Chunked(received, reader(received), 100, 100).begin()


def test_a_size_line_that_does_not_end() -> None:
    """Old versions of gunicorn's parser ask for more for ever."""
    received = Received()
    patient: Any = SimpleNamespace(parse_chunk_size=lambda source, data: source.read())
    collector = Chunked(received, patient, 100, 100)
    assert not collector.begin()
    pieces: Any = Pieces(b"1" * 2_000_000, [])

    def receive_all() -> None:
        while not collector.receive(pieces):
            pass

    with pytest.raises(BodyTooLarge):
        receive_all()
    assert len(pieces.rest()) > 500_000


def test_chunked_body_over_the_limit() -> None:
    received = Received()
    received.data = b"5\r\nabcde\r\n5\r\nfghij\r\n0\r\n\r\n"
    assert Chunked(received, reader(received), 100, 10).begin()
    received.data = b"5\r\nabcde\r\n6\r\n"
    with pytest.raises(BodyTooLarge):
        Chunked(received, reader(received), 100, 10).begin()


def test_end_of_the_connection_in_a_body() -> None:
    received = Received()
    nothing: Any = Pieces(b"", [])
    collectors: list[Collector] = [
        KnownLength(received, 10, 100),
        KnownLength(received, 10, 0),
        Chunked(received, reader(received), 100, 100),
    ]
    for collector in collectors:
        assert not collector.begin()
        with pytest.raises(EOFError):
            collector.receive(nothing)


class ShortWrites(io.BytesIO):
    """A file on a disk that takes a few bytes at a time."""

    def write(self, data: Any) -> int:
        return super().write(data[:3])


def test_a_file_that_takes_less_than_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", lambda buffering: ShortWrites())
    body = bytes(range(100))
    for in_memory in (0, 60):
        received = Received()
        assert collect(KnownLength(received, 100, 0), Pieces(body, [50])) == body
        data = b"32\r\n%b\r\n32\r\n%b\r\n0\r\n\r\n" % (body[:50], body[50:])
        chunked = Chunked(received, reader(received), in_memory, 1000)
        assert collect(chunked, Pieces(data, [])) == body


def test_received_for_an_app_that_waits() -> None:
    wanted: list[int] = []
    coming = [b"abc", b"defgh", b"ij", b""]

    def wait(size: int) -> bytes:
        wanted.append(size)
        return coming.pop(0)

    received = Received()
    received.wait = wait
    received.data = b"01"
    assert received.read(6, read_ahead=1000) == b"01abcd"
    assert wanted == [998, 995]  # as much as the body has, but never more
    assert received.take_buffered() == b"efgh"
    assert received.take_buffered() == b""
    assert received.read(None, 500) == b"ij"
    assert wanted[2:] == [500]
    received.data = b"the rest"
    assert received.read(20) == b"the rest"  # at the end of the connection
    assert received.data == b""


def test_received_stops_a_parser_that_wants_more() -> None:
    received = Received()
    received.unread(b"abc")
    assert received.read(2) == b"ab"
    with pytest.raises(NeedMoreData):
        received.read(2)
    assert received.read() == b"c"
    with pytest.raises(NeedMoreData):
        received.read()

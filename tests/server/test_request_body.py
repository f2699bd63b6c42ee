"""Request bodies in pieces: any split gives the same body and the same remaining bytes."""

from __future__ import annotations

import itertools
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.calls import raising
from tests.workers.stepped_worker import GET as NEXT
from wsgifast.errors import RequestError
from wsgifast.files.temporary import Budget, Spool, TemporaryFile
from wsgifast.http.chunked import ChunkDecoder, LengthDecoder
from wsgifast.server.receiving import BodyCollector, Exchange

DISK_BYTES = 1 << 40


def spool(in_memory: int = 1 << 20, disk: Budget | None = None) -> Spool:
    return Spool(in_memory, 1 << 40, disk or Budget(DISK_BYTES))


def chunked(in_memory: int = 1 << 20) -> BodyCollector:
    return BodyCollector(Exchange(None, None, b"", {}), ChunkDecoder(), spool(in_memory))


def known(length: int, spool: Spool) -> BodyCollector:
    return BodyCollector(Exchange(None, None, b"", {}), LengthDecoder(length), spool)


def collect(collector: BodyCollector, data: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """Pass the bytes of a socket to a collector. Return the body and the remaining bytes."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    while not collector.decoder.done:
        if collector.has_more_to_do:
            collector.feed(b"")
            continue
        wanted = collector.receive_limit
        assert wanted > 0
        piece, pieces[0] = pieces[0][:wanted], pieces[0][wanted:]
        collector.feed(piece)
        if not pieces[0]:
            del pieces[0]
    with collector.spool.open() as body:
        assert body.readline() + body.read() == (body.seek(0), body.read())[1]
        body.seek(0)
        return body.read(), collector.unparsed + b"".join(pieces)


cuts = st.lists(st.integers(0, 10_000), max_size=12)


@given(st.lists(st.binary(min_size=1, max_size=300)), cuts, st.integers(0, 600))
def test_chunks_in_any_pieces_are_one_body(
    chunks: list[bytes], cuts: list[int], in_memory: int
) -> None:
    data = b"".join(b"%x;a=b\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    data += b"0\r\nX-Trailer: 1\r\n\r\n" + NEXT
    assert collect(chunked(in_memory), data, cuts) == (b"".join(chunks), NEXT)


@given(st.binary(min_size=1, max_size=3000), cuts, st.integers(0, 50), st.sampled_from([0, 9999]))
def test_known_length_in_any_pieces_is_one_body(
    body: bytes, cuts: list[int], early: int, in_memory: int
) -> None:
    collector = known(len(body), spool(in_memory))
    collector.feed((body + NEXT)[:early])  # behind the headers, and as much as has arrived
    rest = (body + NEXT)[early:]
    if collector.decoder.done:
        with collector.spool.open() as file:
            assert file.read() == body
        assert collector.unparsed + rest == NEXT
    else:
        assert collect(collector, rest, cuts) == (body, NEXT)


def test_memory_is_taken_when_bytes_come() -> None:
    tracemalloc.start()
    try:
        all_headers = [known(400_000, spool()) for _ in range(100)]
        for headers in all_headers:
            headers.feed(b"x" * 10)
        assert tracemalloc.get_traced_memory()[0] < 100 * 1000
        collector = chunked()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            collector.feed(b"2\r\nab\r\n" * 100)
        assert tracemalloc.get_traced_memory()[0] - before < 2 * 200_000
    finally:
        tracemalloc.stop()


def test_turn_is_short_however_small_the_chunks_are() -> None:
    collector = chunked()
    decoded = [0]
    collector.feed(b"1\r\na\r\n" * 40_000)  # far more than is requested
    while collector.has_more_to_do:
        decoded.append(collector.spool.size)
        collector.feed(b"")
    assert len(decoded) > 40
    assert max(b - a for a, b in itertools.pairwise(decoded)) <= 1000
    # After that, no more than one turn's bytes are received.
    collector.feed(b"1\r\na\r\n" * 400)
    assert not collector.has_more_to_do
    for _ in range(10):
        collector.feed((b"1\r\na\r\n" * 20_000)[: collector.receive_limit])
        assert collector.receive_limit <= 16 * 1024
        while collector.has_more_to_do:
            collector.feed(b"")


def test_large_chunks_are_received_in_large_pieces() -> None:
    collector = chunked()
    collector.feed(b"10000\r\n" + bytes(60_000))
    for _ in range(4):
        collector.feed(bytes(100))
    assert collector.receive_limit == 256 * 1024


def test_temporary_file_taking_less_is_written_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, data, at: pwritev(fd, [data[0][:3]], at))
    body = bytes(range(100))
    for in_memory in (0, 60):
        assert collect(known(100, spool(in_memory)), body, [50])[0] == body
        data = b"32\r\n%b\r\n32\r\n%b\r\n0\r\n\r\n" % (body[:50], body[50:])
        assert collect(chunked(in_memory), data, [])[0] == body


def test_bodies_of_a_worker_share_the_disk() -> None:
    disk = Budget(250)
    first = known(1000, spool(0, disk=disk))
    second = known(1000, spool(0, disk=disk))
    in_memory = known(1000, spool(1000, disk=disk))
    first.feed(bytes(200))
    with pytest.raises(RequestError) as caught:
        second.feed(bytes(100))
    assert caught.value.status == 503
    assert disk.used_bytes == 200
    in_memory.feed(bytes(100))  # needs none
    second.feed(bytes(50))
    assert disk.used_bytes == 250
    for each in (first, second, in_memory):
        each.spool.close()
        each.spool.close()
    assert disk.used_bytes == 0
    whole = known(250, spool(0, disk=disk))
    whole.feed(bytes(250))
    with whole.spool.open() as body:
        whole.spool.close()  # it is the app's now
        assert disk.used_bytes == 250
        assert body.read() == bytes(250)
    assert disk.used_bytes == 0


def test_disk_that_fails_takes_nothing_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", raising(OSError, "no temporary files"))
    disk = Budget(1000)
    collector = known(100, spool(0, disk=disk))
    with pytest.raises(OSError, match="no temporary files"):
        collector.feed(bytes(100))
    collector.spool.close()
    assert disk.used_bytes == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("in_memory", [0, 60])
def test_full_disk_is_503(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tempfile.TemporaryFile", lambda buffering: open("/dev/full", "r+b", buffering)
    )
    disk = Budget(1000)
    collector = known(100, spool(in_memory, disk=disk))
    with pytest.raises(RequestError, match="No space left") as caught:
        collector.feed(bytes(100))
    assert caught.value.status == 503
    collector.spool.close()
    assert disk.used_bytes == 0


def test_buffers_are_written_whole_by_short_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, data, at: pwritev(fd, [data[0][:3]], at))
    with TemporaryFile(Budget(1000)) as file:
        file.append(b"before")
        segment = file.append(b"", b"abcd", memoryview(b"efg"), b"", b"h")
        assert os.pread(segment.fd, segment.size, segment.offset) == b"abcdefgh"
    with TemporaryFile(Budget(10_000)) as file:
        monkeypatch.setattr(os, "pwritev", pwritev)
        assert file.append(*[b"ab"] * 3000).size == len(file.read()) == 6000

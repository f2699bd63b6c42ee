"""Chunks of bodies: converted to bytes, joined and coalesced."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast import BodyError
from wsgifast.bodies import chunks as bodies

CHUNK_LISTS = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.text(max_size=20),
        st.binary(max_size=20).map(bytearray),
        st.binary(max_size=20).map(lambda data: memoryview(data)[::2]),
        st.integers(0, 3 * bodies.LARGE_CHUNK_BYTES).map(bytes),
    ),
    max_size=30,
)


def some_app() -> None:
    """An app whose name is in error messages."""


def utf_8() -> str:
    return "utf-8"


def convert(chunk: object) -> bytes:
    return bodies.to_bytes(chunk, utf_8, some_app)


@given(CHUNK_LISTS, st.booleans())
def test_joining_loses_and_moves_nothing(chunks: list[Any], as_tuple: bool) -> None:
    few, total = bodies.few_chunks(tuple(chunks) if as_tuple else chunks, convert)
    sent = list(few)
    whole = b"".join(map(convert, chunks))
    assert b"".join(sent) == whole
    assert total == len(whole)
    assert len(sent) <= len(chunks)
    assert all(type(chunk) is bytes for chunk in sent)


def test_large_chunks_are_not_copied() -> None:
    large = [bytes(bodies.LARGE_CHUNK_BYTES) for _ in range(10)]
    assert bodies.few_chunks(large, convert)[0] is large
    mixed = [large[0], b"crumb", b"crumb", large[1]] * 16
    few = list(bodies.few_chunks(mixed, convert)[0])
    assert few[0] is large[0]
    assert few[1] == b"crumbcrumb"


def test_joining_a_large_body_holds_one_block() -> None:
    crumbs = [b"x" * 1000] * 100_000  # 100 MB for the client, but one object here
    tracemalloc.start()
    try:
        sent = sum(map(len, bodies.few_chunks(crumbs, convert)[0]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent == 100_000_000
    assert peak < 4 * bodies.JOINED_BLOCK_BYTES


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        ("é", b"\xc3\xa9"),
        (b"bytes", b"bytes"),
        (bytearray(b"array"), b"array"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(b"abcdef")[2:4], b"cd"),
    ],
)
def test_chunks_become_bytes(chunk: object, expected: bytes) -> None:
    converted = bodies.to_bytes(chunk, utf_8, some_app)
    assert converted == expected
    assert type(converted) is bytes


def test_subclass_of_bytes_becomes_bytes() -> None:
    class Tagged(bytes):
        pass

    assert type(bodies.to_bytes(Tagged(b"x"), utf_8, some_app)) is bytes


@pytest.mark.parametrize("chunk", [None, 5, 1.5, [b"x"], object()])
def test_chunk_of_another_type_is_named(chunk: object) -> None:
    with pytest.raises(BodyError, match=r"tests\.bodies\.test_chunks\.some_app.*yield bytes"):
        bodies.to_bytes(chunk, utf_8, some_app)


def test_text_outside_its_charset_is_refused() -> None:
    with pytest.raises(BodyError, match=r"some_app.*'ascii'.*'\\xe9' in position 3.*utf-8"):
        bodies.to_bytes("café!", lambda: "ascii", some_app)
    with pytest.raises(BodyError, match="'klingon'"):
        bodies.to_bytes("text", lambda: "klingon", some_app)


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [
        ("text/html", "utf-8"),
        ("text/html; charset=latin-1", "latin-1"),
        ('text/html; boundary=x; Charset="UTF-16"', "UTF-16"),
        ("text/html; charset=", "utf-8"),
        ("", "utf-8"),
        (";;;=;", "utf-8"),
        ('text/html; title="; charset=ascii"; charset=latin-1', "latin-1"),
        ("text/html;charset=latin-1;charset=ascii", "latin-1"),
        ('text/html; charset=" ', "utf-8"),
    ],
)
def test_charset_is_that_of_the_content_type(content_type: str, charset: str) -> None:
    assert (
        bodies.charset_of([("X-Other", "1; charset=ascii"), ("content-TYPE", content_type)])
        == charset
    )
    assert bodies.charset_of([]) == "utf-8"


class Clock:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.binary(max_size=50_000), st.floats(0, 0.01)), max_size=60))
def test_coalescing_loses_and_moves_nothing(chunks: list[tuple[bytes, float]]) -> None:
    clock = Clock()

    def app() -> Iterator[bytes]:
        for chunk, seconds in chunks:
            clock.now += seconds
            yield chunk

    assert b"".join(bodies.coalesced(app(), clock)) == b"".join(chunk for chunk, _ in chunks)


def test_quick_stream_is_joined_into_blocks() -> None:
    sent = list(bodies.coalesced(iter([b"x" * 100] * 10_000), Clock()))
    assert len(sent) < 10_000 * 100 / bodies.LARGE_CHUNK_BYTES + bodies.QUICK_CHUNKS + 2
    assert max(map(len, sent)) < bodies.LARGE_CHUNK_BYTES + 100


def test_slow_stream_is_never_delayed() -> None:
    clock = Clock()
    made = 0

    def app() -> Iterator[bytes]:
        nonlocal made
        for _ in range(50):
            clock.now += 1.0
            made += 1
            yield b"event"

    for sent, chunk in enumerate(bodies.coalesced(app(), clock), start=1):
        assert chunk == b"event"
        assert sent == made  # the app was not called while a chunk was delayed
    assert made == 50


def test_chunks_before_an_error_are_sent() -> None:
    def chunks() -> Iterator[bytes]:
        yield from [b"x"] * 20
        raise LookupError

    sent: list[bytes] = []
    with pytest.raises(LookupError):
        sent.extend(bodies.coalesced(chunks(), Clock()))
    assert b"".join(sent) == b"x" * 20


def test_empty_chunks_do_not_make_a_stream_quick() -> None:
    """The first byte is sent at once. Until then the app may replace the headers."""
    made = 0

    def chunks() -> Iterator[bytes]:
        nonlocal made
        for chunk in [b""] * 20 + [b"first", b"second"]:
            made += 1
            yield chunk

    for block in bodies.coalesced(chunks(), Clock()):
        if block:
            break
    assert (block, made) == (b"first", 21)


def test_slow_server_does_not_make_a_stream_slow() -> None:
    clock = Clock()
    blocks = 0
    for _ in bodies.coalesced(iter([b"x" * 100] * 10_000), clock):
        clock.now += 10.0
        blocks += 1
    assert blocks < 100


def test_delayed_bytes_are_sent_within_the_limit() -> None:
    clock = Clock()

    def app() -> Iterator[bytes]:
        for _ in range(10_000):
            clock.now += bodies.SLOW_CHUNK_S / 2
            yield b"x"

    last = clock.now
    sent = 0
    for block in bodies.coalesced(app(), clock):
        assert clock.now - last <= bodies.MAX_HOLD_S + 2 * bodies.SLOW_CHUNK_S
        last = clock.now
        sent += len(block)
    assert sent == 10_000

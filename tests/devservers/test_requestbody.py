"""The body stream ends where the request does."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.devservers.requestbody import RequestBody
from wsgifast.devservers.requesthead import BodyFraming
from wsgifast.errors import ClientGone, RequestError

NEXT = b"GET /next HTTP/1.1\r\n"


class Pieces(io.RawIOBase):
    """A connection's input that arrives in pieces of a given size."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._data[: min(self._size, len(buffer))]
        self._data = self._data[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)


def received(data: bytes, length: int | None, size: int = 1 << 16) -> tuple[RequestBody, Any]:
    stream = io.BufferedReader(cast(Any, Pieces(data, size)))
    return RequestBody(cast(Any, stream), BodyFraming(length, False), lambda: None), stream


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=70), max_size=5),
    extension=st.sampled_from([b"", b";a=b", b" ;x"]),
    trailer=st.sampled_from([b"", b"X: y\r\n"]),
    size=st.sampled_from([1, 2, 7, 1 << 16]),
)
def test_chunks_are_decoded_and_what_follows_is_left(
    chunks: list[bytes], extension: bytes, trailer: bytes, size: int
) -> None:
    wire = b"".join(b"%X%s\r\n%s\r\n" % (len(c), extension, c) for c in chunks)
    body, stream = received(wire + b"0\r\n" + trailer + b"\r\n" + NEXT, None, size)
    assert io.BufferedReader(body).read() == b"".join(chunks)
    assert body.at_end
    assert stream.read() == NEXT


@given(data=st.binary(max_size=99), size=st.sampled_from([1, 3, 1 << 16]))
def test_a_body_of_known_length_is_read_to_its_end(data: bytes, size: int) -> None:
    body, stream = received(data + NEXT, len(data), size)
    assert io.BufferedReader(body).read() == data
    assert body.at_end
    assert stream.read() == NEXT


@pytest.mark.parametrize(
    "wire",
    [
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"-1\r\nhello\r\n0\r\n\r\n",
        b"\r\n",
        b"5;a=\rb\r\nhello\r\n0\r\n\r\n",
        b"1" * 5000,
        b"0\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    ],
)
def test_malformed_chunks_are_an_error(wire: bytes) -> None:
    body, _ = received(wire, None)
    with pytest.raises(RequestError):
        io.BufferedReader(body).read()
    assert not body.at_end


@pytest.mark.parametrize(
    ("wire", "length"), [(b"abc", 5), (b"5\r\nabc", None), (b"5\r\nhello\r\n", None), (b"5", None)]
)
def test_a_client_that_leaves_is_not_the_end_of_the_body(wire: bytes, length: int | None) -> None:
    body, _ = received(wire, length)
    with pytest.raises(ClientGone):
        io.BufferedReader(body).read()


def test_what_is_left_is_drained_up_to_a_limit() -> None:
    body, stream = received(b"x" * 10 + NEXT, 10)
    assert not body.drain(9)
    assert body.drain(10)
    assert stream.read() == NEXT
    body, stream = received(b"5\r\nhello\r\n5\r\nhello\r\n0\r\n\r\n" + NEXT, None)
    assert not body.drain(6)
    assert body.drain(10)
    assert stream.read() == NEXT


def test_a_finished_body_cannot_be_read_by_who_kept_it() -> None:
    body, stream = received(b"hello" + NEXT, 5)
    kept = io.BufferedReader(body)
    body.finish()
    with pytest.raises(ValueError, match="over"):
        kept.read()
    assert body.drain(5)
    assert stream.read() == NEXT

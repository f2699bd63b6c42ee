"""Where the body of a response ends."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsgifast.http.fields import ResponseStart
from wsgifast.http.framing import (
    LAST_CHUNK,
    BodyCounter,
    Framing,
    chunk_size_line,
    frame_response,
    has_body,
    wants_to_persist,
)

CODES = [101, 200, 201, 204, 205, 206, 299, 304, 404, 500, 999]
METHODS = ["GET", "HEAD", "POST", "CONNECT", "OPTIONS"]


@pytest.mark.parametrize("method", METHODS)
def test_method_and_status_decide_about_a_body(method: str) -> None:
    for code in CODES:
        bodiless = method == "HEAD" or code in (101, 204, 205, 304)
        tunnel = method == "CONNECT" and code < 300
        assert has_body(method, code) is not (bodiless or tunnel), code


@pytest.mark.parametrize(
    ("method", "code", "length", "size", "expected"),
    [
        ("GET", 200, 5, None, Framing(True, 5, False)),
        ("GET", 200, 5, 7, Framing(True, 5, False)),
        ("GET", 200, None, 7, Framing(True, 7, False)),
        ("GET", 200, None, 0, Framing(True, 0, False)),
        ("GET", 200, None, None, Framing(True, None, True)),
        ("HEAD", 200, 5, None, Framing(False, 5, False)),
        ("HEAD", 200, None, 7, Framing(False, 7, False)),
        ("HEAD", 200, None, 0, Framing(False, None, False)),
        ("HEAD", 200, None, None, Framing(False, None, False)),
        ("GET", 204, 5, 7, Framing(False, None, False)),
        ("GET", 205, 5, 7, Framing(False, 0, False)),
        ("GET", 304, 5, 7, Framing(False, 5, False)),
        ("GET", 304, None, 7, Framing(False, None, False)),
        ("GET", 101, 5, 7, Framing(False, None, False)),
        ("CONNECT", 200, 5, 7, Framing(False, None, False)),
        ("CONNECT", 405, 5, None, Framing(True, 5, False)),
    ],
)
def test_framing_follows_method_status_and_length(
    method: str, code: int, length: int | None, size: int | None, expected: Framing
) -> None:
    assert frame_response(method, code, length, size=size) == expected


def test_client_of_http_1_0_gets_no_chunks() -> None:
    framing = frame_response("GET", 200, None, chunks=False)
    assert framing == Framing(True, None, False)
    assert not framing.has_known_end


@pytest.mark.parametrize("code", CODES[1:])
def test_client_finds_the_end_of_the_body(code: int) -> None:
    for method, length, chunks in itertools.product(
        ["GET", "HEAD", "POST"], [None, 0, 4], [True, False]
    ):
        framing = frame_response(method, code, length, chunks=chunks)
        expect_that_a_client_reads_it(method, code, framing)


def expect_that_a_client_reads_it(method: str, code: int, framing: Framing) -> None:
    """Read a response with h11 as the client: the body, its end, and no byte after the end."""
    sent = ResponseStart(f"{code} Text", []).encode("1.1", framing, "")
    block = b"body"[: BodyCounter(framing).admit(4)]
    if framing.chunked:
        sent += chunk_size_line(len(block)) + block + b"\r\n" + LAST_CHUNK
    else:
        sent += block
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
    client.send(h11.EndOfMessage())
    client.receive_data(sent)
    if not framing.has_known_end:
        client.receive_data(b"")
    seen = bytearray()
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        assert isinstance(event, (h11.Response, h11.Data)), f"it waits for more: {method} {framing}"
        seen += event.data if isinstance(event, h11.Data) else b""
    assert bytes(seen) == block, f"{method} {framing}"
    assert client.trailing_data[0] == b"", f"{method} {framing}"


@given(
    length=st.none() | st.integers(0, 100), sizes=st.lists(st.integers(0, 60)), body=st.booleans()
)
def test_counter_admits_no_byte_over_the_length(
    length: int | None, sizes: list[int], body: bool
) -> None:
    counter = BodyCounter(Framing(body, length, body and length is None))
    admitted = [counter.admit(size) for size in sizes]
    limit = 0 if not body else sum(sizes) if length is None else length
    assert all(0 <= part <= size for part, size in zip(admitted, sizes, strict=True))
    assert counter.sent == sum(admitted) == min(limit, sum(sizes))
    assert counter.dropped == sum(sizes) - counter.sent
    assert counter.missing == (0 if length is None or not body else length - counter.sent)
    assert counter.complete is ((not body) or (length is not None and counter.sent == length))
    cut = next((n for n, part in enumerate(admitted) if part < sizes[n]), len(sizes))
    assert not any(admitted[cut + 1 :]), "a byte behind one that was dropped"


@pytest.mark.parametrize("size", [1, 15, 16, 4096, 1 << 40])
def test_chunk_size_is_hexadecimal(size: int) -> None:
    line = chunk_size_line(size)
    assert line.endswith(b"\r\n")
    assert int(line, 16) == size


@pytest.mark.parametrize(
    ("connection", "stays_1_1", "stays_1_0"),
    [
        ([], True, False),
        (["close"], False, False),
        (["keep-alive"], True, True),
        (["x, Close"], False, False),
        (["keep-alive", "\tCLOSE "], False, False),
        (["Keep-Alive ,x"], True, True),
        (["closed"], True, False),
        ([""], True, False),
    ],
)
def test_connection_header_decides_whether_to_persist(
    connection: list[str], stays_1_1: bool, stays_1_0: bool
) -> None:
    assert wants_to_persist(connection, http11=True) is stays_1_1
    assert wants_to_persist(connection, http11=False) is stays_1_0

"""The length of a request's body in the environ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.connections import CHUNKED, HEAD, STREAMED, MakeStepped
from tests.server.http2_peer import Begin


class App:
    """Record the body, and the environ's keys about it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str | None, str | None, bytes]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        assert environ["wsgi.input_terminated"]
        length, coding = environ.get("CONTENT_LENGTH"), environ.get("HTTP_TRANSFER_ENCODING")
        self.seen.append((length, coding, environ["wsgi.input"].read()))
        start_response("204 No Content", [])
        return []


def in_chunks(*blocks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(block), block) for block in blocks) + b"0\r\n\r\n"


BLOCKS = st.lists(st.binary(min_size=1, max_size=3000), max_size=8)
SETTINGS = settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SETTINGS
@given(blocks=BLOCKS, cuts=st.lists(st.integers(1, 5000), max_size=5), memory=st.integers(0, 3000))
def test_chunked_body_that_is_buffered_has_its_length(
    make_stepped: MakeStepped, blocks: list[bytes], cuts: list[int], memory: int
) -> None:
    app = App()
    stepped = make_stepped(app, keepalive=5, attributes={"body_memory_bytes": memory})
    client = stepped.connect()
    sent = CHUNKED + in_chunks(*blocks)
    at = 0
    for cut in [*cuts, len(sent)]:
        client.send(sent[at : at + cut])
        at += cut
        stepped.run()
    body = b"".join(blocks)
    assert app.seen == [(str(len(body)), None, body)]


@SETTINGS
@given(blocks=BLOCKS, declared=st.booleans())
def test_body_of_stream_has_its_length(begin: Begin, blocks: list[bytes], declared: bool) -> None:
    app = App()
    body = b"".join(blocks)
    headers = [("content-length", str(len(body)))] if declared else []
    begin(app).get("/", "POST", body=body, headers=headers)
    assert app.seen == [(str(len(body)), None, body)]


@pytest.mark.parametrize(
    ("coding", "seen"),
    [
        *((c, ("5", None)) for c in ("chunked", "Chunked", "identity, chunked", "chunked , ")),
        ("gzip, chunked", (None, "gzip, chunked")),  # the remaining codings of the body
    ],
)
def test_codings_beside_framing_alone_are_reported(
    make_stepped: MakeStepped, coding: str, seen: tuple[str | None, str | None]
) -> None:
    app = App()
    headers = HEAD + b"Transfer-Encoding: %b\r\n\r\n" % coding.encode()
    make_stepped(app).begin(headers + in_chunks(b"hello"))
    if app.seen or coding in ("chunked", "gzip, chunked"):  # gunicorn may reject the other codings
        assert app.seen == [(*seen, b"hello")]


def test_request_without_a_body_has_no_length(make_stepped: MakeStepped, begin: Begin) -> None:
    app = App()
    make_stepped(app).begin()
    begin(app).get()
    assert app.seen == [(None, None, b"")] * 2


def test_empty_body_of_known_length_is_left_as_it_is(make_stepped: MakeStepped) -> None:
    app = App()
    make_stepped(app).begin(HEAD + b"Content-Length: 0\r\n\r\n")
    assert app.seen == [("0", None, b"")]


def test_streamed_body_is_described_as_client_sent_it(
    make_stepped: MakeStepped, begin: Begin
) -> None:
    app = App()
    make_stepped(app, attributes=STREAMED).begin(CHUNKED + in_chunks(b"hello"))
    begin(app, attributes=STREAMED).get("/", "POST", body=b"hello")
    assert app.seen == [(None, "chunked", b"hello"), (None, None, b"hello")]

"""The fast path for uncompressed responses, compared with the full path."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from asgifast.content_coding import ContentCoding
from hypothesis import given
from hypothesis import strategies as st

from tests.asgi.support import app_of, call, scope_of, start_message
from tests.asgi.support import body as message_of
from tests.support.decoders import decoded
from wsgifast import Compression
from wsgifast.compression.codings import Totals

DICTIONARY = b"<html><title>a page</title>" * 20
BODIES = [b"", b"small", b"x" * 999, b"text " * 200, b"text " * 2000]
HEADERS = [
    (b"content-type", b"text/html"),
    (b"Content-Type", b"text/plain; charset=utf-8"),
    (b"content-type", b"image/png"),
    (b"content-encoding", b"br"),
    (b"cache-control", b"public, no-transform"),
    (b"cache-control", b"max-age=60"),
    (b"vary", b"Cookie"),
    (b"Vary", b"Accept-Encoding"),
    (b"vary", b"*"),
    (b"etag", b'"one"'),
    (b"accept-ranges", b"bytes"),
]


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "pages.dict"
    path.write_bytes(DICTIONARY)
    return path


def sent(start: Any, message: Any) -> Any:
    headers = [(name.lower(), value) for name, value in start["headers"]]
    return start["status"], headers, message["body"]


@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "CONNECT"]),
    accepted=st.sampled_from(["", "gzip", "identity", "gzip;q=0"]),
    status=st.sampled_from([200, 201, 204, 206, 304, 404]),
    headers=st.lists(st.sampled_from(HEADERS), max_size=4, unique_by=lambda item: item[0].lower()),
    body=st.sampled_from(BODIES),
    wish=st.sampled_from([None, True, False]),
    has_dictionary=st.booleans(),
)
def test_uncompressed_headers_are_of_whole_response(
    dictionary: Path,
    method: str,
    accepted: str,
    status: int,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    wish: bool | None,
    has_dictionary: bool,
) -> None:
    compression = Compression(padding=False, dictionary=dictionary if has_dictionary else None)
    coding = ContentCoding(compression, scope_of(method=method, accept_encoding=accepted))
    coding.wish[:] = [] if wish is None else [wish]
    start = {"type": "http.response.start", "status": status, "headers": [*headers]}
    message = {"type": "http.response.body", "body": body}
    start_message = coding.uncompressed_start(start, message)
    if start_message is not None:
        assert start["headers"] == headers, "the app's headers have been changed"
        assert sent(start_message, message) == sent(
            *asyncio.run(coding.compress_whole(start, message))
        )


def test_uncompressed_headers_of_streams_are_undecided() -> None:
    coding = ContentCoding(Compression(), scope_of())
    start = {"type": "http.response.start", "status": 200, "headers": []}
    for message in ({"body": b"first", "more_body": True}, {"body": "text"}, {"path": "/file"}):
        assert coding.uncompressed_start(start, message) is None


@pytest.mark.parametrize(
    ("accepted", "content_type", "body"),
    [
        ("", b"text/html", BODIES[-1]),
        ("gzip", b"text/html", b"small"),
        ("gzip", b"image/png", BODIES[-1]),
    ],
)
def test_uncompressed_headers_need_no_long_way(
    accepted: str, content_type: bytes, body: bytes
) -> None:
    coding = ContentCoding(Compression(), scope_of(accept_encoding=accepted))
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", content_type)],
    }
    assert (
        coding.uncompressed_start(start, {"type": "http.response.body", "body": body}) is not None
    )


@pytest.mark.parametrize(("coding", "level"), [("br", 11), ("zstd", 19), ("gzip", 9)])
@pytest.mark.parametrize("parts", [1, 5])
def test_high_level_never_works_on_the_event_loop(
    coding: str, level: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is equal for any size of the body, and at its end."""
    threads = set()
    monkeypatch.setattr(Totals, "count", lambda *counted: threads.add(threading.current_thread()))
    part = b"some text " * 200
    messages = [message_of(part, number < parts - 1) for number in range(parts)]
    app = app_of(
        start_message((b"content-type", b"text/plain")),
        *messages,
        compress=Compression(levels={coding: level}),
    )
    response = call(app, scope_of(accept_encoding=coding))
    assert dict(response.headers)["content-encoding"] == coding
    assert decoded(coding, response.body) == part * parts
    assert threads
    assert threading.main_thread() not in threads

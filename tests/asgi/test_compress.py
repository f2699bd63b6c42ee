"""ASGIFast(app, compress=True): the bytes that the client gets, and when."""

from __future__ import annotations

import asyncio
import io
import os
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asgifast
import pytest
from asgifast import ASGIFast, content_coding
from asgifast.loops import in_thread
from asgifast.messages import Message, Receive, Scope, Send
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.calls import recorded
from tests.support.decoders import Decoder, decoded
from tests.support.files import write_settled
from tests.support.http import Connection
from tests.support.process import open_descriptors
from tests.support.servers import LiveServer
from wsgifast import Compression
from wsgifast.compression import response as compression_response
from wsgifast.compression.codings import compressor
from wsgifast.files import compressed_copies

from .protocols import iterations
from .servers import servers_with
from .support import (
    Received,
    body,
    call,
    length,
    nothing,
    offering,
    pathsend,
    raising,
    recording,
    scope_of,
    sending,
    start_message,
    zerocopy,
)

TEXT = b"All work and no play makes Jack a dull boy.\n" * 200
ROWS = b"".join(b"%d,name %d,%d\n" % (n, n * 7919 % 97, n * 7) for n in range(600))
CODINGS = ("zstd", "br", "gzip")
CSV = (b"content-type", b"text/csv")


def ask(
    app: Any, coding: str = "gzip", *, method: str = "GET", options: Any = True, **headers: str
) -> tuple[Received, dict[str, str]]:
    scope = scope_of(method=method, accept_encoding=coding, **headers)
    response = call(ASGIFast(app, compress=options), scope)
    assert len(dict(response.headers)) == len(response.headers), response.headers
    return response, dict(response.headers)


BLOCKS = st.lists(
    st.sampled_from([b"", b"a", TEXT, TEXT[:70], b"\0" * 70_000, TEXT * 40]), max_size=6
)


@pytest.mark.parametrize("coding", CODINGS)
@given(blocks=BLOCKS, ends_apart=st.booleans(), declares=st.booleans(), waits=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_messages_decode_to_the_same(
    coding: str, blocks: list[bytes], ends_apart: bool, declares: bool, waits: bool
) -> None:
    whole = b"".join(blocks)
    messages = [body(block) for block in blocks]
    if ends_apart or not blocks:
        messages.append(body(b""))
    messages[-1]["more_body"] = False
    steps = [step for message in messages for step in ((None, message) if waits else (message,))]
    response, sent = ask(
        sending(start_message(CSV, *[length(len(whole))] * declares), *steps), coding
    )
    used = sent.get("content-encoding")
    assert used in (None, coding)
    assert decoded(used, response.body) == whole
    assert sent.get("content-length") in (None, str(len(response.body)))
    if used is not None:
        assert sent["vary"] == "Accept-Encoding"
    if len(whole) >= 1000:
        assert used == coding
    if len(whole) >= 1000 and len(blocks) == 1 and not ends_apart and not waits:
        assert sent["content-length"] == str(len(response.body))


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("declared", [False, True])
def test_each_event_leaves_before_the_next_is_made(coding: str, declared: bool) -> None:
    decoder = Decoder(coding)
    came: list[bytes] = []

    def on_send(message: Message) -> None:
        came.append(decoder.add(message.get("body", b"")))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message((b"content-type", b"text/plain"), *[length(50)] * declared))
        for number in range(5):
            await send(body(b"event %03d\n" % number))
            # asgifast delays a lone message for one iteration of the loop, or for a few.
            await iterations(40)
            assert b"".join(came) == b"".join(b"event %03d\n" % n for n in range(number + 1))
        await send(body(b"", False))

    options = Compression(min_bytes=0)
    call(ASGIFast(app, compress=options), scope_of(accept_encoding=coding), on_send=on_send)


def test_messages_of_one_iteration_share_a_flush() -> None:
    rows = [body(b"%d,%d\n" % (n, n * n)) for n in range(1000)]
    response, _ = ask(sending(start_message(CSV), *rows, body(b"", False)))
    assert len(response.messages) < 10
    assert len(response.body) < 10_000


def test_compressed_asgi_stream_that_fails_has_no_end() -> None:
    app = sending(start_message(CSV), body(TEXT), raising(RuntimeError, "midway"))
    sent: list[Message] = []
    with pytest.raises(RuntimeError, match="midway"):
        call(ASGIFast(app, compress=True), scope_of(accept_encoding="gzip"), on_send=sent.append)
    data = b"".join(message.get("body", b"") for message in sent)
    with pytest.raises(AssertionError):
        decoded("gzip", data)


def test_large_body_is_compressed_in_a_thread_in_order() -> None:
    large = TEXT * 400
    for messages in ([body(large, False)], [body(large), body(TEXT), body(large, False)]):
        response, headers = ask(sending(start_message(CSV), *messages), "zstd")
        expected = b"".join(message["body"] for message in messages)
        assert decoded(headers["content-encoding"], response.body) == expected


async def page(request: Request) -> Response:
    return Response(TEXT, media_type="text/html", headers={"ETag": '"abc"'})


def at_level(level: int, content: bytes) -> bytes:
    return compressor("br", level=level, size=len(content)).whole(content)


def get(content: bytes) -> Callable[[], Coroutine[Any, Any, bytes]]:
    """Return a function that requests an app of this body under ASGIFast."""
    options = Compression(padding=False)
    app = ASGIFast(sending(start_message(CSV), body(content, False)), compress=options)
    scope = scope_of(accept_encoding="br")

    async def one() -> bytes:
        response = Received()
        await app(dict(scope), pytest.fail, recording(response.messages))
        return response.body

    return one


def test_level_is_halved_in_a_long_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 0.003, 0.006, 0.009, 0.010, 100.0])
    monkeypatch.setattr(content_coding, "monotonic", lambda: next(clock))
    one = get(ROWS)

    async def several() -> list[bytes]:
        found = [*await asyncio.gather(one(), one(), one()), await one(), await one()]
        # The last message is compressed as if the loop had ended in this iteration.
        return [*found, await one()]

    assert asyncio.run(several()) == [at_level(n, ROWS) for n in (4, 4, 2, 4, 4, 4)]


def test_level_is_halved_while_all_processors_compress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_coding, "_PROCESSORS", 2)
    monkeypatch.setattr(content_coding, "_LONG_ITERATION_S", 60.0)

    async def slowly_in_thread(compress: Callable[[bytes], bytes], block: bytes) -> bytes:
        """No compression ends before all compressions have begun, even if a thread is quick."""
        await asyncio.sleep(0)
        return await in_thread(compress, block)

    monkeypatch.setattr(content_coding, "in_thread", slowly_in_thread)
    content = ROWS * 20
    one = get(content)

    async def several() -> list[bytes]:
        return [*await asyncio.gather(one(), one(), one(), one()), await one()]

    assert asyncio.run(several()) == [at_level(n, content) for n in (4, 4, 2, 2, 4)]


def test_head_omits_the_length_of_a_compressed_body() -> None:
    app = Starlette(routes=[Route("/", page)])
    response, headers = ask(app, "br")
    assert decoded("br", response.body) == TEXT
    response_to_head, head_headers = ask(app, "br", method="HEAD")
    assert response_to_head.body == b""
    assert head_headers == {k: v for k, v in headers.items() if k != "content-length"}


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("size", [100, 3000, 300_000])
def test_head_of_body_that_does_not_shrink_is_gets(size: int, declared: bool, coding: str) -> None:
    content = random.Random(size).randbytes(size)
    given = [CSV, (b"etag", b'"abc"'), (b"accept-ranges", b"bytes"), *[length(size)] * declared]
    app = sending(start_message(*given), body(content, False))
    response, headers = ask(app, coding)
    assert response.body == content
    assert headers.get("etag") == '"abc"'
    response_to_head, head_headers = ask(app, coding, method="HEAD")
    assert (response_to_head.body, head_headers) == (b"", headers)


@pytest.mark.parametrize("content", [b"", TEXT[:2000]])
def test_head_without_the_body_of_get_omits_its_coding(content: bytes) -> None:
    app = sending(start_message(CSV, (b"etag", b'"abc"'), length(len(TEXT))), body(content, False))
    response, headers = ask(app, method="HEAD")
    assert response.body == b""
    assert headers == {"content-type": "text/csv", "vary": "Accept-Encoding"}


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_file_behind_a_message_is_compressed_with_it(tmp_path: Path, coding: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(TEXT)
    with file.open("rb") as opened:
        run = zerocopy(opened, more_body=True)
        app = sending(start_message(CSV), body(b"<1>"), run, body(b"</1>", False))
        response, headers = ask(app, coding)
    assert decoded(headers.get("content-encoding"), response.body) == b"<1>" + TEXT + b"</1>"


# Files


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_settled(tmp_path / "text.txt", TEXT * 10)


def apps(text: Path) -> list[Any]:
    async def starlettes(request: Request) -> Response:
        return FileResponse(text)

    async def ours(request: Request) -> Response:
        return asgifast.FileResponse(text)

    return [
        Starlette(routes=[Route("/", starlettes)]),
        Starlette(routes=[Route("/", ours)]),
        sending(start_message((b"content-type", b"text/plain")), pathsend(str(text))),
    ]


def test_headers_claim_no_coding_if_the_app_codes(text: Path) -> None:
    """GZipMiddleware gets no file bytes in a response to HEAD. It changes no header then."""
    app = apps(text)[0]
    app.add_middleware(GZipMiddleware)
    assert ask(app, "gzip, zstd")[1]["content-encoding"] == "gzip"
    assert "content-encoding" not in ask(app, "gzip, zstd", method="HEAD")[1]


@pytest.mark.parametrize("kind", [b"text/plain", b"image/png"])
def test_file_without_compressed_copy_goes_to_server(text: Path, kind: bytes) -> None:
    """The file is too large for a compressed copy, or of a type without compression."""
    if kind == b"text/plain":
        os.truncate(text, compressed_copies.MAX_FILE_BYTES + 1)
    app = sending(start_message((b"content-type", kind)), pathsend(str(text)))
    scope = offering("http.response.pathsend", accept_encoding="gzip")
    assert call(ASGIFast(app, compress=True), scope).messages[-1]["path"] == str(text)


# Return the messages of a body, by its kind.
SHAPES: dict[str, Callable[[Path, io.BufferedReader], list[Any]]] = {
    "file": lambda path, file: [pathsend(path)],
    "new file, which has no copy": lambda path, file: [
        lambda: path.write_bytes(TEXT),
        pathsend(path),
    ],
    "open file": lambda path, file: [zerocopy(file)],
    "message": lambda path, file: [body(TEXT, False)],
    "messages": lambda path, file: [body(TEXT), body(TEXT, False)],
}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("coding", ["gzip", "identity"])
@pytest.mark.parametrize("kind", [b"text/plain", b"image/png"])
@pytest.mark.parametrize("shape", SHAPES)
def test_compression_is_decided_once(
    shape: str, kind: bytes, coding: str, method: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = recorded(monkeypatch, compression_response, "decide")
    with text.open("rb") as file:
        app = sending(start_message((b"content-type", kind)), *SHAPES[shape](text, file))
        ask(app, coding, method=method)
    assert len(decisions) == 1


async def test_hundred_requests_compress_once_off_the_loop(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorded(
        monkeypatch, compressed_copies, "compressor", lambda *_, **__: threading.current_thread()
    )
    sent: list[Message] = []

    async def one() -> None:
        await wrapped(scope_of(accept_encoding="br"), nothing, recording(sent))

    for app in apps(text):
        wrapped = ASGIFast(app, compress=True)
        await asyncio.gather(*(one() for _ in range(100)))
    assert len(made) == 1
    assert made[0] is not threading.main_thread()
    bodies = {message.get("body", b"") for message in sent} - {b""}
    assert {decoded("br", body) for body in bodies} == {TEXT * 10}


def test_descriptors_of_compressed_files_are_closed(text: Path) -> None:
    before = open_descriptors()
    for app in apps(text):
        for coding in ("identity", "gzip"):
            ask(app, coding)
            ask(app, coding, method="HEAD")
    assert open_descriptors() <= before


# An app for live servers.


async def rows(request: Request) -> Response:
    async def made() -> Any:
        for number in range(3000):
            yield b"%d,%d\n" % (number, number * number)

    return StreamingResponse(made(), media_type="text/csv")


async def data(request: Request) -> Response:
    return JSONResponse([{"id": number, "name": "name"} for number in range(3000)])


async def file(request: Request) -> Response:
    return FileResponse(__file__, media_type="text/plain")


live = ASGIFast(
    Starlette(
        routes=[
            Route("/data", data), Route("/rows", rows), Route("/page", page), Route("/file", file),
        ]
    ),
    compress=True,
)  # fmt: skip


server = servers_with(
    "tests.asgi.test_compress:live",
    ["uvicorn-httptools-uvloop", "uvicorn-h11-asyncio", "ours-httptools-uvloop",
     "ours-h11-asyncio", "hypercorn-asyncio", "hypercorn-trio", "daphne"],
)  # fmt: skip


@pytest.mark.long
def test_live_responses_decode_to_the_same(server: LiveServer) -> None:
    with Connection(server.address) as connection:
        for target in ("/data", "/rows", "/page", "/file", "/data"):
            plain = connection.request(target, headers=[("Accept-Encoding", "identity")])
            for coding in CODINGS:
                for _ in range(2):
                    response = connection.request(target, headers=[("Accept-Encoding", coding)])
                    used = response.header("Content-Encoding")
                    assert decoded(used, response.body) == plain.body, (target, coding)
                    assert response.header("Vary") == "Accept-Encoding", target
                    if target != "/file":
                        assert used == coding, target
                        assert len(response.body) < len(plain.body) / 2

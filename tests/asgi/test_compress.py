"""ASGIFast(app, compress=True): what the client gets, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from asgifast import ASGIFast, content_coding
from asgifast.messages import Message, Receive, Scope, Send
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.coded import Decoder, decoded
from tests.support.http import Connection
from tests.support.servers import LiveServer
from wsgifast import Compression, compress_response
from wsgifast.compression.codings import compressor

from .messages import body, head, pathsend
from .servers import asgi_server
from .support import Answer, call, scope_of

TEXT = b"All work and no play makes Jack a dull boy.\n" * 200
ROWS = b"".join(b"%d,name %d,%d\n" % (n, n * 7919 % 97, n * 7) for n in range(600))
CODINGS = ("zstd", "br", "gzip")
CSV = (b"content-type", b"text/csv")


def sending(*messages: Message) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(dict(message))

    return app


def ask(
    app: Any, coding: str = "gzip", *, method: str = "GET", options: Any = True, **headers: str
) -> tuple[Answer, dict[str, str]]:
    scope = scope_of(method=method, accept_encoding=coding, **headers)
    answer = call(ASGIFast(app, compress=options), scope)
    assert len(dict(answer.headers)) == len(answer.headers), answer.headers
    return answer, dict(answer.headers)


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
    headers = [CSV, *([(b"content-length", b"%d" % len(whole))] if declares else [])]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head(*headers))
        for index, block in enumerate(blocks):
            if waits:
                for _ in range(4):
                    await asyncio.sleep(0)
            await send(body(block, ends_apart or index < len(blocks) - 1))
        if ends_apart or not blocks:
            await send(body(b"", False))

    answer, sent = ask(app, coding)
    used = sent.get("content-encoding")
    assert used in (None, coding)
    assert decoded(used, answer.body) == whole
    assert sent.get("content-length") in (None, str(len(answer.body)))
    if used is not None:
        assert sent["vary"] == "Accept-Encoding"
    if len(whole) >= 1000:
        assert used == coding
    if len(whole) >= 1000 and len(blocks) == 1 and not ends_apart and not waits:
        assert sent["content-length"] == str(len(answer.body))


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("declared", [False, True])
def test_each_event_leaves_before_the_next_is_made(coding: str, declared: bool) -> None:
    decoder = Decoder(coding)
    came: list[bytes] = []

    def on_send(message: Message) -> None:
        came.append(decoder.add(message.get("body", b"")))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        size = [(b"content-length", b"50")] if declared else []
        await send(head((b"content-type", b"text/plain"), *size))
        for number in range(5):
            await send(body(b"event %03d\n" % number))
            # asgifast holds a lone message for a turn of the loop, or for a few.
            for _ in range(40):
                await asyncio.sleep(0)
            assert b"".join(came) == b"".join(b"event %03d\n" % n for n in range(number + 1))
        await send(body(b"", False))

    options = Compression(min_bytes=0)
    call(ASGIFast(app, compress=options), scope_of(accept_encoding=coding), on_send=on_send)


def test_messages_of_one_turn_share_a_flush() -> None:
    rows = [body(b"%d,%d\n" % (n, n * n)) for n in range(1000)]
    answer, _ = ask(sending(head(CSV), *rows, body(b"", False)))
    assert len(answer.messages) < 10
    assert len(answer.body) < 10_000


def test_stream_that_fails_has_no_end() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head(CSV))
        await send(body(TEXT))
        raise RuntimeError("midway")

    sent: list[Message] = []
    with pytest.raises(RuntimeError, match="midway"):
        call(ASGIFast(app, compress=True), scope_of(accept_encoding="gzip"), on_send=sent.append)
    data = b"".join(message.get("body", b"") for message in sent)
    with pytest.raises(AssertionError):
        decoded("gzip", data)


def test_small_or_refused_is_sent_as_it_is() -> None:
    for coding in ("identity", "deflate", "gzip;q=0"):
        answer, headers = ask(sending(head(CSV), body(TEXT, False)), coding)
        assert answer.body == TEXT
        assert headers["vary"] == "Accept-Encoding"
    answer, headers = ask(sending(head(CSV), body(b"short", False)))
    assert answer.body == b"short"
    assert "vary" not in headers
    noise = random.Random(1).randbytes(5000)
    answer, headers = ask(sending(head(CSV, (b"etag", b'"n"')), body(noise, False)))
    assert (answer.body, headers["etag"]) == (noise, '"n"')


def test_large_body_is_compressed_in_a_thread_and_stays_in_order() -> None:
    large = TEXT * 400
    for messages in ([body(large, False)], [body(large), body(TEXT), body(large, False)]):
        answer, headers = ask(sending(head(CSV), *messages), "zstd")
        expected = b"".join(message["body"] for message in messages)
        assert decoded(headers["content-encoding"], answer.body) == expected


async def page(request: Request) -> Response:
    response = Response(TEXT, media_type="text/html", headers={"ETag": '"abc"'})
    if request.headers.get("if-none-match") == '"abc"':
        return Response(status_code=304, headers={"ETag": '"abc"'})
    if request.headers.get("if-match") not in (None, '"abc"'):
        return Response(status_code=412)
    return response


def at_level(level: int, content: bytes) -> bytes:
    return compressor("br", level=level, size=len(content)).whole(content)


def asked(content: bytes) -> Callable[[], Coroutine[Any, Any, bytes]]:
    """An app of this body under ASGIFast: a function that requests it."""
    options = Compression(padding=False)
    app = ASGIFast(sending(head(CSV), body(content, False)), compress=options)
    scope = scope_of(accept_encoding="br")

    async def one() -> bytes:
        sent = bytearray()

        async def send(message: Message) -> None:
            sent.extend(message.get("body", b""))

        await app(dict(scope), pytest.fail, send)
        return bytes(sent)

    return one


def test_level_is_halved_for_the_rest_of_a_turn_that_compresses_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 0.003, 0.006, 0.009, 0.010, 100.0])
    monkeypatch.setattr(content_coding, "monotonic", lambda: next(clock))
    one = asked(ROWS)

    async def several() -> list[bytes]:
        found = [*await asyncio.gather(one(), one(), one()), await one(), await one()]
        return [*found, await one()]  # the last one as if an event loop had ended within a turn

    assert asyncio.run(several()) == [at_level(n, ROWS) for n in (4, 4, 2, 4, 4, 4)]


def test_level_is_halved_while_every_processor_compresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_coding, "_PROCESSORS", 2)
    monkeypatch.setattr(content_coding, "_LONG_TURN_S", 60.0)
    content = ROWS * 20
    one = asked(content)

    async def several() -> list[bytes]:
        return [*await asyncio.gather(one(), one(), one(), one()), await one()]

    assert asyncio.run(several()) == [at_level(n, content) for n in (4, 4, 2, 2, 4)]


def test_head_and_conditions_of_an_app() -> None:
    app = Starlette(routes=[Route("/", page)])
    answer, headers = ask(app, "br")
    assert decoded("br", answer.body) == TEXT
    assert headers["etag"] == 'W/"abc+br"'
    head_answer, head_headers = ask(app, "br", method="HEAD")
    assert head_answer.body == b""
    omitted = {"content-length", "content-encoding", "etag"}
    assert head_headers == {k: v for k, v in headers.items() if k not in omitted}
    answer, headers = ask(app, "br", if_none_match='W/"abc+br"')
    assert (answer.status, headers["etag"], headers["vary"]) == (
        304, 'W/"abc+br"', "Accept-Encoding",
    )  # fmt: skip
    assert ask(app, "gzip", if_none_match='W/"abc+br"')[0].status == 200
    assert ask(app, "gzip", if_match='W/"abc+br"')[0].status == 200
    assert ask(app, "gzip", if_match='W/"abd+br"')[0].status == 412


def test_app_decides_for_one_response() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        compress_response({**scope}, scope["path"] == "/yes")  # as a mount has it
        await send(head((b"content-type", b"application/octet-stream")))
        await send(body(TEXT, False))

    wrapped = ASGIFast(app, compress=True)
    for path, coded in (("/yes", True), ("/no", False)):
        answer = call(wrapped, scope_of(path, accept_encoding="gzip"))
        assert ("content-encoding" in dict(answer.headers)) is coded


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_file_behind_a_message_is_compressed_with_it(tmp_path: Path, coding: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(TEXT)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head(CSV))
        await send(body(b"<1>"))
        with file.open("rb") as opened:
            await send({"type": "http.response.zerocopysend", "file": opened, "more_body": True})
        await send(body(b"</1>", False))

    answer, headers = ask(app, coding)
    assert decoded(headers.get("content-encoding"), answer.body) == b"<1>" + TEXT + b"</1>"


def test_file_alone_decodes_to_the_same(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_bytes(TEXT * 50)
    answer, headers = ask(sending(head((b"content-type", b"text/plain")), pathsend(str(file))))
    assert decoded(headers.get("content-encoding"), answer.body) == TEXT * 50
    assert headers["vary"] == "Accept-Encoding"


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


@pytest.fixture(
    scope="module",
    params=["uvicorn-httptools-uvloop", "uvicorn-h11-asyncio", "ours-httptools-uvloop",
            "ours-h11-asyncio", "hypercorn-asyncio", "hypercorn-trio", "daphne"],
)  # fmt: skip
def live_server(request: pytest.FixtureRequest, files: Path) -> Any:
    with asgi_server(request.param, "tests.asgi.test_compress:live", files) as server:
        yield server


@pytest.mark.long
def test_live_answers_decode_to_the_same(live_server: LiveServer) -> None:
    with Connection(live_server.address) as connection:
        for target in ("/data", "/rows", "/page", "/file", "/data"):
            plain = connection.request(target, headers=[("Accept-Encoding", "identity")])
            for coding in CODINGS:
                for _ in range(2):
                    answer = connection.request(target, headers=[("Accept-Encoding", coding)])
                    used = answer.header("Content-Encoding")
                    assert decoded(used, answer.body) == plain.body, (target, coding)
                    assert answer.header("Vary") == "Accept-Encoding", target
                    if target != "/file":
                        assert used == coding, target
                        assert len(answer.body) < len(plain.body) / 2
